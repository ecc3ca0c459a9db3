//! The loops whose instructions are counted: `workloads NAME ITERATIONS`. Each workload is one loop in its own
//! function.
#![forbid(unsafe_code)]

use interlock::aio::{Receiver, Sender, SharedPoller};
use interlock::completion::{CompletionQueueOptions, Polling};
use interlock::memory::{Pool, PoolOptions};
use interlock::request::Operation;
use interlock::{
    Brand, Buffer, Checked, Context, Inline, Limits, Poller, ProtectionDomain, QueuePair, RemoteAll, RemoteRegion,
    SharedBuffer, Success, WorkId, WorkRequest, soft::Fabric,
};
use std::any::Any;
use std::error::Error;
use std::hint::black_box;
use std::mem;
use std::pin::pin;
use std::task::{Poll, Waker};

interlock::domain! { struct Bench; }

const MESSAGE: usize = 64;
const SLOTS: usize = 64;
const BATCH: usize = 32;
const INLINE: usize = 32;
/// The number of receives that the peer has, and so the greatest number of iterations.
const RECEIVES: u32 = 300;
const DEPTH: u32 = 128;

/// The free buffers, in the order in which they came back. Any program needs such a ring, so its cost counts.
struct Ring<T> {
    free: [Option<T>; SLOTS],
    next: usize,
}

impl<T> Ring<T> {
    fn new(items: impl IntoIterator<Item = T>) -> Self {
        let mut items = items.into_iter();
        Self { free: std::array::from_fn(|_| items.next()), next: 0 }
    }

    #[inline(always)]
    fn take(&mut self) -> T {
        self.take_at(0)
    }

    /// Takes the item that is `ahead` places after the next one.
    #[inline(always)]
    fn take_at(&mut self, ahead: usize) -> T {
        self.free[(self.next + ahead) % SLOTS].take().expect("fewer are in flight")
    }

    #[inline(always)]
    fn put(&mut self, item: T) {
        // The slot is empty, so `replace` returns `None`. `forget` keeps drop code out of the measured loop.
        mem::forget(self.free[self.next % SLOTS].replace(item));
        self.next += 1;
    }
}

struct Setup<B = Bench> {
    pair: QueuePair<B>,
    poller: Poller<B>,
    ring: Ring<Buffer<B>>,
    shares: Ring<SharedBuffer<B>>,
    /// The buffers of the next batch and of the one after it.
    batches: [Vec<Buffer<B>>; 2],
    bytes: Vec<u8>,
    pool: Pool<B>,
    /// Slices of the peer's memory, each of `MESSAGE` bytes.
    target: [RemoteRegion<RemoteAll>; SLOTS],
    /// Words of the peer's memory.
    words: [RemoteRegion<RemoteAll>; SLOTS],
    /// The peer of `pair` and the objects that it needs.
    _kept: Box<dyn Any>,
}

impl<B: Brand + 'static> Setup<B> {
    /// Makes a pair. Its peer has `RECEIVES` receives posted; a pair that is connected to itself has `SLOTS` of them.
    fn new(domain: ProtectionDomain<B>, to_peer: bool, polling: Polling) -> Result<Self, Box<dyn Error>> {
        let port = domain.context().active_port()?;
        let options = CompletionQueueOptions { polling, ..CompletionQueueOptions::default() };
        let (queue, poller) = domain.completion_queue_with(2 * DEPTH, &options)?;
        let (peer_queue, _) = domain.completion_queue(RECEIVES + DEPTH)?;
        let inline_bytes = INLINE as u32;
        let limits = Limits { sends: DEPTH, receives: DEPTH, inline_bytes, ..Limits::default() };
        let pair = domain.reliable(&queue, &limits)?.into_init(&port)?;
        let mut peer = domain.reliable(&peer_queue, &Limits { receives: RECEIVES, ..limits })?.into_init(&port)?;
        for buffer in domain.buffers(RECEIVES as usize, MESSAGE)? {
            peer.post_receive(buffer)?;
        }
        let (mine, other) = (pair.endpoint(), peer.endpoint());
        let (mut pair, peer) = (pair.connect(if to_peer { &other } else { &mine })?, peer.connect(&mine)?);
        if !to_peer {
            for buffer in domain.buffers(SLOTS, MESSAGE)? {
                pair.post_receive(buffer)?;
            }
        }
        let region = domain.register::<RemoteAll, _>(vec![0_u64; SLOTS * MESSAGE / 8])?;
        let (mut target, mut words) = ([region.remote(); SLOTS], [region.remote(); SLOTS]);
        for at in 0..SLOTS {
            let start = (at * MESSAGE) as u64;
            target[at] = region.remote().slice(start..start + MESSAGE as u64)?;
            words[at] = region.remote().slice(start..start + 8)?;
        }
        Ok(Self {
            pair,
            poller,
            ring: Ring::new(domain.buffers(SLOTS, MESSAGE)?),
            shares: Ring::new(domain.buffers(SLOTS, MESSAGE)?.into_iter().map(Buffer::share)),
            batches: [domain.buffers(BATCH, MESSAGE)?, domain.buffers(BATCH, MESSAGE)?],
            pool: domain.pool(&PoolOptions::default())?,
            bytes: vec![7; SLOTS * MESSAGE],
            target,
            words,
            _kept: Box::new((peer, queue, peer_queue, region)),
        })
    }
}

/// Polls until the completion of `id` comes.
#[inline(always)]
fn poll<B>(poller: &mut Poller<B>, id: WorkId) -> Success<B> {
    loop {
        if let Some(completion) = poller.poll().expect("a queue that works") {
            let success = completion.check().expect("success");
            assert!(success.id() == id);
            return success;
        }
    }
}

#[inline(never)]
fn send(s: &mut Setup, n: u32) {
    for _ in 0..n {
        let id = s.pair.post_send(s.ring.take()).expect("room");
        s.ring.put(poll(&mut s.poller, id).into_buffer().expect("a buffer"));
    }
}

#[inline(never)]
fn checked(s: &mut Setup<Checked>, n: u32) {
    for _ in 0..n {
        let id = s.pair.post_send(s.ring.take()).expect("room");
        s.ring.put(poll(&mut s.poller, id).into_buffer().expect("a buffer"));
    }
}

#[inline(never)]
fn write(s: &mut Setup, n: u32) {
    for i in 0..n {
        let id = s.pair.post_write(s.ring.take(), &s.target[i as usize % SLOTS]).expect("room");
        s.ring.put(poll(&mut s.poller, id).into_buffer().expect("a buffer"));
    }
}

#[inline(never)]
fn batch(s: &mut Setup, n: u32) {
    let Setup { pair, poller, batches: [free, waiting], target, .. } = s;
    for i in 0..n {
        let first = (i as usize % 2) * BATCH;
        let last = WorkRequest::write(free.pop().expect("a buffer"), &target[first + BATCH - 1]);
        pair.batch(|batch| {
            let others = free.drain(..).zip(&target[first..]);
            batch.post_each(others.map(|(from, to)| WorkRequest::write(from, to).unsignalled())).expect("room");
            batch.post(last).expect("room");
        })
        .expect("a batch");
        let mut out = 0;
        while out < BATCH {
            let back = poller.poll_retired(|mut retired| {
                retired.take_buffers(free);
                free.push(retired.into_completion().check().expect("success").into_buffer().expect("a buffer"));
            });
            out += back.expect("a queue that works");
        }
        mem::swap(free, waiting);
    }
}

#[inline(never)]
fn batch_all(s: &mut Setup, n: u32) {
    let Setup { pair, poller, batches: [free, waiting], target, .. } = s;
    for i in 0..n {
        let first = (i as usize % 2) * BATCH;
        let mut targets = target[first..][..BATCH].iter();
        let write = move |from| WorkRequest::write(from, targets.next().expect("a target"));
        pair.post_all(free, write).expect("a batch");
        let mut out = 0;
        while out < BATCH {
            let back = poller.poll_retired(|retired| retired.into_buffers(free).expect("success"));
            out += back.expect("a queue that works");
        }
        mem::swap(free, waiting);
    }
}

#[inline(never)]
fn batch_post(s: &mut Setup, n: u32) {
    for i in 0..n as usize {
        let Setup { pair, ring, target, .. } = s;
        pair.batch(|batch| {
            for k in 0..BATCH {
                let request = WorkRequest::write(ring.take_at(k), &target[(i + k) % SLOTS]);
                batch.post(if k == BATCH - 1 { request } else { request.unsignalled() }).expect("room");
            }
        })
        .expect("a batch");
        poll_batch(s);
    }
}

#[inline(never)]
fn unsignalled(s: &mut Setup, n: u32) {
    for i in 0..n as usize {
        let Setup { pair, ring, target, .. } = s;
        for k in 0..BATCH {
            let request = WorkRequest::write(ring.take_at(k), &target[(i + k) % SLOTS]);
            pair.post(if k == BATCH - 1 { request } else { request.unsignalled() }).expect("room");
        }
        poll_batch(s);
    }
}

#[inline(never)]
fn inline(s: &mut Setup, n: u32) {
    for i in 0..n {
        let bytes = &s.bytes[i as usize % SLOTS * MESSAGE..][..INLINE];
        let id = s.pair.post_send(Inline(bytes)).expect("room");
        let _ = poll(&mut s.poller, id);
    }
}

/// Polls until a whole batch has come back.
#[inline(always)]
fn poll_batch(s: &mut Setup) {
    let Setup { ring, poller, .. } = s;
    let mut out = 0;
    while out < BATCH {
        let back = poller.poll_each(|completion| {
            ring.put(completion.check().expect("success").into_buffer().expect("a buffer"));
        });
        out += back.expect("a queue that works");
    }
}

#[inline(never)]
fn receive(s: &mut Setup, n: u32) {
    for _ in 0..n {
        s.pair.post_send(s.ring.take()).expect("room");
        let Setup { pair, ring, poller, .. } = s;
        let mut out = 0;
        while out < 2 {
            let back = poller.poll_each(|completion| {
                let success = completion.check().expect("success");
                let is_message = success.operation() == Operation::Receive;
                let buffer = success.into_buffer().expect("a buffer");
                if is_message {
                    assert!(buffer.len() == MESSAGE);
                    pair.post_receive(buffer).expect("room");
                } else {
                    ring.put(buffer);
                }
            });
            out += back.expect("a queue that works");
        }
    }
}

#[inline(never)]
fn read(s: &mut Setup, n: u32) {
    for i in 0..n {
        let id = s.pair.post_read(s.ring.take(), &s.target[i as usize % SLOTS]).expect("room");
        s.ring.put(poll(&mut s.poller, id).into_buffer().expect("a buffer"));
    }
}

#[inline(never)]
fn atomic(s: &mut Setup, n: u32) {
    for i in 0..n {
        let id = s.pair.post_fetch_and_add(s.ring.take(), &s.words[i as usize % SLOTS], 1).expect("room");
        s.ring.put(poll(&mut s.poller, id).into_buffer().expect("a buffer"));
    }
}

#[inline(never)]
fn share(s: &mut Setup, n: u32) {
    for _ in 0..n {
        let id = s.pair.post_send(s.shares.take()).expect("room");
        s.shares.put(poll(&mut s.poller, id).into_memory().into_shared().expect("a share"));
    }
}

/// The halves of a pair whose requests are awaited.
struct Tasks {
    sender: Sender<Bench>,
    receiver: Receiver<Bench>,
    ring: Ring<Buffer<Bench>>,
    batches: [Vec<Buffer<Bench>>; 2],
    target: [RemoteRegion<RemoteAll>; SLOTS],
    _kept: Box<dyn Any>,
}

impl Tasks {
    fn new(setup: Setup) -> Result<Self, Box<dyn Error>> {
        let Setup { pair, poller, ring, batches, target, _kept, .. } = setup;
        let (sender, receiver) = SharedPoller::new(poller).split(pair)?;
        Ok(Self { sender, receiver, ring, batches, target, _kept })
    }
}

/// Polls a future whose completions come at once. This costs about as much as a runtime adds.
#[inline(always)]
fn run<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = std::task::Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}

#[inline(never)]
fn awaited_write(t: &mut Tasks, n: u32) {
    run(async {
        for i in 0..n {
            let written = t.sender.write(t.ring.take(), &t.target[i as usize % SLOTS]).expect("room");
            t.ring.put(written.await.expect("success"));
        }
    });
}

#[inline(never)]
fn awaited_batch(t: &mut Tasks, n: u32) {
    run(async {
        let Tasks { sender, batches: [free, waiting], target, .. } = t;
        for i in 0..n {
            let first = (i as usize % 2) * BATCH;
            let mut targets = target[first..][..BATCH].iter();
            let write = move |from| WorkRequest::write(from, targets.next().expect("a target"));
            let written = sender.post_all(free, write).expect("a batch").into_vec(mem::take(free));
            *free = written.await.expect("success");
            mem::swap(free, waiting);
        }
    });
}

#[inline(never)]
fn awaited_receive(t: &mut Tasks, n: u32) {
    run(async {
        for _ in 0..n {
            let sent = t.sender.send(t.ring.take()).expect("room");
            let message = t.receiver.next().await.expect("posted").expect("success").into_buffer().expect("a buffer");
            assert!(message.len() == MESSAGE);
            t.receiver.post_receive(message).expect("room");
            t.ring.put(sent.await.expect("success"));
        }
    });
}

#[inline(never)]
fn pool(s: &mut Setup, n: u32) {
    for _ in 0..n {
        drop(black_box(s.pool.try_take(MESSAGE).expect("a buffer")));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, name, iterations] = &arguments[..] else { return Err("usage: workloads NAME ITERATIONS".into()) };
    let iterations = iterations.parse()?;
    if iterations > RECEIVES {
        return Err("more iterations than the peer has receives".into());
    }
    let context = Context::open_on(&Fabric::new(), "soft0")?;
    if name == "checked" {
        let mut setup = Setup::new(context.checked_domain()?, true, Polling::Array)?;
        black_box(checked as fn(&mut Setup<Checked>, u32))(&mut setup, iterations);
        return Ok(());
    }
    let (loop_name, polling) = match name.strip_suffix("_extended") {
        Some(loop_name) => (loop_name, Polling::Extended),
        None => (name.as_str(), Polling::Array),
    };
    let awaited: Option<fn(&mut Tasks, u32)> = match loop_name {
        "awaited_write" => Some(awaited_write),
        "awaited_batch" => Some(awaited_batch),
        "awaited_receive" => Some(awaited_receive),
        _ => None,
    };
    if let Some(run) = awaited {
        let mut tasks = Tasks::new(Setup::new(context.named_domain(Bench)?, false, polling)?)?;
        black_box(run)(&mut tasks, iterations);
        return Ok(());
    }
    // The loop, and whether the pair sends to a peer or to itself.
    let (run, to_peer): (fn(&mut Setup, u32), bool) = match loop_name {
        "send" => (send, true),
        "write" => (write, false),
        "batch" => (batch, false),
        "batch_all" => (batch_all, false),
        "receive" => (receive, false),
        "read" => (read, false),
        "atomic" => (atomic, false),
        "share" => (share, true),
        "inline" => (inline, true),
        "batch_post" => (batch_post, false),
        "unsignalled" => (unsignalled, false),
        "pool" => (pool, true),
        _ => return Err("no such workload".into()),
    };
    let mut setup = Setup::new(context.named_domain(Bench)?, to_peer, polling)?;
    black_box(run)(&mut setup, iterations);
    Ok(())
}
