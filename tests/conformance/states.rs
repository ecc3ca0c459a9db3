//! States of queue pairs.

use crate::{WHILE, failure, from, message, next, sending};
use interlock::attributes::{InitAttributes, PeerRights};
use interlock::error::TransitionFailure;
use interlock::state::DeviceState;
use interlock::{Limits, PostError, RemoteWrite, Status};
use support::{Link, Need, PATIENCE, deviates, eventually, lacks_need};

/// The pair goes through the states one by one, and each time the device reports the state that the type names.
#[test]
fn c001_c002_c007_c012_a_pair_goes_up_by_single_steps() {
    let domain = domain!();
    let port = domain.context().active_port().unwrap();
    let (queue, mut poller) = domain.completion_queue(8).unwrap();
    let pair = domain.reliable(&queue, &Limits::default()).unwrap();
    assert_eq!(pair.query_state().unwrap(), DeviceState::Reset);
    let pair = pair.into_init(InitAttributes { port, pkey_index: 0, peer_rights: PeerRights::ALL }).unwrap();
    assert_eq!(pair.query_state().unwrap(), DeviceState::Init);
    let myself = pair.endpoint();
    let pair = pair.into_rtr(&from(&myself)).unwrap();
    assert_eq!(pair.query_state().unwrap(), DeviceState::ReadyToReceive);
    let mut pair = pair.into_rts(&sending(myself.psn())).unwrap();
    assert_eq!(pair.query_state().unwrap(), DeviceState::ReadyToSend);
    pair.post_receive(domain.buffer(8).unwrap()).unwrap();
    pair.post_send(message(&domain, b"up")).unwrap();
    let received = (0..2).find_map(|_| next(&mut poller).into_received().ok()).unwrap();
    assert_eq!(&received[..], b"up");
}

/// A datagram pair needs no peer address to receive.
#[test]
fn c010_a_datagram_pair_goes_up_without_a_peer() {
    let domain = domain!();
    let port = domain.context().active_port().unwrap();
    let (queue, _poller) = domain.completion_queue(8).unwrap();
    let pair = domain.datagram(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let pair = pair.into_rtr().unwrap();
    assert_eq!(pair.query_state().unwrap(), DeviceState::ReadyToReceive);
    let pair = pair.into_rts().unwrap();
    assert_eq!(pair.query_state().unwrap(), DeviceState::ReadyToSend);
}

/// A send queue drains even if every one of its slots has been used. On soft-RoCE such a queue never drains; only Error
/// ends the waiting.
#[test]
fn c015_a_send_queue_that_went_round_drains() {
    let Link { domain, mut poller, mut left, right: _right, .. } = link!(4);
    let region = domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    for _ in 0..40 {
        left.post_write(domain.buffer(8).unwrap(), &region.remote()).unwrap();
        next(&mut poller);
    }
    let left = left.into_sqd().unwrap();
    if deviates("C015") {
        assert!(!left.drained(10 * WHILE).unwrap());
        let error = left.resume().unwrap_err();
        assert!(matches!(error.source, TransitionFailure::Draining), "{error}");
        drop(error.queue_pair.into_error().unwrap());
    } else {
        assert!(left.drained(PATIENCE).unwrap());
        drop(left.resume().unwrap());
    }
}

/// A pair can go from every state to Reset, and come up again from there.
#[test]
fn c018_every_state_goes_to_reset() {
    if lacks_need(Need::Reset) {
        return;
    }
    let domain = domain!();
    let port = domain.context().active_port().unwrap();
    let (queue, _poller) = domain.completion_queue(8).unwrap();
    let mut pair = domain.reliable(&queue, &Limits::default()).unwrap();
    for state in 0..6 {
        let reset = match state {
            0 => pair.into_reset().unwrap(),
            1 => pair.into_init(&port).unwrap().into_reset().unwrap(),
            2 => {
                let pair = pair.into_init(&port).unwrap();
                let myself = pair.endpoint();
                pair.into_rtr(&from(&myself)).unwrap().into_reset().unwrap()
            }
            _ => {
                let pair = pair.into_init(&port).unwrap();
                let myself = pair.endpoint();
                let pair = pair.connect(&myself).unwrap();
                match state {
                    3 => pair.into_reset().unwrap(),
                    4 => {
                        let pair = pair.into_sqd().unwrap();
                        assert!(pair.drained(PATIENCE).unwrap());
                        pair.into_reset().unwrap()
                    }
                    _ => pair.into_error().unwrap().into_reset().unwrap(),
                }
            }
        };
        assert_eq!(reset.query_state().unwrap(), DeviceState::Reset, "from state {state}");
        pair = reset;
    }
}

/// A forbidden write of the peer takes a pair to Error while its type still says Ready To Send.
#[test]
fn c021_a_pair_that_the_device_broke_posts_and_is_flushed() {
    let mut link = link!(4);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let stale = region.remote();
    region.deregister().unwrap();
    link.left.post_write(link.domain.buffer(8).unwrap(), &stale).unwrap();
    assert_eq!(failure(&mut link.poller).status, Status::RemoteAccess);
    assert!(eventually(|| link.right.query_state().unwrap() == DeviceState::Error));
    assert_eq!(link.right.first_failure(), None, "nobody has told");
    let id = link.right.post_send(message(&link.domain, b"too late")).unwrap();
    let flushed = failure(&mut link.poller);
    assert_eq!((flushed.id, flushed.status), (id, Status::Flushed));
    assert_eq!(&flushed.into_buffer().unwrap()[..], b"too late");
    let refused = link.right.post_send(link.domain.buffer(8).unwrap()).unwrap_err();
    assert!(matches!(refused, PostError::Broken { first_failure: None, .. }), "{refused}");
}

/// Both pairs send at once.
#[test]
fn c028_two_pairs_of_one_process_send_to_each_other() {
    let mut link = link!(4);
    for (pair, text) in [(&mut link.left, b"to right"), (&mut link.right, b"to left.")] {
        pair.post_receive(link.domain.buffer(8).unwrap()).unwrap();
        pair.post_send(message(&link.domain, text)).unwrap_or_else(|error| panic!("{error}"));
    }
    let mut seen = Vec::new();
    for _ in 0..4 {
        let success = next(&mut link.poller);
        let by = success.queue_pair();
        seen.extend(success.into_received().ok().map(|buffer| (by, buffer.to_vec())));
    }
    seen.sort_by_key(|(by, _)| *by == link.right.number());
    assert_eq!(seen, [(link.left.number(), b"to left.".to_vec()), (link.right.number(), b"to right".to_vec())]);
}
