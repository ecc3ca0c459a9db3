use super::*;
use ibv_wc_status as S;

/// Sends `request`. Returns the status and the state of the requester, then those of the receive and the responder.
fn outcome(link: &Link, request: Request) -> (S, ibv_qp_state, Option<S>, ibv_qp_state) {
    let status = link.status(request);
    (status, link.a.state(), link.right.poll().first().map(|wc| wc.status), link.b.state())
}

/// Like `outcome`, on a new link whose responder has a receive of 16 bytes.
fn fault(request: impl FnOnce(&Link) -> Request) -> (S, ibv_qp_state, Option<S>, ibv_qp_state) {
    let link = Link::automatic();
    link.right.receive(link.b, 1, &[link.right.memory(2, LOCAL).sge(0, 16)]);
    let request = request(&link);
    outcome(&link, request)
}

/// A second protection domain on a node's context, for one region. The node does not free it, so the test must.
fn other_domain(node: &Node) -> NonNull<ibv_pd> {
    // SAFETY: the context is open.
    unsafe { Soft.alloc_pd(node.context) }.unwrap()
}

#[test]
fn row_1_and_3_a_bad_local_key_or_range() {
    let local = (S::IBV_WC_LOC_PROT_ERR, ERR, None, RTS);
    let wrong = |link: &Link| ibv_sge { lkey: 0xdead, ..link.left.memory(1, 0).sge(0, 8) };
    assert_eq!(fault(|link| Request::send(1, &[wrong(link)])), local);
    assert_eq!(fault(|link| Request::write(1, &[wrong(link)], &link.right.memory(1, ALL), 0)), local);
    assert_eq!(fault(|link| Request::send(1, &[link.left.memory(1, 0).sge(0, 9)])), local);
    assert_eq!(fault(|link| Request::send(1, &[link.left.memory(1, 0).sge(u64::MAX - 3, 8)])), local);
    let remote_key = |link: &Link| {
        let region = link.left.memory(1, ALL);
        ibv_sge { lkey: region.rkey(), ..region.sge(0, 8) }
    };
    assert_eq!(fault(|link| Request::send(1, &[remote_key(link)])), local);
}

#[test]
fn row_2_a_local_key_of_another_domain() {
    let link = Link::automatic();
    let domain = other_domain(&link.left);
    let region = link.left.register_in(domain, 1, ALL).unwrap();
    link.right.receive(link.b, 1, &[]);
    assert_eq!(outcome(&link, Request::send(1, &[region.sge(0, 1)])), (S::IBV_WC_LOC_PROT_ERR, ERR, None, RTS));
    link.left.deregister(&region).unwrap();
    // SAFETY: the domain is alive, and nobody uses it any more.
    unsafe { Soft.dealloc_pd(domain) }.unwrap();
}

#[test]
fn row_5_a_bad_receive() {
    for bad in 0..3 {
        let link = Link::automatic();
        let domain = other_domain(&link.right);
        let sge = match bad {
            0 => ibv_sge { lkey: 0xdead, ..link.right.memory(1, LOCAL).sge(0, 8) },
            1 => link.right.memory(1, 0).sge(0, 8),
            _ => link.right.register_in(domain, 1, LOCAL).unwrap().sge(0, 8),
        };
        link.right.receive(link.b, 1, &[sge]);
        link.right.receive(link.b, 2, &[]);
        let request = Request::send(3, &[link.left.memory(1, 0).sge(0, 8)]);
        assert_eq!(link.status(request), S::IBV_WC_REM_OP_ERR);
        assert_eq!(link.right.completed(), [(1, S::IBV_WC_LOC_PROT_ERR), (2, FLUSHED)]);
        assert_eq!((link.a.state(), link.b.state()), (ERR, ERR));
        let regions: Vec<Region> = link.right.regions.borrow().clone();
        for region in regions {
            link.right.deregister(&region).unwrap();
        }
        // SAFETY: the domain is alive, and nobody uses it any more.
        unsafe { Soft.dealloc_pd(domain) }.unwrap();
    }
}

#[test]
fn row_6_a_receive_that_is_too_small() {
    let result = fault(|link| Request::send(1, &[link.left.memory(3, 0).sge(0, 17)]));
    assert_eq!(result, (S::IBV_WC_REM_INV_REQ_ERR, ERR, Some(S::IBV_WC_LOC_LEN_ERR), ERR));
}

#[test]
fn row_7_no_receive_and_no_patience() {
    let link = Link::with(Fabric::new(), Settings { rnr_retry: 0, ..SETTINGS }, SETTINGS);
    assert_eq!(outcome(&link, Request::send(1, &[])), (S::IBV_WC_RNR_RETRY_EXC_ERR, ERR, None, RTS));
}

#[test]
fn row_8_10_15_a_bad_remote_key_range_or_right() {
    // The refusal of the request moves the responder to Error, and that flushes the responder's receive.
    let remote = (S::IBV_WC_REM_ACCESS_ERR, ERR, Some(FLUSHED), ERR);
    let data = |link: &Link| link.left.memory(2, LOCAL).sge(0, 8);
    assert_eq!(fault(|link| Request::write(1, &[data(link)], &link.right.memory(1, ALL), 0).at(0, 1)), remote);
    assert_eq!(fault(|link| Request::write(1, &[data(link)], &link.right.memory(1, ALL), 1)), remote);
    assert_eq!(fault(|link| Request::write(1, &[data(link)], &link.right.memory(1, ALL), u64::MAX - 7)), remote);
    assert_eq!(fault(|link| Request::write(1, &[data(link)], &link.right.memory(1, LOCAL | READ), 0)), remote);
    assert_eq!(fault(|link| Request::read(1, &[data(link)], &link.right.memory(1, LOCAL | WRITE), 0)), remote);
    assert_eq!(fault(|link| Request::add(1, &[data(link)], &link.right.memory(1, READ), 0, 1)), remote);
    let local_key = |link: &Link| {
        let region = link.right.memory(1, ALL);
        Request::write(1, &[data(link)], &region, 0).at(region.addr(), region.lkey())
    };
    assert_eq!(fault(local_key), remote);
    let own = |link: &Link| Request::write(1, &[data(link)], &link.left.memory(1, ALL), 0);
    assert_eq!(fault(own), remote, "a key of another device");
}

#[test]
fn row_8_a_write_past_the_end_writes_nothing() {
    let link = Link::automatic();
    let (from, to) = (link.left.memory(4, 0), link.right.memory(2, ALL));
    from.set(&[9; 32]);
    assert_eq!(link.status(Request::write(1, &[from.sge(0, 17)], &to, 0)), S::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(to.get(16), [0; 16]);
}

#[test]
fn row_8_a_remote_key_of_another_domain() {
    let link = Link::automatic();
    let domain = other_domain(&link.right);
    let region = link.right.register_in(domain, 1, ALL).unwrap();
    let request = Request::write(1, &[link.left.memory(1, 0).sge(0, 8)], &region, 0);
    assert_eq!(link.status(request), S::IBV_WC_REM_ACCESS_ERR);
    link.right.deregister(&region).unwrap();
    // SAFETY: the domain is alive, and nobody uses it any more.
    unsafe { Soft.dealloc_pd(domain) }.unwrap();
}

#[test]
fn row_9_11_16_a_pair_that_does_not_permit_it() {
    type Make = fn(&[ibv_sge], &Region) -> Request;
    let makes: [(u32, Make); 3] = [
        (WRITE, |sges, to| Request::write(1, sges, to, 0)),
        (READ, |sges, to| Request::read(1, sges, to, 0)),
        (ATOMIC, |sges, to| Request::add(1, sges, to, 0, 1)),
    ];
    for (right, make) in makes {
        let link = Link::with(Fabric::new(), SETTINGS, Settings { access: ALL & !right, ..SETTINGS });
        let request = make(&[link.left.memory(1, LOCAL).sge(0, 8)], &link.right.memory(1, ALL));
        assert_eq!(outcome(&link, request), (S::IBV_WC_REM_INV_REQ_ERR, ERR, None, ERR));
    }
}

#[test]
fn row_12_a_read_to_where_it_may_not_write() {
    let local = (S::IBV_WC_LOC_PROT_ERR, ERR, None, RTS);
    let from = |link: &Link| link.right.memory(1, READ);
    assert_eq!(fault(|link| Request::read(1, &[link.left.memory(1, READ).sge(0, 8)], &from(link), 0)), local);
    let unknown = ibv_sge { addr: 8, length: 8, lkey: 0 };
    assert_eq!(fault(|link| Request::read(1, &[unknown], &from(link), 0)), local);
}

#[test]
fn row_13_and_14_no_room_for_reads() {
    let read = |link: &Link| Request::read(1, &[link.left.memory(1, LOCAL).sge(0, 8)], &link.right.memory(1, ALL), 0);
    let add = |link: &Link| Request::add(1, &[link.left.memory(1, LOCAL).sge(0, 8)], &link.right.memory(1, ALL), 0, 1);
    for request in [read, add] {
        let link = Link::with(Fabric::new(), SETTINGS, Settings { max_dest_rd_atomic: 0, ..SETTINGS });
        assert_eq!(outcome(&link, request(&link)), (S::IBV_WC_REM_INV_REQ_ERR, ERR, None, ERR));
        let link = Link::with(Fabric::new(), Settings { max_rd_atomic: 0, ..SETTINGS }, SETTINGS);
        assert_eq!(outcome(&link, request(&link)), (S::IBV_WC_LOC_QP_OP_ERR, ERR, None, RTS));
    }
}

#[test]
fn row_17_an_atomic_whose_result_has_no_place_is_done_all_the_same() {
    let link = Link::automatic();
    let word = link.right.memory(1, ALL);
    let request = Request::add(1, &[link.left.memory(1, 0).sge(0, 8)], &word, 0, 5);
    assert_eq!(outcome(&link, request), (S::IBV_WC_LOC_PROT_ERR, ERR, None, RTS));
    assert_eq!(word.get(8), 5_u64.to_ne_bytes());
}

#[test]
fn row_18_a_misaligned_atomic() {
    let misaligned =
        |link: &Link| Request::add(1, &[link.left.memory(1, LOCAL).sge(0, 8)], &link.right.memory(2, ALL), 4, 5);
    assert_eq!(fault(misaligned), (S::IBV_WC_REM_INV_REQ_ERR, ERR, Some(FLUSHED), ERR));
    let short =
        |link: &Link| Request::add(1, &[link.left.memory(1, LOCAL).sge(0, 7)], &link.right.memory(2, ALL), 0, 5);
    assert_eq!(fault(short), (S::IBV_WC_LOC_LEN_ERR, ERR, None, RTS));
}

#[test]
fn row_20_a_write_with_immediate_and_a_bad_key() {
    let request = |link: &Link| {
        Request::write(1, &[link.left.memory(1, 0).sge(0, 8)], &link.right.memory(1, READ), 0).immediate(1)
    };
    assert_eq!(fault(request), (S::IBV_WC_REM_ACCESS_ERR, ERR, Some(S::IBV_WC_LOC_ACCESS_ERR), ERR));
}

#[test]
fn row_21_a_write_with_immediate_and_no_receive_writes_nothing() {
    let link = Link::with(Fabric::new(), Settings { rnr_retry: 0, ..SETTINGS }, SETTINGS);
    let (from, to) = (link.left.memory(1, 0), link.right.memory(1, ALL));
    from.set(&[1; 8]);
    let request = Request::write(1, &[from.sge(0, 8)], &to, 0).immediate(1);
    assert_eq!(outcome(&link, request), (S::IBV_WC_RNR_RETRY_EXC_ERR, ERR, None, RTS));
    assert_eq!(to.get(8), [0; 8]);
}

#[test]
fn row_23_a_region_that_was_deregistered() {
    let link = Link::automatic();
    let (from, to) = (link.left.memory(1, 0), link.right.memory(1, ALL));
    assert_eq!(link.status(Request::write(1, &[from.sge(0, 8)], &to, 0)), SUCCESS);
    let request = Request::write(2, &[from.sge(0, 8)], &to, 0);
    link.right.deregister(&to).unwrap();
    assert_eq!(link.status(request), S::IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn row_26_a_peer_that_is_not_there_or_not_ready() {
    for state in [RESET, INIT, ERR] {
        let fabric = Fabric::new();
        let (left, right) = (Node::new(&fabric, "left"), Node::new(&fabric, "right"));
        let (a, b) = (left.pair(), right.pair());
        if state != RESET {
            b.init().unwrap();
            right.receive(b, 7, &[]);
        }
        if state == ERR {
            b.enter(ERR).unwrap();
            right.poll();
        }
        a.connect(b);
        left.send(a, Request::send(1, &[]));
        assert_eq!(left.wait(), [(1, S::IBV_WC_RETRY_EXC_ERR)]);
        assert!(right.poll().is_empty());
    }
    let link = Link::automatic();
    link.right.destroy(link.b).unwrap();
    assert_eq!(link.status(Request::send(1, &[])), S::IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn a_peer_connected_elsewhere_takes_nothing() {
    let link = Link::automatic();
    let stranger = link.left.pair();
    stranger.connect(link.b);
    link.right.receive(link.b, 1, &[]);
    link.left.send(stranger, Request::send(2, &[]));
    assert_eq!(link.left.wait(), [(2, S::IBV_WC_RETRY_EXC_ERR)]);
    link.left.send(link.a, Request::send(3, &[]));
    assert_eq!((link.left.completed(), link.right.completed()), (vec![(3, SUCCESS)], vec![(1, SUCCESS)]));
}

#[test]
fn row_27_packet_numbers_that_do_not_match() {
    for sq_psn in [SETTINGS.rq_psn + 1, SETTINGS.rq_psn - 1] {
        let link = Link::with(Fabric::new(), Settings { sq_psn, ..SETTINGS }, SETTINGS);
        link.right.receive(link.b, 1, &[]);
        assert_eq!(outcome(&link, Request::send(1, &[])), (S::IBV_WC_RETRY_EXC_ERR, ERR, None, RTS));
    }
}

#[test]
fn row_28_packets_of_another_size() {
    let link = || Link::with(Fabric::new(), Settings { mtu: ibv_mtu::IBV_MTU_256, ..SETTINGS }, SETTINGS);
    let one = link();
    let to = one.right.memory(250, LOCAL);
    one.right.receive(one.b, 1, &[to.sge(0, 2000)]);
    let request = Request::send(1, &[one.left.memory(250, 0).sge(0, 2000)]);
    let invalid = S::IBV_WC_REM_INV_REQ_ERR;
    assert_eq!(outcome(&one, request), (invalid, ERR, Some(invalid), ERR));
    let two = link();
    two.right.receive(two.b, 1, &[two.right.memory(32, LOCAL).sge(0, 256)]);
    assert_eq!(two.status(Request::send(1, &[two.left.memory(32, 0).sge(0, 256)])), SUCCESS, "one packet");
}

#[test]
fn an_unsignaled_failure_completes_and_flushes_the_rest() {
    let link = Link::manual();
    let bad = ibv_sge { addr: 8, length: 8, lkey: 0 };
    link.left.send(link.a, Request::send(1, &[bad]).unsignaled());
    link.left.send(link.a, Request::send(2, &[]).unsignaled());
    link.left.receive(link.a, 3, &[]);
    link.fabric.run();
    assert_eq!(link.left.completed(), [(1, S::IBV_WC_LOC_PROT_ERR), (2, FLUSHED), (3, FLUSHED)]);
}

#[test]
fn a_failed_completion_defines_little() {
    let link = Link::automatic();
    link.a.enter(ERR).unwrap();
    link.left.receive(link.a, 5, &[]);
    let failed = link.left.poll()[0];
    assert_eq!((failed.wr_id, failed.status, failed.qp_num), (5, FLUSHED, link.a.qpn()));
    assert!(failed.byte_len > 1 << 31 && failed.opcode.0 > 1000 && failed.wc_flags != 0);
}
