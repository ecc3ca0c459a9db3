//! Completion queues: their size, the order of completions, resizing, and the end of a queue.

use super::{SOON, WHILE, message};
use interlock::error::{PollError, ResizeError};
use interlock::event::{AsyncEvent, QueuePairEvent};
use interlock::soft::{Fabric, Fault, Verb};
use interlock::state::DeviceState;
use interlock::{Limits, PostError, RemoteReadWrite, Status, WorkRequest};
use support::{Link, Need, PATIENCE, Promise, Queues, all, context, deviates, lacks, lacks_need, next, own_device};

/// C112: a completion queue has room for one entry or more. C113: it has room for no more than the device allows.
#[test]
fn c112_c113_a_queue_has_a_size_that_there_is() {
    let domain = context().checked_domain().unwrap();
    let most = domain.context().attributes().unwrap().max_completion_entries();
    for entries in [0, most + 1, u32::MAX] {
        assert_eq!(domain.queue(entries).unwrap_err().errno(), libc::EINVAL, "{entries}");
    }
}

/// C114: the queue has at least the room that was asked for.
#[test]
fn c114_a_queue_has_the_room_that_was_asked_for() {
    let domain = context().checked_domain().unwrap();
    for entries in [1, 2, 3, 100, 1000] {
        let (queue, _poller) = domain.queue(entries).unwrap();
        assert!(queue.capacity() >= entries && queue.room() == queue.capacity());
    }
}

/// C115: requests of all kinds complete in the order in which they were posted.
#[test]
fn c115_requests_complete_in_order() {
    // Some devices complete requests in any order: reads and writes can overtake each other there.
    if lacks_need(Need::Order) {
        return;
    }
    let mut link = link!(32);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![0_u64; 64]).unwrap();
    let remote = region.remote();
    let (mut posted, mut seen) = (Vec::new(), 0);
    let mut free = link.domain.buffers(32, 64).unwrap();
    while seen < 1000 {
        while posted.len() < 1000
            && let Some(mut buffer) = free.pop()
        {
            buffer.fill(1);
            let id = match posted.len() % 3 {
                0 => link.left.post(WorkRequest::write(buffer, &remote)).unwrap(),
                1 => link.left.post(WorkRequest::read(buffer, &remote.slice(0..64).unwrap())).unwrap(),
                // Soft-RoCE can stop for ever at a fence when it has to send again: it deviates in C062.
                _ if deviates("C062") => link.left.post(WorkRequest::write(buffer, &remote)).unwrap(),
                _ => link.left.post(WorkRequest::write(buffer, &remote).fenced()).unwrap(),
            };
            posted.push(id);
        }
        let success = next(&mut link.poller);
        assert_eq!(success.id(), posted[seen]);
        seen += 1;
        free.extend(success.into_buffer());
    }
}

/// C116: an unsignalled request that succeeds makes no completion. C118: the next signalled one also frees its slot.
#[test]
fn c116_c118_a_signalled_request_releases_the_unsignalled_before_it() {
    // On a device that completes requests in any order, the library signals every request.
    if lacks_need(Need::Order) {
        return;
    }
    let mut link = link!(8);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
    for _ in 0..3 {
        let request = WorkRequest::write(link.domain.buffer(8).unwrap(), &region.remote());
        link.left.post(request.unsignalled()).unwrap();
    }
    assert!(link.poller.wait_for(WHILE).unwrap().is_none());
    assert_eq!(link.left.sends_in_flight(), 3);
    link.left.post(WorkRequest::write(link.domain.buffer(8).unwrap(), &region.remote())).unwrap();
    for _ in 0..4 {
        next(&mut link.poller);
    }
    assert_eq!(link.left.sends_in_flight(), 0);
}

/// C117: an unsignalled request that fails makes a completion.
#[test]
fn c117_an_unsignalled_failure_makes_a_completion() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    let mut link = link!(4);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
    let remote = region.remote();
    region.deregister().unwrap();
    let request = WorkRequest::write(link.domain.buffer(8).unwrap(), &remote);
    link.left.post(request.unsignalled()).unwrap();
    let failure = link.poller.wait(PATIENCE).unwrap().check().unwrap_err();
    assert_eq!(failure.status, Status::RemoteAccess);
}

/// C119, C120: a full queue refuses a request, and takes one after a poll.
#[test]
fn c119_c120_a_full_queue_takes_more_after_polling() {
    let mut link = link!(2);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
    let remote = region.remote();
    for _ in 0..2 {
        link.left.post_write(link.domain.buffer(8).unwrap(), &remote).unwrap();
        link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    }
    let Err(PostError::QueueFull(buffer)) = link.left.post_write(link.domain.buffer(8).unwrap(), &remote) else {
        panic!("full");
    };
    let Err(PostError::QueueFull(_)) = link.right.post_receive(link.domain.buffer(8).unwrap()) else {
        panic!("full");
    };
    next(&mut link.poller);
    if let Err(error) = link.left.post_write(buffer, &remote) {
        // On a device that completes requests in any order, the completion above is perhaps not that of the oldest
        // request. Only the completion of the oldest request makes room.
        let PostError::QueueFull(buffer) = error else { panic!("{error}") };
        assert!(lacks(Promise::Order));
        next(&mut link.poller);
        link.left.post_write(buffer, &remote).unwrap();
    }
}

/// C124: the library makes no pair that could overrun a queue. If the device reports an overrun all the same, the
/// program learns of it.
#[test]
fn c124_an_overrun_is_an_event_and_a_failed_poll() {
    let (fabric, domain) = own_device!(Fabric::new());
    let context = domain.context();
    let mut events = context.events().unwrap();
    let mut link = Link::new(domain, 2);
    assert!(link.domain.reliable(&link.queue, &Limits::default()).is_err());
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    fabric.inject(Fault::Overrun { device: "dev0".into() });
    let mut told = Vec::new();
    while let Some(event) = events.poll().unwrap() {
        told.push(event);
    }
    let fatal = |qpn| AsyncEvent::OfQueuePair(qpn, QueuePairEvent::Fatal);
    let expected =
        [AsyncEvent::CompletionQueueError(link.queue.id()), fatal(link.left.number()), fatal(link.right.number())];
    assert_eq!(told, expected);
    assert_eq!(link.poller.wait(SOON).unwrap_err().to_string(), PollError::Failed.to_string());
    link.right.destroy().unwrap();
}

/// C130: a queue is not made smaller than the number of completions that are in it or may still come.
#[test]
fn c130_a_queue_is_not_resized_below_what_is_leased() {
    if lacks_need(Need::Resize) {
        return;
    }
    let mut link = link!(4);
    for _ in 0..4 {
        message(&mut link, false);
    }
    assert_eq!(link.queue.capacity(), 16);
    for asked in [1, 3, 15] {
        assert_eq!(link.poller.resize(asked), Err(ResizeError::Leased { asked, leased: 16 }));
    }
    let most = link.domain.context().attributes().unwrap().max_completion_entries();
    for asked in [0, most + 1, u32::MAX] {
        assert_eq!(link.poller.resize(asked), Err(ResizeError::OutOfRange { asked, most }));
    }
    assert_eq!(link.queue.capacity(), 16);
    for _ in 0..4 {
        next(&mut link.poller);
    }
}

#[test]
fn a_queue_is_resized_with_completions_in_it() {
    if lacks_need(Need::Resize) {
        return;
    }
    let mut link = link!(4);
    for _ in 0..3 {
        message(&mut link, false);
    }
    // Wait until all completions are in the queue. None is polled before the resize.
    std::thread::sleep(WHILE);
    link.poller.resize(64).unwrap();
    assert_eq!((link.queue.capacity(), link.queue.room()), (64, 48));
    let limits = Limits { sends: 24, receives: 24, ..Limits::default() };
    let more = link.domain.reliable(&link.queue, &limits).unwrap();
    // On some devices, the send of each message has a completion of its own.
    for _ in 0..if lacks(Promise::Order) { 6 } else { 3 } {
        next(&mut link.poller);
    }
    // The room of a dropped pair becomes free only after a poll has found the queue empty.
    drop(more);
    assert!(matches!(link.poller.resize(32), Err(ResizeError::Leased { asked: 32, leased: 64 })));
    assert!(all(&mut link.poller).is_empty());
    link.poller.resize(16).unwrap();
    assert_eq!((link.queue.capacity(), link.queue.room()), (16, 0));
    for _ in 0..20 {
        link.left.post_receive(link.domain.buffer(8).unwrap()).unwrap();
        link.right.post_send(link.domain.buffer(8).unwrap()).unwrap();
        while link.left.receives_in_flight() + link.right.sends_in_flight() > 0 {
            next(&mut link.poller);
        }
    }
    assert_eq!(link.poller.unknown_completions(), 0);
}

#[test]
fn a_device_that_cannot_resize_leaves_the_queue_as_it_was_and_one_that_fails_ends_it() {
    let fails = |errno| Fault::VerbFails { verb: Verb::ResizeCq, after: 0, count: 1, errno };
    let (fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 2);
    fabric.inject(fails(libc::EOPNOTSUPP));
    assert!(matches!(link.poller.resize(64), Err(ResizeError::Refused(_))));
    fabric.inject(Fault::VerbFails { verb: Verb::QueryDevice, after: 0, count: 1, errno: libc::EIO });
    assert!(matches!(link.poller.resize(64), Err(ResizeError::Refused(_))));
    message(&mut link, false);
    next(&mut link.poller);
    fabric.inject(fails(libc::ENOMEM));
    assert!(matches!(link.poller.resize(64), Err(ResizeError::Failed(_))));
    assert_eq!(link.queue.capacity(), 8);
    assert!(matches!(link.poller.poll(), Err(PollError::Failed)));
    // The device would now accept a resize, but a queue that has failed stays unusable.
    assert_eq!(link.poller.resize(64), Err(ResizeError::Unusable(PollError::Failed)));
    assert_eq!(link.queue.capacity(), 8);
}

/// C136: a completion queue lives as long as its pairs. C138: a channel lives as long as its queues.
#[test]
fn c136_c138_queues_and_channels_are_dropped_in_any_order() {
    if lacks_need(Need::SelfConnection) {
        return;
    }
    for order in 0..6 {
        let domain = context().checked_domain().unwrap();
        let port = domain.context().active_port().unwrap();
        let channel = domain.completion_channel().unwrap();
        let (queue, poller) = channel.queue(8).unwrap();
        let pair = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
        let myself = pair.endpoint();
        let pair = pair.connect(&myself).unwrap();
        match order {
            0 => drop(channel),
            1 => drop((channel, poller)),
            2 => drop((queue, channel)),
            3 => drop((queue, poller, channel)),
            4 => drop((poller, queue)),
            _ => drop((channel, queue)),
        }
        assert_eq!(pair.query_state().unwrap(), DeviceState::ReadyToSend);
    }
}

support::also_extended![
    c112_c113_a_queue_has_a_size_that_there_is,
    c114_a_queue_has_the_room_that_was_asked_for,
    c115_requests_complete_in_order,
    c116_c118_a_signalled_request_releases_the_unsignalled_before_it,
    c117_an_unsignalled_failure_makes_a_completion,
    c119_c120_a_full_queue_takes_more_after_polling,
    c124_an_overrun_is_an_event_and_a_failed_poll,
    c130_a_queue_is_not_resized_below_what_is_leased,
    a_queue_is_resized_with_completions_in_it,
    a_device_that_cannot_resize_leaves_the_queue_as_it_was_and_one_that_fails_ends_it,
    c136_c138_queues_and_channels_are_dropped_in_any_order,
];
