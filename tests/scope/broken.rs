//! Failures that break the pair, and how it recovers. Requests fail or are cut off, also on devices that do not move.

use crate::{SHORT, Wire, always, broken};
use interlock::attributes::ConnectAttributes;
use interlock::error::WaitError;
use interlock::number::RetryCount;
use interlock::request::Operation;
use interlock::scope::{Exclusive, InScopeError, ScopeError, WaitFailure};
use interlock::soft::{Fabric, Fault, Verb};
use interlock::{AnyQueuePair, Context, PostError, RemoteRead, RemoteWrite, Status};
use std::time::{Duration, Instant};
use support::{Need, PATIENCE, lacks_need, on_hardware};

/// Checks that the end of the scope cut one request off, and returns the state of the pair. A slow device flushes the
/// request too late, and then the pair is reset or destroyed.
#[track_caller]
pub(super) fn one_cut_off<R>(ended: Result<R, ScopeError<R>>) -> &'static str {
    let (state, cut_off, first_failure) = broken(ended);
    is_broken(state);
    assert_eq!((cut_off, first_failure), (1, None));
    state
}

/// Checks the state of a pair that a scope has broken. If a slow device flushes a request too late, the scope has reset
/// or destroyed the pair.
#[track_caller]
pub(super) fn is_broken(state: &str) {
    let is_late = on_hardware() && ["Reset", "Vacant"].contains(&state);
    assert!(state == "Errored" || is_late, "{state}");
}

#[test]
fn a_receive_without_a_message_is_cut_off_and_its_memory_is_back() {
    let mut wire = wire!();
    let mut buffer = vec![1_u8; 4096];
    let begun = Instant::now();
    let ended = wire.exclusive.scope(SHORT, |scope| {
        let ticket = scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap();
        let Err(WaitFailure::Unfinished { ticket, source: WaitError::TimedOut(_) }) = scope.wait_for(ticket, SHORT / 5)
        else {
            panic!("nobody sent")
        };
        let again = scope.wait(ticket).unwrap_err();
        assert!(begun.elapsed() >= SHORT);
        InScopeError::from(again).to_string()
    });
    assert!(ended.as_ref().unwrap_err().to_string().contains("1 requests were cut off"), "{ended:?}");
    let broken_state = one_cut_off(ended);
    buffer.fill(2);
    assert!(!wire.exclusive.is_connected());
    let mut called = false;
    let refused = wire.exclusive.scope(SHORT, |_| called = true);
    let is_refused = matches!(refused, Err(ScopeError::NotConnected { state }) if state == broken_state);
    assert!(is_refused && !called, "{refused:?}");
    assert!(refused.unwrap_err().into_result().is_none());
}

#[test]
fn a_pair_that_a_scope_broke_is_connected_again() {
    if lacks_need(Need::Reset) {
        return;
    }
    // If a slow device flushes the request too late, the scope resets or destroys the pair. So try several times.
    let found = (0..5).find_map(|_| {
        let mut wire = wire!();
        let mut buffer = [0_u8; 8];
        let ended = wire.exclusive.scope(Duration::ZERO, |scope| {
            drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
            "what the closure returned"
        });
        let is_errored = matches!(ended, Err(ScopeError::Broken { state: "Errored", .. }));
        assert!(is_errored || on_hardware(), "{ended:?}");
        assert_eq!(ended.unwrap_err().into_result(), Some("what the closure returned"));
        is_errored.then_some(wire)
    });
    let mut wire = found.expect("a pair in Error");
    let parts = wire.exclusive.into_parts();
    let AnyQueuePair::Errored(pair) = parts.queue_pair else { panic!("{:?}", parts.queue_pair) };
    assert!(parts.completions.is_empty());
    let pair = pair.into_reset().unwrap().into_init(&wire.port).unwrap();
    let peer = wire.peer.into_reset().unwrap().into_init(&wire.port).unwrap();
    let (to_pair, to_peer) = (pair.endpoint(), peer.endpoint());
    let pair = pair.connect(&to_peer).unwrap();
    wire.peer = peer.connect(&to_pair).unwrap();
    wire.exclusive = Exclusive::new(pair, parts.poller.unwrap()).unwrap();
    wire.peer_sends(b"again");
    let mut buffer = [0_u8; 8];
    wire.exclusive
        .scope(PATIENCE, |scope| drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap()))
        .unwrap();
    assert_eq!(&buffer[..5], b"again");
}

#[test]
fn a_failed_request_says_why_and_breaks_the_pair() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    let mut wire = wire!();
    let region = wire.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let remote = region.remote();
    drop(region.deregister().unwrap());
    let bytes = [1_u8; 8];
    let begun = Instant::now();
    let ended = wire.exclusive.scope(PATIENCE, |scope| {
        let ticket = scope.post_write(scope.lend(&bytes).unwrap(), &remote).unwrap();
        match scope.wait(ticket) {
            Err(WaitFailure::Failed { cause, memory }) => {
                assert_eq!((cause.status, cause.operation, memory.len()), (Status::RemoteAccess, Operation::Write, 8));
                let refused = scope.post_send(memory).unwrap_err();
                assert!(matches!(refused, PostError::Broken { first_failure: Some(Status::RemoteAccess), .. }));
            }
            other => panic!("{other:?}"),
        }
    });
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(broken(ended), ("Errored", 0, Some(Status::RemoteAccess)));
}

#[test]
fn a_failure_ends_the_wait_for_the_others() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    let mut wire = wire!();
    let region = wire.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let remote = region.remote();
    drop(region.deregister().unwrap());
    let (bytes, mut buffer) = ([1_u8; 8], [0_u8; 8]);
    let begun = Instant::now();
    let ended = wire.exclusive.scope(PATIENCE, |scope| {
        drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
        drop(scope.post_write(scope.lend(&bytes).unwrap(), &remote).unwrap());
    });
    assert!(begun.elapsed() < PATIENCE / 2);
    let (state, _, first) = broken(ended);
    is_broken(state);
    assert_eq!(first, Some(Status::RemoteAccess));
}

#[test]
fn a_peer_that_is_silent_costs_the_time_of_the_scope_and_the_connection() {
    let (fabric, mut wire) = wire!(Fabric::new());
    fabric.inject(Fault::RequestsLost { count: u32::MAX });
    let bytes = [1_u8; 8];
    let ended = wire.exclusive.scope(SHORT, |scope| drop(scope.post_send(scope.lend(&bytes).unwrap()).unwrap()));
    assert_eq!(broken(ended), ("Errored", 1, None));
    // A pair without retries fails before the time of the scope is over.
    let attributes = ConnectAttributes { retry_count: RetryCount::new(0).unwrap(), ..ConnectAttributes::default() };
    let mut wire = Wire::with(wire.domain, &attributes);
    let ended = wire.exclusive.scope(PATIENCE, |scope| {
        let ticket = scope.post_send(scope.lend(&bytes).unwrap()).unwrap();
        InScopeError::from(scope.wait(ticket).unwrap_err())
    });
    assert!(matches!(&ended, Err(ScopeError::Broken { result: InScopeError::Failed(_), .. })), "{ended:?}");
    assert_eq!(broken(ended), ("Errored", 0, Some(Status::RetryExceeded)));
}

#[test]
fn a_flush_that_comes_late_is_waited_for() {
    // If this thread is slow, the scope asks for the flush too late, and resets the pair. So try several times.
    let is_waited_for = (0..5).any(|_| {
        let (fabric, mut wire) = wire!(Fabric::new());
        fabric.inject(Fault::FlushWithheld);
        let mut buffer = [0_u8; 8];
        let ended = wire
            .exclusive
            .scope(Duration::ZERO, |scope| drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap()));
        let (state, cut_off, first_failure) = broken(ended);
        assert_eq!((cut_off, first_failure), (1, None));
        state == "Errored"
    });
    assert!(is_waited_for);
}

/// Posts a send, a receive and a read on a manual fabric, injects `faults`, and ends the scope. Then changes the memory
/// and runs the device, which must not touch it. Returns the state of the pair, and whether the poller still exists.
fn cut_off_on_a_device_that_stands_still(faults: &[Fault]) -> (&'static str, bool) {
    let fabric = Fabric::manual();
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let ended = context.with_domain(|domain| {
        let mut wire = Wire::new(domain);
        let region = wire.domain.register::<RemoteRead, _>(vec![7_u64; 2]).unwrap();
        wire.peer_posts_receive(16);
        wire.peer_sends(b"too late");
        let (message, mut buffer, mut copy) = (vec![1_u8; 16], vec![0_u8; 16], vec![0_u64; 2]);
        let ended = wire.exclusive.scope(Duration::ZERO, |scope| {
            drop(scope.post_send(scope.lend(&message).unwrap()).unwrap());
            drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
            drop(scope.post_read(scope.lend_mut(&mut copy).unwrap(), &region.remote()).unwrap());
            faults.iter().for_each(|fault| fabric.inject(fault.clone()));
        });
        let (state, cut_off, first) = broken(ended);
        assert_eq!((cut_off, first), (3, None));
        fabric.heal();
        buffer.fill(9);
        copy.fill(9);
        fabric.run();
        assert!(buffer.iter().all(|&byte| byte == 9) && copy.iter().all(|&word| word == 9));
        drop((message, buffer, copy));
        fabric.run();
        let mut parts = wire.exclusive.into_parts();
        if let Some(poller) = &mut parts.poller
            && let Some(completion) = poller.poll().unwrap()
        {
            panic!("{completion:?} is of a scope that is over");
        }
        assert_eq!(parts.queue_pair.state(), state);
        (state, parts.poller.is_some())
    });
    ended.unwrap()
}

#[test]
fn a_pair_that_is_not_flushed_is_reset() {
    assert_eq!(cut_off_on_a_device_that_stands_still(&[]), ("Reset", true));
}

#[test]
fn a_pair_that_is_neither_flushed_nor_reset_is_destroyed() {
    let faults = [always(Verb::ModifyQp, libc::EIO)];
    assert_eq!(cut_off_on_a_device_that_stands_still(&faults), ("Vacant", true));
}

#[test]
fn a_queue_that_gives_nothing_out_goes_with_the_pair() {
    let poll = always(Verb::PollCq, libc::EIO);
    for other in [poll.clone(), always(Verb::DestroyQp, libc::EIO), always(Verb::ModifyQp, libc::EIO)] {
        assert_eq!(cut_off_on_a_device_that_stands_still(&[poll.clone(), other]), ("Vacant", false));
    }
}

#[test]
fn an_exclusive_without_a_pair_refuses_all() {
    let (fabric, mut wire) = wire!(Fabric::manual());
    let mut buffer = [0_u8; 8];
    fabric.inject(always(Verb::ModifyQp, libc::EIO));
    let ended = wire
        .exclusive
        .scope(Duration::ZERO, |scope| drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap()));
    assert_eq!(broken(ended), ("Vacant", 1, None));
    let owned = wire.domain.buffer(8).unwrap();
    let refused = wire.exclusive.post_receive(owned).unwrap_err();
    assert!(matches!(refused, PostError::Broken { .. }));
    let refused = wire.exclusive.post(interlock::WorkRequest::send(refused.into_request().unwrap()));
    assert!(matches!(refused, Err(PostError::Broken { .. })));
    assert!(matches!(wire.exclusive.scope(SHORT, |_| ()), Err(ScopeError::NotConnected { state: "Vacant" })));
    assert!(wire.exclusive.poll().unwrap().is_none());
    assert!(format!("{:?}", wire.exclusive).contains("Vacant"));
}

#[test]
fn a_post_that_may_be_queued_keeps_the_memory_until_the_pair_is_flushed() {
    let (fabric, mut wire) = wire!(Fabric::new());
    let mut buffer = [0_u8; 8];
    let ended = wire.exclusive.scope(PATIENCE, |scope| {
        fabric.inject(Fault::ReceiveKept { errno: libc::EINVAL });
        let error = scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap_err();
        assert!(matches!(error, PostError::Uncertain { .. }), "{error:?}");
    });
    assert_eq!(broken(ended), ("Errored", 1, None));
    // No completion of the scope appears later.
    assert!(wire.exclusive.poll().unwrap().is_none());
}
