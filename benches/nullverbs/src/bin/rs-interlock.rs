//! One workload on a queue pair that is connected to itself: `rs-interlock W1..W5 ITERATIONS`.
//!
//! Prints `NS <nanoseconds>`, the time of the iterations alone. Exit status 2: the workload cannot be expressed.
#![forbid(unsafe_code)]

use interlock::{
    Buffer, Context, Limits, Poller, QueuePair, RemoteRegion, RemoteWrite, Success, Work, WorkId, WorkRequest,
};
use std::time::Instant;

interlock::domain! { struct Bench; }

const MESSAGE: usize = 64;
const SLOTS: usize = 64;
const BATCH: usize = 32;

/// Buffers that are not in flight, in the order in which they came back.
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
        self.free[self.next % SLOTS] = Some(buffer);
        self.next += 1;
    }
}

struct Setup {
    pair: QueuePair<Bench>,
    poller: Poller<Bench>,
    ring: Ring,
    target: [RemoteRegion<RemoteWrite>; SLOTS],
    receives: Vec<Buffer<Bench>>,
}

/// Polls until the completion of `id`.
#[inline(always)]
fn poll(poller: &mut Poller<Bench>, id: WorkId) -> Success<Bench> {
    loop {
        if let Some(completion) = poller.poll().expect("a queue that works") {
            let success = completion.check().expect("success");
            assert!(success.id == id);
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
    for i in 0..n {
        let Setup { pair, ring, target, poller, .. } = s;
        pair.batch(|batch| {
            for k in 0..BATCH {
                let buffer = ring.free[(ring.next + k) % SLOTS].take().expect("a buffer");
                let request = WorkRequest::write(buffer, &target[(i as usize + k) % SLOTS]);
                batch.post(if k == BATCH - 1 { request } else { request.unsignalled() }).expect("room");
            }
        })
        .expect("a batch");
        let mut out = 0;
        while out < BATCH {
            let back = poller.poll_each(|completion| {
                ring.put(completion.check().expect("success").into_buffer().expect("a buffer"));
            });
            out += back.expect("a queue that works");
        }
    }
    n
}

#[inline(never)]
fn w5(s: &mut Setup, n: u64) -> u64 {
    for _ in 0..n {
        s.pair.post_send(s.ring.take()).expect("room");
        let Setup { pair, ring, poller, .. } = s;
        let mut out = 0;
        while out < 2 {
            let back = poller.poll_each(|completion| match completion.check().expect("success").work {
                Work::Received(received) => {
                    assert!(received.buffer.len() == MESSAGE);
                    pair.post_receive(received.buffer).expect("room");
                }
                work => ring.put(work.into_buffer().expect("a buffer")),
            });
            out += back.expect("a queue that works");
        }
    }
    2 * n
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, workload, iterations] = &arguments[..] else {
        return Err("usage: rs-interlock W1..W5 ITERATIONS".into());
    };
    let iterations: u64 = iterations.parse()?;
    let domain = Context::open("null0")?.named_domain(Bench)?;
    let port = domain.context().active_port()?;
    let (queue, poller) = domain.completion_queue(256)?;
    let pair = domain.reliable(&queue, &Limits { sends: 128, receives: 128 })?.into_init(&port)?;
    let myself = pair.endpoint();
    let region = domain.register::<RemoteWrite, _>(vec![0_u64; SLOTS * MESSAGE / 8])?;
    let mut setup = Setup {
        pair: pair.connect(&myself)?,
        poller,
        ring: Ring { free: [const { None }; SLOTS], next: 0 },
        target: [region.remote(); SLOTS],
        receives: domain.buffers(SLOTS, MESSAGE)?,
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
