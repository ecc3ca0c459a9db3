//! Transitions and attributes of the transports without acknowledgements.

use super::support::{in_state, to_state};
use super::*;
use ibv_qp_attr_mask as M;

const TRANSITIONS: [(ibv_qp_state, &[ibv_qp_state]); 7] = [
    (RESET, &[RESET, INIT]),
    (INIT, &[RESET, INIT, RTR, ERR]),
    (RTR, &[RESET, RTS, ERR]),
    (RTS, &[RESET, RTS, SQD, ERR]),
    (SQD, &[RESET, RTS, SQD, ERR]),
    (SQE, &[RESET, RTS, ERR]),
    (ERR, &[RESET, ERR]),
];

/// The optional attributes of a transition, from the table of the specification.
fn optional(transport: ibv_qp_type, from: ibv_qp_state, to: ibv_qp_state) -> M {
    let datagram = transport == UD;
    let moving = M::IBV_QP_ALT_PATH | M::IBV_QP_PATH_MIG_STATE;
    match (from, to) {
        (INIT, INIT) if datagram => M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_QKEY,
        (INIT, INIT) => M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS,
        (INIT, RTR) if datagram => M::IBV_QP_PKEY_INDEX | M::IBV_QP_QKEY,
        (INIT, RTR) => M::IBV_QP_ALT_PATH | M::IBV_QP_ACCESS_FLAGS | M::IBV_QP_PKEY_INDEX,
        (RTR | RTS | SQD | SQE, RTS) if datagram => M::IBV_QP_CUR_STATE | M::IBV_QP_QKEY,
        (SQE, RTS) => M::IBV_QP_CUR_STATE | M::IBV_QP_ACCESS_FLAGS,
        (RTR | RTS | SQD, RTS) => M::IBV_QP_CUR_STATE | M::IBV_QP_ACCESS_FLAGS | moving,
        (RTS, SQD) => M::IBV_QP_EN_SQD_ASYNC_NOTIFY,
        (SQD, SQD) if datagram => M::IBV_QP_PKEY_INDEX | M::IBV_QP_QKEY,
        (SQD, SQD) => M::IBV_QP_AV | M::IBV_QP_ACCESS_FLAGS | M::IBV_QP_PKEY_INDEX | moving,
        _ => M(0),
    }
}

#[test]
fn the_listed_transitions_exist_and_no_others() {
    let node = Node::new(&Fabric::new(), "one");
    for transport in [UC, UD] {
        for (from, targets) in TRANSITIONS {
            for raw in 0..8 {
                let to = ibv_qp_state(raw);
                let pair = in_state(&node, transport, from);
                let (attributes, mask) = to_state(pair, from, to);
                let expected = if targets.contains(&to) { (Ok(()), to) } else { (Err(libc::EINVAL), from) };
                assert_eq!((pair.modify(attributes, mask), pair.state()), expected, "{from:?} to {to:?}");
                node.destroy(pair).unwrap();
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn each_required_attribute_is_required_and_each_other_refused() {
    let node = Node::new(&Fabric::new(), "one");
    for transport in [UC, UD] {
        for (from, targets) in TRANSITIONS {
            for &to in targets {
                let pair = in_state(&node, transport, from);
                let (mut attributes, mask) = to_state(pair, from, to);
                attributes.cur_qp_state = from;
                attributes.ah_attr = pair.rtr_with(pair).0.ah_attr;
                attributes.port_num = 1;
                for bit in (0..26).map(|bit| 1_u32 << bit).filter(|&bit| bit != M::IBV_QP_STATE.0) {
                    let what = format!("{transport:?}, {from:?} to {to:?}, {bit:#x}");
                    if mask & bit == 0 && optional(transport, from, to).0 & bit != 0 {
                        // This device has no alternate paths, so it refuses an alternate path and a migration state.
                        let missing = (M::IBV_QP_ALT_PATH | M::IBV_QP_PATH_MIG_STATE).0 & bit != 0;
                        let expected = if missing { Err(libc::EOPNOTSUPP) } else { Ok(()) };
                        let fresh = in_state(&node, transport, from);
                        assert_eq!(fresh.modify(attributes, mask | bit), expected, "{what}");
                        node.destroy(fresh).unwrap();
                    } else {
                        let result = (pair.modify(attributes, mask ^ bit), pair.state());
                        assert_eq!(result, (Err(libc::EINVAL), from), "{what}");
                    }
                }
                node.destroy(pair).unwrap();
            }
        }
    }
}

#[test]
fn a_reliable_pair_leaves_no_send_error() {
    // A reliable pair is never in Send Queue Error. So a transition that names this state as the current one is
    // refused.
    let node = Node::new(&Fabric::new(), "one");
    let pair = in_state(&node, RC, RTS);
    let named = ibv_qp_attr { qp_state: RTS, cur_qp_state: SQE, ..ibv_qp_attr::default() };
    assert_eq!(pair.modify(named, (M::IBV_QP_STATE | M::IBV_QP_CUR_STATE).0), Err(libc::EINVAL));
}

#[test]
fn posting_follows_the_state() {
    let node = Node::new(&Fabric::manual(), "one");
    let address = node.address([1; 16]);
    for transport in [UC, UD] {
        for (state, receive, send) in [
            (RESET, libc::EINVAL, libc::EINVAL),
            (INIT, 0, libc::EINVAL),
            (RTR, 0, libc::EINVAL),
            (RTS, 0, 0),
            (SQD, 0, 0),
            (ERR, 0, 0),
        ] {
            let pair = in_state(&node, transport, state);
            let request = if transport == UD { Request::send(2, &[]).to(address, 1, 1) } else { Request::send(2, &[]) };
            assert_eq!(node.try_receive(pair, 1, &[]), receive, "{state:?}");
            assert_eq!(node.try_send(pair, request), send, "{state:?}");
        }
    }
}

#[test]
fn query_tells_the_key() {
    let node = Node::new(&Fabric::new(), "one");
    let pair = in_state(&node, UD, RTS);
    assert_eq!(pair.query().qkey, SETTINGS.qkey);
    let other = ibv_qp_attr { qp_state: RTS, qkey: 99, ..ibv_qp_attr::default() };
    pair.modify(other, (M::IBV_QP_STATE | M::IBV_QP_QKEY).0).unwrap();
    assert_eq!((pair.query().qkey, pair.query().sq_psn), (99, SETTINGS.sq_psn));
    pair.enter(RESET).unwrap();
    assert_eq!(pair.query().qkey, 0);
}
