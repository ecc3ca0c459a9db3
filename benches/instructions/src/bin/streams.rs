//! The loops whose instructions are counted: `streams NAME ITERATIONS`. Each workload is one loop in its own
//! function.
#![forbid(unsafe_code)]

use interlock::aio::{Receiver, Sender, SharedPoller, SharedSender};
use interlock::{
    Brand, Buffer, Context, Limits, Poller, ProtectionDomain, QueuePair, RemoteAll, RemoteRegion, soft::Fabric,
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
/// The number of receives of a pair, and so the greatest number of iterations.
const RECEIVES: u32 = 300;
const DEPTH: u32 = 128;
/// The number of tasks that share a sender.
const TASKS: usize = 16;

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
    peer: QueuePair<B>,
    poller: Poller<B>,
    ring: Ring<Buffer<B>>,
    /// Slices of the peer's memory, each of `MESSAGE` bytes.
    target: [RemoteRegion<RemoteAll>; SLOTS],
    /// The objects that the pairs need.
    _kept: Box<dyn Any>,
}

impl<B: Brand + 'static> Setup<B> {
    /// Makes two pairs that are connected to each other.
    fn new(domain: &ProtectionDomain<B>) -> Result<Self, Box<dyn Error>> {
        let port = domain.context().active_port()?;
        let (queue, poller) = domain.completion_queue(RECEIVES + 2 * DEPTH)?;
        let (peer_queue, _) = domain.completion_queue(2 * RECEIVES)?;
        let limits = Limits { sends: DEPTH, receives: RECEIVES, ..Limits::default() };
        let pair = domain.reliable(&queue, &limits)?.into_init(&port)?;
        let peer = domain.reliable(&peer_queue, &Limits { sends: RECEIVES, ..limits })?.into_init(&port)?;
        let (mine, other) = (pair.endpoint(), peer.endpoint());
        let (pair, peer) = (pair.connect(&other)?, peer.connect(&mine)?);
        let region = domain.register::<RemoteAll, _>(vec![0_u64; SLOTS * MESSAGE / 8])?;
        let mut target = [region.remote(); SLOTS];
        for (start, slice) in (0..).step_by(MESSAGE).zip(&mut target) {
            *slice = region.remote().slice(start..start + MESSAGE as u64)?;
        }
        Ok(Self {
            pair,
            peer,
            poller,
            ring: Ring::new(domain.buffers(SLOTS, MESSAGE)?),
            target,
            _kept: Box::new((queue, peer_queue, region)),
        })
    }

    /// Posts `RECEIVES` receives, and lets the peer send a message for each. Their number does not depend on the number
    /// of iterations, so the cost cancels out.
    fn with_messages(mut self, domain: &ProtectionDomain<B>) -> Result<Self, Box<dyn Error>> {
        for buffer in domain.buffers(RECEIVES as usize, MESSAGE)? {
            self.pair.post_receive(buffer)?;
        }
        for buffer in domain.buffers(RECEIVES as usize, MESSAGE)? {
            self.peer.post_send(buffer)?;
        }
        Ok(self)
    }
}

#[inline(never)]
fn stream(s: &mut Setup, n: u32) {
    for _ in 0..n {
        let message = loop {
            if let Some(completion) = s.poller.poll().expect("a queue that works") {
                break completion.check().expect("success").into_buffer().expect("a buffer");
            }
        };
        assert!(message.len() == MESSAGE);
        s.pair.post_receive(message).expect("room");
    }
}

#[inline(never)]
fn many_writes(s: &mut Setup, n: u32) {
    for _ in 0..n {
        let Setup { pair, ring, poller, target, .. } = s;
        for (k, to) in target[..TASKS].iter().enumerate() {
            pair.post_write(ring.take_at(k), to).expect("room");
        }
        let mut out = 0;
        while out < TASKS {
            let back = poller.poll_each(|completion| {
                ring.put(completion.check().expect("success").into_buffer().expect("a buffer"));
            });
            out += back.expect("a queue that works");
        }
    }
}

/// The halves of a pair whose requests are awaited.
struct Tasks {
    sender: Sender<Bench>,
    receiver: Receiver<Bench>,
    ring: Ring<Buffer<Bench>>,
    target: [RemoteRegion<RemoteAll>; SLOTS],
    _kept: Box<dyn Any>,
}

impl Tasks {
    fn new(setup: Setup) -> Result<Self, Box<dyn Error>> {
        let Setup { pair, peer, poller, ring, target, _kept } = setup;
        let (sender, receiver) = SharedPoller::new(poller).split(pair)?;
        Ok(Self { sender, receiver, ring, target, _kept: Box::new((peer, _kept)) })
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
fn awaited_stream(t: &mut Tasks, n: u32) {
    run(async {
        for _ in 0..n {
            let message = t.receiver.next().await.expect("posted").expect("success").into_buffer().expect("a buffer");
            assert!(message.len() == MESSAGE);
            t.receiver.post_receive(message).expect("room");
        }
    });
}

/// Lets the other tasks run once.
async fn yield_now() {
    let mut is_first = true;
    std::future::poll_fn(|_| if mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }).await;
}

/// A pair that sends for many tasks.
struct Shared {
    sender: SharedSender<Bench>,
    ring: Ring<Buffer<Bench>>,
    target: [RemoteRegion<RemoteAll>; SLOTS],
    _kept: Box<dyn Any>,
}

/// `TASKS` tasks share the sender. Each posts a write, and waits for it after all the others have posted.
#[inline(never)]
fn shared_writes(t: &mut Shared, n: u32) {
    let Shared { sender, ring, target, .. } = t;
    let mut tasks: [_; TASKS] = std::array::from_fn(|task| {
        let (sender, mut buffer, target) = (&*sender, ring.take_at(task), &target[task]);
        Box::pin(async move {
            for _ in 0..n {
                let permit = sender.room().await.expect("a queue that works");
                let written = permit.with(|sender| sender.write(buffer, target)).expect("room");
                yield_now().await;
                buffer = written.await.expect("success");
            }
            drop(buffer);
        })
    });
    run_all(&mut tasks);
}

/// Polls the tasks in turn until all are ready. All of them must become ready in the same round.
#[inline(always)]
fn run_all<F: Future + Unpin>(tasks: &mut [F]) {
    let mut context = std::task::Context::from_waker(Waker::noop());
    loop {
        let mut ready = 0;
        for task in &mut *tasks {
            ready += usize::from(pin!(task).poll(&mut context).is_ready());
        }
        if ready > 0 {
            assert!(ready == tasks.len(), "all tasks make the same number of writes");
            return;
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, name, iterations] = &arguments[..] else { return Err("usage: streams NAME ITERATIONS".into()) };
    let iterations = iterations.parse()?;
    if iterations > RECEIVES {
        return Err("more iterations than the peer has receives".into());
    }
    let context = Context::open_on(&Fabric::new(), "soft0")?;
    let domain = context.named_domain(Bench)?;
    match name.as_str() {
        "stream" => {
            black_box(stream as fn(&mut Setup, u32))(&mut Setup::new(&domain)?.with_messages(&domain)?, iterations)
        }
        "awaited_stream" => {
            let mut tasks = Tasks::new(Setup::new(&domain)?.with_messages(&domain)?)?;
            black_box(awaited_stream as fn(&mut Tasks, u32))(&mut tasks, iterations);
        }
        "many_writes" => black_box(many_writes as fn(&mut Setup, u32))(&mut Setup::new(&domain)?, iterations),
        "shared_writes" => {
            let Tasks { sender, receiver, ring, target, _kept } = Tasks::new(Setup::new(&domain)?)?;
            let mut shared = Shared { sender: sender.into_shared(), ring, target, _kept: Box::new((receiver, _kept)) };
            black_box(shared_writes as fn(&mut Shared, u32))(&mut shared, iterations);
        }
        _ => return Err("no such workload".into()),
    }
    Ok(())
}
