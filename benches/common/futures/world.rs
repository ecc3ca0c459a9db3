//! The connections of the soak, and what they do.

use super::super::random::Random;
use super::{PATIENCE, soon};
use interlock::aio::cm::SharedChannel;
use interlock::aio::lend::{AskError, CONTROL_BYTES, Granted, Lending, LendingOptions, Over, Quota};
use interlock::aio::{Connection, End, SharedPoller, SharedSender, tcp};
use interlock::cm::{AcceptData, ConnectData};
use interlock::memory::{Growth, Pool, PoolOptions, SizeClass};
use interlock::{
    Buffer, CompletionQueue, Init, Limits, MemoryRegion, ProtectionDomain, QueuePair, RemoteReadWrite, RemoteRegion,
    RemoteWrite,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::future::poll_fn;
use std::num::NonZeroU64;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};
use support::address;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// The time limit of the library's own waits: longer than that of the soak, which notices first.
const LIMIT: Duration = Duration::from_secs(120);
/// How long a pair of iWARP may take to drain. Requests that are posted to a failed pair never complete on soft iWARP.
const SHORT: Duration = Duration::from_millis(300);
/// How often a side sends a keep-alive probe, if nothing else is sure to tell it that the peer has gone.
const ASKS: Duration = Duration::from_millis(500);
/// The length of all buffers. A receive must have room for a control message of a lending.
const LEN: usize = CONTROL_BYTES;
const TASKS: usize = 4;
const RECEIVES: usize = 8;
/// Enough buffers for the receives of all pairs. Tasks that need more buffers to send wait until others drop theirs.
const POOLED: usize = 112;

interlock::domain! { pub(super) struct Futures; }

static NO_DATA: ConnectData = ConnectData::none();
static NO_ANSWER: AcceptData = AcceptData::none();

/// The future that connects one side.
type Connecting = Pin<Box<dyn Future<Output = Result<Connection<Futures>, Box<dyn Error + Send + Sync>>> + Send>>;

/// How often each thing happened.
pub(super) type Tally = BTreeMap<&'static str, u64>;

/// The objects that last for the whole soak.
pub(super) struct World {
    domain: ProtectionDomain<Futures>,
    queue: CompletionQueue<Futures>,
    pub(super) poller: SharedPoller<Futures>,
    pub(super) channel: SharedChannel,
    pool: Pool<Futures>,
    region: MemoryRegion<Futures, RemoteReadWrite, Vec<u64>>,
    is_soft: bool,
    is_iwarp: bool,
    pub(super) tally: Mutex<Tally>,
}

impl World {
    pub(super) fn new(domain: ProtectionDomain<Futures>) -> Self {
        let context = domain.context();
        let (queue, poller) = domain.completion_queue(20 * limits().completions()).expect("a queue");
        let classes = vec![SizeClass { len_bytes: LEN, count: POOLED as u32 }];
        let options = PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() };
        Self {
            queue,
            poller: SharedPoller::new(poller),
            channel: SharedChannel::open(&context).expect("a channel"),
            pool: domain.pool(&options).expect("a pool"),
            region: domain.register::<RemoteReadWrite, _>(vec![0_u64; TASKS * LEN / 8]).expect("a region"),
            is_soft: context.is_soft(),
            is_iwarp: context.is_iwarp(),
            tally: Mutex::default(),
            domain,
        }
    }

    /// Drops everything except the tally.
    pub(super) fn into_tally(self) -> Tally {
        self.tally.into_inner().expect("no panic")
    }

    fn count(&self, what: &'static str) {
        *self.tally.lock().expect("no panic").entry(what).or_default() += 1;
    }

    /// Whether the next two sides connect by address. Otherwise they exchange records over TCP.
    fn by_address(&self, random: &mut Random) -> bool {
        self.is_iwarp || random.one_in(2)
    }

    /// Whether a side is sure to learn that the other one has ended the connection. Between kernels, rdma_cm reports
    /// the end only once, and that message may get lost.
    fn surely_tells(&self, by_address: bool) -> bool {
        self.is_soft || !by_address
    }

    async fn pair(&self, receives: usize) -> QueuePair<Futures, Init> {
        let port = self.domain.context().active_port().expect("a port");
        let pair = self.domain.reliable(&self.queue, &limits()).expect("a pair");
        let mut pair = pair.into_init(&port).expect("a pair in Init");
        for _ in 0..receives {
            pair.post_receive(soon(self.pool.take(LEN)).await.expect("a buffer")).expect("a receive");
        }
        pair
    }

    /// The futures that connect two sides to each other: the client's and the server's.
    async fn sides(self: &Arc<Self>, by_address: bool, receives: usize) -> [Connecting; 2] {
        let [to_server, to_client] = [self.pair(receives).await, self.pair(receives).await];
        let (client, server) = (Arc::clone(self), Arc::clone(self));
        if by_address {
            let any_port = (address(&self.domain.context()), 0).into();
            let mut listener = self.channel.listen(any_port).expect("a listener");
            let at = listener.local_address().expect("an address");
            let connect =
                async move { Ok(client.channel.connect(&client.poller, at, to_server, &NO_DATA, LIMIT).await?) };
            let accept = async move {
                let request = listener.accept().await?;
                Ok(request.accept(&server.poller, to_client, &NO_ANSWER, LIMIT).await?)
            };
            return [Box::pin(connect), Box::pin(accept)];
        }
        let listener = tcp::Listener::bind("127.0.0.1:0").await.expect("a listener");
        let at = listener.local_address().expect("an address");
        let connect = async move { Ok(tcp::connect(&client.poller, at, to_server, b"", LIMIT).await?) };
        let accept = async move {
            let request = listener.accept().await?.read(LIMIT).await?;
            Ok(request.accept(&server.poller, to_client, b"", LIMIT).await?)
        };
        [Box::pin(connect), Box::pin(accept)]
    }

    async fn connected(self: &Arc<Self>, by_address: bool) -> [Connection<Futures>; 2] {
        self.count("connections");
        let [client, server] = self.sides(by_address, RECEIVES).await;
        let (client, server) = tokio::join!(soon(tokio::spawn(client)), soon(tokio::spawn(server)));
        [client, server].map(|side| side.expect("no panic").expect("a connection"))
    }

    /// Both sides give up at some point, before they are connected or after.
    async fn give_up(self: &Arc<Self>, random: &mut Random) {
        let by_address = self.by_address(random);
        let [client, server] = self.sides(by_address, 1).await;
        let (client, server) = tokio::join!(polled(client, random.below(8)), polled(server, random.below(8)));
        for side in [client, server] {
            self.count(if side.is_none() { "connects given up" } else { "connects too quick to give up" });
        }
    }

    /// Sends messages while nothing else runs. The sender polls or drops its future only after the message was
    /// received, so only the driver can wake the receiver.
    async fn talk(self: Arc<Self>, mut random: Random) {
        let by_address = self.by_address(&mut random);
        let [mut left, mut right] = self.connected(by_address).await;
        let keeps_asking = !self.surely_tells(by_address);
        let (heard, mut is_heard) = mpsc::channel(1);
        let waiting = tokio::spawn(async move {
            for mark in 0..20 {
                let message = soon(right.next()).await.expect("a message").expect("a message");
                let buffer = message.into_received().expect("a message");
                assert_eq!(buffer[..], [mark; LEN], "another message");
                right.post_receive(buffer).expect("a receive");
                heard.send(()).await.expect("the sender waits");
            }
            // Keep-alive probes of this side could hide a lost wake-up, so they begin only after the last message.
            right.keep_alive(keeps_asking.then_some(ASKS));
            (right.closed().await, right)
        });
        for mark in 0..20 {
            let mut buffer = soon(self.pool.take(LEN)).await.expect("a buffer");
            buffer.write(&[mark; LEN]).expect("it fits");
            let posted = left.send(buffer).expect("a post");
            soon(is_heard.recv()).await.expect("the receiver goes on");
            drop(soon(posted).await.expect("an answer"));
            self.count("messages");
        }
        self.end(left, &mut random).await;
        self.end_of(waiting, by_address).await;
    }

    /// Runs tasks that write and read over one connection, then sends messages over it.
    async fn traffic(self: Arc<Self>, mut random: Random) {
        let by_address = self.by_address(&mut random);
        let [left, mut right] = self.connected(by_address).await;
        let Connection { sender, receiver, link } = left;
        let sender = sender.into_shared();
        right.keep_alive((!self.surely_tells(by_address)).then_some(ASKS));
        let world = Arc::clone(&self);
        let serving = tokio::spawn(async move {
            while let Some(Ok(message)) = soon(right.next()).await {
                world.count("messages");
                // If the pair has failed, this post is refused. The loop goes on, because messages that arrived before
                // the failure still come out.
                drop(right.post_receive(message.into_received().expect("a message")));
            }
            (right.closed().await, right)
        });
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let part = self.region.remote().slice((task * LEN) as u64..((task + 1) * LEN) as u64);
                let requests = Arc::clone(&self).requests(sender.clone(), part.expect("a part"), fork(&mut random));
                tokio::spawn(requests)
            })
            .collect();
        // In one of three cases, abort the tasks while they run.
        let is_cut = random.one_in(3);
        if is_cut {
            sleep(Duration::from_micros(random.below(3000) as u64)).await;
            tasks.iter().for_each(|task| task.abort());
        }
        for task in tasks {
            assert!(soon(task).await.is_ok() || is_cut);
        }
        // Send one message fewer than the other side has receives. So one receive that the other side posted before the
        // pair failed is left over, and the flush of this receive tells the other side that the connection has ended.
        // (On soft iWARP, a receive that is posted after the pair has failed does not complete.)
        for _ in 1..RECEIVES {
            let permit = soon(sender.room()).await.expect("room");
            let buffer = soon(self.pool.take(LEN)).await.expect("a buffer");
            drop(permit.with(|sender| sender.send(buffer)).expect("a post"));
        }
        let sender = sender.try_into_sender().expect("the tasks are over");
        self.end(Connection { sender, receiver, link }, &mut random).await;
        self.end_of(serving, by_address).await;
    }

    /// Ends a connection in one of several ways.
    async fn end(&self, mut connection: Connection<Futures>, random: &mut Random) {
        match random.below(4) {
            0 => self.count("dropped"),
            1 => {
                self.count("aborted and dropped");
                connection.sender.abort().expect("the pair in Error");
            }
            2 => {
                self.count("close given up");
                drop(polled(connection.close(), random.below(3)).await);
            }
            _ => self.close(connection).await,
        }
    }

    /// Waits until the other side of a connection has learned of the end.
    async fn end_of(&self, waiting: JoinHandle<(End, Connection<Futures>)>, by_address: bool) {
        let (end, connection) = soon(waiting).await.expect("no panic");
        let told = end == End::Disconnected;
        assert!(told || !self.surely_tells(by_address), "the end of a connection: {end:?}");
        self.count(if told { "told of the end" } else { "told of the end by a request" });
        self.close(connection).await;
    }

    async fn close(&self, connection: Connection<Futures>) {
        let wait = if self.is_iwarp { SHORT } else { LIMIT };
        let closed = soon(connection.close().within(wait)).await;
        assert!(closed.has_drained || self.is_iwarp, "{closed:?}");
        assert!(closed.not_destroyed.is_none(), "{closed:?}");
        self.count("closed");
    }

    /// One task. It posts buffers of its own and of the pool, and does not wait for about half of the answers.
    async fn requests(
        self: Arc<Self>,
        sender: SharedSender<Futures>,
        target: RemoteRegion<RemoteReadWrite>,
        mut random: Random,
    ) {
        for _ in 0..50 {
            let mut buffer: Buffer<Futures> = match random.below(3) {
                0 => self.domain.buffer(LEN).expect("a buffer"),
                // A stray is the completion of an abandoned request. Its buffer can be used like any other.
                1 => {
                    match sender.with(|sender| sender.take_stray()).and_then(|stray| stray.check().ok()?.into_buffer())
                    {
                        Some(stray) => stray,
                        None => continue,
                    }
                }
                _ => {
                    drop(polled(self.pool.take(LEN), 1).await);
                    soon(self.pool.take(LEN)).await.expect("a buffer")
                }
            };
            let permit = soon(sender.room()).await.expect("room");
            let (is_write, mark) = (random.one_in(2), random.next() as u8);
            buffer.set_len(LEN).expect("a length");
            buffer.fill(mark);
            let posted = permit.with(|sender| match is_write {
                true => sender.write(buffer, &target),
                false => sender.read(buffer, &target),
            });
            let mut posted = posted.expect("a post");
            self.count("requests");
            let answer = match random.below(5) {
                0 | 1 => None,
                2 => polled(&mut posted, random.below(3)).await,
                _ => Some(soon(&mut posted).await),
            };
            match answer {
                Some(answer) => {
                    let buffer = answer.expect("an answer");
                    assert!(!is_write || buffer[..] == [mark; LEN], "the buffer of another request");
                }
                None => self.count("requests given up"),
            }
        }
    }

    /// Lends memory from side to side. The holder uses and returns it, keeps it beyond its deadline, asks for it, or
    /// gives up its request.
    async fn lending(self: Arc<Self>, mut random: Random) {
        let by_address = self.by_address(&mut random);
        let sides = self.connected(by_address).await.map(|connection| {
            let Connection { sender, receiver, link } = connection;
            let options = LendingOptions { quota: Quota { bytes: 4096, grants: 4 }, ..LendingOptions::default() };
            let lending = Lending::start(&self.domain, &self.poller, sender.into_shared(), receiver, &options);
            let (lending, messages) = lending.expect("a lending");
            (lending, tokio::spawn(messages.run()), link)
        });
        let [(left, left_run, left_link), (right, right_run, mut right_link)] = sides;
        // On iWARP the client must send first. The client is the left side, and in each case below the left side sends
        // first.
        for _ in 0..6 {
            self.count("lent");
            match random.below(4) {
                0 => self.lend(&left, &right, Duration::from_millis(30)).await,
                1 => self.lend(&left, &right, LIMIT).await,
                2 => {
                    let use_it = async { drop(soon(ask(&left)).await.expect("memory")) };
                    tokio::join!(use_it, self.answer(&right));
                }
                // `ask` is dropped after one poll, so nobody waits for the answer.
                _ => {
                    drop(polled(ask(&left), 1).await);
                    self.answer(&right).await;
                }
            }
        }
        assert_eq!((left.violations(), right.violations()), (0, 0));
        drop(left_link);
        let _ = left.sender().with(|sender| sender.abort());
        if self.surely_tells(by_address) {
            assert_eq!(soon(right_link.closed()).await, End::Disconnected);
        }
        let _ = right.sender().with(|sender| sender.abort());
        drop((left, right));
        for run in [left_run, right_run] {
            // `LendingReceiver::run` ends when a receive is flushed. Soft iWARP does not always flush receives, so
            // abort the task there.
            if self.is_iwarp {
                run.abort();
            }
            assert!(soon(run).await.is_ok() || self.is_iwarp);
        }
    }

    /// Lends memory. If `time` is long, the holder writes to the memory and returns it. Otherwise it keeps the memory
    /// beyond the deadline.
    async fn lend(&self, owner: &Lending<Futures>, holder: &Lending<Futures>, time: Duration) {
        let lease = self.domain.lease::<RemoteWrite, _>(self.domain.buffer(LEN).expect("a buffer"), time);
        let lent = owner.lend(lease.expect("a lease")).expect("lent memory");
        let granted: Granted<_, RemoteWrite> =
            soon(holder.granted()).await.expect("an offer").accept().expect("memory to write to");
        let is_kept = time < LIMIT;
        if !is_kept {
            let buffer = soon(self.pool.take(LEN)).await.expect("a buffer");
            soon(granted.whole().write(buffer).expect("a post")).await.expect("an answer");
        }
        let kept = is_kept.then_some(granted);
        let (_, over) = soon(lent.ended()).await.map_err(|error| error.source).expect("the end of a lease");
        assert_eq!(over == Over::Expired, is_kept, "{over:?}");
        drop(kept);
    }

    /// Answers one request for memory, and waits until the memory is returned.
    async fn answer(&self, owner: &Lending<Futures>) {
        let asked = soon(owner.asked()).await.expect("a request");
        let lease = self.domain.lease::<RemoteWrite, _>(vec![0_u64; 8], LIMIT).expect("a lease");
        let lent = asked.answer(lease).expect("lent memory");
        let (_, over) = soon(lent.ended()).await.map_err(|error| error.source).expect("the end of a lease");
        assert_ne!(over, Over::Expired);
    }

    /// Several connections at a time, and one alone. Afterwards every pair is destroyed, and every buffer is at home.
    pub(super) async fn round(self: &Arc<Self>, random: &mut Random) {
        let mut tasks: Vec<_> = (0..4).map(|_| tokio::spawn(Arc::clone(self).traffic(fork(random)))).collect();
        tasks.push(tokio::spawn(Arc::clone(self).lending(fork(random))));
        for task in tasks {
            task.await.expect("no panic");
        }
        // On iWARP, the kernel can keep a pair for seconds after its connection attempt was given up. So call `give_up`
        // more rarely there.
        if !self.is_iwarp || random.one_in(4) {
            self.give_up(random).await;
        }
        self.becomes_tidy().await;
        tokio::spawn(Arc::clone(self).talk(fork(random))).await.expect("no panic");
        self.becomes_tidy().await;
    }

    async fn becomes_tidy(&self) {
        let begin = Instant::now();
        while self.queue.room() < self.queue.capacity() || self.pool.stats().classes[0].free < POOLED {
            assert!(begin.elapsed() < PATIENCE, "room {} and {:?}", self.queue.room(), self.pool.stats());
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(self.poller.unknown_completions(), 0);
        assert!(self.poller.take_unclaimed().is_none(), "a completion that nobody gets");
    }
}

/// Polls the future at most `polls` times, and for at most 20 ms, then drops it. `None`: it was not ready.
async fn polled<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), polls);
    let limited = poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    });
    timeout(Duration::from_millis(20), limited).await.unwrap_or(None)
}

fn limits() -> Limits {
    Limits { sends: 16, receives: 16, ..Limits::default() }
}

fn fork(random: &mut Random) -> Random {
    Random::new(random.next())
}

async fn ask(holder: &Lending<Futures>) -> Result<Granted<Futures, RemoteWrite>, AskError> {
    holder.request(NonZeroU64::MIN, LIMIT).await
}
