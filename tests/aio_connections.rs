//! Connections whose ends are tasks. They are made by address or by records, futures are dropped at each step, peers
//! vanish at each step, and connections end. The same tests run on every device.

use interlock::aio::cm::SharedChannel;
use interlock::aio::{self, Connection, End, Receiver, Sender, SharedPoller, block_on, tcp};
use interlock::attributes::ConnectAttributes;
use interlock::cm::{AcceptData, Cause, ConnectData, RejectData};
use interlock::soft::{Fabric, Fault, Profile, Verb};
use interlock::{
    AnyQueuePair, Brand, Buffer, CompletionQueue, Init, Inline, Limits, PostError, ProtectionDomain, QueuePair, Status,
};
use std::future::poll_fn;
use std::mem;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Duration;
use support::{Link, Need, PATIENCE, Promise, address, connect_to_each_other, context, lacks, lacks_need, on_hardware};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

const SHORT: Duration = Duration::from_millis(50);
static NO_DATA: ConnectData = ConnectData::none();
static NO_ANSWER: AcceptData = AcceptData::none();

/// What both ends of each connection need.
struct World<B: Brand> {
    domain: ProtectionDomain<B>,
    queue: CompletionQueue<B>,
    poller: SharedPoller<B>,
    channel: SharedChannel,
}

/// How two sides connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Address,
    Records,
}

/// The ways to connect that the device supports.
fn ways() -> Vec<Way> {
    match context().is_iwarp() {
        true => vec![Way::Address],
        false => vec![Way::Address, Way::Records],
    }
}

fn limits() -> Limits {
    Limits { sends: 4, receives: 4, ..Limits::default() }
}

impl<B: Brand + 'static> World<B> {
    /// A queue with its drivers, which run on the current runtime. The queue has room for all pairs of a test, because
    /// the room of a destroyed pair comes back only after a poll by the driver.
    fn new(domain: ProtectionDomain<B>) -> Arc<Self> {
        let (queue, poller) = domain.completion_queue(300 * limits().completions()).unwrap();
        let poller = SharedPoller::new(poller);
        let channel = SharedChannel::open(&domain.context()).unwrap();
        drop(aio::spawn(poller.driver().unwrap()).unwrap());
        drop(aio::cm::spawn(channel.driver().unwrap()).unwrap());
        Arc::new(Self { domain, queue, poller, channel })
    }

    fn pair(&self) -> QueuePair<B, Init> {
        let port = self.domain.context().active_port().unwrap();
        self.domain.reliable(&self.queue, &limits()).unwrap().into_init(&port).unwrap()
    }

    /// A pair with one receive.
    fn ready_pair(&self) -> QueuePair<B, Init> {
        let mut pair = self.pair();
        pair.post_receive(self.domain.buffer(64).unwrap()).unwrap();
        pair
    }

    fn buffer(&self, text: &[u8]) -> Buffer<B> {
        let mut buffer = self.domain.buffer(64).unwrap();
        buffer.write(text).unwrap();
        buffer
    }

    fn listen(&self) -> (aio::cm::Listener, SocketAddr) {
        let listener = self.channel.listen((address(&self.domain.context()), 0).into()).unwrap();
        let at = listener.local_address().unwrap();
        (listener, at)
    }

    /// A client and its server, connected. Each has one receive.
    async fn connected(self: &Arc<Self>, way: Way) -> (Connection<B>, Connection<B>) {
        let (client, server) = (self.ready_pair(), self.ready_pair());
        let other = Arc::clone(self);
        match way {
            Way::Address => {
                let (mut listener, at) = self.listen();
                let server = tokio::spawn(async move {
                    let request = listener.accept().await.unwrap();
                    assert_eq!(request.data().framed(), Some(&b"ask"[..]));
                    let data = AcceptData::framed(b"answer").unwrap();
                    request.accept(&other.poller, server, &data, PATIENCE).await.unwrap()
                });
                let data = ConnectData::framed(b"ask").unwrap();
                let client = self.channel.connect(&self.poller, at, client, &data, PATIENCE).await.unwrap();
                (client, server.await.unwrap())
            }
            Way::Records => {
                let listener = tcp::Listener::bind("127.0.0.1:0").await.unwrap();
                let at = listener.local_address().unwrap();
                let server = tokio::spawn(async move {
                    let request = listener.accept().await.unwrap().read(PATIENCE).await.unwrap();
                    assert_eq!(request.data(), b"ask");
                    request.accept(&other.poller, server, b"answer", PATIENCE).await.unwrap()
                });
                let client = tcp::connect(&self.poller, at, client, b"ask", PATIENCE).await.unwrap();
                (client, server.await.unwrap())
            }
        }
    }

    /// Sends a message from `from` to `to`, which has a receive posted.
    async fn greet(&self, from: &mut Connection<B>, to: &mut Connection<B>) {
        let sent = from.send(self.buffer(b"hello")).unwrap().await.unwrap();
        let message = timeout(PATIENCE, to.next()).await.unwrap().unwrap().unwrap().into_received().unwrap();
        assert_eq!((&sent[..], &message[..]), (&b"hello"[..], &b"hello"[..]));
    }

    /// Waits until every pair is destroyed.
    async fn is_empty(&self) {
        let all_gone = async {
            while self.queue.room() != self.queue.capacity() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, all_gone).await.expect("every pair is destroyed");
    }
}

/// Runs a test to its end, with a time limit: if one task panics, others may wait for ever.
fn finish<F: Future>(runtime: &Runtime, test: F) -> F::Output {
    runtime.block_on(async { timeout(4 * PATIENCE, test).await.expect("a part of the test waits for ever") })
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A checked domain.
macro_rules! domain {
    () => {
        context().checked_domain().unwrap()
    };
}

/// Polls `future` at most `count` times, then drops it. Returns its output if it became ready.
async fn poll_at_most<F: Future>(count: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = count;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // No poll is left, so do not wait for a wake-up.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

// Tests of closing.

/// Two pairs. The right one has requests in flight: three receives and, except on iWARP, a send that finds no receive.
/// The future of the send is dropped.
#[allow(clippy::type_complexity, reason = "two pairs, and what they complete on")]
fn busy<B: Brand>(domain: ProtectionDomain<B>) -> (SharedPoller<B>, [(Sender<B>, Receiver<B>); 2], CompletionQueue<B>) {
    let Link { domain, poller, queue, left, right, .. } = Link::new(domain, 4);
    let poller = SharedPoller::new(poller);
    let (left, mut right) = (poller.split(left).unwrap(), poller.split(right).unwrap());
    for _ in 0..3 {
        right.1.post_receive(domain.buffer(64).unwrap()).unwrap();
    }
    if !context().is_iwarp() {
        drop(right.0.send(domain.buffer(64).unwrap()).unwrap());
    }
    (poller, [left, right], queue)
}

#[test]
fn a_closing_gives_every_buffer_back() {
    let domain = domain!();
    for has_driver in [true, false] {
        let (poller, [left, right], queue) = busy(domain.clone());
        let driver = poller.driver().filter(|_| has_driver);
        let driver = driver.map(|driver| thread::spawn(move || driver.run_on_thread().unwrap()));
        let closed = block_on(right.0.close(right.1).unwrap().within(PATIENCE));
        assert!(closed.has_drained && closed.not_destroyed.is_none(), "{closed:?}");
        assert_eq!(closed.receives.len(), 3);
        let strays = usize::from(!context().is_iwarp());
        assert_eq!(closed.strays.len(), strays, "{closed:?}");
        assert_eq!(closed.into_buffers().len(), 3 + strays);
        let closed = block_on(left.0.close(left.1).unwrap().within(PATIENCE));
        assert!(closed.has_drained, "{closed:?}");
        assert!(closed.into_buffers().is_empty());
        assert!(support::eventually(|| poller.take_unclaimed().is_none() && queue.room() == queue.capacity()));
        drop(poller);
        if let Some(driver) = driver {
            driver.join().unwrap();
        }
    }
}

#[test]
fn a_closing_whose_time_is_over_destroys_the_pair_at_once() {
    let domain = domain!();
    for at_once in [true, false] {
        let (poller, [left, right], queue) = busy(domain.clone());
        let closing = right.0.close(right.1).unwrap();
        let closed = if at_once { closing.now() } else { block_on(closing.within(Duration::ZERO)) };
        assert!(closed.not_destroyed.is_none(), "{closed:?}");
        assert!(closed.receives.len() <= 3);
        drop((closed, left));
        // The closing did not wait for all requests. The driver polls for the rest, which gives their room back.
        let mut driver = poller.driver().unwrap();
        assert!(support::eventually(|| {
            driver.block_on(turn_once()).unwrap();
            queue.room() == queue.capacity()
        }));
    }
}

/// Is ready at the second poll.
async fn turn_once() {
    let mut is_first = true;
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if mem::replace(&mut is_first, false) { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

#[test]
fn a_closing_may_be_dropped_or_forgotten_at_any_poll() {
    let (runtime, domain) = (runtime(), domain!());
    finish(&runtime, async {
        for polls in 0..4 {
            let (poller, [left, right], queue) = busy(domain.clone());
            drop(aio::spawn(poller.driver().unwrap()).unwrap());
            drop(poll_at_most(polls, right.0.close(right.1).unwrap()).await);
            drop(left);
            let all_gone = async {
                while queue.room() != queue.capacity() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(PATIENCE, all_gone).await.expect("the pairs are destroyed");
        }
        let (_poller, [left, right], queue) = busy(domain.clone());
        mem::forget(right.0.close(right.1).unwrap());
        assert!(left.0.close(left.1).unwrap().within(PATIENCE).await.has_drained);
        assert!(queue.room() < queue.capacity(), "a closing that is forgotten keeps its pair");
    });
}

#[test]
fn a_future_that_waits_has_its_answer_although_the_pair_is_closed() {
    let Link { domain, poller, left, right, .. } = Link::new(domain!(), 4);
    let poller = SharedPoller::new(poller);
    let mut left = poller.split(left).unwrap();
    // On iWARP this send can complete, although the peer has no receive.
    let posted = left.0.send(domain.buffer(64).unwrap()).unwrap();
    let closed = block_on(left.0.close(left.1).unwrap().within(PATIENCE));
    assert!(closed.has_drained && closed.into_buffers().is_empty());
    match block_on(posted) {
        Ok(_) => assert!(context().is_iwarp()),
        Err(error) => assert!(error.into_failure().unwrap().into_buffer().is_some()),
    }
    drop(right);
}

#[test]
fn halves_of_two_pairs_are_not_closed() {
    let (_poller, [left, right], _queue) = busy(domain!());
    let error = left.0.close(right.1).unwrap_err();
    let (left, right) = ((error.sender, left.1), (right.0, error.receiver));
    for (sender, receiver) in [left, right] {
        assert!(block_on(sender.close(receiver).unwrap().within(PATIENCE)).has_drained);
    }
}

/// A new pair gets the slot of a pair whose halves are gone, and receives a message before it is split.
#[test]
fn a_message_that_comes_before_the_pair_is_split_is_not_lost() {
    let domain = domain!();
    let (queue, poller) = domain.completion_queue(2 * limits().completions()).unwrap();
    let poller = SharedPoller::new(poller);
    let port = domain.context().active_port().unwrap();
    let pair = || domain.reliable(&queue, &limits()).unwrap().into_init(&port).unwrap();
    for round in 0..3 {
        let (left, mut right) = (pair(), pair());
        right.post_receive(domain.buffer(64).unwrap()).unwrap();
        let (left, right) = connect_to_each_other(&domain, left, right, &ConnectAttributes::default());
        let mut left = poller.split(left).unwrap();
        let mut word = domain.buffer(64).unwrap();
        word.write(&[round]).unwrap();
        block_on(left.0.send(word).unwrap()).unwrap();
        // Let the message arrive before the right pair has a `Receiver`. Perhaps the wait for the send above has polled
        // the completion of the message, perhaps `next` below polls it. In both cases `next` must return the message,
        // and `take_stray` must not take it.
        thread::sleep(Duration::from_millis(20));
        drop(left.0.take_stray());
        let mut right = poller.split(right).unwrap();
        let message = block_on(right.1.next()).expect("the receive was posted").unwrap();
        assert_eq!(message.into_received().unwrap()[..], [round]);
        for (sender, receiver) in [left, right] {
            assert!(block_on(sender.close(receiver).unwrap().within(PATIENCE)).has_drained);
        }
    }
}

// Tests of connecting.

#[test]
fn two_sides_connect_talk_and_close() {
    let (runtime, domain) = (runtime(), domain!());
    for way in ways() {
        finish(&runtime, async {
            let world = World::new(domain.clone());
            let (mut client, mut server) = world.connected(way).await;
            assert_eq!((client.link.peer_data(), server.link.peer_data()), (&b"answer"[..], &b"ask"[..]));
            assert!(client.link.peer_address().is_some() && server.link.local_address().is_some());
            world.greet(&mut client, &mut server).await;
            server.post_receive(world.domain.buffer(64).unwrap()).unwrap();
            let closed = client.close().within(PATIENCE).await;
            assert!(closed.has_drained, "{closed:?}");
            assert_eq!(closed.into_buffers().len(), 1);
            // The server posts nothing more, and still learns of the end.
            let end = timeout(PATIENCE, server.closed()).await.unwrap();
            assert!(matches!(end, End::Disconnected | End::Failed(Status::Flushed)), "{end:?}");
            assert_eq!(timeout(PATIENCE, server.closed()).await.unwrap(), end, "the end stays");
            let flushed = timeout(PATIENCE, server.next()).await.unwrap().unwrap().unwrap_err();
            assert!(flushed.into_failure().unwrap().into_buffer().is_some());
            assert!(server.next().await.is_none());
            drop(server);
            world.is_empty().await;
        });
    }
}

#[test]
fn a_receiver_alone_learns_that_its_peer_was_dropped() {
    let (runtime, domain) = (runtime(), domain!());
    for way in ways() {
        finish(&runtime, async {
            let world = World::new(domain.clone());
            let (client, mut server) = world.connected(way).await;
            let waiting = tokio::spawn(async move {
                let flushed = server.next().await.unwrap().unwrap_err();
                assert!(flushed.into_failure().is_some());
                server.closed().await
            });
            tokio::task::yield_now().await;
            drop(client);
            let end = timeout(PATIENCE, waiting).await.unwrap().unwrap();
            assert!(matches!(end, End::Disconnected | End::Failed(Status::Flushed)), "{end:?}");
        });
    }
}

#[test]
fn a_connection_that_is_taken_apart_goes_on_until_its_link_ends() {
    let (runtime, domain) = (runtime(), domain!());
    for way in ways() {
        finish(&runtime, async {
            let world = World::new(domain.clone());
            let (mut client, server) = world.connected(way).await;
            let Connection { mut sender, mut receiver, mut link } = server;
            client.send(world.buffer(b"apart")).unwrap().await.unwrap();
            assert_eq!(&receiver.next().await.unwrap().unwrap().into_received().unwrap()[..], b"apart");
            receiver.post_receive(world.domain.buffer(64).unwrap()).unwrap();
            let receiving = tokio::spawn(async move { (receiver.next().await.unwrap().is_err(), receiver) });
            drop(client);
            assert_eq!(timeout(PATIENCE, link.closed()).await.unwrap(), End::Disconnected);
            sender.abort().unwrap();
            let (is_flushed, receiver) = timeout(PATIENCE, receiving).await.unwrap().unwrap();
            assert!(is_flushed);
            assert!(sender.close(receiver).unwrap().within(PATIENCE).await.has_drained);
        });
    }
}

/// If the pair of a silent peer is gone, only a request of this side fails and shows that.
#[test]
fn a_quiet_connection_is_kept_alive() {
    let (runtime, domain) = (runtime(), domain!());
    finish(&runtime, async {
        let Link { domain, poller, left, right, .. } = Link::new(domain, 4);
        let poller = SharedPoller::new(poller);
        drop(aio::spawn(poller.driver().unwrap()).unwrap());
        let mut left = Connection::new(&poller, left).unwrap();
        let mut right = Connection::new(&poller, right).unwrap();
        left.post_receive(domain.buffer(64).unwrap()).unwrap();
        left.keep_alive(Some(Duration::from_millis(2)));
        // While the peer is there, the probes succeed, although the peer does nothing.
        assert!(timeout(Duration::from_millis(100), left.next()).await.is_err());
        assert!(left.sender.first_failure().is_none());
        right.send(domain.buffer(8).unwrap()).unwrap().await.unwrap();
        assert!(timeout(PATIENCE, left.next()).await.unwrap().unwrap().is_ok());
        left.post_receive(domain.buffer(64).unwrap()).unwrap();
        assert!(right.close().within(PATIENCE).await.has_drained);
        assert!(timeout(PATIENCE, left.next()).await.unwrap().unwrap().is_err(), "the receive is flushed");
        let end = timeout(PATIENCE, left.closed()).await.unwrap();
        assert!(matches!(end, End::Failed(_)), "{end:?}");
        // A probe has failed, so the status is that of the probe, not that of a flushed request. On iWARP the stream
        // ends instead, and the status depends on the device.
        assert!(context().is_iwarp() || end != End::Failed(Status::Flushed), "{end:?}");
        assert_eq!(left.sender.counters().strays, 0, "probes are nobody's strays");
    });
}

#[test]
fn a_hundred_connect_in_parallel() {
    let (runtime, domain) = (runtime(), domain!());
    let count: u32 = if on_hardware() { 24 } else { 100 };
    for way in ways() {
        finish(&runtime, async {
            let world = World::new(domain.clone());
            let tasks: Vec<_> = (0..count)
                .map(|_| {
                    let world = Arc::clone(&world);
                    tokio::spawn(async move {
                        let (mut client, mut server) = world.connected(way).await;
                        world.greet(&mut client, &mut server).await;
                        assert!(client.close().within(PATIENCE).await.has_drained);
                        timeout(PATIENCE, server.closed()).await.unwrap();
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            world.is_empty().await;
        });
    }
}

/// The client gives up after 0, 1, 2 and more polls. Each time the server goes on with the next client.
#[test]
fn a_connect_may_be_dropped_at_each_step() {
    let (runtime, domain) = (runtime(), domain!());
    for way in ways() {
        finish(&runtime, async {
            let world = World::new(domain.clone());
            let (mut by_address, at_address) = world.listen();
            let by_records = tcp::Listener::bind("127.0.0.1:0").await.unwrap();
            let at_records = by_records.local_address().unwrap();
            let server = {
                let world = Arc::clone(&world);
                tokio::spawn(async move {
                    loop {
                        let connected = match way {
                            Way::Address => {
                                let request = by_address.accept().await.unwrap();
                                // A client that has given up never answers, and the server takes the next client
                                // only when this accept has ended. So its timeout is short.
                                let (data, time) = (NO_ANSWER, Duration::from_secs(10));
                                request.accept(&world.poller, world.ready_pair(), &data, time).await.ok()
                            }
                            Way::Records => match by_records.accept().await.unwrap().read(PATIENCE).await {
                                Ok(request) => {
                                    request.accept(&world.poller, world.ready_pair(), b"", PATIENCE).await.ok()
                                }
                                Err(_) => None,
                            },
                        };
                        let Some(mut connected) = connected else { continue };
                        let first = connected.next().await.unwrap();
                        if first.is_ok() {
                            return;
                        }
                    }
                })
            };
            for polls in 0..8 {
                let pair = world.ready_pair();
                match way {
                    Way::Address => {
                        let data = NO_DATA;
                        let connect = world.channel.connect(&world.poller, at_address, pair, &data, PATIENCE);
                        drop(poll_at_most(polls, connect).await);
                    }
                    Way::Records => {
                        let connect = tcp::connect(&world.poller, at_records, pair, b"", PATIENCE);
                        drop(poll_at_most(polls, connect).await);
                    }
                }
            }
            let pair = world.ready_pair();
            let mut connection = match way {
                Way::Address => {
                    world.channel.connect(&world.poller, at_address, pair, &NO_DATA, PATIENCE).await.unwrap()
                }
                Way::Records => tcp::connect(&world.poller, at_records, pair, b"", PATIENCE).await.unwrap(),
            };
            connection.send(world.buffer(b"at last")).unwrap().await.unwrap();
            timeout(PATIENCE, server).await.expect("the server has the message").unwrap();
            drop(connection);
            world.is_empty().await;
        });
    }
}

/// The server gives up after 0, 1 or 2 polls. Each time the client learns of the end.
#[test]
fn an_accept_may_be_dropped_at_each_step() {
    let (runtime, domain) = (runtime(), domain!());
    for way in ways() {
        finish(&runtime, async {
            let world = World::new(domain.clone());
            for polls in 0..3 {
                let client = {
                    let (world, pair) = (Arc::clone(&world), world.ready_pair());
                    let (listener, at) = match way {
                        Way::Address => {
                            let (listener, at) = world.listen();
                            (Err(listener), at)
                        }
                        Way::Records => {
                            let listener = tcp::Listener::bind("127.0.0.1:0").await.unwrap();
                            let at = listener.local_address().unwrap();
                            (Ok(listener), at)
                        }
                    };
                    let client = {
                        let world = Arc::clone(&world);
                        tokio::spawn(async move {
                            match way {
                                Way::Address => {
                                    let data = NO_DATA;
                                    let connect = world.channel.connect(&world.poller, at, pair, &data, PATIENCE);
                                    connect.await.map_err(drop)
                                }
                                Way::Records => {
                                    tcp::connect(&world.poller, at, pair, b"", PATIENCE).await.map_err(drop)
                                }
                            }
                        })
                    };
                    match listener {
                        Err(mut listener) => {
                            let request = listener.accept().await.unwrap();
                            let (pair, data) = (world.ready_pair(), NO_ANSWER);
                            let accept = request.accept(&world.poller, pair, &data, PATIENCE);
                            drop(poll_at_most(polls, accept).await);
                        }
                        Ok(listener) => {
                            let request = listener.accept().await.unwrap().read(PATIENCE).await.unwrap();
                            let pair = world.ready_pair();
                            drop(poll_at_most(polls, request.accept(&world.poller, pair, b"", PATIENCE)).await);
                        }
                    }
                    client
                };
                // Either the client was never connected, or it learns of the end.
                if let Ok(mut connection) = timeout(PATIENCE, client).await.unwrap().unwrap() {
                    timeout(PATIENCE, connection.closed()).await.unwrap();
                }
                world.is_empty().await;
            }
        });
    }
}

// Tests of connections by address.

#[test]
fn a_reject_gives_its_data_and_the_pair() {
    let (runtime, domain) = (runtime(), domain!());
    finish(&runtime, async {
        let world = World::new(domain.clone());
        let (mut listener, at) = world.listen();
        let server = tokio::spawn(async move {
            let request = listener.accept().await.unwrap();
            request.reject(&RejectData::framed(b"full").unwrap()).unwrap();
        });
        let connect = world.channel.connect(&world.poller, at, world.pair(), &NO_DATA, PATIENCE);
        let failed = connect.await.unwrap_err();
        let Cause::Rejected { data, .. } = &failed.cause else { panic!("{failed:?}") };
        assert_eq!(data.framed(), Some(&b"full"[..]));
        server.await.unwrap();
    });
}

#[test]
fn a_server_that_does_not_answer_is_given_up_in_time() {
    let (runtime, domain) = (runtime(), domain!());
    finish(&runtime, async {
        let world = World::new(domain.clone());
        let (_listener, at) = world.listen();
        let connect = world.channel.connect(&world.poller, at, world.pair(), &NO_DATA, SHORT);
        let failed = timeout(PATIENCE, connect).await.unwrap().unwrap_err();
        assert!(matches!(failed.cause, Cause::TimedOut(SHORT)), "{failed:?}");
        assert!(match failed.value {
            AnyQueuePair::Init(_) | AnyQueuePair::Errored(_) => true,
            // On iWARP a thread of the library keeps the pair while TCP connects.
            AnyQueuePair::Vacant => context().is_iwarp(),
            _ => false,
        });
        // On iWARP this drop can block until the device stops waiting for the answer, so it runs on another thread.
        tokio::task::spawn_blocking(move || drop(failed)).await.unwrap();
    });
}

#[test]
fn nobody_listens_and_the_pair_comes_back() {
    let (runtime, domain) = (runtime(), domain!());
    finish(&runtime, async {
        let world = World::new(domain.clone());
        let (listener, at) = world.listen();
        drop(listener);
        let connect = world.channel.connect(&world.poller, at, world.pair(), &NO_DATA, PATIENCE);
        let failed = connect.await.unwrap_err();
        assert!(matches!(failed.cause, Cause::Rejected { .. }), "{failed:?}");
        match failed.value {
            AnyQueuePair::Init(_) => assert!(!lacks(Promise::SparedPairs)),
            AnyQueuePair::Errored(_) => assert!(lacks(Promise::SparedPairs)),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_pair_of_another_queue_is_refused_before_anything_is_asked() {
    let (runtime, domain) = (runtime(), domain!());
    finish(&runtime, async {
        let (world, other) = (World::new(domain.clone()), World::new(domain));
        let (mut listener, at) = world.listen();
        let connect = world.channel.connect(&world.poller, at, other.pair(), &NO_DATA, PATIENCE);
        let failed = connect.await.unwrap_err();
        assert!(matches!(failed.cause, Cause::OtherQueue), "{failed:?}");
        assert!(timeout(SHORT, listener.accept()).await.is_err(), "nobody has asked");
    });
}

/// With threads instead of a runtime, and without any driver.
#[test]
fn a_connection_needs_no_runtime() {
    // This runs on another thread, so that a connection that waits for ever fails only this test.
    let (done, is_done) = std::sync::mpsc::channel();
    thread::spawn(move || {
        connects_without_a_runtime();
        done.send(())
    });
    is_done.recv_timeout(2 * PATIENCE).expect("the connections end");
}

fn connects_without_a_runtime() {
    let domain = domain!();
    for has_drivers in [true, false] {
        let domain = domain.clone();
        let (queue, poller) = domain.completion_queue(2 * limits().completions()).unwrap();
        let poller = SharedPoller::new(poller);
        let channel = SharedChannel::open(&domain.context()).unwrap();
        let world = Arc::new(World { domain, queue, poller, channel });
        let mut drivers = Vec::new();
        if has_drivers {
            let (completions, events) = (world.poller.driver().unwrap(), world.channel.driver().unwrap());
            drivers.push(thread::spawn(move || completions.run_on_thread().unwrap()));
            drivers.push(thread::spawn(move || events.run_on_thread().unwrap()));
        }
        let (mut listener, at) = world.listen();
        let server = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                block_on(async {
                    let request = listener.accept().await.unwrap();
                    let accept = request.accept(&world.poller, world.ready_pair(), &NO_ANSWER, PATIENCE);
                    let mut connection = accept.await.unwrap();
                    assert!(connection.next().await.unwrap().is_ok());
                    connection.sender.send(Inline(b"")).unwrap().await.unwrap();
                    connection.closed().await
                })
            })
        };
        block_on(async {
            let connect = world.channel.connect(&world.poller, at, world.ready_pair(), &NO_DATA, PATIENCE);
            let mut connection = connect.await.unwrap();
            connection.sender.send(Inline(b"")).unwrap().await.unwrap();
            // On iWARP, the server's accept fails if the client ends too early. So wait for the server's message.
            assert!(connection.next().await.unwrap().is_ok());
            assert!(connection.close().within(PATIENCE).await.has_drained);
        });
        let end = server.join().unwrap();
        assert!(matches!(end, End::Disconnected | End::Failed(Status::Flushed)), "{end:?}");
        drop(world);
        drivers.into_iter().for_each(|driver| driver.join().unwrap());
    }
}

// Tests of connections by records.

/// A valid greeting, written by hand as a program without this library would.
fn greeting<B: Brand + 'static>(world: &World<B>) -> Vec<u8> {
    let mut bytes = b"IT\x01\x01\x00\x02\x00\x00".to_vec();
    bytes.extend(world.pair().endpoint().to_bytes());
    bytes.extend(b"me");
    bytes
}

#[test]
fn a_refusal_gives_its_bytes_and_the_pair() {
    if lacks_need(Need::Records) {
        return;
    }
    let (runtime, domain) = (runtime(), domain!());
    finish(&runtime, async {
        let world = World::new(domain.clone());
        let listener = tcp::Listener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_address().unwrap();
        let server = tokio::spawn(async move {
            let request = listener.accept().await.unwrap().read(PATIENCE).await.unwrap();
            request.reject(b"full", PATIENCE).await.unwrap();
        });
        let failed = tcp::connect(&world.poller, at, world.pair(), b"", PATIENCE).await.unwrap_err();
        assert!(matches!(&failed.cause, tcp::Cause::Refused(data) if data == b"full"), "{failed:?}");
        assert!(matches!(failed.queue_pair, AnyQueuePair::Init(_)));
        server.await.unwrap();
    });
}

/// Soft iWARP never completes a request that is posted after the pair has failed.
#[test]
fn a_connection_on_siw_ends_although_requests_were_posted_too_late() {
    let context = interlock::Context::open_on(&Fabric::with_profile(Profile::Siw), "dev0").unwrap();
    let (runtime, domain) = (runtime(), context.checked_domain().unwrap());
    assert!(!context.promises().late_posts_are_flushed());
    finish(&runtime, async {
        let world = World::new(domain.clone());
        let (mut listener, at) = world.listen();
        let (other, pair) = (Arc::clone(&world), world.pair());
        let server = tokio::spawn(async move {
            let request = listener.accept().await.unwrap();
            request.accept(&other.poller, pair, &AcceptData::default(), PATIENCE).await.unwrap()
        });
        let data = ConnectData::default();
        let mut client = world.channel.connect(&world.poller, at, world.pair(), &data, PATIENCE).await.unwrap();
        // The end of the peer moves the pair to Error. No request is in flight, so nothing tells the library.
        drop(server.await.unwrap());
        sleep(SHORT).await;
        let sent = client.send(world.buffer(b"late")).unwrap();
        client.post_receive(world.buffer(b"")).unwrap();
        assert!(matches!(client.closed().await, End::Disconnected));
        assert!(client.next().await.is_none(), "no receive comes");
        let closed = client.close().await;
        assert!(!closed.has_drained);
        assert_eq!(closed.into_buffers().len(), 1, "the receive");
        assert!(sent.await.unwrap_err().into_failure().unwrap().into_buffer().is_some());
    });
}

/// Nobody tells the end of a TCP stream whose runtime is gone. So such a connection ends.
#[test]
fn a_connection_does_not_outlive_the_runtime_of_its_stream() {
    if lacks_need(Need::Records) {
        return;
    }
    let (runtime, domain) = (runtime(), domain!());
    let (world, mut client, server) = finish(&runtime, async {
        let world = World::new(domain.clone());
        let (client, server) = world.connected(Way::Records).await;
        (world, client, server)
    });
    drop(runtime);
    let (done, is_done) = std::sync::mpsc::channel();
    thread::spawn(move || done.send(block_on(client.closed())));
    assert!(matches!(is_done.recv_timeout(PATIENCE), Ok(End::Disconnected)));
    drop((server, world));
}

/// A client sends only the first `len` bytes of a valid greeting, for each `len`, and closes the stream. For some `len`
/// it stays silent instead.
#[test]
fn a_client_that_vanishes_at_each_byte_does_no_harm() {
    if lacks_need(Need::Records) {
        return;
    }
    let (runtime, domain) = (runtime(), domain!());
    finish(&runtime, async {
        let world = World::new(domain.clone());
        let good = greeting(&world);
        let listener = tcp::Listener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_address().unwrap();
        for (stays, len) in (0..=good.len()).map(|len| (false, len)).chain([(true, 0), (true, 9), (true, good.len())]) {
            let mut client = TcpStream::connect(at).await.unwrap();
            client.write_all(&good[..len]).await.unwrap();
            let client = Some(client).filter(|_| stays);
            let wait = if stays { SHORT } else { PATIENCE };
            let cause = match listener.accept().await.unwrap().read(wait).await {
                Err(cause) => {
                    assert!(len < good.len());
                    cause
                }
                Ok(request) => {
                    assert_eq!((len, request.data()), (good.len(), &b"me"[..]));
                    let failed = request.accept(&world.poller, world.pair(), b"", wait).await.unwrap_err();
                    assert!(matches!(failed.queue_pair, AnyQueuePair::Init(_) | AnyQueuePair::Errored(_)));
                    failed.into_cause()
                }
            };
            match stays {
                true => assert!(matches!(cause, tcp::Cause::TimedOut(SHORT)), "{len}: {cause:?}"),
                false => assert!(matches!(cause, tcp::Cause::PeerGone), "{len}: {cause:?}"),
            }
            drop(client);
        }
    });
}

/// A server sends only the first `len` bytes of a valid greeting, for each `len`, and closes the stream.
#[test]
fn a_server_that_vanishes_at_each_byte_gives_the_pair_back() {
    if lacks_need(Need::Records) {
        return;
    }
    let (runtime, domain) = (runtime(), domain!());
    finish(&runtime, async {
        let world = World::new(domain.clone());
        let good = greeting(&world);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        for len in 0..=good.len() {
            let answer = good[..len].to_vec();
            let client = {
                let world = Arc::clone(&world);
                tokio::spawn(async move {
                    let connected = tcp::connect(&world.poller, at, world.pair(), b"", PATIENCE).await;
                    connected.map_err(tcp::Failed::into_cause)
                })
            };
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut theirs = [0; 40];
            stream.read_exact(&mut theirs).await.unwrap();
            stream.write_all(&answer).await.unwrap();
            drop(stream);
            let cause = timeout(PATIENCE, client).await.unwrap().unwrap().unwrap_err();
            assert!(matches!(cause, tcp::Cause::PeerGone), "{len}: {cause:?}");
        }
    });
}

#[test]
fn wrong_greetings_are_refused_before_the_pair_is_touched() {
    if lacks_need(Need::Records) {
        return;
    }
    let (runtime, domain) = (runtime(), domain!());
    finish(&runtime, async {
        let world = World::new(domain.clone());
        let good = greeting(&world);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        // Each damage changes one byte in the head of the greeting or of its record. `(4, 2)` makes the length of the
        // data exceed the limit.
        let damages = [(0, 0xff), (1, 0), (2, 2), (3, 3), (4, 2), (6, 1), (7, 1), (8, 0), (10, 9), (11, 99), (12, 1)];
        for (at_byte, value) in damages {
            let mut bad = good.clone();
            bad[at_byte] = value;
            let server = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(&bad).await.unwrap();
                // Wait until the client has closed the stream.
                let _ = stream.read_to_end(&mut Vec::new()).await;
            };
            let connect = tcp::connect(&world.poller, at, world.pair(), b"", PATIENCE);
            let (failed, ()) = timeout(PATIENCE, async { tokio::join!(connect, server) }).await.unwrap();
            let failed = failed.unwrap_err();
            assert!(
                matches!(failed.cause, tcp::Cause::Greeting(_) | tcp::Cause::Record(_)),
                "{at_byte}: {:?}",
                failed.cause
            );
            assert!(matches!(failed.queue_pair, AnyQueuePair::Init(_)));
        }
        // The last byte of the exchange is wrong. The pair is connected by then, so it comes back in Error.
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&[&good[..], b"?"].concat()).await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
        };
        let connect = tcp::connect(&world.poller, at, world.pair(), b"", PATIENCE);
        let (failed, ()) = timeout(PATIENCE, async { tokio::join!(connect, server) }).await.unwrap();
        let failed = failed.unwrap_err();
        assert!(matches!(failed.cause, tcp::Cause::Greeting("last byte")), "{failed:?}");
        assert!(matches!(failed.queue_pair, AnyQueuePair::Errored(_)));
    });
}

#[test]
fn more_bytes_than_go_along_are_refused_here() {
    let (runtime, domain) = (runtime(), domain!());
    finish(&runtime, async {
        let world = World::new(domain.clone());
        let bytes = [0; tcp::MOST_DATA + 1];
        let failed = tcp::connect(&world.poller, "127.0.0.1:1", world.pair(), &bytes, PATIENCE).await.unwrap_err();
        assert!(matches!(failed.cause, tcp::Cause::TooLong(513)), "{failed:?}");
    });
}

/// The program waits at the link of a connection that it has not taken apart. After that, `closed` and `next` move
/// the pair to Error, and the receive comes out.
#[test]
fn the_receives_come_out_after_the_link_has_named_the_end() {
    let (runtime, domain) = (runtime(), domain!());
    for way in ways() {
        finish(&runtime, async {
            let world = World::new(domain.clone());
            let (client, mut server) = world.connected(way).await;
            drop(client);
            let end = timeout(PATIENCE, server.link.closed()).await.unwrap();
            assert_eq!(timeout(PATIENCE, server.closed()).await.unwrap(), end);
            let flushed = timeout(PATIENCE, server.next()).await;
            assert!(
                matches!(flushed, Ok(Some(Err(_)))),
                "after every end but `Queue` all requests come out: {flushed:?}"
            );
        });
    }
}

/// As above, after a post of uncertain outcome. It breaks the pair, and does not move it to Error.
#[test]
fn the_receives_of_a_pair_that_an_uncertain_post_broke_come_out_too() {
    let runtime = runtime();
    // This test uses a soft device of its own, because a test cannot make a post fail on a real device.
    let (fabric, domain) = support::own_device!(Fabric::with_profile(Profile::Rxe));
    finish(&runtime, async {
        let world = World::new(domain.clone());
        let (client, mut server) = world.connected(Way::Records).await;
        fabric.inject(Fault::SendKept { errno: libc::EINVAL });
        assert!(matches!(server.send(world.buffer(b"kept")), Err(PostError::Uncertain { .. })));
        drop(client);
        let end = timeout(PATIENCE, server.link.closed()).await.unwrap();
        assert_eq!(timeout(PATIENCE, server.closed()).await.unwrap(), end);
        let flushed = timeout(PATIENCE, server.next()).await;
        assert!(matches!(flushed, Ok(Some(Err(_)))), "after every end but `Queue` all requests come out: {flushed:?}");
    });
}

/// The device refuses twice to move the pair: when the end is seen, and when a task begins to wait for a receive. The
/// move is tried again while the task waits.
#[test]
fn the_receives_come_out_although_the_pair_was_not_moved_at_first() {
    let runtime = runtime();
    let (fabric, domain) = support::own_device!(Fabric::with_profile(Profile::Rxe));
    finish(&runtime, async {
        let world = World::new(domain.clone());
        let (client, mut server) = world.connected(Way::Records).await;
        drop(client);
        let end = timeout(PATIENCE, server.link.closed()).await.unwrap();
        fabric.inject(Fault::VerbFails { verb: Verb::ModifyQp, after: 0, count: 2, errno: libc::ENOMEM });
        assert_eq!(timeout(PATIENCE, server.closed()).await.unwrap(), end);
        // Do not use `timeout`: it polls the future once more at its deadline, which would hide a missing wake-up.
        let flushed = tokio::select! {
            biased;
            () = sleep(PATIENCE) => panic!("nobody has tried again"),
            flushed = server.next() => flushed,
        };
        assert!(matches!(flushed, Some(Err(_))), "after every end but `Queue` all requests come out: {flushed:?}");
    });
}

/// The channel has no driver, and fails once for lack of memory while a task looks for the end of its connection.
#[test]
fn a_channel_that_fails_once_ends_no_connection() {
    let (fabric, domain) = support::own_device!(Fabric::new());
    let runtime = runtime();
    finish(&runtime, async {
        let (queue, poller) = domain.completion_queue(4 * limits().completions()).unwrap();
        let (poller, channel) = (SharedPoller::new(poller), SharedChannel::open(&domain.context()).unwrap());
        drop(aio::spawn(poller.driver().unwrap()).unwrap());
        let world = Arc::new(World { domain, queue, poller, channel });
        let (mut client, mut server) = world.connected(Way::Address).await;
        let fails = |count| Fault::VerbFails { verb: Verb::RdmaGetCmEvent, after: 0, count, errno: libc::ENOMEM };
        fabric.inject(fails(1));
        assert!(timeout(SHORT, client.next()).await.is_err(), "no message, and no end");
        world.greet(&mut server, &mut client).await;
        // If the channel goes on failing, the connection ends.
        fabric.inject(fails(u32::MAX));
        assert!(matches!(timeout(PATIENCE, client.closed()).await.unwrap(), End::Channel(_)));
        fabric.heal();
    });
}
