//! Completion queues, their channels and events, and asynchronous events. Cases of conformance have their number in front.

#[path = "common/mod.rs"]
mod common;

use common::{Link, PATIENCE, Queues, context, on_hardware};
use interlock::soft::{Fabric, Fault, Verb};
use interlock::{
    Armed, AsyncEvent, AsyncEvents, Brand, Completion, Context, DeviceState, EventsError, Limits, PollError, Poller,
    PortEvent, PostError, ProtectionDomain, QueuePair, QueuePairEvent, Readiness, RemoteReadWrite, ResizeError, Status,
    Success, Wait, WaitError, WakeFor, WorkRequest,
};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// Long enough for an event that is to come.
const SOON: Duration = Duration::from_secs(20);
/// How long nothing is seen to happen.
const WHILE: Duration = Duration::from_millis(100);

/// A fabric of the test's own, and a domain on it.
macro_rules! own_device {
    ($fabric:expr) => {{
        interlock::domain! { struct Test; }
        let fabric: Fabric = $fabric;
        let domain: ProtectionDomain<Test> = Context::open_on(&fabric, "dev0").unwrap().named_domain(Test).unwrap();
        (fabric, domain)
    }};
}

/// Two connected pairs on the device to test on.
macro_rules! link {
    ($depth:expr) => {{
        interlock::domain! { struct Test; }
        Link::new(context().named_domain(Test).unwrap(), $depth)
    }};
}

/// A message from the right to the left; its receive has completed when this returns, and its send perhaps not.
fn message<B: Brand>(link: &mut Link<B>, solicited: bool) {
    link.left.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    let request = WorkRequest::send(link.domain.buffer(8).unwrap()).unsignalled();
    link.right.post(if solicited { request.solicited() } else { request }).unwrap();
}

/// Whether no event comes for so long. Not every device keeps to telling of something only.
fn sleeps(readiness: &Readiness, time: Duration) -> bool {
    common::lacks(common::Promise::Events) || !readiness.wait(time).unwrap()
}

/// Arms until there is nothing; how much came out.
fn arm<B: Brand>(poller: &mut Poller<B>, wake_for: WakeFor) -> usize {
    let mut count = 0;
    loop {
        match poller.arm(wake_for).unwrap() {
            Armed::Ready(completion) => {
                completion.check().unwrap();
                count += 1;
            }
            Armed::Empty => return count,
        }
    }
}

fn next<B: Brand>(poller: &mut Poller<B>) -> Success<B> {
    poller.wait(PATIENCE).unwrap().check().unwrap()
}

fn all<B: Brand>(poller: &mut Poller<B>) -> usize {
    poller.poll_each(|completion| drop(completion.check())).unwrap()
}

// ---- Completion queues ---------------------------------------------------------------------------------

/// C112: a completion queue has room for something; and C113: for no more than the device has.
#[test]
fn c112_c113_a_queue_has_a_size_that_there_is() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let most = domain.context().attributes().unwrap().max_completion_entries();
    for entries in [0, most + 1, u32::MAX] {
        assert_eq!(domain.queue(entries).unwrap_err().errno(), libc::EINVAL, "{entries}");
    }
}

/// C114: what is granted is at least what was asked.
#[test]
fn c114_a_queue_has_the_room_that_was_asked_for() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    for entries in [1, 2, 3, 100, 1000] {
        let (queue, _poller) = domain.queue(entries).unwrap();
        assert!(queue.capacity() >= entries && queue.room() == queue.capacity());
    }
}

/// C115: sends complete in the order of posting, whatever they are.
#[test]
fn c115_requests_complete_in_order() {
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

/// C116: an unsignalled request that succeeds makes no completion; and C118: the next signalled one releases its slot too.
#[test]
fn c116_c118_a_signalled_request_releases_the_unsignalled_before_it() {
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
    let mut link = link!(4);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
    let remote = region.remote();
    region.deregister().unwrap();
    let request = WorkRequest::write(link.domain.buffer(8).unwrap(), &remote);
    link.left.post(request.unsignalled()).unwrap();
    let failure = link.poller.wait(PATIENCE).unwrap().check().unwrap_err();
    assert_eq!(failure.status, Status::RemoteAccess);
}

/// C119, C120: a full queue refuses, and takes more once it was polled.
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
    link.left.post_write(buffer, &remote).unwrap();
}

/// C124: pairs that could overrun a queue are not made; and where a device says so all the same, it is told.
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

/// C130: not below what may still come, which includes what waits to be polled.
#[test]
fn c130_a_queue_is_not_resized_below_what_is_leased() {
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
    let mut link = link!(4);
    for _ in 0..3 {
        message(&mut link, false);
    }
    // They have come, but are not polled yet.
    std::thread::sleep(WHILE);
    link.poller.resize(64).unwrap();
    assert_eq!((link.queue.capacity(), link.queue.room()), (64, 48));
    let limits = Limits { sends: 24, receives: 24, ..Limits::default() };
    let more = link.domain.reliable(&link.queue, &limits).unwrap();
    for _ in 0..3 {
        next(&mut link.poller);
    }
    // The room of a pair that is gone is free once the queue was seen empty, not before.
    drop(more);
    assert!(matches!(link.poller.resize(32), Err(ResizeError::Leased { asked: 32, leased: 64 })));
    assert_eq!(all(&mut link.poller), 0);
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
}

/// C136: a completion queue outlives its pairs; C138: a channel its queues.
#[test]
fn c136_c138_queues_and_channels_are_dropped_in_any_order() {
    interlock::domain! { struct Test; }
    for order in 0..6 {
        let domain = context().named_domain(Test).unwrap();
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

// ---- Events of completions -----------------------------------------------------------------------------

/// C125: a completion of an armed queue makes an event; C127: without arming again, the next makes none.
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

/// C126: what is in the queue when it is armed makes no event; arming says so.
#[test]
fn c126_arming_tells_of_what_is_there_already() {
    let mut link = link!(8);
    let readiness = link.poller.readiness().unwrap();
    message(&mut link, false);
    let until = Instant::now() + SOON;
    while arm(&mut link.poller, WakeFor::Any) == 0 {
        // It came after the arming, so there is an event.
        assert!(readiness.wait(SOON).unwrap() && Instant::now() < until);
    }
}

/// C128: a solicited-only arming is not woken by a plain message; C129: it is by a solicited one.
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
    // And the same by the routine. Whatever is there when it ends is given.
    let how = Wait { wake_for: WakeFor::Solicited, ..Wait::new(PATIENCE) };
    message(&mut link, true);
    assert!(link.poller.wait_with(&how).unwrap().is_some());
    message(&mut link, false);
    assert!(link.poller.wait_with(&Wait { timeout: WHILE, ..how }).unwrap().is_some());
}

/// C129: a failure wakes who waits for solicited completions.
#[test]
fn c129_a_failure_wakes_a_solicited_wait() {
    let mut link = link!(8);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![0_u64; 2]).unwrap();
    let gone = region.remote();
    drop(region);
    let readiness = link.poller.readiness().unwrap();
    assert_eq!(arm(&mut link.poller, WakeFor::Solicited), 0);
    link.left.post_write(link.domain.buffer(8).unwrap(), &gone).unwrap();
    if common::deviates("C129") {
        assert!(sleeps(&readiness, 5 * WHILE));
    } else {
        assert!(readiness.wait(SOON).unwrap());
    }
    let failure = link.poller.wait(PATIENCE).unwrap().check().unwrap_err();
    assert_eq!(failure.status, Status::RemoteAccess);
}

/// Timers of a soft device wake nobody who waits for solicited completions.
#[test]
fn a_solicited_wait_sleeps_through_timers_and_plain_messages() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (fabric, domain) = own_device!(Fabric::new());
    let link = Link::new(domain, 8);
    // A pair of the same device that has a timer for ever: its peer posts no receive.
    let other = Context::open_on(&fabric, "dev0").unwrap().checked_domain().unwrap();
    let mut busy = Link::new(other, 4);
    busy.left.post_send(busy.domain.buffer(8).unwrap()).unwrap();
    assert!(link.poller.next_timer().is_some());

    let Link { mut right, mut left, mut poller, domain, .. } = link;
    for _ in 0..2 {
        left.post_receive(domain.buffer(8).unwrap()).unwrap();
    }
    let is_solicited = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let waiter = threads.spawn(|| {
            let how = Wait { wake_for: WakeFor::Solicited, ..Wait::new(PATIENCE) };
            let woken = poller.wait_with(&how).unwrap().is_some();
            (woken, is_solicited.load(Ordering::SeqCst))
        });
        std::thread::sleep(WHILE);
        right.post(WorkRequest::send(domain.buffer(8).unwrap()).unsignalled()).unwrap();
        std::thread::sleep(WHILE);
        assert!(!waiter.is_finished(), "woken by a plain message");
        is_solicited.store(true, Ordering::SeqCst);
        right.post(WorkRequest::send(domain.buffer(8).unwrap()).unsignalled().solicited()).unwrap();
        assert_eq!(waiter.join().unwrap(), (true, true));
    });
    // At the end of its time it gives what is there.
    left.post_receive(domain.buffer(8).unwrap()).unwrap();
    while poller.poll().unwrap().is_some() {}
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(WHILE);
            right.post(WorkRequest::send(domain.buffer(8).unwrap()).unsignalled()).unwrap();
        });
        let how = Wait { wake_for: WakeFor::Solicited, ..Wait::new(4 * WHILE) };
        assert!(poller.wait_with(&how).unwrap().is_some());
    });
}

/// An arming for any completion that is still out widens a solicited one, which is woken once too often then and sleeps on.
#[test]
fn a_solicited_arming_after_another_may_be_woken_by_any() {
    let mut link = link!(8);
    let readiness = link.poller.readiness().unwrap();
    assert_eq!(arm(&mut link.poller, WakeFor::Any), 0);
    assert_eq!(arm(&mut link.poller, WakeFor::Solicited), 0);
    message(&mut link, false);
    assert!(readiness.wait(SOON).unwrap());
    assert!(arm(&mut link.poller, WakeFor::Solicited) <= 1);
}

/// C134: giving up on waiting, at any point, loses nothing.
#[test]
fn c134_a_wait_that_is_given_up_loses_nothing() {
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

/// C142: destroying a queue does not wait for its events, whoever has taken them or not.
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
    assert!(link.poller.wait_with(&spinning).unwrap().is_none());
    assert!(start.elapsed() >= Duration::from_millis(20) && start.elapsed() < SOON, "the limit includes the spinning");
}

/// An edge-triggered loop sees an edge for each new event, though it drains only by arming.
#[test]
fn an_edge_triggered_loop_misses_nothing() {
    // Deep enough for all messages: the loop does not wait for sends.
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
    // A pair that ends raises no event of the verbs, and wakes all the same: again and again, with nothing read in between.
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

/// A loop that is told of edges only, as mio and tokio are.
struct Edges(std::os::fd::OwnedFd);

impl Edges {
    fn of(readiness: &Readiness) -> Self {
        use std::os::fd::FromRawFd;
        // SAFETY: takes a number.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(epoll >= 0);
        // SAFETY: made just now.
        let epoll = unsafe { std::os::fd::OwnedFd::from_raw_fd(epoll) };
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        let fd = readiness.as_fd().as_raw_fd();
        // SAFETY: open descriptors, a struct that may be read.
        assert_eq!(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) }, 0);
        Self(epoll)
    }

    fn wait(&self, timeout: Duration) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one.
        unsafe { libc::epoll_wait(self.0.as_raw_fd(), &mut event, 1, timeout.as_millis() as i32) == 1 }
    }
}

#[test]
fn timers_of_an_automatic_fabric_are_told_to_a_loop() {
    let (_fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 4);
    assert_eq!(link.poller.next_timer(), None);
    assert!(matches!(link.poller.arm(WakeFor::Any).unwrap(), Armed::Empty));
    let readiness = link.poller.readiness().unwrap();
    // Nobody receives it, so it is tried again by a timer.
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

// ---- Channels of several queues ------------------------------------------------------------------------

/// Two queues on one channel, and a pair that is connected to itself, whose sends and receives complete on different ones.
macro_rules! shared_channel {
    ($name:ident) => {{
        interlock::domain! { struct $name; }
        let domain = context().named_domain($name).unwrap();
        let port = domain.context().active_port().unwrap();
        let channel = domain.completion_channel().unwrap();
        let (sends, sent) = channel.queue(8).unwrap();
        let (receives, received) = channel.queue(8).unwrap();
        let limits = Limits { sends: 8, receives: 8, ..Limits::default() };
        let pair = domain.reliable_on(&sends, &receives, &limits).unwrap().into_init(&port).unwrap();
        let myself = pair.endpoint();
        (domain, channel, pair.connect(&myself).unwrap(), sent, received)
    }};
}

fn loop_back<B: Brand>(domain: &ProtectionDomain<B>, pair: &mut QueuePair<B>) {
    pair.post_receive(domain.buffer(8).unwrap()).unwrap();
    pair.post_send(domain.buffer(8).unwrap()).unwrap();
}

#[test]
fn a_channel_waits_for_any_of_its_queues() {
    let (domain, mut channel, mut pair, sent, received) = shared_channel!(Any);
    let mut pollers = [sent, received];
    assert!(channel.wait_any(&mut pollers, Duration::from_millis(20)).unwrap().is_none());
    for _ in 0..20 {
        loop_back(&domain, &mut pair);
        let mut which = [0, 0];
        for _ in 0..2 {
            let (index, completion) = channel.wait_any(&mut pollers, PATIENCE).unwrap().unwrap();
            completion.check().unwrap();
            which[index] += 1;
        }
        assert_eq!(which, [1, 1]);
    }
}

#[test]
fn a_channel_says_which_queue_has_something() {
    let (domain, mut channel, mut pair, mut sent, mut received) = shared_channel!(Which);
    assert_eq!(channel.next(Duration::from_millis(20)).unwrap(), None);
    // Only the one that is armed tells.
    assert_eq!(arm(&mut received, WakeFor::Any), 0);
    loop_back(&domain, &mut pair);
    assert_eq!(channel.next(SOON).unwrap(), Some(received.id()));
    assert_eq!(channel.next(WHILE).unwrap(), None);
    next(&mut received);
    next(&mut sent);
    for _ in 0..20 {
        assert_eq!((arm(&mut sent, WakeFor::Any), arm(&mut received, WakeFor::Any)), (0, 0));
        loop_back(&domain, &mut pair);
        let mut left = 2;
        while left > 0 {
            let id = channel.next(SOON).unwrap().expect("one of them");
            let poller = if id == sent.id() { &mut sent } else { &mut received };
            assert_eq!(poller.id(), id);
            left -= arm(poller, WakeFor::Any);
        }
    }
}

#[test]
fn the_end_of_a_pair_is_told_by_a_channel() {
    let (domain, mut channel, mut pair, mut sent, mut received) = shared_channel!(Ending);
    pair.post_receive(domain.buffer(8).unwrap()).unwrap();
    assert_eq!((arm(&mut sent, WakeFor::Any), arm(&mut received, WakeFor::Any)), (0, 0));
    let receives = received.id();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut told = Vec::new();
            while !told.contains(&Some(receives)) && told.len() < 4 {
                told.push(channel.next(SOON).unwrap());
            }
            told
        });
        std::thread::sleep(Duration::from_millis(20));
        drop(pair);
        assert!(waiting.join().unwrap().contains(&Some(receives)));
    });
    assert!(received.wait(PATIENCE).unwrap().check().is_err());
}

/// Pollers of one channel that wait by themselves, each on a thread of its own, take each other's events and pass them on.
#[test]
fn pollers_of_one_channel_wait_on_threads_of_their_own() {
    let (domain, channel, mut pair, mut sent, mut received) = shared_channel!(Threads);
    let rounds = if on_hardware() { 50 } else { 300 };
    std::thread::scope(|scope| {
        for poller in [&mut sent, &mut received] {
            scope.spawn(move || {
                for _ in 0..rounds {
                    next(poller);
                }
            });
        }
        let mut buffers = domain.buffers(2 * rounds, 8).unwrap();
        while let (Some(to), Some(from)) = (buffers.pop(), buffers.pop()) {
            let (mut to, mut from) = (Some(to), Some(from));
            while let Some(buffer) = to.take() {
                to = pair.post_receive(buffer).err().and_then(PostError::into_request);
            }
            while let Some(buffer) = from.take() {
                from = pair.post_send(buffer).err().and_then(PostError::into_request);
                std::thread::yield_now();
            }
        }
    });
    assert_eq!((pair.sends_in_flight(), pair.receives_in_flight()), (0, 0));
    drop(channel);
}

#[test]
fn a_poller_of_another_channel_is_refused() {
    let (domain, mut channel, _pair, sent, _received) = shared_channel!(Foreign);
    let (_queue, alone) = domain.queue(4).unwrap();
    let mut pollers = [sent, alone];
    let error = channel.wait_any(&mut pollers, SOON).unwrap_err();
    assert!(matches!(error, WaitError::OtherChannel { index: 1 }), "{error}");
    let mut other = domain.completion_channel().unwrap();
    assert!(matches!(other.wait_any(&mut pollers, SOON), Err(WaitError::OtherChannel { index: 0 })));
    assert!(other.wait_any(&mut [], Duration::ZERO).unwrap().is_none());
}

#[test]
fn a_channel_fits_an_event_loop() {
    let (domain, mut channel, mut pair, mut sent, mut received) = shared_channel!(Loop);
    let readiness = channel.readiness().unwrap();
    let edges = Edges::of(&readiness);
    for _ in 0..20 {
        assert_eq!((arm(&mut sent, WakeFor::Any), arm(&mut received, WakeFor::Any)), (0, 0));
        loop_back(&domain, &mut pair);
        let mut left = 2;
        while left > 0 {
            assert!(edges.wait(SOON));
            while let Some(id) = channel.poll().unwrap() {
                left -= arm(if id == sent.id() { &mut sent } else { &mut received }, WakeFor::Any);
            }
        }
    }
}

// ---- Asynchronous events -------------------------------------------------------------------------------

fn drained<B: Brand>(events: &mut AsyncEvents, pair: &QueuePair<B, interlock::SendQueueDrain>) {
    let expected = AsyncEvent::OfQueuePair(pair.number(), QueuePairEvent::SendQueueDrained);
    assert_eq!(events.next(SOON).unwrap(), Some(expected));
}

/// C015: a send queue is drained after its event, and goes on.
#[test]
fn c015_a_drained_send_queue_is_told_and_goes_on() {
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
    let events = context.events().unwrap();
    assert!(context.events().is_none() && context.clone().events().is_none());
    drop(events);
    assert!(context.events().is_some());
    let mut again = context.events().unwrap();
    let start = Instant::now();
    assert!(again.next(Duration::from_millis(20)).unwrap().is_none() && start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn events_of_a_pair_that_is_gone_are_dropped() {
    let link = link!(4);
    let context = link.domain.context();
    let mut events = context.events().unwrap();
    let left = link.left.into_sqd().unwrap();
    assert!(left.drained(PATIENCE).unwrap());
    // Destroyed before anybody took the event; nothing waits for that.
    left.destroy().unwrap();
    let right = link.right.into_sqd().unwrap();
    drained(&mut events, &right);
}

/// Pairs come and go at the same addresses, while another thread takes their events.
#[test]
fn an_event_is_never_told_of_a_pair_that_was_never_drained() {
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

/// The responder's errors, which no completion tells of; soft-RoCE does not tell of them at all.
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
    assert!(event.to_string().contains("memory that it may not have"), "{event}");
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

/// A device that has failed says so, once and for all, and lets its objects go.
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
        // Each verb says EIO.
        assert_eq!(context.attributes().unwrap_err().errno(), libc::EIO);
        assert_eq!(link.domain.queue(4).unwrap_err().errno(), libc::EIO);
        assert_eq!(link.domain.completion_channel().unwrap_err().errno(), libc::EIO);
        assert!(link.domain.buffer(8).is_err() && link.domain.reliable(&shared.0, &Limits::default()).is_err());
        assert!(link.left.post_send(spare).is_err());
        assert!(link.left.query_state().is_err());
        assert!(matches!(link.poller.resize(64), Err(ResizeError::Refused(_))));
        if removed {
            // What was in flight never comes back, and is never freed.
            assert!(matches!(link.poller.poll(), Err(PollError::Failed)));
            assert!(link.poller.wait_for(SOON).is_err() && link.poller.arm(WakeFor::Any).is_err());
            assert!(channel.next(SOON).is_err() && link.poller.take_events().is_err());
            assert_eq!(link.right.destroy().unwrap_err().source.errno(), libc::EIO);
            link.left.into_reset().unwrap_err();
        } else {
            // The driver lives: what was in flight is flushed, and all of it can be taken down.
            assert_eq!(link.poller.poll().unwrap().unwrap().check().unwrap_err().status, Status::Flushed);
            assert!(link.poller.wait(SOON).is_err(), "a device that is gone is not armed");
            link.right.destroy().unwrap();
        }
        drop((link.poller, link.queue, link.domain, channel, shared));
        drop(events);
    }
}

/// Whatever of a removed device is dropped first.
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
        // What could not be destroyed stays allocated, and the fabric goes on with it when the device is back.
        fabric.heal();
        fabric.run();
    }
}

/// A completion holds what it needs; so does what was armed for.
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
