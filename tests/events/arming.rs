//! One arming makes one event, for any completion or for solicited ones, and no event is lost.

use super::{Edges, SOON, WHILE, arm, message, sleeps};
use interlock::completion::{Armed, Wait, WakeFor};
use interlock::error::WaitError;
use interlock::soft::Fabric;
use interlock::{Completion, Context, Limits, RemoteReadWrite, Status, WorkRequest};
use std::time::{Duration, Instant};
use support::{Link, Need, PATIENCE, Promise, Queues, lacks, lacks_need, next, own_device};

/// C125: a completion in an armed queue makes an event. C127: the next completion makes none, unless the queue is armed
/// again.
#[test]
fn c125_c127_one_arming_makes_one_event() {
    let mut link = link!(8);
    let readiness = link.poller.readiness().unwrap();
    assert_eq!(arm(&mut link.poller, WakeFor::Any), 0);
    assert!(sleeps(&readiness, Duration::ZERO));
    message(&mut link, false);
    assert!(readiness.wait(SOON).unwrap());
    assert!(link.poller.take_events().unwrap());
    message(&mut link, false);
    assert!(sleeps(&readiness, WHILE));
    assert!(!link.poller.take_events().unwrap());
    let mut count = 0;
    while count < 2 {
        count += usize::from(link.poller.wait(PATIENCE).unwrap().check().is_ok());
    }
}

/// C126: a completion that is in the queue when it is armed makes no event; arming returns the completion.
#[test]
fn c126_arming_tells_of_what_is_there_already() {
    let mut link = link!(8);
    let readiness = link.poller.readiness().unwrap();
    message(&mut link, false);
    let until = Instant::now() + SOON;
    while arm(&mut link.poller, WakeFor::Any) == 0 {
        // The queue was empty when it was armed, so the completion that follows makes an event.
        assert!(readiness.wait(SOON).unwrap() && Instant::now() < until);
    }
}

/// C128: a plain message does not wake a program that waits for solicited completions. C129: a solicited one does.
#[test]
fn c128_c129_a_solicited_wait_sleeps_through_plain_messages() {
    let mut link = link!(8);
    let readiness = link.poller.readiness().unwrap();
    assert_eq!(arm(&mut link.poller, WakeFor::Solicited), 0);
    message(&mut link, false);
    assert!(sleeps(&readiness, WHILE));
    message(&mut link, true);
    assert!(readiness.wait(SOON).unwrap());
    assert!(link.poller.take_events().unwrap());
    let mut count = 0;
    while count < 2 {
        count += usize::from(link.poller.wait(PATIENCE).unwrap().check().is_ok());
    }
    // `wait_for` sleeps until a solicited completion comes. At its deadline, it returns any completion that is there.
    let how = Wait { wake_for: WakeFor::Solicited, ..Wait::new(PATIENCE) };
    message(&mut link, true);
    assert!(link.poller.wait_for(how).unwrap().is_some());
    let mut timeout = WHILE;
    loop {
        message(&mut link, false);
        if link.poller.wait_for(Wait { timeout, ..how }).unwrap().is_some() {
            break;
        }
        // Perhaps the message was still on its way at the deadline.
        drop(link.poller.wait(PATIENCE).unwrap());
        timeout *= 2;
        assert!(timeout < PATIENCE, "nothing is returned at the deadline");
    }
}

/// C129: a failure wakes a program that waits for solicited completions.
#[test]
fn c129_a_failure_wakes_a_solicited_wait() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    let mut link = link!(8);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![0_u64; 2]).unwrap();
    let gone = region.remote();
    drop(region);
    let readiness = link.poller.readiness().unwrap();
    assert_eq!(arm(&mut link.poller, WakeFor::Solicited), 0);
    link.left.post_write(link.domain.buffer(8).unwrap(), &gone).unwrap();
    if support::deviates("C129") {
        assert!(sleeps(&readiness, 5 * WHILE));
    } else {
        assert!(readiness.wait(SOON).unwrap());
    }
    let failure = link.poller.wait(PATIENCE).unwrap().check().unwrap_err();
    assert_eq!(failure.status, Status::RemoteAccess);
}

/// Neither a timer of the soft device nor a plain message wakes a program that waits for solicited completions.
#[test]
fn a_solicited_wait_sleeps_through_timers_and_plain_messages() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (fabric, domain) = own_device!(Fabric::new());
    let link = Link::new(domain, 8);
    // `busy.left` always has a timer running, because its peer posts no receive.
    let other = Context::open_on(&fabric, "dev0").unwrap().checked_domain().unwrap();
    let mut busy = Link::new(other, 4);
    busy.left.post_send(busy.domain.buffer(8).unwrap()).unwrap();
    assert!(link.poller.next_timer().is_some());

    let Link { mut right, mut left, mut poller, domain, .. } = link;
    let mut pause = WHILE;
    loop {
        for _ in 0..2 {
            left.post_receive(domain.buffer(8).unwrap()).unwrap();
        }
        let is_solicited = AtomicBool::new(false);
        let slept = std::thread::scope(|threads| {
            let waiter = threads.spawn(|| {
                let how = Wait { wake_for: WakeFor::Solicited, ..Wait::new(PATIENCE) };
                assert!(poller.wait_for(how).unwrap().is_some());
                is_solicited.load(Ordering::SeqCst)
            });
            std::thread::sleep(pause);
            right.post(WorkRequest::send(domain.buffer(8).unwrap()).unsignalled()).unwrap();
            std::thread::sleep(WHILE);
            is_solicited.store(true, Ordering::SeqCst);
            right.post(WorkRequest::send(domain.buffer(8).unwrap()).solicited()).unwrap();
            waiter.join().unwrap()
        });
        assert!(support::eventually(|| {
            while poller.poll().unwrap().is_some() {}
            left.receives_in_flight() == 0 && right.sends_in_flight() == 0
        }));
        if slept {
            break;
        }
        // Perhaps the waiter was slow and found the plain message there, before it slept.
        pause *= 2;
        assert!(pause < PATIENCE, "woken by a plain message");
    }
    // At its deadline, `wait_for` returns any completion that is there, even if no solicited one came.
    let mut timeout = 10 * WHILE;
    loop {
        left.post_receive(domain.buffer(8).unwrap()).unwrap();
        let found = std::thread::scope(|threads| {
            threads.spawn(|| {
                std::thread::sleep(WHILE);
                right.post(WorkRequest::send(domain.buffer(8).unwrap()).unsignalled()).unwrap();
            });
            let how = Wait { wake_for: WakeFor::Solicited, ..Wait::new(timeout) };
            poller.wait_for(how).unwrap().is_some()
        });
        if found {
            break;
        }
        // Perhaps the thread was slow, and its message came only after the deadline.
        drop(poller.wait(PATIENCE).unwrap());
        timeout *= 2;
        assert!(timeout < PATIENCE, "nothing is returned at the deadline");
    }
}

/// A queue that is still armed for any completion stays so when it is armed for solicited ones: a plain message makes
/// an event, and the program waits again.
#[test]
fn a_solicited_arming_after_another_may_be_woken_by_any() {
    // Soft iWARP forgets the first arming: `siw_notify_cq` of its provider overwrites it with the second arming.
    if lacks_need(Need::Arming) {
        return;
    }
    let mut link = link!(8);
    let readiness = link.poller.readiness().unwrap();
    assert_eq!(arm(&mut link.poller, WakeFor::Any), 0);
    assert_eq!(arm(&mut link.poller, WakeFor::Solicited), 0);
    message(&mut link, false);
    assert!(readiness.wait(SOON).unwrap());
    // On some devices, the send of the message has a completion of its own.
    let most = if lacks(Promise::Order) { 2 } else { 1 };
    assert!(arm(&mut link.poller, WakeFor::Solicited) <= most);
}

/// C134: a program may stop waiting at any point, and loses no completion.
#[test]
fn c134_a_wait_that_is_given_up_loses_nothing() {
    // On a device that completes requests in any order, the unsignalled send of each message has a completion of its
    // own. This test expects only the completion of the receive.
    if lacks_need(Need::Order) {
        return;
    }
    let mut link = link!(8);
    for round in 0..4 {
        let readiness = link.poller.readiness().unwrap();
        if round > 0 {
            assert_eq!(arm(&mut link.poller, WakeFor::Any), 0);
        }
        if round > 1 {
            message(&mut link, false);
            assert!(readiness.wait(SOON).unwrap());
        }
        if round > 2 {
            link.poller.take_events().unwrap();
        }
        drop(readiness);
        if round <= 1 {
            message(&mut link, false);
        }
        next(&mut link.poller);
        assert!(link.poller.wait_for(Duration::from_millis(1)).unwrap().is_none());
    }
}

/// C142: the destruction of a queue does not wait for its events, whether they were taken or not.
#[test]
fn c142_a_queue_with_events_is_destroyed_at_once() {
    for taken in [false, true] {
        let mut link = link!(8);
        assert_eq!(arm(&mut link.poller, WakeFor::Any), 0);
        let readiness = link.poller.readiness().unwrap();
        message(&mut link, false);
        assert!(readiness.wait(SOON).unwrap());
        if taken {
            assert!(link.poller.take_events().unwrap());
        }
        let start = Instant::now();
        drop(link);
        assert!(start.elapsed() < SOON);
        assert!(!readiness.wait(Duration::ZERO).unwrap(), "of a queue that is gone there is nothing to take");
    }
}

#[test]
fn a_timeout_reads_as_none_or_as_an_error() {
    let mut link = link!(4);
    assert!(link.poller.wait_for(Duration::from_millis(20)).unwrap().is_none());
    assert!(link.poller.wait_for(Duration::ZERO).unwrap().is_none());
    assert!(matches!(link.poller.wait(Duration::ZERO), Err(WaitError::TimedOut(Duration::ZERO))));
    let spinning = Wait { spin: Duration::from_secs(3600), ..Wait::new(Duration::from_millis(20)) };
    let start = Instant::now();
    assert!(link.poller.wait_for(spinning).unwrap().is_none());
    assert!(start.elapsed() >= Duration::from_millis(20) && start.elapsed() < SOON, "the limit includes the spinning");
}

/// An edge-triggered loop that takes out events only by arming sees an edge for each new event.
#[test]
fn an_edge_triggered_loop_misses_nothing() {
    // The loop does not wait until its sends are complete, so the send queue must have room for all of them.
    let mut link = link!(32);
    let readiness = link.poller.readiness().unwrap();
    let edges = Edges::of(&readiness);
    for round in 0..20 {
        assert_eq!(arm(&mut link.poller, WakeFor::Any), 0);
        message(&mut link, false);
        let mut seen = 0;
        while seen == 0 {
            assert!(edges.wait(SOON), "round {round}");
            seen = arm(&mut link.poller, WakeFor::Any);
        }
    }
    // The verbs make no event when a pair ends, so the library itself wakes the loop. It does so for each pair, even if
    // the program never calls `take_events` but only arms the queue.
    let port = link.port;
    for _ in 0..3 {
        let extra = link.domain.queue(8).unwrap();
        let (queue, mut poller) = extra;
        let readiness = poller.readiness().unwrap();
        let edges = Edges::of(&readiness);
        for _ in 0..3 {
            let mut pair = link.domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
            pair.post_receive(link.domain.buffer(8).unwrap()).unwrap();
            assert!(matches!(poller.arm(WakeFor::Any).unwrap(), Armed::Empty));
            drop(pair);
            assert!(edges.wait(SOON));
            let Armed::Ready(completion) = poller.arm(WakeFor::Any).unwrap() else { panic!("destroyed") };
            assert!(matches!(completion.check().unwrap_err().status, Status::Destroyed | Status::Flushed));
            while let Armed::Ready(_) = poller.arm(WakeFor::Any).unwrap() {}
        }
    }
}

#[test]
fn timers_of_an_automatic_fabric_are_told_to_a_loop() {
    let (_fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 4);
    assert_eq!(link.poller.next_timer(), None);
    assert!(matches!(link.poller.arm(WakeFor::Any).unwrap(), Armed::Empty));
    let readiness = link.poller.readiness().unwrap();
    // The peer has posted no receive, so the device starts a timer to send the message again.
    link.left.post_send(link.domain.buffer(8).unwrap()).unwrap();
    assert!(readiness.wait(SOON).unwrap(), "there is a timer to wait for");
    assert!(matches!(link.poller.arm(WakeFor::Any).unwrap(), Armed::Empty));
    assert!(link.poller.next_timer().is_some());
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    let mut seen = 0;
    while seen < 2 {
        match link.poller.arm(WakeFor::Any).unwrap() {
            Armed::Ready(completion) => seen += usize::from(completion.check().is_ok()),
            Armed::Empty => {
                let timer = link.poller.next_timer().unwrap_or(SOON);
                readiness.wait(timer.min(SOON)).unwrap();
            }
        }
    }
}

/// A program may forget a poller, a channel, a readiness or a completion.
#[test]
fn waiting_things_may_be_forgotten() {
    let mut link = link!(4);
    for _ in 0..3 {
        std::mem::forget(link.poller.readiness().unwrap());
        std::mem::forget(link.poller.arm(WakeFor::Any).unwrap());
    }
    message(&mut link, false);
    next(&mut link.poller);
    let mut channel = link.domain.completion_channel().unwrap();
    let (queue, poller) = channel.queue(4).unwrap();
    std::mem::forget(poller);
    assert!(queue.take_poller().is_none());
    assert!(channel.next(Duration::ZERO).unwrap().is_none());
    std::mem::forget(channel);
    let _: Option<Completion<_>> = link.poller.wait_for(Duration::ZERO).unwrap();
}

support::also_extended![
    c125_c127_one_arming_makes_one_event,
    c126_arming_tells_of_what_is_there_already,
    c128_c129_a_solicited_wait_sleeps_through_plain_messages,
    c129_a_failure_wakes_a_solicited_wait,
    a_solicited_wait_sleeps_through_timers_and_plain_messages,
    a_solicited_arming_after_another_may_be_woken_by_any,
    c134_a_wait_that_is_given_up_loses_nothing,
    c142_a_queue_with_events_is_destroyed_at_once,
    a_timeout_reads_as_none_or_as_an_error,
    an_edge_triggered_loop_misses_nothing,
    timers_of_an_automatic_fabric_are_told_to_a_loop,
    waiting_things_may_be_forgotten,
];
