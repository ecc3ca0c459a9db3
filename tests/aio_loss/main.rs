//! Tasks over a network that loses packets. They write, read, send and receive, and cancel about half of their waits.
//! No message and no buffer is lost, no task waits for ever, and all data is right. The same tests run on every device.

mod losses;

use interlock::aio::{self, Receiver, SharedPoller, SharedSender};
use interlock::attributes::ConnectAttributes;
use interlock::memory::{Growth, Pool, PoolOptions, SizeClass};
use interlock::number::{AckTimeout, RetryCount};
use interlock::{
    Buffer, Checked, Completion, CompletionQueue, Context, Limits, MemoryRegion, PostError, ProtectionDomain,
    RemoteReadWrite, RemoteRegion,
};
use losses::{Losses, Network};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use support::{PATIENCE, Promise, Random, connect_to_each_other, eventually, lacks};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

const PAIRS: usize = 4;
/// Requests in flight of one sender, and receives of one receiver.
const DEPTH: u32 = 16;
/// The bytes of a message, and of the memory that a task writes to.
const LEN: usize = 64;
/// How many buffers of its own each sender has. A sender keeps up to `DEPTH` strays, so with `DEPTH` buffers it drops
/// none.
const PLAIN: usize = DEPTH as usize;
const POOLED: u32 = 32;

/// The network is shared by all tests of this program.
static TURN: Mutex<()> = Mutex::new(());

/// What all pairs of one side share.
struct Side {
    domain: ProtectionDomain<Checked>,
    queue: CompletionQueue<Checked>,
    poller: SharedPoller<Checked>,
    pool: Pool<Checked>,
    /// The memory that tasks of the other side write to and read from.
    region: MemoryRegion<Checked, RemoteReadWrite, Vec<u64>>,
}

/// One direction of a connection: the sender, its buffers, and counts of the messages.
struct Lane {
    sender: SharedSender<Checked>,
    /// Buffers that are in no request. If a wait is cancelled, the buffer of its request comes back as a stray.
    home: Mutex<Vec<Buffer<Checked>>>,
    pool: Pool<Checked>,
    target: RemoteRegion<RemoteReadWrite>,
    /// How many receives the peer has posted for this sender. On iWARP a message that finds no receive would end the
    /// connection.
    credits: Semaphore,
    sent: AtomicU64,
    arrived: AtomicU64,
    is_over: AtomicBool,
}

/// One end of a connection, before the traffic begins.
struct End {
    lane: Arc<Lane>,
    receiver: Receiver<Checked>,
    /// The addresses of the sender's own buffers, and of the buffers of the receives.
    plain: BTreeSet<usize>,
    receives: BTreeSet<usize>,
}

fn address(buffer: &Buffer<Checked>) -> usize {
    buffer.as_ptr().addr()
}

fn addresses(buffers: &[Buffer<Checked>]) -> BTreeSet<usize> {
    buffers.iter().map(address).collect()
}

/// The buffer of a completion, whatever its status.
fn buffer_of(completion: Completion<Checked>) -> Buffer<Checked> {
    match completion.check() {
        Ok(success) => success.into_buffer().unwrap(),
        Err(failure) => failure.into_buffer().unwrap(),
    }
}

/// The bytes of a task's message or write with the number `count`.
fn words(task: usize, count: u64) -> [u8; LEN] {
    let mut random = Random::new((task as u64) << 32 | count);
    let mut bytes = [0; LEN];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_ne_bytes());
    }
    bytes[..8].copy_from_slice(&(task as u64).to_ne_bytes());
    bytes[8..16].copy_from_slice(&count.to_ne_bytes());
    bytes
}

impl Side {
    fn new(context: &Context, tasks: usize, runtime: &Runtime) -> Self {
        let domain = context.checked_domain().unwrap();
        // Each end has a completion queue of its own, also on iWARP, where both ends are on one device.
        let (queue, poller) = domain.completion_queue(PAIRS as u32 * limits().completions()).unwrap();
        let poller = SharedPoller::new(poller);
        let driver = poller.driver().unwrap();
        let inside = runtime.enter();
        drop(aio::spawn(driver).unwrap());
        drop(inside);
        let classes = vec![SizeClass { len_bytes: LEN, count: POOLED }];
        let pool = domain.pool(&PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() }).unwrap();
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; tasks * LEN / 8]).unwrap();
        Self { domain, queue, poller, pool, region }
    }

    fn pair(&self) -> interlock::QueuePair<Checked, interlock::Init> {
        let port = self.domain.context().active_port().unwrap();
        self.domain.reliable(&self.queue, &limits()).unwrap().into_init(&port).unwrap()
    }

    /// This end of a pair, with all its receives posted. It writes to the memory of `other`.
    fn end(&self, pair: interlock::QueuePair<Checked>, other: &Self) -> End {
        let (sender, mut receiver) = self.poller.split(pair).unwrap();
        let home = self.domain.buffers(PLAIN, LEN).unwrap();
        let for_receives = self.domain.buffers(DEPTH as usize, LEN).unwrap();
        let (plain, receives) = (addresses(&home), addresses(&for_receives));
        for buffer in for_receives {
            receiver.post_receive(buffer).unwrap();
        }
        let lane = Lane {
            sender: sender.into_shared(),
            home: Mutex::new(home),
            pool: self.pool.clone(),
            target: other.region.remote(),
            credits: Semaphore::new(DEPTH as usize),
            sent: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        };
        End { lane: Arc::new(lane), receiver, plain, receives }
    }
}

fn limits() -> Limits {
    Limits { sends: DEPTH, receives: DEPTH, ..Limits::default() }
}

/// The pair waits a quarter of a second for each acknowledgement, and retries as often as possible. So it survives
/// seven lost packets in a row, or a machine that does nothing for two seconds.
fn patient() -> ConnectAttributes {
    ConnectAttributes {
        timeout: AckTimeout::new(16).unwrap(),
        retry_count: RetryCount::new(7).unwrap(),
        ..ConnectAttributes::default()
    }
}

/// The outcome of a wait that may be cancelled.
enum Came<R> {
    Answer(R),
    Cancelled,
}

/// Waits for `future`. Cancels about half of all waits, and fewer if answers come soon. One wait in eight times out
/// once and then goes on.
async fn perhaps<F: Future + Unpin>(random: &mut Random, mut future: F) -> Came<F::Output> {
    match random.below(8) {
        0..=2 => return Came::Cancelled,
        3 => {
            tokio::select! {
                biased;
                answer = &mut future => return Came::Answer(answer),
                () = tokio::task::yield_now() => return Came::Cancelled,
            }
        }
        4 => {
            let short = Duration::from_micros(random.below(1500) as u64);
            return match timeout(short, &mut future).await {
                Ok(answer) => Came::Answer(answer),
                Err(_) => Came::Cancelled,
            };
        }
        5 => {
            // The first wait times out. The same future is awaited again below.
            if let Ok(answer) = timeout(Duration::ZERO, &mut future).await {
                return Came::Answer(answer);
            }
        }
        _ => {}
    }
    Came::Answer(timeout(PATIENCE, future).await.expect("an answer comes"))
}

impl Lane {
    fn home(&self) -> std::sync::MutexGuard<'_, Vec<Buffer<Checked>>> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the buffers of the strays to `home`.
    fn gather(&self) {
        while let Some(stray) = self.sender.with(|sender| sender.take_stray()) {
            self.home().push(buffer_of(stray));
        }
    }

    /// A buffer of the pool, or one of this lane's own.
    async fn buffer(&self, random: &mut Random) -> (Buffer<Checked>, bool) {
        if random.one_in(2) {
            // Also cancel a wait for a buffer.
            drop(timeout(Duration::ZERO, self.pool.take(LEN)).await);
            let buffer = timeout(PATIENCE, self.pool.take(LEN)).await.expect("a buffer comes home");
            return (buffer.unwrap(), true);
        }
        let own = async {
            loop {
                if let Some(buffer) = self.home().pop() {
                    return buffer;
                }
                self.gather();
                if self.home().is_empty() {
                    sleep(Duration::from_micros(200)).await;
                }
            }
        };
        (timeout(PATIENCE, own).await.expect("a stray comes"), false)
    }

    fn keep(&self, buffer: Buffer<Checked>, is_pooled: bool) {
        if !is_pooled {
            self.home().push(buffer);
        }
    }

    /// One task. It writes to a part of the peer's region that no other task uses, and reads that part back. Returns
    /// how many waits it cancelled.
    async fn traffic(&self, task: usize, rounds: usize, losses: &Losses) -> usize {
        let mut random = Random::new(task as u64);
        let (mut cancelled, mut writes, mut sends) = (0, 0, 0);
        let start = (task * LEN) as u64;
        let target = self.target.slice(start..start + LEN as u64).unwrap();
        for _ in 0..rounds {
            let (mut buffer, is_pooled) = self.buffer(&mut random).await;
            if random.one_in(4) {
                drop(timeout(Duration::ZERO, self.sender.room()).await);
            }
            let kind = random.below(3);
            if kind == 2 {
                timeout(PATIENCE, self.credits.acquire()).await.expect("a receive is posted").unwrap().forget();
            }
            let Ok(permit) = timeout(PATIENCE, self.sender.room()).await.expect("room comes") else { panic!() };
            losses.at_a_request(&mut random);
            let posted = match kind {
                0 => {
                    writes += 1;
                    buffer.write(&words(task, writes)).unwrap();
                    permit.with(|sender| sender.write(buffer, &target))
                }
                1 => {
                    buffer.fill(0);
                    permit.with(|sender| sender.read(buffer, &target))
                }
                _ => {
                    sends += 1;
                    self.sent.fetch_add(1, Ordering::Relaxed);
                    buffer.write(&words(task, sends)).unwrap();
                    permit.with(|sender| sender.send(buffer))
                }
            };
            let posted = posted.unwrap();
            match perhaps(&mut random, posted).await {
                Came::Answer(answer) => {
                    let buffer = answer.unwrap();
                    losses.at_an_answer();
                    if kind == 1 {
                        let expected = if writes == 0 { [0; LEN] } else { words(task, writes) };
                        assert_eq!(buffer[..], expected, "task {task} reads what it wrote");
                    }
                    self.keep(buffer, is_pooled);
                }
                Came::Cancelled => cancelled += 1,
            }
        }
        cancelled
    }

    /// Receives the messages of this lane at the other end, checks them, and posts each receive again.
    async fn serve(self: Arc<Self>, mut receiver: Receiver<Checked>, seed: u64) -> Receiver<Checked> {
        let mut random = Random::new(seed);
        // On some devices, the receives can complete in another order than that of the messages.
        let is_in_order = !lacks(Promise::Order);
        let mut counts: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
        let mut spare = Vec::new();
        while !self.is_over.load(Ordering::Acquire) {
            let next = Box::pin(receiver.next());
            let Ok(received) = (match perhaps_soon(&mut random, next).await {
                Came::Answer(received) => received.expect("receives are posted"),
                Came::Cancelled => continue,
            }) else {
                panic!("a receive failed");
            };
            let buffer = received.into_received().unwrap();
            let number = |at: usize| u64::from_ne_bytes(buffer[at..at + 8].try_into().unwrap());
            let (task, count) = (number(0) as usize, number(8));
            let before = counts.entry(task).or_default();
            let next = before.last().map_or(1, |last| last + 1);
            assert!(before.insert(count), "a message of task {task} arrives twice");
            assert!(!is_in_order || count == next, "message {count} of task {task} arrives before message {next}");
            assert_eq!(buffer[..], words(task, count), "a message arrives as it was sent");
            self.arrived.fetch_add(1, Ordering::Relaxed);
            // If receives complete out of order, the queue can stay full until an earlier receive has completed. In
            // that case the buffer is posted after a later message.
            spare.push(buffer);
            while let Some(buffer) = spare.pop() {
                match receiver.post_receive(buffer) {
                    Ok(_) => self.credits.add_permits(1),
                    Err(PostError::QueueFull(buffer)) => {
                        spare.push(buffer);
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        receiver
    }
}

/// Waits for `future` for a short random time, then cancels the wait.
async fn perhaps_soon<F: Future + Unpin>(random: &mut Random, mut future: F) -> Came<F::Output> {
    let short = Duration::from_micros(random.below(5000) as u64);
    match timeout(short, &mut future).await {
        Ok(answer) => Came::Answer(answer),
        Err(_) => Came::Cancelled,
    }
}

/// What one run has done.
#[derive(Default, Debug)]
struct Done {
    posted: usize,
    cancelled: usize,
    packets_lost: u64,
}

/// `tasks` tasks over several pairs, each with `rounds` requests.
fn run(runtime: &Runtime, percent: u32, tasks: usize, rounds: usize) -> Done {
    let network = Network::new();
    let left = Side::new(&network.left, tasks, runtime);
    let right = Side::new(&network.right, tasks, runtime);
    let mut ends = Vec::new();
    for _ in 0..PAIRS {
        let (l, r) = connect_to_each_other(&left.domain, left.pair(), right.pair(), &patient());
        ends.push([left.end(l, &right), right.end(r, &left)]);
    }
    let losses = Arc::new(network.lose(percent));
    let cancelled = runtime.block_on(async { timeout(5 * PATIENCE, traffic(ends, tasks, rounds, &losses)).await });
    let cancelled = cancelled.expect("a task waits for ever");
    let packets_lost = losses.lost();
    for side in [&left, &right] {
        let is_home = eventually(|| side.pool.stats().classes[0].free == POOLED as usize);
        assert!(is_home, "{:?}", side.pool.stats());
    }
    Done { posted: tasks * rounds, cancelled, packets_lost }
}

/// Runs the tasks, and accounts for every buffer. Returns how many waits were cancelled.
async fn traffic(ends: Vec<[End; 2]>, tasks: usize, rounds: usize, losses: &Arc<Losses>) -> usize {
    // The receiver of one end takes the messages of the other end's sender.
    let mut parts = Vec::new();
    for (number, [left, right]) in ends.into_iter().enumerate() {
        let seed = number as u64;
        let serving = [
            tokio::spawn(Arc::clone(&right.lane).serve(left.receiver, seed)),
            tokio::spawn(Arc::clone(&left.lane).serve(right.receiver, !seed)),
        ];
        parts.push(([left.lane, right.lane], serving, [(left.plain, left.receives), (right.plain, right.receives)]));
    }
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let lane = Arc::clone(&parts[task % PAIRS].0[task / PAIRS % 2]);
            let losses = Arc::clone(losses);
            tokio::spawn(async move { lane.traffic(task, rounds, &losses).await })
        })
        .collect();
    let mut cancelled = 0;
    for task in running {
        cancelled += task.await.unwrap();
    }
    for (number, (lanes, serving, before)) in parts.into_iter().enumerate() {
        // Half of the connections wait here for all requests. The others are closed while requests are perhaps in
        // flight.
        if number % 2 == 0 {
            let is_done = |lane: &Arc<Lane>| {
                lane.gather();
                let has_arrived = lane.arrived.load(Ordering::Relaxed) == lane.sent.load(Ordering::Relaxed);
                has_arrived && lane.home().len() == PLAIN
            };
            let all_done = async {
                while !lanes.iter().all(is_done) {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(PATIENCE, all_done).await.expect("every message arrives, and every buffer comes back");
        }
        lanes.iter().for_each(|lane| lane.is_over.store(true, Ordering::Release));
        let mut closing = Vec::new();
        for ((lane, serving), (plain, receives)) in lanes.into_iter().zip(serving).zip(before) {
            let receiver = serving.await.unwrap();
            closing.push((lane, receiver, plain, receives));
        }
        let mut closings = Vec::new();
        for (lane, receiver, plain, receives) in closing {
            let lane = Arc::into_inner(lane).expect("the tasks are over");
            let Ok(sender) = lane.sender.try_into_sender() else { panic!("the tasks are over") };
            assert_eq!(sender.counters().dropped_strays, 0);
            let home = lane.home.into_inner().unwrap();
            closings.push((sender.close(receiver).unwrap().within(PATIENCE), home, plain, receives));
        }
        for (closing, home, plain, receives) in closings {
            let closed = closing.await;
            assert!(closed.has_drained && closed.not_destroyed.is_none(), "{closed:?}");
            let back: Vec<_> = home.into_iter().chain(closed.into_buffers()).collect();
            assert_eq!(back.len(), plain.len() + receives.len(), "no buffer is lost, and none is there twice");
            assert_eq!(addresses(&back), &plain | &receives);
        }
    }
    cancelled
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn two_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// 16 and 64 tasks, with 1 % and 5 % of the packets lost, and `requests` requests each time.
fn lose_packets(runtime: &Runtime, requests: usize) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut lost = 0;
    for percent in [1, 5] {
        for tasks in [16, 64] {
            let start = std::time::Instant::now();
            let done = run(runtime, percent, tasks, requests / tasks);
            println!("{tasks} tasks, {percent} % lost: {done:?} in {:?}", start.elapsed());
            assert!(done.cancelled > done.posted / 4, "many waits were cancelled: {done:?}");
            lost += done.packets_lost;
        }
    }
    assert!(lost > 0, "the network lost nothing");
}

#[test]
fn nothing_is_lost_with_packets_on_one_thread() {
    lose_packets(&one_thread(), 640);
}

#[test]
fn nothing_is_lost_with_packets_on_two_threads() {
    lose_packets(&two_threads(), 640);
}

/// The same test with many more requests.
#[test]
#[ignore = "takes minutes on a real device: `cargo test --features tokio --test aio_loss -- --ignored`"]
fn nothing_is_lost_with_packets_in_a_long_time() {
    lose_packets(&two_threads(), 16_000);
}
