//! Posting in each state, and the fate of the requests.

use crate::{WHILE, failure, from, message, next};
use interlock::state::DeviceState;
use interlock::{Limits, RemoteWrite, Status, WorkId, WorkRequest};
use std::collections::HashSet;
use support::{Link, Need, PATIENCE, Promise, eventually, lacks, lacks_need};

/// A receive that was posted in Init takes a message while its pair is still in Ready To Receive.
#[test]
fn c033_a_receive_is_served_before_ready_to_send() {
    let domain = domain!();
    let port = domain.context().active_port().unwrap();
    let (queue, mut poller) = domain.completion_queue(16).unwrap();
    let left = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let mut right = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    right.post_receive(domain.buffer(8).unwrap()).unwrap();
    let mut left = left.connect(&right.endpoint()).unwrap();
    let mut right = right.into_rtr(&from(&left.endpoint())).unwrap();
    right.post_receive(domain.buffer(8).unwrap()).unwrap();
    for text in [b"first", b"later"] {
        left.post_send(message(&domain, text)).unwrap();
        let received = (0..2).filter_map(|_| next(&mut poller).into_received().ok()).next_back().unwrap();
        assert_eq!(&received[..], text);
    }
    assert_eq!(right.query_state().unwrap(), DeviceState::ReadyToReceive);
}

/// A move to Error is enough to flush the receives, in posting order.
#[test]
fn c036_error_flushes_receives_in_order() {
    let mut link = link!(4);
    let posted: Vec<_> = (0..4).map(|_| link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap()).collect();
    let _right = link.right.into_error().unwrap();
    let flushed: Vec<_> = (0..4)
        .map(|_| {
            let failure = failure(&mut link.poller);
            assert_eq!(failure.status, Status::Flushed);
            failure.id
        })
        .collect();
    assert_same(flushed, posted);
}

/// An unsignalled send that has succeeded is not flushed. Only the completion of a later request reports it.
#[test]
fn c037_error_does_not_flush_what_has_succeeded() {
    // On a device that completes requests in any order, the library signals each request.
    if lacks_need(Need::Order) {
        return;
    }
    let domain = domain!();
    let mut pause = WHILE;
    loop {
        let mut link = Link::new(domain.clone(), 4);
        let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
        let request = WorkRequest::write(message(&link.domain, &[7; 8]), &region.remote()).unsignalled();
        let id = link.left.post(request).unwrap();
        assert!(eventually(|| region.load(0).unwrap() != 0));
        // Wait until the acknowledgement of the write has arrived.
        std::thread::sleep(pause);
        let mut left = link.left.into_error().unwrap();
        let mut ended: Vec<_> = link.poller.wait_for(WHILE).unwrap().into_iter().collect();
        let came_by_itself = !ended.is_empty();
        left.drain(&mut link.poller, PATIENCE, |completion| ended.push(completion)).unwrap();
        assert_eq!((ended.len(), left.sends_in_flight()), (1, 0));
        match ended.remove(0).check() {
            Ok(written) => {
                assert_eq!((written.id(), came_by_itself), (id, false));
                break;
            }
            // Perhaps the acknowledgement was slow, and had not arrived before the move to Error.
            Err(flushed) => assert_eq!((flushed.status, flushed.id), (Status::Flushed, id)),
        }
        pause *= 2;
        assert!(pause < PATIENCE, "what has succeeded is flushed");
    }
}

/// Every flushed send makes a completion, signalled or not.
#[test]
fn c037_error_flushes_unsignalled_sends_too() {
    let mut link = link!(8);
    let posted: Vec<_> = (0..5)
        .map(|_| link.left.post(WorkRequest::send(link.domain.buffer(8).unwrap()).unsignalled()).unwrap())
        .collect();
    assert!(link.poller.wait_for(WHILE).unwrap().is_none(), "there is no receive");
    let mut left = link.left.into_error().unwrap();
    let mut flushed = Vec::new();
    left.drain(&mut link.poller, PATIENCE, |completion| {
        let failure = completion.check().unwrap_err();
        assert_eq!(failure.status, Status::Flushed);
        flushed.push(failure.id);
    })
    .unwrap();
    assert_same(flushed, posted);
}

/// Checks that `came` are the requests that were posted, in the same order if the device keeps it.
#[track_caller]
fn assert_same(came: Vec<WorkId>, posted: Vec<WorkId>) {
    if lacks(Promise::Order) {
        let [set, expected] = [&came, &posted].map(|ids| ids.iter().collect::<HashSet<_>>());
        assert_eq!((came.len(), set), (posted.len(), expected));
    } else {
        assert_eq!(came, posted);
    }
}
