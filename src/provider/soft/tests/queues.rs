use super::*;

#[test]
fn a_send_slot_is_free_when_a_completion_was_polled() {
    let link = Link::automatic();
    for id in 0..8 {
        link.right.receive(link.b, id, &[]);
        link.left.send(link.a, Request::send(id, &[]));
    }
    // All requests have completed, but a slot becomes free only when the completion of its request is polled.
    assert_eq!(link.left.try_send(link.a, Request::send(8, &[])), libc::ENOMEM);
    assert_eq!(link.right.try_receive(link.b, 8, &[]), libc::ENOMEM);
    assert_eq!(link.left.poll_raw(3).unwrap().len(), 3);
    assert_eq!(link.right.poll_raw(3).unwrap().len(), 3);
    for id in 8..11 {
        link.right.receive(link.b, id, &[]);
        link.left.send(link.a, Request::send(id, &[]));
    }
    assert_eq!(link.left.try_send(link.a, Request::send(11, &[])), libc::ENOMEM);
    assert_eq!(link.right.try_receive(link.b, 11, &[]), libc::ENOMEM);
}

#[test]
fn a_signaled_request_frees_the_unsignaled_before_it() {
    let link = Link::automatic();
    let (from, to) = (link.left.memory(1, 0), link.right.memory(1, ALL));
    let write = |id| Request::write(id, &[from.sge(0, 8)], &to, 0);
    for id in 0..7 {
        link.left.send(link.a, write(id).unsignaled());
    }
    assert!(link.left.poll().is_empty());
    link.left.send(link.a, write(7));
    assert_eq!(link.left.try_send(link.a, write(8)), libc::ENOMEM);
    assert_eq!(link.left.completed(), [(7, SUCCESS)]);
    for id in 8..16 {
        link.left.send(link.a, write(id).unsignaled());
    }
    assert_eq!(link.left.try_send(link.a, write(16)), libc::ENOMEM, "no signal, no slot");
    assert!(link.left.poll().is_empty());
}

#[test]
fn old_completions_free_no_slots_of_the_next_life() {
    let link = Link::manual();
    for id in 0..8 {
        link.right.receive(link.b, id, &[]);
        link.left.send(link.a, Request::send(id, &[]));
    }
    link.fabric.run();
    link.a.enter(RESET).unwrap();
    link.a.connect(link.b);
    for id in 0..8 {
        link.left.send(link.a, Request::send(id, &[]));
    }
    assert_eq!(link.left.poll().len(), 8);
    assert_eq!(link.left.try_send(link.a, Request::send(9, &[])), libc::ENOMEM);
}

#[test]
fn all_are_signaled_where_the_pair_says_so() {
    let fabric = Fabric::new();
    let node = Node::new(&fabric, "one");
    let plain = node.pair();
    let qp = node.create(ibv_qp_init_attr { sq_sig_all: 1, ..node.init_attributes() }).unwrap();
    let pair = Pair { qp, ..plain };
    pair.connect(pair);
    node.send(pair, Request::new(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[]).unsignaled());
    assert_eq!(node.completed(), [(1, SUCCESS)]);
}

#[test]
fn a_list_stops_at_its_first_bad_request() {
    let link = Link::automatic();
    let sge = link.left.memory(1, 0).sge(0, 1);
    let mut many = vec![sge; CAP.max_send_sge as usize + 1];
    link.right.receive(link.b, 1, &[]);
    link.right.receive(link.b, 2, &[]);
    let mut wrs =
        [Request::send(1, &[]).raw(&mut []), Request::send(2, &[]).raw(&mut many), Request::send(3, &[]).raw(&mut [])];
    assert_eq!(link.left.post_send(link.a, &mut wrs), (libc::EINVAL, Some(2)));
    assert_eq!(link.left.completed(), [(1, SUCCESS)]);

    let mut wrs = [4, 5, 6].map(|id| receive_wr(id, &mut []));
    wrs[1].num_sge = CAP.max_recv_sge as i32 + 1;
    assert_eq!(link.right.post_receives(link.b, &mut wrs), (libc::EINVAL, Some(5)));
    let mut wrs: Vec<_> = (10..20).map(|id| receive_wr(id, &mut [])).collect();
    // Three of the eight slots are taken: receive 1 has an unpolled completion, receive 2 waits, and receive 4 was just
    // posted. So five more receives fit, and receive 15 is refused.
    assert_eq!(link.right.post_receives(link.b, &mut wrs), (libc::ENOMEM, Some(15)));
}

#[test]
fn unknown_operations_and_negative_lists_are_refused() {
    let link = Link::automatic();
    for opcode in [ibv_wr_opcode::IBV_WR_TSO, ibv_wr_opcode::IBV_WR_DRIVER1, ibv_wr_opcode(99)] {
        assert_eq!(link.left.try_send(link.a, Request::new(1, opcode, &[])), libc::EINVAL);
    }
    let mut wr = Request::send(1, &[]).raw(&mut []);
    wr.num_sge = -1;
    assert_eq!(link.left.post_send(link.a, &mut [wr]), (libc::EINVAL, Some(1)));
}

#[test]
fn sends_complete_in_post_order() {
    let link = Link::automatic();
    let (local, remote) = (link.left.memory(4, LOCAL), link.right.memory(4, ALL));
    for round in 0..20 {
        for id in 0..8 {
            let request = match (id + round) % 4 {
                0 => Request::write(id, &[local.sge(0, 8)], &remote, 0),
                1 => Request::read(id, &[local.sge(0, 8)], &remote, 0),
                2 => Request::add(id, &[local.sge(0, 8)], &remote, 0, 1),
                _ => Request::send(id, &[local.sge(0, 8)]).flag(ibv_send_flags::IBV_SEND_FENCE),
            };
            link.right.receive(link.b, id, &[remote.sge(8, 8)]);
            link.left.send(link.a, request);
            link.b.query();
        }
        assert_eq!(link.left.completed(), (0..8).map(|id| (id, SUCCESS)).collect::<Vec<_>>());
        let received: Vec<u64> = link.right.completed().iter().map(|(id, _)| *id).collect();
        assert_eq!(received, [0, 1]);
        link.b.enter(ERR).unwrap();
        link.right.poll();
        for pair in [link.a, link.b] {
            pair.enter(RESET).unwrap();
        }
        link.a.connect(link.b);
        link.b.connect(link.a);
    }
}

#[test]
fn an_overrun_ends_the_queue_and_its_pairs() {
    let fabric = Fabric::new();
    let (left, right) = (Node::new(&fabric, "left"), Node::with_depth(&fabric, "right", 2));
    let (a, b) = (left.pair(), right.pair());
    a.connect(b);
    b.connect(a);
    let bystander = right.pair();
    right.arm(false);
    for id in 0..3 {
        right.receive(b, id, &[]);
        left.send(a, Request::send(id, &[]));
    }
    assert_eq!((b.state(), bystander.state()), (ERR, RESET));
    assert_eq!(right.completed(), [(0, SUCCESS), (1, SUCCESS)]);
    assert_eq!(right.poll_raw(1).map(|_| ()), Err(libc::EIO));
    assert!(right.take_event());
}

#[test]
fn objects_in_use_are_not_destroyed() {
    let fabric = Fabric::new();
    let node = Node::new(&fabric, "one");
    let pair = node.pair();
    let region = node.memory(1, 0);
    let errno = |result: Result<(), crate::verb_error::VerbError>| result.map_err(|error| error.errno());
    // SAFETY: the domain is alive. The call is refused while the domain has a child.
    assert_eq!(errno(unsafe { Soft.dealloc_pd(node.domain) }), Err(libc::EBUSY));
    // SAFETY: the queue is alive. The call is refused while a pair uses the queue.
    assert_eq!(errno(unsafe { Soft.destroy_cq(node.cq) }), Err(libc::EBUSY));
    // SAFETY: the channel is alive. The call is refused while the channel has a queue.
    assert_eq!(errno(unsafe { Soft.destroy_comp_channel(node.channel) }), Err(libc::EBUSY));
    // SAFETY: the context is open. The call is refused while the context has a child.
    assert_eq!(errno(unsafe { Soft.close_device(node.context) }), Err(libc::EBUSY));
    node.destroy(pair).unwrap();
    // SAFETY: the domain is alive. The call is refused while the domain has a child.
    assert_eq!(errno(unsafe { Soft.dealloc_pd(node.domain) }), Err(libc::EBUSY));
    node.deregister(&region).unwrap();
}

#[test]
fn sizes_have_limits_and_are_granted_as_asked() {
    let fabric = Fabric::new();
    let node = Node::new(&fabric, "one");
    // SAFETY: the context is open.
    let limits = unsafe { Soft.query_device(node.context) }.unwrap();
    let create = |change: &dyn Fn(&mut ibv_qp_init_attr)| {
        let mut attributes = node.init_attributes();
        change(&mut attributes);
        node.create(attributes).map(|_| ())
    };
    assert_eq!(create(&|a| a.cap = ibv_qp_cap::default()), Ok(()));
    assert_eq!(create(&|a| a.cap.max_send_wr = limits.max_qp_wr as u32), Ok(()));
    assert_eq!(create(&|a| a.cap.max_send_wr = limits.max_qp_wr as u32 + 1), Err(libc::EINVAL));
    assert_eq!(create(&|a| a.cap.max_recv_wr = limits.max_qp_wr as u32 + 1), Err(libc::EINVAL));
    assert_eq!(create(&|a| a.cap.max_send_sge = limits.max_sge as u32 + 1), Err(libc::EINVAL));
    assert_eq!(create(&|a| a.cap.max_recv_sge = limits.max_sge as u32 + 1), Err(libc::EINVAL));
    assert_eq!(create(&|a| a.cap.max_inline_data = 512), Ok(()));
    assert_eq!(create(&|a| a.cap.max_inline_data = 513), Err(libc::EINVAL));
    assert_eq!(create(&|a| a.recv_cq = ptr::null_mut()), Err(libc::EINVAL));
    for other in [ibv_qp_type::IBV_QPT_RAW_PACKET, ibv_qp_type::IBV_QPT_XRC_SEND, ibv_qp_type(77)] {
        assert_eq!(create(&|a| a.qp_type = other), Err(libc::EOPNOTSUPP));
    }
    let stranger = Node::new(&fabric, "one");
    assert_eq!(create(&|a| a.send_cq = stranger.cq.as_ptr()), Err(libc::EINVAL), "another context's queue");
    for (depth, fits) in [(0, false), (1, true), (limits.max_cqe as u32, true), (limits.max_cqe as u32 + 1, false)] {
        // SAFETY: the context is open.
        match unsafe { Soft.create_cq(node.context, depth, node.channel, 0) } {
            Ok(cq) => {
                // SAFETY: the queue is alive.
                assert_eq!(unsafe { (*cq.as_ptr()).cqe } as u32, depth);
                // SAFETY: the queue is alive, and nobody uses it any more.
                unsafe { Soft.destroy_cq(cq) }.unwrap();
                assert!(fits);
            }
            Err(error) => assert_eq!((error.errno(), fits), (libc::EINVAL, false)),
        }
    }
}

#[test]
fn regions_have_rules_and_keys_of_their_own() {
    let fabric = Fabric::new();
    let node = Node::new(&fabric, "one");
    for access in [0, LOCAL, READ, LOCAL | READ, ALL, 16, 32, ALL | 32, LOCAL | 1 << 20] {
        node.memory(1, access);
    }
    for access in [WRITE, ATOMIC, READ | WRITE, 1 << 9, 1 << 30] {
        assert_eq!(node.try_register(1, access).map(|_| ()), Err(libc::EINVAL), "{access:#x}");
    }
    for access in [64, 128] {
        assert_eq!(node.try_register(1, access).map(|_| ()), Err(libc::EOPNOTSUPP), "{access:#x}");
    }
    assert_eq!(node.try_register(0, 0).map(|_| ()), Err(libc::EINVAL));
    let mut keys = std::collections::HashSet::new();
    for _ in 0..100 {
        let region = node.memory(1, 0);
        assert!(keys.insert(region.lkey()) && keys.insert(region.rkey()));
        node.deregister(&region).unwrap();
    }
}

#[test]
fn exposed_memory_is_made_of_whole_words() {
    let fabric = Fabric::new();
    let node = Node::new(&fabric, "one");
    let region = node.memory(4, 0);
    let start = region.words.cast::<u8>();
    for (offset, len, access, fine) in
        [(0, 16, READ, true), (4, 16, READ, false), (0, 12, ALL, false), (4, 12, LOCAL, true), (8, 8, ALL, true)]
    {
        // SAFETY: the domain is alive. The range is within the memory of `region`, which outlives the new region.
        let result = unsafe { Soft.reg_mr(node.domain, start.wrapping_add(offset), len, ibv_access_flags(access)) };
        assert_eq!(result.is_ok(), fine);
        if let Ok(mr) = result {
            // SAFETY: the region is registered.
            unsafe { Soft.dereg_mr(mr) }.unwrap();
        }
    }
}

#[test]
fn the_device_describes_itself() {
    let fabric = Fabric::new();
    let (one, two) = (Node::new(&fabric, "one"), Node::new(&fabric, "two"));
    // SAFETY: the context is open.
    let device = unsafe { Soft.query_device(one.context) }.unwrap();
    assert_eq!((device.phys_port_cnt, device.atomic_cap), (1, ibv_atomic_cap::IBV_ATOMIC_HCA));
    // SAFETY: the context is open.
    let port = unsafe { Soft.query_port(one.context, 1) }.unwrap();
    assert_eq!((port.state, port.link_layer), (ibv_port_state::IBV_PORT_ACTIVE, 2));
    assert_eq!(port.active_mtu, ibv_mtu::IBV_MTU_4096);
    // SAFETY: the context is open.
    assert_eq!(unsafe { Soft.query_port(one.context, 2) }.unwrap_err().errno(), libc::EINVAL);
    let gids = |node: &Node| -> Vec<[u8; 16]> {
        // SAFETY: the context is open.
        let table = unsafe { Soft.query_gid_table(node.context) }.unwrap();
        // SAFETY: all bytes of the union are set.
        table.iter().map(|row| unsafe { row.gid.raw }).collect()
    };
    let (ones, twos) = (gids(&one), gids(&two));
    assert_eq!(ones[0][..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
    // The GID in row 1 is an IPv4-mapped address 10.x.y.z. The bytes x and y differ between processes, and z is the
    // number of the device.
    assert_eq!(ones[1][..13], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10]);
    assert_eq!((ones[1][13..15].to_vec(), ones[1][15], twos[1][15]), (twos[1][13..15].to_vec(), 1, 2));
    assert!(ones.iter().all(|gid| !twos.contains(gid)));
    let listed = fabric.devices();
    assert_eq!(listed.iter().map(|listed| listed.name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(listed[0].guid_be, device.node_guid);
    assert!(super::super::devices().iter().map(|listed| listed.name.as_str()).take(2).eq(["soft0", "soft1"]));
}

#[test]
fn contexts_of_one_device_share_it() {
    let fabric = Fabric::new();
    let (left, right) = (Node::new(&fabric, "same"), Node::new(&fabric, "same"));
    let (a, b) = (left.pair(), right.pair());
    assert_eq!(a.gid, b.gid);
    assert_ne!(a.qpn(), b.qpn());
    a.connect(b);
    b.connect(a);
    right.receive(b, 1, &[]);
    left.send(a, Request::send(2, &[]));
    assert_eq!((left.completed(), right.completed()), (vec![(2, SUCCESS)], vec![(1, SUCCESS)]));
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn many_pairs_cost_no_more_than_few() {
    let time = |pairs: u32| {
        let fabric = Fabric::new();
        let node = Node::with_depth(&fabric, "one", 64);
        let all: Vec<Pair> = (0..pairs).map(|_| node.pair()).collect();
        let pair = all[0];
        pair.connect(pair);
        let part = |_| {
            let start = Instant::now();
            for id in 0..1_000 {
                node.send(pair, Request::new(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[]));
                assert_eq!(node.poll_raw(1).unwrap().len(), 1);
            }
            start.elapsed()
        };
        // Use the fastest of 20 parts: other threads can interrupt some of the parts, but hardly all of them.
        20 * (0..20).map(part).min().unwrap()
    };
    let (few, many) = (time(1), time(10_000));
    assert!(many < few * 5 + Duration::from_millis(50), "{few:?} for one pair, {many:?} for 10,000");
}
