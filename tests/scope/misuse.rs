//! Attacks: closures that panic, handles that are forgotten or swapped, and pollers that serve other pairs.

use crate::broken::{is_broken, one_cut_off};
use crate::{DEPTH, SHORT, Wire};
use interlock::error::WaitError;
use interlock::scope::{Exclusive, InScopeError, SharedQueue};
use interlock::{AnyQueuePair, Limits, PostError, QueuePair, RemoteWrite};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use support::{Need, PATIENCE, Promise, context, lacks, lacks_need};

#[test]
fn a_panic_with_requests_in_flight_ends_the_scope_first() {
    let mut wire = wire!();
    let mut buffer = vec![0_u8; 64];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        wire.exclusive.scope(SHORT, |scope| {
            let _ticket = scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap();
            panic!("in the closure");
        })
    }));
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"in the closure"));
    buffer.fill(1);
    drop(buffer);
    assert!(!wire.exclusive.is_connected());
    is_broken(wire.exclusive.into_parts().queue_pair.state());
}

#[test]
fn a_panic_with_nothing_in_flight_leaves_the_pair_connected() {
    let mut wire = wire!();
    let bytes = [0_u8; 8];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        wire.exclusive.scope(SHORT, |scope| {
            let _lent = scope.lend(&bytes).unwrap();
            panic!("in the closure");
        })
    }));
    assert!(panicked.is_err() && wire.exclusive.is_connected());
}

#[test]
fn forgetting_everything_gives_nothing_to_the_device() {
    let mut wire = wire!();
    let mut buffer = vec![0_u8; 64];
    let bytes = [5_u8; 8];
    let ended = wire.exclusive.scope(SHORT, |scope| {
        mem::forget(scope.lend(&bytes).unwrap());
        mem::forget(scope.lend(&bytes).unwrap().clone());
        let (left, right) = scope.lend_mut(&mut buffer).unwrap().split_at(8).unwrap();
        mem::forget(right);
        mem::forget(scope.post_receive(left).unwrap());
    });
    one_cut_off(ended);
    buffer.fill(1);
    drop(buffer);
}

#[test]
fn forgotten_tickets_keep_places_until_the_scope_ends() {
    let mut wire = wire!();
    let region = wire.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let (remote, bytes) = (region.remote(), [1_u8; 8]);
    for _ in 0..2 {
        wire.exclusive
            .scope(PATIENCE, |scope| {
                let lent = scope.lend(&bytes)?;
                for _ in 0..2 * DEPTH {
                    let ticket = match scope.post_write(lent.clone(), &remote) {
                        // Without this promise, a write that was overtaken keeps its slot and all slots after it, so
                        // the queue can be full here.
                        Err(PostError::QueueFull(_)) if lacks(Promise::Order) => return Ok(()),
                        posted => posted?,
                    };
                    let id = ticket.id();
                    mem::forget(ticket);
                    // Wait for another ticket, so that the queue has room.
                    let Ok(next) = scope.post_write(lent.clone(), &remote) else { return Ok(()) };
                    assert_ne!(next.id(), id);
                    scope.wait(next)?;
                }
                panic!("results are kept without end");
                #[allow(unreachable_code, reason = "gives the type")]
                Ok::<_, InScopeError>(())
            })
            .unwrap()
            .unwrap();
    }
    // Dropped tickets keep no results.
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let mut lent = scope.lend(&bytes)?;
            for _ in 0..10 * DEPTH {
                lent = match scope.post_write(lent, &remote) {
                    Ok(ticket) => {
                        assert!(!ticket.is_done());
                        scope.lend(&bytes)?
                    }
                    Err(PostError::QueueFull(lent)) => {
                        scope.wait_any(PATIENCE)?;
                        lent
                    }
                    Err(error) => return Err(error.into()),
                };
            }
            let last = loop {
                match scope.post_write(lent.clone(), &remote) {
                    Ok(ticket) => break ticket,
                    Err(_) => scope.wait_any(PATIENCE)?,
                }
            };
            while !last.is_done() {
                scope.wait_any(PATIENCE)?;
            }
            scope.wait_for(last, Duration::ZERO)?;
            // On some devices, the write of `last` may complete before older writes.
            while lacks(Promise::Order) && scope.wait_any(SHORT).is_ok() {}
            assert!(matches!(scope.wait_any(Duration::ZERO), Err(WaitError::TimedOut(_))));
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
}

#[test]
fn a_poller_that_serves_others_makes_no_exclusive() {
    if lacks_need(Need::SelfConnection) {
        return;
    }
    let mut wire = wire!();
    let limits = Limits { sends: 1, receives: 1, ..Limits::default() };
    let (queue, poller) = wire.domain.completion_queue(8).unwrap();
    let connected = |wire: &Wire<_>, pair: QueuePair<_, interlock::Reset>| {
        let pair = pair.into_init(&wire.port).unwrap();
        let myself = pair.endpoint();
        pair.connect(&myself).unwrap()
    };
    let pair = connected(&wire, wire.domain.reliable(&queue, &limits).unwrap());
    // The handle of the queue still exists, so the program could make other pairs that use the queue.
    let error = Exclusive::new(pair, poller).unwrap_err();
    assert_eq!(error.reason, SharedQueue::Shared { others: 1 });
    // Another pair already uses the queue.
    let other = wire.domain.reliable(&queue, &limits).unwrap();
    drop(queue);
    let error = Exclusive::new(error.queue_pair, error.poller).unwrap_err();
    assert_eq!(error.reason, SharedQueue::Shared { others: 2 });
    // A forgotten pair still uses the queue.
    mem::forget(other);
    let error = Exclusive::new(error.queue_pair, error.poller).unwrap_err();
    assert_eq!(error.reason, SharedQueue::Shared { others: 2 });
    assert!(error.to_string().contains("2 other handles"), "{error}");
    // The poller belongs to another pair's queue.
    let parts = wire.exclusive.into_parts();
    let AnyQueuePair::ReadyToSend(mine) = parts.queue_pair else { panic!("is connected") };
    let swapped = Exclusive::new(mine, error.poller).unwrap_err();
    assert_eq!(swapped.reason, SharedQueue::OtherQueue);
    wire.exclusive = Exclusive::new(swapped.queue_pair, parts.poller.unwrap()).unwrap();
    if !wire.domain.context().promises().pairs_may_have_two_queues() {
        return;
    }
    // The pair completes its sends on one queue and its receives on another.
    let (one, one_poller) = wire.domain.completion_queue(8).unwrap();
    let (two, _two_poller) = wire.domain.completion_queue(8).unwrap();
    let pair = connected(&wire, wire.domain.reliable_on(&one, &two, &limits).unwrap());
    drop((one, two));
    assert_eq!(Exclusive::new(pair, one_poller).unwrap_err().reason, SharedQueue::OtherQueue);
}

#[test]
fn handles_of_exclusives_may_be_swapped_between_scopes() {
    interlock::domain! { struct Same; }
    let domain = context().named_domain(Same).unwrap();
    let (mut one, mut two) = (Wire::new(domain.clone()), Wire::new(domain));
    one.peer_posts_receive(8);
    mem::swap(&mut one.exclusive, &mut two.exclusive);
    let bytes = [1_u8; 8];
    two.exclusive.scope(PATIENCE, |scope| drop(scope.post_send(scope.lend(&bytes).unwrap()).unwrap())).unwrap();
    assert_eq!(one.peer_received(), [1; 8]);
}
