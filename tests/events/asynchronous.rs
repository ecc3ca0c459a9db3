//! Asynchronous events: of pairs, ports and devices.

use super::{SOON, arm, message};
use interlock::completion::WakeFor;
use interlock::error::{EventsError, PollError, ResizeError, TakeEventsError};
use interlock::event::{AsyncEvent, AsyncEvents, PortEvent, QueuePairEvent};
use interlock::soft::{Fabric, Fault};
use interlock::state::DeviceState;
use interlock::{Brand, Context, Limits, QueuePair, RemoteReadWrite, Status};
use std::time::{Duration, Instant};
use support::{Link, Need, PATIENCE, Queues, context, eventually, lacks_need, next, own_device};

fn drained<B: Brand>(events: &mut AsyncEvents, pair: &QueuePair<B, interlock::state::SendQueueDrain>) {
    let expected = AsyncEvent::OfQueuePair(pair.number(), QueuePairEvent::SendQueueDrained);
    assert_eq!(events.next(SOON).unwrap(), Some(expected));
}

/// C015: the event comes when the send queue is drained, and then the pair can resume.
#[test]
fn c015_a_drained_send_queue_is_told_and_goes_on() {
    if lacks_need(Need::Drain) || lacks_need(Need::AsyncEvents) {
        return;
    }
    let mut link = link!(4);
    let context = link.domain.context();
    let mut events = context.events().unwrap();
    let readiness = events.readiness().unwrap();
    assert!(events.poll().unwrap().is_none() && !readiness.wait(Duration::ZERO).unwrap());
    let pair = link.left.into_sqd().unwrap();
    assert!(readiness.wait(SOON).unwrap());
    drained(&mut events, &pair);
    assert!(pair.drained(PATIENCE).unwrap());
    link.left = pair.resume().unwrap();
    message(&mut link, false);
    next(&mut link.poller);
}

#[test]
fn events_are_taken_by_one_at_a_time() {
    let context = context();
    if !context.promises().has_events() {
        return assert_eq!(context.events().unwrap_err(), TakeEventsError::NotOnThisProvider);
    }
    let events = context.events().unwrap();
    assert_eq!(context.events().unwrap_err(), TakeEventsError::Taken);
    assert_eq!(context.clone().events().unwrap_err(), TakeEventsError::Taken);
    drop(events);
    assert!(context.events().is_ok());
    let mut again = context.events().unwrap();
    let start = Instant::now();
    assert!(again.next(Duration::from_millis(20)).unwrap().is_none() && start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn events_of_a_pair_that_is_gone_are_dropped() {
    if lacks_need(Need::Drain) || lacks_need(Need::AsyncEvents) {
        return;
    }
    let link = link!(4);
    let context = link.domain.context();
    let mut events = context.events().unwrap();
    let left = link.left.into_sqd().unwrap();
    assert!(left.drained(PATIENCE).unwrap());
    // Destroy the pair before its event is taken. `destroy` does not wait for the event. On some devices it leaves the
    // pair to the poller.
    left.destroy().unwrap();
    let mut poller = link.poller;
    if !context.promises().pairs_end_at_once(false) {
        let room = link.queue.room();
        assert!(eventually(|| poller.poll().unwrap().is_none() && link.queue.room() > room));
    }
    let right = link.right.into_sqd().unwrap();
    drained(&mut events, &right);
}

/// Pairs come and go at the same addresses, while another thread takes their events.
#[test]
fn an_event_is_never_told_of_a_pair_that_was_never_drained() {
    if lacks_need(Need::Drain) || lacks_need(Need::AsyncEvents) {
        return;
    }
    let link = link!(1);
    let context = link.domain.context();
    let mut events = context.events().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let (port, domain) = (&link.port, &link.domain);
    let (drained, told) = std::thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let mut told = Vec::new();
            while let Some(event) = match done.load(std::sync::atomic::Ordering::Acquire) {
                true => events.poll().unwrap(),
                false => events.next(Duration::from_millis(1)).unwrap().or(Some(AsyncEvent::DeviceFatal)),
            } {
                told.extend(match event {
                    AsyncEvent::OfQueuePair(qpn, QueuePairEvent::SendQueueDrained) => Some(qpn),
                    _ => None,
                });
            }
            told
        });
        let mut drained = Vec::new();
        let (queue, _poller) = domain.queue(200).unwrap();
        for round in 0..40 {
            let limits = Limits { sends: 1, receives: 1, ..Limits::default() };
            let pair = domain.reliable(&queue, &limits).unwrap().into_init(port).unwrap();
            let myself = pair.endpoint();
            let pair = pair.connect(&myself).unwrap();
            if round % 2 == 0 {
                drained.push(pair.number());
                drop(pair.into_sqd().unwrap());
            }
        }
        done.store(true, std::sync::atomic::Ordering::Release);
        (drained, taking.join().unwrap())
    });
    assert!(told.iter().all(|qpn| drained.contains(qpn)), "{told:?} of {drained:?}");
}

/// A forbidden access makes no completion at the responder, but an event. On soft-RoCE there is no event either.
#[test]
fn a_peer_that_may_not_is_told() {
    let (_fabric, domain) = own_device!(Fabric::new());
    let context = domain.context();
    let mut events = context.events().unwrap();
    let mut link = Link::new(domain, 4);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
    let remote = region.remote();
    region.deregister().unwrap();
    link.left.post_write(link.domain.buffer(8).unwrap(), &remote).unwrap();
    let event = events.next(SOON).unwrap().unwrap();
    assert_eq!(event, AsyncEvent::OfQueuePair(link.right.number(), QueuePairEvent::AccessError));
    assert!(event.to_string().contains("memory that it may not use"), "{event}");
    assert_eq!(link.right.query_state().unwrap(), DeviceState::Error);
}

#[test]
fn a_port_that_goes_down_and_comes_back_is_told() {
    let (fabric, domain) = own_device!(Fabric::new());
    let context = domain.context();
    let mut events = context.events().unwrap();
    let port = context.active_port().unwrap().number();
    let readiness = events.readiness().unwrap();
    fabric.inject(Fault::PortDown { device: "dev0".into() });
    assert!(readiness.wait(Duration::ZERO).unwrap());
    assert_eq!(events.next(SOON).unwrap(), Some(AsyncEvent::OfPort(port, PortEvent::Down)));
    assert!(!readiness.wait(Duration::ZERO).unwrap());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| events.next(SOON).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        fabric.heal();
        assert_eq!(waiting.join().unwrap(), Some(AsyncEvent::OfPort(port, PortEvent::Active)));
    });
}

/// A device that has failed reports it on every call from then on, and its objects can be destroyed.
#[test]
fn hz22_a_device_that_failed_is_the_end_of_its_events() {
    for removed in [false, true] {
        let (fabric, domain) = own_device!(Fabric::new());
        let context = domain.context();
        let mut events = context.events().unwrap();
        let mut link = Link::new(domain, 4);
        link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
        let (mut channel, spare) = (link.domain.completion_channel().unwrap(), link.domain.buffer(8).unwrap());
        let shared = channel.queue(4).unwrap();
        assert_eq!(arm(&mut link.poller, WakeFor::Any), 0);
        let readiness = link.poller.readiness().unwrap();
        let device = "dev0".to_owned();
        fabric.inject(if removed { Fault::DeviceRemoved { device } } else { Fault::DeviceFatal { device } });
        assert!(readiness.wait(SOON).unwrap(), "who sleeps learns of it");
        assert_eq!(events.next(SOON).unwrap(), Some(AsyncEvent::DeviceFatal));
        for _ in 0..2 {
            assert!(matches!(events.poll(), Err(EventsError::DeviceGone)));
            assert!(matches!(events.next(SOON), Err(EventsError::DeviceGone)));
        }
        drop(events);
        let mut events = context.events().unwrap();
        assert!(matches!(events.poll(), Err(EventsError::DeviceGone)), "of another handle too");
        // All of these calls fail, because their verbs return EIO on a failed device.
        assert_eq!(context.attributes().unwrap_err().errno(), libc::EIO);
        assert_eq!(link.domain.queue(4).unwrap_err().errno(), libc::EIO);
        assert_eq!(link.domain.completion_channel().unwrap_err().errno(), libc::EIO);
        assert!(link.domain.buffer(8).is_err() && link.domain.reliable(&shared.0, &Limits::default()).is_err());
        assert!(link.left.post_send(spare).is_err());
        assert!(link.left.query_state().is_err());
        assert!(matches!(link.poller.resize(64), Err(ResizeError::Refused(_))));
        if removed {
            // The memory in flight never comes back, and is never freed.
            assert!(matches!(link.poller.poll(), Err(PollError::Failed)));
            assert!(link.poller.wait_for(SOON).is_err() && link.poller.arm(WakeFor::Any).is_err());
            assert!(channel.next(SOON).is_err() && link.poller.take_events().is_err());
            assert_eq!(link.right.destroy().unwrap_err().source.errno(), libc::EIO);
            link.left.into_reset().unwrap_err();
        } else {
            // The driver still works: it flushes the requests in flight, and destroys all objects.
            assert_eq!(link.poller.poll().unwrap().unwrap().check().unwrap_err().status, Status::Flushed);
            assert!(link.poller.wait(SOON).is_err(), "a device that is gone is not armed");
            link.right.destroy().unwrap();
        }
        drop((link.poller, link.queue, link.domain, channel, shared));
        drop(events);
    }
}

/// The objects of a removed device may be dropped in any order.
#[test]
fn hz22_a_removed_device_is_taken_down_in_any_order() {
    for order in 0..5 {
        let fabric = Fabric::new();
        let context = Context::open_on(&fabric, "dev0").unwrap();
        context
            .with_domain(|domain| {
                let port = context.active_port().unwrap();
                let (queue, mut poller) = domain.queue(8).unwrap();
                let pair = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
                let myself = pair.endpoint();
                let mut pair = pair.connect(&myself).map_err(drop).unwrap();
                pair.post_receive(domain.buffer(8).unwrap()).map_err(drop).unwrap();
                let region = domain.register::<RemoteReadWrite, _>(vec![1_u64; 4]).map_err(drop).unwrap();
                fabric.inject(Fault::DeviceRemoved { device: "dev0".into() });
                assert!(poller.poll().is_err());
                match order {
                    0 => drop((pair, poller, queue, region)),
                    1 => drop((region, queue, poller, pair)),
                    2 => drop((poller, region, pair, queue)),
                    3 => drop((queue, pair, region, poller)),
                    _ => std::mem::forget((pair, queue, poller, region)),
                }
            })
            .unwrap();
        drop(context);
        // The objects above that were not destroyed are leaked. `heal` brings the device back, and then the fabric uses
        // these objects again.
        fabric.heal();
        fabric.run();
    }
}

support::also_extended![
    c015_a_drained_send_queue_is_told_and_goes_on,
    events_are_taken_by_one_at_a_time,
    events_of_a_pair_that_is_gone_are_dropped,
    an_event_is_never_told_of_a_pair_that_was_never_drained,
    a_peer_that_may_not_is_told,
    a_port_that_goes_down_and_comes_back_is_told,
    hz22_a_device_that_failed_is_the_end_of_its_events,
    hz22_a_removed_device_is_taken_down_in_any_order,
];
