use super::support::{in_state, to_state};
use super::*;
use ibv_qp_attr_mask as M;

const TRANSITIONS: [(ibv_qp_state, &[ibv_qp_state]); 6] = [
    (RESET, &[RESET, INIT]),
    (INIT, &[RESET, INIT, RTR, ERR]),
    (RTR, &[RESET, RTS, ERR]),
    (RTS, &[RESET, RTS, SQD, ERR]),
    (SQD, &[RESET, RTS, SQD, ERR]),
    (ERR, &[RESET, ERR]),
];

#[test]
fn the_listed_transitions_exist_and_no_others() {
    let node = Node::new(&Fabric::new(), "one");
    for (from, targets) in TRANSITIONS {
        for raw in 0..8 {
            let to = ibv_qp_state(raw);
            let pair = in_state(&node, RC, from);
            let (attributes, mask) = to_state(pair, from, to);
            let expected = if targets.contains(&to) { (Ok(()), to) } else { (Err(libc::EINVAL), from) };
            assert_eq!((pair.modify(attributes, mask), pair.state()), expected, "{from:?} to {to:?}");
            node.destroy(pair).unwrap();
        }
    }
}

#[test]
fn each_required_attribute_is_required_and_each_other_refused() {
    let node = Node::new(&Fabric::new(), "one");
    let optional = |from, to| match (from, to) {
        (INIT, INIT) => M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS,
        (INIT, RTR) => M::IBV_QP_ALT_PATH | M::IBV_QP_ACCESS_FLAGS | M::IBV_QP_PKEY_INDEX,
        (RTR | RTS | SQD, RTS) => {
            M::IBV_QP_CUR_STATE
                | M::IBV_QP_ALT_PATH
                | M::IBV_QP_ACCESS_FLAGS
                | M::IBV_QP_MIN_RNR_TIMER
                | M::IBV_QP_PATH_MIG_STATE
        }
        (RTS, SQD) => M::IBV_QP_EN_SQD_ASYNC_NOTIFY,
        (SQD, SQD) => M(0x6_eeb8),
        _ => M(0),
    };
    for (from, targets) in TRANSITIONS {
        for &to in targets {
            let pair = in_state(&node, RC, from);
            let (mut attributes, mask) = to_state(pair, from, to);
            attributes.cur_qp_state = from;
            let (av, _) = pair.rtr_with(pair);
            attributes.ah_attr = av.ah_attr;
            attributes.port_num = 1;
            attributes.path_mtu = SETTINGS.mtu;
            for bit in (0..26).map(|bit| 1_u32 << bit).filter(|&bit| bit != M::IBV_QP_STATE.0) {
                let needed = mask & bit != 0;
                let allowed = optional(from, to).0 & bit != 0;
                if allowed && !needed {
                    // This device has no alternate paths, so it refuses `IBV_QP_ALT_PATH` and `IBV_QP_PATH_MIG_STATE`.
                    let missing = (M::IBV_QP_ALT_PATH | M::IBV_QP_PATH_MIG_STATE).0 & bit != 0;
                    let expected = if missing { Err(libc::EOPNOTSUPP) } else { Ok(()) };
                    let fresh = in_state(&node, RC, from);
                    assert_eq!(fresh.modify(attributes, mask | bit), expected, "{from:?} to {to:?} with {bit:#x}");
                    node.destroy(fresh).unwrap();
                } else {
                    assert_eq!(
                        (pair.modify(attributes, mask ^ bit), pair.state()),
                        (Err(libc::EINVAL), from),
                        "{from:?} to {to:?}, {bit:#x}"
                    );
                }
            }
            node.destroy(pair).unwrap();
        }
    }
}

#[test]
fn attributes_have_ranges_and_a_refusal_changes_nothing() {
    let node = Node::new(&Fabric::new(), "one");
    let try_init = |change: fn(&mut ibv_qp_attr)| {
        let pair = in_state(&node, RC, RESET);
        let (mut attributes, mask) = pair.init_with();
        change(&mut attributes);
        pair.modify(attributes, mask)
    };
    assert_eq!(try_init(|a| a.port_num = 0), Err(libc::EINVAL));
    assert_eq!(try_init(|a| a.port_num = 2), Err(libc::EINVAL));
    assert_eq!(try_init(|a| a.pkey_index = 1), Err(libc::EINVAL));
    assert_eq!(try_init(|a| a.qp_access_flags = 1 << 9), Err(libc::EINVAL));
    let try_rtr = |change: fn(&mut ibv_qp_attr)| {
        let pair = in_state(&node, RC, INIT);
        let (mut attributes, mask) = pair.rtr_with(pair);
        change(&mut attributes);
        let result = pair.modify(attributes, mask);
        if result.is_err() {
            let now = pair.query();
            assert_eq!((now.qp_state, now.dest_qp_num, now.rq_psn, now.path_mtu), (INIT, 0, 0, ibv_mtu(0)));
        }
        result
    };
    assert_eq!(try_rtr(|_| ()), Ok(()));
    assert_eq!(try_rtr(|a| a.ah_attr.port_num = 0), Err(libc::EINVAL));
    assert_eq!(try_rtr(|a| a.ah_attr.is_global = 0), Err(libc::EINVAL));
    assert_eq!(try_rtr(|a| a.ah_attr.grh.sgid_index = 2), Err(libc::ENODATA));
    assert_eq!(try_rtr(|a| a.ah_attr.grh.sgid_index = 0), Ok(()));
    assert_eq!(try_rtr(|a| a.path_mtu = ibv_mtu(0)), Err(libc::EINVAL));
    assert_eq!(try_rtr(|a| a.path_mtu = ibv_mtu(6)), Err(libc::EINVAL));
    assert_eq!(try_rtr(|a| a.dest_qp_num = 1 << 24), Err(libc::EINVAL));
    assert_eq!(try_rtr(|a| a.max_dest_rd_atomic = 129), Err(libc::EINVAL));
    assert_eq!(try_rtr(|a| a.min_rnr_timer = 32), Err(libc::EINVAL));
    let try_rts = |change: fn(&mut ibv_qp_attr)| {
        let pair = in_state(&node, RC, RTR);
        let (mut attributes, mask) = pair.rts_with();
        change(&mut attributes);
        pair.modify(attributes, mask)
    };
    assert_eq!(try_rts(|a| a.timeout = 31), Ok(()));
    assert_eq!(try_rts(|a| a.timeout = 32), Err(libc::EINVAL));
    assert_eq!(try_rts(|a| a.retry_cnt = 8), Err(libc::EINVAL));
    assert_eq!(try_rts(|a| a.rnr_retry = 8), Err(libc::EINVAL));
    assert_eq!(try_rts(|a| a.max_rd_atomic = 129), Err(libc::EINVAL));
}

#[test]
fn query_tells_what_was_set() {
    let node = Node::new(&Fabric::new(), "one");
    let pair = node.pair();
    pair.init().unwrap();
    let (mut attributes, mask) = pair.rtr_with(pair);
    attributes.rq_psn = 0x7f00_0001;
    pair.modify(attributes, mask).unwrap();
    pair.rts().unwrap();
    let now = pair.query();
    assert_eq!((now.qp_state, now.cur_qp_state, now.sq_draining), (RTS, RTS, 0));
    assert_eq!((now.path_mtu, now.dest_qp_num, now.port_num), (SETTINGS.mtu, pair.qpn(), 1));
    assert_eq!((now.rq_psn, now.sq_psn), (1, SETTINGS.sq_psn), "24 bits");
    assert_eq!((now.timeout, now.retry_cnt, now.rnr_retry, now.min_rnr_timer), (8, 3, 3, 1));
    assert_eq!((now.max_rd_atomic, now.max_dest_rd_atomic, now.qp_access_flags), (4, 4, ALL));
    assert_eq!((now.ah_attr.grh.sgid_index, now.ah_attr.is_global), (1, 1));
    assert_eq!(now.cap.max_send_wr, CAP.max_send_wr);
    // SAFETY: the pair is alive.
    let all = unsafe { Soft.query_qp(pair.qp, ibv_qp_attr_mask(u32::MAX)) };
    assert_eq!(all.map(|_| ()).map_err(|error| error.errno()), Err(libc::EOPNOTSUPP));
}

#[test]
fn the_current_state_must_be_named_right() {
    let node = Node::new(&Fabric::new(), "one");
    let pair = in_state(&node, RC, RTS);
    let named = |state| {
        let attributes = ibv_qp_attr { qp_state: RTS, cur_qp_state: state, ..ibv_qp_attr::default() };
        pair.modify(attributes, (M::IBV_QP_STATE | M::IBV_QP_CUR_STATE).0)
    };
    assert_eq!(named(RTS), Ok(()));
    assert_eq!(named(RTR), Err(libc::EINVAL));
    assert_eq!(named(SQD), Err(libc::EINVAL));
}

#[test]
fn rights_of_a_running_pair_can_be_taken_back() {
    let link = Link::automatic();
    let (from, to) = (link.left.memory(1, 0), link.right.memory(1, ALL));
    assert_eq!(link.status(Request::write(1, &[from.sge(0, 8)], &to, 0)), SUCCESS);
    let none = ibv_qp_attr { qp_state: RTS, qp_access_flags: 0, ..ibv_qp_attr::default() };
    link.b.modify(none, (M::IBV_QP_STATE | M::IBV_QP_ACCESS_FLAGS).0).unwrap();
    let status = link.status(Request::write(2, &[from.sge(0, 8)], &to, 0));
    assert_eq!(status, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
}

#[test]
fn posting_follows_the_state() {
    let node = Node::new(&Fabric::manual(), "one");
    for (state, receive, send) in [
        (RESET, libc::EINVAL, libc::EINVAL),
        (INIT, 0, libc::EINVAL),
        (RTR, 0, libc::EINVAL),
        (RTS, 0, 0),
        (SQD, 0, 0),
        (ERR, 0, 0),
    ] {
        let pair = in_state(&node, RC, state);
        assert_eq!(node.try_receive(pair, 1, &[]), receive, "{state:?}");
        assert_eq!(node.try_send(pair, Request::send(2, &[])), send, "{state:?}");
    }
    let early = in_state(&node, RC, INIT);
    let mut sges = [];
    let mut wrs = [Request::send(3, &[]).raw(&mut sges), Request::send(4, &[]).raw(&mut sges)];
    assert_eq!(node.post_send(early, &mut wrs), (libc::EINVAL, Some(3)));
}

#[test]
fn what_was_refused_below_ready_to_send_never_runs() {
    let link = Link::automatic();
    let early = link.left.pair();
    early.init().unwrap();
    assert_eq!(link.left.try_send(early, Request::send(1, &[])), libc::EINVAL);
    early.rtr(early).unwrap();
    assert_eq!(link.left.try_send(early, Request::send(2, &[])), libc::EINVAL);
    early.rts().unwrap();
    link.left.receive(early, 9, &[]);
    link.left.send(early, Request::send(3, &[]));
    assert_eq!(link.left.completed(), [(9, SUCCESS), (3, SUCCESS)]);
}

#[test]
fn a_receive_posted_in_init_serves_in_ready_to_receive() {
    let fabric = Fabric::new();
    let (left, right) = (Node::new(&fabric, "left"), Node::new(&fabric, "right"));
    let (a, b) = (left.pair(), right.pair());
    b.init().unwrap();
    right.receive(b, 1, &[]);
    b.rtr(a).unwrap();
    a.connect(b);
    left.send(a, Request::send(2, &[]));
    assert_eq!((left.completed(), right.completed()), (vec![(2, SUCCESS)], vec![(1, SUCCESS)]));
    assert_eq!(b.state(), RTR);
}

#[test]
fn error_flushes_both_queues_in_order_and_what_comes_later() {
    let link = Link::manual();
    for id in 0..3 {
        link.left.receive(link.a, id, &[]);
        link.left.send(link.a, Request::send(10 + id, &[]).unsignaled());
    }
    link.a.enter(ERR).unwrap();
    link.fabric.run();
    assert_eq!(link.left.completed(), [10, 11, 12, 0, 1, 2].map(|id| (id, FLUSHED)));
    link.left.receive(link.a, 20, &[]);
    link.left.send(link.a, Request::send(21, &[]).unsignaled());
    link.fabric.run();
    assert_eq!(link.left.completed(), [(21, FLUSHED), (20, FLUSHED)]);
    assert!(link.right.poll().is_empty());
}

#[test]
fn reset_drops_what_is_posted_and_keeps_old_completions() {
    let link = Link::manual();
    link.right.receive(link.b, 1, &[]);
    link.left.send(link.a, Request::send(2, &[]));
    link.fabric.run();
    link.left.receive(link.a, 3, &[]);
    link.left.send(link.a, Request::send(4, &[]));
    link.a.enter(RESET).unwrap();
    link.fabric.run();
    assert_eq!(link.left.completed(), [(2, SUCCESS)]);
    assert_eq!((link.a.query().dest_qp_num, link.a.query().qp_access_flags), (0, 0));
    // A pair that went to Error works again after it has been reset and both sides have been connected again.
    link.b.enter(ERR).unwrap();
    link.b.enter(RESET).unwrap();
    link.a.connect(link.b);
    link.b.connect(link.a);
    link.right.poll();
    assert!(link.works());
}

#[test]
fn destroy_keeps_old_completions_and_gives_no_new_ones() {
    let link = Link::manual();
    link.right.receive(link.b, 1, &[]);
    link.left.send(link.a, Request::send(2, &[]));
    link.fabric.run();
    link.left.receive(link.a, 3, &[]);
    let qpn = link.a.qpn();
    link.left.destroy(link.a).unwrap();
    link.fabric.run();
    let left: Vec<_> = link.left.poll().iter().map(|wc| (wc.wr_id, wc.status, wc.qp_num)).collect();
    assert_eq!(left, [(2, SUCCESS, qpn)]);
    assert_ne!(link.left.pair().qpn(), qpn);
}

#[test]
fn draining_finishes_what_was_begun_and_holds_the_rest() {
    let link = Link::manual();
    link.left.send(link.a, Request::send(1, &[]));
    link.left.send(link.a, Request::send(2, &[]));
    // The device starts request 1, which then waits, because the peer has no receive.
    assert!(link.fabric.step());
    link.a.enter(SQD).unwrap();
    assert_eq!((link.a.state(), link.a.query().sq_draining), (SQD, 1));
    assert_eq!(link.a.enter(RTS), Err(libc::EINVAL));
    link.left.send(link.a, Request::send(3, &[]));
    link.right.receive(link.b, 11, &[]);
    link.right.receive(link.b, 12, &[]);
    link.right.receive(link.b, 13, &[]);
    link.fabric.advance(Duration::from_millis(1));
    link.fabric.run();
    assert_eq!(link.left.completed(), [(1, SUCCESS)]);
    assert_eq!((link.a.state(), link.a.query().sq_draining), (SQD, 0));
    // Only the sends have stopped: the pair still receives.
    link.left.receive(link.a, 20, &[]);
    link.right.send(link.b, Request::send(21, &[]));
    link.fabric.run();
    assert_eq!(link.left.completed(), [(20, SUCCESS)]);
    link.a.enter(RTS).unwrap();
    link.fabric.run();
    assert_eq!(link.left.completed(), [(2, SUCCESS), (3, SUCCESS)]);
}

#[test]
fn the_initiator_may_be_reconnected_with_other_packet_numbers() {
    let link = Link::automatic();
    for pair in [link.a, link.b] {
        pair.enter(ERR).unwrap();
        pair.enter(RESET).unwrap();
    }
    let a = Pair { settings: Settings { sq_psn: 5, rq_psn: 6, ..SETTINGS }, ..link.a };
    let b = Pair { settings: Settings { sq_psn: 6, rq_psn: 5, ..SETTINGS }, ..link.b };
    a.connect(b);
    b.connect(a);
    assert!(link.works());
}
