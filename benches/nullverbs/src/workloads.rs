//! The workloads. Each runs on a queue pair that is connected to itself.

use interlock::completion::{CompletionQueueOptions, Polling};
use interlock::queue::Posting;
use interlock::request::Operation;
use interlock::{
    Buffer, Context, Inline, Limits, Poller, QueuePair, RemoteRegion, RemoteWrite, Success, WorkId, WorkRequest,
};
use std::{mem, time::Instant};

interlock::domain! { struct Bench; }

const MESSAGE: usize = 64;
const SLOTS: usize = 64;
const BATCH: usize = 32;
const INLINE: usize = 32;

/// The free buffers in the order in which they came back.
struct Ring {
    free: [Option<Buffer<Bench>>; SLOTS],
    next: usize,
}

impl Ring {
    #[inline(always)]
    fn take(&mut self) -> Buffer<Bench> {
        self.free[self.next % SLOTS].take().expect("the workload has fewer in flight")
    }

    #[inline(always)]
    fn put(&mut self, buffer: Buffer<Bench>) {
        // The slot is empty, so `replace` returns `None`. `forget` keeps drop code out of the measured loop.
        mem::forget(self.free[self.next % SLOTS].replace(buffer));
        self.next += 1;
    }
}

struct Setup {
    pair: QueuePair<Bench>,
    poller: Poller<Bench>,
    ring: Ring,
    target: [RemoteRegion<RemoteWrite>; SLOTS],
    receives: Vec<Buffer<Bench>>,
    /// A batch takes the next 32 of 64 buffers, as in the other contenders. The other 32 wait here.
    batches: [Vec<Buffer<Bench>>; 2],
    bytes: Vec<u8>,
}

/// Polls until the completion of `id` comes.
#[inline(always)]
fn poll(poller: &mut Poller<Bench>, id: WorkId) -> Success<Bench> {
    loop {
        if let Some(completion) = poller.poll().expect("a queue that works") {
            let success = completion.check().expect("success");
            assert!(success.id() == id);
            return success;
        }
    }
}

#[inline(never)]
fn w1(s: &mut Setup, n: u64) -> u64 {
    for _ in 0..n {
        let id = s.pair.post_send(s.ring.take()).expect("room");
        s.ring.put(poll(&mut s.poller, id).into_buffer().expect("a buffer"));
    }
    n
}

#[inline(never)]
fn w2(s: &mut Setup, n: u64) -> u64 {
    for i in 0..n {
        let id = s.pair.post_write(s.ring.take(), &s.target[i as usize % SLOTS]).expect("room");
        s.ring.put(poll(&mut s.poller, id).into_buffer().expect("a buffer"));
    }
    n
}

#[inline(never)]
fn w3(s: &mut Setup, n: u64) -> u64 {
    let Setup { pair, batches, target, poller, .. } = s;
    let [free, waiting] = batches;
    let (mut to, mut to_next) = target.split_at(BATCH);
    for _ in 0..n {
        let mut targets = to.iter();
        let write = move |buffer| WorkRequest::write(buffer, targets.next().expect("a target"));
        pair.post_all(free, write).expect("a batch");
        let mut out = 0;
        while out < BATCH {
            let back = poller.poll_retired(|retired| retired.into_buffers(free).expect("success"));
            out += back.expect("a queue that works");
        }
        mem::swap(free, waiting);
        mem::swap(&mut to, &mut to_next);
    }
    n
}

#[inline(never)]
fn w4(s: &mut Setup, n: u64) -> u64 {
    for i in 0..n {
        let bytes = &s.bytes[i as usize % SLOTS * MESSAGE..][..INLINE];
        let id = s.pair.post_send(Inline(bytes)).expect("room");
        drop(poll(&mut s.poller, id));
    }
    n
}

#[inline(never)]
fn w5(s: &mut Setup, n: u64) -> u64 {
    for _ in 0..n {
        s.pair.post_send(s.ring.take()).expect("room");
        let mut out = 0;
        while out < 2 {
            let Some(completion) = s.poller.poll().expect("a queue that works") else { continue };
            out += 1;
            let success = completion.check().expect("success");
            let is_message = success.operation() == Operation::Receive;
            let buffer = success.into_buffer().expect("a buffer");
            if is_message {
                assert!(buffer.len() == MESSAGE);
                s.pair.post_receive(buffer).expect("room");
            } else {
                s.ring.put(buffer);
            }
        }
    }
    2 * n
}

/// Runs the contender `name`, which posts by `posting` and polls by `polling`.
pub fn main(name: &str, posting: Posting, polling: Polling) -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, workload, iterations] = &arguments[..] else {
        return Err(format!("usage: {name} W1..W5 ITERATIONS").into());
    };
    let iterations: u64 = iterations.parse()?;
    let domain = Context::open("null0")?.named_domain(Bench)?;
    let port = domain.context().active_port()?;
    let (queue, poller) =
        domain.completion_queue_with(256, &CompletionQueueOptions { polling, ..Default::default() })?;
    let limits = Limits { sends: 128, receives: 128, inline_bytes: INLINE as u32, elements: 1, posting };
    let pair = domain.reliable(&queue, &limits)?.into_init(&port)?;
    let myself = pair.endpoint();
    let region = domain.register::<RemoteWrite, _>(vec![0_u64; SLOTS * MESSAGE / 8])?;
    let mut setup = Setup {
        pair: pair.connect(&myself)?,
        poller,
        ring: Ring { free: [const { None }; SLOTS], next: 0 },
        target: [region.remote(); SLOTS],
        receives: domain.buffers(SLOTS, MESSAGE)?,
        batches: [domain.buffers(BATCH, MESSAGE)?, domain.buffers(BATCH, MESSAGE)?],
        bytes: vec![7; SLOTS * MESSAGE],
    };
    for (slot, buffer) in setup.ring.free.iter_mut().zip(domain.buffers(SLOTS, MESSAGE)?) {
        *slot = Some(buffer);
    }
    for (at, target) in setup.target.iter_mut().enumerate() {
        *target = region.remote().slice((at * MESSAGE) as u64..((at + 1) * MESSAGE) as u64)?;
    }
    let run = match workload.as_str() {
        "W1" => w1,
        "W2" => w2,
        "W3" => w3,
        "W4" => w4,
        "W5" => {
            for buffer in setup.receives.drain(..) {
                setup.pair.post_receive(buffer)?;
            }
            w5
        }
        _ => std::process::exit(2),
    };
    let start = Instant::now();
    let done = std::hint::black_box(run)(&mut setup, iterations);
    println!("NS {}", start.elapsed().as_nanos());
    let expected = if workload == "W5" { 2 * iterations } else { iterations };
    if done == expected { Ok(()) } else { Err("completions are missing".into()) }
}
