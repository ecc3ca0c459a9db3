use super::*;

#[test]
fn a_send_fills_a_receive() {
    let link = Link::automatic();
    let (from, to) = (link.left.memory(4, 0), link.right.memory(4, LOCAL));
    from.set(b"hello, world");
    link.right.receive(link.b, 7, &[to.sge(3, 20)]);
    assert!(link.left.poll().is_empty());
    link.left.send(link.a, Request::send(8, &[from.sge(0, 12)]));

    let [sent] = link.left.poll()[..] else { panic!("one completion") };
    assert_eq!((sent.wr_id, sent.status, sent.opcode), (8, SUCCESS, ibv_wc_opcode::IBV_WC_SEND));
    assert_eq!(sent.qp_num, link.a.qpn());
    let [received] = link.right.poll()[..] else { panic!("one completion") };
    assert_eq!((received.wr_id, received.status, received.opcode), (7, SUCCESS, ibv_wc_opcode::IBV_WC_RECV));
    assert_eq!((received.byte_len, received.wc_flags, received.qp_num), (12, 0, link.b.qpn()));
    assert_eq!(to.get(16), b"\0\0\0hello, world\0");
}

#[test]
fn messages_are_gathered_and_scattered_over_all_kinds_of_memory() {
    let link = Link::automatic();
    for (from_access, to_access) in [(0, LOCAL), (READ, LOCAL), (0, ALL), (READ, ALL)] {
        let (from, to) = (link.left.memory(200, from_access), link.right.memory(200, to_access));
        let bytes: Vec<u8> = (0..1600).map(|i| (i * 7) as u8).collect();
        from.set(&bytes);
        let (one, two, three) = (from.sge(1, 1), from.sge(100, 0), from.sge(5, 1301));
        // The soft device keeps at most four entries in the request itself. For these six it needs a vector.
        let into = [to.sge(1599, 1), to.sge(3, 2), to.sge(8, 8), to.sge(17, 700), to.sge(800, 1), to.sge(801, 798)];
        link.right.receive(link.b, 1, &into);
        assert_eq!(link.status(Request::send(2, &[one, two, three])), SUCCESS);
        assert_eq!(link.right.poll()[0].byte_len, 1302);
        let mut expected = vec![0_u8; 1600];
        let message: Vec<u8> = [&bytes[1..2], &bytes[5..1306]].concat();
        let mut rest = &message[..];
        for (offset, len) in [(1599, 1), (3, 2), (8, 8), (17, 700), (800, 1), (801, 590)] {
            expected[offset..offset + len].copy_from_slice(&rest[..len]);
            rest = &rest[len..];
        }
        assert!(rest.is_empty());
        assert_eq!(to.get(1600), expected);
    }
}

#[test]
fn immediate_data_arrives_in_network_order() {
    let link = Link::automatic();
    link.right.receive(link.b, 1, &[]);
    assert_eq!(link.status(Request::send(2, &[]).immediate(0x0102_0304)), SUCCESS);
    let received = link.right.poll()[0];
    assert_eq!(received.wc_flags, ibv_wc_flags::IBV_WC_WITH_IMM.0);
    // SAFETY: the completion has immediate data, as its flag says (checked above).
    assert_eq!(u32::from_be(unsafe { received.__bindgen_anon_1.imm_data }), 0x0102_0304);
    assert_eq!((received.byte_len, received.opcode), (0, ibv_wc_opcode::IBV_WC_RECV));
}

#[test]
fn a_write_takes_no_receive() {
    let link = Link::automatic();
    let (from, to) = (link.left.memory(2, 0), link.right.memory(4, ALL));
    from.set(b"0123456789abcdef");
    link.right.receive(link.b, 1, &[]);
    assert_eq!(link.status(Request::write(2, &[from.sge(3, 9)], &to, 5)), SUCCESS);
    assert!(link.right.poll().is_empty());
    assert_eq!(to.get(16), [&[0; 5][..], b"3456789ab", &[0; 2]].concat());
    assert_eq!(link.status(Request::send(3, &[])), SUCCESS);
    assert_eq!(link.right.completed(), [(1, SUCCESS)]);
}

#[test]
fn a_write_with_immediate_takes_a_receive_and_not_its_buffer() {
    let link = Link::automatic();
    let (from, to) = (link.left.memory(2, 0), link.right.memory(4, ALL));
    let untouched = link.right.memory(2, 0);
    from.set(b"0123456789");
    link.right.receive(link.b, 1, &[untouched.sge(0, 16)]);
    assert_eq!(link.status(Request::write(2, &[from.sge(0, 10)], &to, 8).immediate(9)), SUCCESS);
    let received = link.right.poll()[0];
    assert_eq!((received.wr_id, received.byte_len), (1, 10));
    assert_eq!(received.opcode, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM);
    assert_eq!(received.wc_flags, ibv_wc_flags::IBV_WC_WITH_IMM.0);
    assert_eq!(to.get(18), [&[0; 8][..], b"0123456789"].concat());
    assert_eq!(untouched.get(16), [0; 16]);
}

#[test]
fn a_read_fetches() {
    let link = Link::automatic();
    let (to, from) = (link.left.memory(4, LOCAL), link.right.memory(4, READ));
    from.set(b"0123456789abcdef");
    link.left.send(link.a, Request::read(1, &[to.sge(1, 2), to.sge(8, 5)], &from, 3));
    let read = link.left.poll()[0];
    assert_eq!((read.status, read.opcode, read.byte_len), (SUCCESS, ibv_wc_opcode::IBV_WC_RDMA_READ, 7));
    assert_eq!(to.get(14), [&[0][..], b"34", &[0; 5], b"56789", &[0]].concat());
}

#[test]
fn atomics_give_what_was_there() {
    let link = Link::automatic();
    let (result, word) = (link.left.memory(1, LOCAL), link.right.memory(2, ALL));
    let value = |region: &Region| u64::from_ne_bytes(region.get(8).try_into().unwrap());
    word.set(&u64::MAX.to_ne_bytes());

    link.left.send(link.a, Request::add(1, &[result.sge(0, 8)], &word, 0, 3));
    let added = link.left.poll()[0];
    assert_eq!((added.status, added.opcode, added.byte_len), (SUCCESS, ibv_wc_opcode::IBV_WC_FETCH_ADD, 8));
    assert_eq!((value(&result), value(&word)), (u64::MAX, 2));

    link.left.send(link.a, Request::swap(2, &[result.sge(0, 8)], &word, 1, 50));
    assert_eq!(link.left.poll()[0].opcode, ibv_wc_opcode::IBV_WC_COMP_SWAP);
    assert_eq!((value(&result), value(&word)), (2, 2));
    assert_eq!(link.status(Request::swap(3, &[result.sge(0, 8)], &word, 2, 50)), SUCCESS);
    assert_eq!((value(&result), value(&word)), (2, 50));
}

#[test]
fn inline_data_is_taken_when_posted() {
    let link = Link::manual();
    let to = link.right.memory(2, LOCAL);
    let mut data = *b"early";
    let addr = data.as_mut_ptr().expose_provenance() as u64;
    link.right.receive(link.b, 1, &[to.sge(0, 16)]);
    let sge = ibv_sge { addr, length: 5, lkey: 0xdead };
    link.left.send(link.a, Request::send(2, &[sge]).flag(ibv_send_flags::IBV_SEND_INLINE));
    // SAFETY: `data` has 5 bytes, and nobody else uses them now.
    unsafe { ptr::copy(b"late!".as_ptr(), &raw mut data as *mut u8, 5) };
    link.fabric.run();
    assert_eq!(link.left.completed(), [(2, SUCCESS)]);
    assert_eq!(to.get(5), b"early");
}

#[test]
fn inline_has_its_limits() {
    let link = Link::automatic();
    let region = link.left.memory(16, LOCAL);
    let inline = |request: Request| link.left.try_send(link.a, request.flag(ibv_send_flags::IBV_SEND_INLINE));
    link.right.receive(link.b, 0, &[link.right.memory(8, LOCAL).sge(0, 64)]);
    assert_eq!(inline(Request::send(1, &[region.sge(0, 64)])), 0);
    assert_eq!(inline(Request::send(1, &[region.sge(0, 65)])), libc::EINVAL);
    assert_eq!(inline(Request::read(1, &[region.sge(0, 8)], &region, 0)), libc::EINVAL);
}

#[test]
fn nothing_is_checked_for_no_bytes() {
    let link = Link::automatic();
    let bad = |request: Request| request.at(0, 0xdead);
    let region = link.right.memory(1, ALL);
    assert_eq!(link.status(bad(Request::write(1, &[], &region, 0))), SUCCESS);
    assert_eq!(link.status(bad(Request::read(2, &[], &region, 0))), SUCCESS);
    let unknown = ibv_sge { addr: 1, length: 0, lkey: 2 };
    assert_eq!(link.status(bad(Request::write(3, &[unknown], &region, 0))), SUCCESS);
}

#[test]
fn a_pair_can_be_connected_to_itself() {
    let fabric = Fabric::new();
    let node = Node::new(&fabric, "one");
    let pair = node.pair();
    pair.connect(pair);
    for access in [LOCAL, ALL] {
        let region = node.memory(4, access);
        region.set(b"0123456789");
        // Source and target overlap.
        node.receive(pair, 1, &[region.sge(2, 10)]);
        node.send(pair, Request::send(2, &[region.sge(0, 10)]));
        assert_eq!(node.completed(), [(1, SUCCESS), (2, SUCCESS)]);
        assert_eq!(region.get(12), b"010123456789");
    }
    // The pair is its own peer. As the responder it refuses the write and enters Error. So both its queues are flushed,
    // and the write itself is flushed too.
    node.receive(pair, 3, &[]);
    node.send(pair, Request::write(4, &[node.memory(1, 0).sge(0, 8)], &node.memory(1, 0), 0));
    assert_eq!(node.completed(), [(4, FLUSHED), (3, FLUSHED)]);
    assert_eq!(pair.state(), ERR);
}

#[test]
fn packet_numbers_go_on_over_messages_of_many_packets() {
    let link = Link::automatic();
    let (from, to) = (link.left.memory(1024, 0), link.right.memory(1024, ALL));
    let local = link.left.memory(1024, LOCAL);
    for id in 0..4 {
        assert_eq!(link.status(Request::write(id, &[from.sge(0, 8000)], &to, 0)), SUCCESS);
        assert_eq!(link.status(Request::read(id, &[local.sge(0, 5000)], &to, 0)), SUCCESS);
        assert_eq!(link.status(Request::add(id, &[local.sge(0, 8)], &to, 0, 1)), SUCCESS);
    }
    // Each of the four rounds has 8 + 5 + 1 packets. The first packet has the number 0xfffffe, so the numbers wrap
    // around.
    assert_eq!(link.a.query().sq_psn, 4 * 14 - 2);
    assert_eq!(link.b.query().rq_psn, 4 * 14 - 2);
}

#[test]
fn devices_of_two_fabrics_do_not_meet() {
    let (one, other) = (Link::automatic(), Link::automatic());
    // The pairs of the two fabrics have the same numbers and addresses, but no packet goes from one fabric to the
    // other.
    assert_eq!((one.a.qpn(), one.b.gid), (other.a.qpn(), other.b.gid));
    other.right.receive(other.b, 1, &[]);
    one.right.receive(one.b, 2, &[]);
    assert_eq!(one.status(Request::send(3, &[])), SUCCESS);
    assert!(other.right.poll().is_empty());
    assert_eq!(one.right.completed(), [(2, SUCCESS)]);
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn two_threads_may_post_and_poll_at_once() {
    const COUNT: u64 = 2000;
    struct Both(Link);
    // SAFETY: below, one thread uses only the left node, and the other thread only the right node.
    unsafe impl Sync for Both {}
    let both = Both(Link::with(Fabric::new(), Settings { rnr_retry: 7, ..SETTINGS }, SETTINGS));
    let both = &both;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let Link { left, a, .. } = &both.0;
            let from = left.memory(1, 0);
            let mut done = 0;
            for id in 0..COUNT {
                while left.try_send(*a, Request::send(id, &[from.sge(0, 8)])) != 0 {
                    done += left.poll().len() as u64;
                }
            }
            while done < COUNT {
                done += left.poll().len() as u64;
            }
        });
        let Link { right, b, .. } = &both.0;
        let to = right.memory(1, LOCAL);
        let mut received = 0;
        let mut posted = 0;
        while received < COUNT {
            while posted < COUNT && right.try_receive(*b, posted, &[to.sge(0, 8)]) == 0 {
                posted += 1;
            }
            for (id, status) in right.completed() {
                assert_eq!((id, status), (received, SUCCESS));
                received += 1;
            }
        }
    });
}
