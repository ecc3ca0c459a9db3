//! Asynchronous events of shared receive queues.

use crate::{WHILE, message, next};
use interlock::event::{AsyncEvent, QueuePairEvent, SharedReceiveQueueEvent};
use interlock::shared::{SharedLimits, SharedReceiveQueue};
use interlock::transport::OnShared;
use interlock::{Brand, Limits, Poller, ProtectionDomain, QueuePair, ReadyToSend, ReliableConnection};
use support::{Need, PATIENCE, Promise, deviates, lacks, lacks_need};

/// A client, and a server that receives from a shared queue.
struct Served<B> {
    poller: Poller<B>,
    shared: SharedReceiveQueue<B>,
    client: QueuePair<B>,
    server: QueuePair<B, ReadyToSend, OnShared<ReliableConnection>>,
}

fn served<B: Brand>(domain: &ProtectionDomain<B>) -> Served<B> {
    let port = domain.context().active_port().unwrap();
    let (queue, poller) = domain.completion_queue(32).unwrap();
    let mut shared = domain.shared_receive_queue(&SharedLimits { receives: 4, grows_to: 0 }).unwrap();
    let client = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let server = shared.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let (to_client, to_server) = (client.endpoint(), server.endpoint());
    let (client, server) = (client.connect(&to_server).unwrap(), server.connect(&to_client).unwrap());
    for buffer in domain.buffers(4, 8).unwrap() {
        shared.post_receive(buffer).unwrap();
    }
    Served { poller, shared, client, server }
}

/// The limit event names its queue by a value. It comes once and leaves no limit armed.
#[test]
fn c152_the_limit_is_told_once() {
    if lacks_need(Need::AsyncEvents) {
        return;
    }
    let domain = domain!();
    let context = domain.context();
    let mut events = context.events().unwrap();
    let Served { mut poller, shared, mut client, server: _server } = served(&domain);
    shared.arm_limit(3).unwrap();
    for left in (1..4).rev() {
        client.post_send(message(&domain, b"one")).unwrap();
        for _ in 0..2 {
            next(&mut poller);
        }
        let told = events.next(if left == 2 { PATIENCE } else { WHILE }).unwrap();
        let reached = AsyncEvent::OfSharedReceiveQueue(shared.id(), SharedReceiveQueueEvent::LimitReached);
        assert_eq!(told, (left == 2).then_some(reached), "{left} are left");
    }
    assert_eq!(shared.query().unwrap().limit, 0);
}

/// A pair in Error reports when it takes no more shared receives. The remaining receives stay in the shared queue.
#[test]
fn c153_a_pair_in_error_tells_of_its_last_receive() {
    if lacks_need(Need::AsyncEvents) {
        return;
    }
    let domain = domain!();
    let context = domain.context();
    let mut events = context.events().unwrap();
    let Served { mut poller, shared, client: _client, server } = served(&domain);
    let mut server = server.into_error().unwrap();
    server.drain(&mut poller, PATIENCE, drop).unwrap();
    let last = AsyncEvent::OfQueuePair(server.number(), QueuePairEvent::LastRequestReached);
    if !deviates("C153") {
        assert_eq!(events.next(PATIENCE).unwrap(), Some(last));
    }
    assert_eq!(events.next(WHILE).unwrap(), None, "once");
    assert!(poller.poll().unwrap().is_none());
    drop(server);
    let in_flight = shared.in_flight();
    let mut destroyed = shared.destroy();
    // If the provider does not promise `EndAtOnce`, the poller destroys the pair that was dropped above. The shared
    // queue can be destroyed only after that.
    while lacks(Promise::EndAtOnce)
        && let Err(error) = destroyed
    {
        assert!(poller.poll().unwrap().is_none());
        destroyed = error.shared.destroy();
    }
    assert_eq!((in_flight, destroyed.unwrap().len()), (4, 4));
}
