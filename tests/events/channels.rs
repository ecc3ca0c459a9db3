//! One channel reports the events of several completion queues.

use super::{Edges, SOON, WHILE, arm};
use interlock::completion::WakeFor;
use interlock::error::WaitError;
use interlock::{Brand, Buffer, Limits, Poller, PostError, ProtectionDomain, QueuePair, WorkId};
use std::time::Duration;
use support::{Need, PATIENCE, Promise, Queues, connect_to_each_other, context, lacks, lacks_need, next, on_hardware};

/// Two queues on one channel, and a pair that is connected to itself. Its sends complete on one queue, its receives on
/// the other. Where a pair has only one queue, two pairs take its place.
macro_rules! shared_channel {
    ($name:ident) => {{
        interlock::domain! { struct $name; }
        let domain = context().named_domain($name).unwrap();
        let port = domain.context().active_port().unwrap();
        let channel = domain.completion_channel().unwrap();
        let (sends, sent) = channel.queue(16).unwrap();
        let (receives, received) = channel.queue(16).unwrap();
        let limits = Limits { sends: 8, receives: 8, ..Limits::default() };
        let ends = if domain.context().promises().pairs_may_have_two_queues() {
            let pair = domain.reliable_on(&sends, &receives, &limits).unwrap().into_init(&port).unwrap();
            let myself = pair.endpoint();
            Ends { from: pair.connect(&myself).unwrap(), to: None }
        } else {
            let from = domain.reliable(&sends, &limits).unwrap().into_init(&port).unwrap();
            let to = domain.reliable(&receives, &limits).unwrap().into_init(&port).unwrap();
            let (from, to) = connect_to_each_other(&domain, from, to, &Default::default());
            Ends { from, to: Some(to) }
        };
        (domain, channel, ends, sent, received)
    }};
}

/// The pair that sends, and the one that receives, if it is not the same.
struct Ends<B> {
    from: QueuePair<B>,
    to: Option<QueuePair<B>>,
}

impl<B: Brand> Ends<B> {
    fn post_receive(&mut self, buffer: Buffer<B>) -> Result<WorkId, PostError<Buffer<B>>> {
        self.to.as_mut().unwrap_or(&mut self.from).post_receive(buffer)
    }

    fn post_send(&mut self, buffer: Buffer<B>) -> Result<WorkId, PostError<Buffer<B>>> {
        self.from.post_send(buffer)
    }
}

/// How long to wait for an event. Where completions may have no event, arm the pollers again after this time.
fn soon<B: Brand>(pollers: &[&Poller<B>]) -> Duration {
    let limits = pollers.iter().filter_map(|poller| poller.next_timer());
    if lacks(Promise::Events) { limits.fold(SOON, Duration::min) } else { SOON }
}

fn loop_back<B: Brand>(domain: &ProtectionDomain<B>, ends: &mut Ends<B>) {
    ends.post_receive(domain.buffer(8).unwrap()).unwrap();
    ends.post_send(domain.buffer(8).unwrap()).unwrap();
}

#[test]
fn a_channel_waits_for_any_of_its_queues() {
    if lacks_need(Need::SelfConnection) {
        return;
    }
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
    if lacks_need(Need::SelfConnection) {
        return;
    }
    let (domain, mut channel, mut pair, mut sent, mut received) = shared_channel!(Which);
    assert_eq!(channel.next(Duration::from_millis(20)).unwrap(), None);
    // Only armed queues make events.
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
            let Some(id) = channel.next(soon(&[&sent, &received])).unwrap() else {
                assert!(lacks(Promise::Events), "one of them");
                left -= arm(&mut sent, WakeFor::Any) + arm(&mut received, WakeFor::Any);
                continue;
            };
            let poller = if id == sent.id() { &mut sent } else { &mut received };
            assert_eq!(poller.id(), id);
            left -= arm(poller, WakeFor::Any);
        }
    }
}

#[test]
fn the_end_of_a_pair_is_told_by_a_channel() {
    if lacks_need(Need::SelfConnection) {
        return;
    }
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

/// Two pollers of one channel wait, each on its own thread. Each may read an event of the other one, and passes it on.
#[test]
fn pollers_of_one_channel_wait_on_threads_of_their_own() {
    if lacks_need(Need::SelfConnection) {
        return;
    }
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
    let to = pair.to.as_ref().unwrap_or(&pair.from);
    assert_eq!((pair.from.sends_in_flight(), to.receives_in_flight()), (0, 0));
    drop(channel);
}

#[test]
fn a_poller_of_another_channel_is_refused() {
    if lacks_need(Need::SelfConnection) {
        return;
    }
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
    if lacks_need(Need::SelfConnection) {
        return;
    }
    let (domain, mut channel, mut pair, mut sent, mut received) = shared_channel!(Loop);
    let readiness = channel.readiness().unwrap();
    let edges = Edges::of(&readiness);
    for _ in 0..20 {
        assert_eq!((arm(&mut sent, WakeFor::Any), arm(&mut received, WakeFor::Any)), (0, 0));
        loop_back(&domain, &mut pair);
        let mut left = 2;
        while left > 0 {
            if !edges.wait(soon(&[&sent, &received])) {
                assert!(lacks(Promise::Events), "one of them");
                left -= arm(&mut sent, WakeFor::Any) + arm(&mut received, WakeFor::Any);
            }
            while let Some(id) = channel.poll().unwrap() {
                left -= arm(if id == sent.id() { &mut sent } else { &mut received }, WakeFor::Any);
            }
        }
    }
}

support::also_extended![
    a_channel_waits_for_any_of_its_queues,
    a_channel_says_which_queue_has_something,
    the_end_of_a_pair_is_told_by_a_channel,
    pollers_of_one_channel_wait_on_threads_of_their_own,
    a_poller_of_another_channel_is_refused,
    a_channel_fits_an_event_loop,
];
