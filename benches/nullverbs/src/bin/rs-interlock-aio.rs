//! One workload, awaited on a current-thread runtime of tokio: `rs-interlock-aio W1..W5 ITERATIONS`.
//!
//! Prints `NS <nanoseconds>`, the time of the iterations alone. Exit status 2: the workload is unknown.
#![forbid(unsafe_code)]

use interlock::aio::{self, Receiver, Sender, SharedPoller};
use interlock::{Buffer, Context, Inline, Limits, RemoteRegion, RemoteWrite, WorkRequest};
use std::error::Error;
use std::mem;
use std::time::Instant;
use tokio::runtime::Builder;

interlock::domain! { struct Bench; }

const MESSAGE: usize = 64;
const SLOTS: usize = 64;
const BATCH: usize = 32;
const INLINE: usize = 32;

struct Setup {
    sender: Sender<Bench>,
    receiver: Receiver<Bench>,
    /// The free buffers in the order in which they came back.
    free: [Option<Buffer<Bench>>; SLOTS],
    target: [RemoteRegion<RemoteWrite>; SLOTS],
    /// A batch takes the next 32 of 64 buffers, as in the other contenders.
    batches: [Vec<Buffer<Bench>>; 2],
    empty: Vec<Buffer<Bench>>,
    bytes: Vec<u8>,
}

impl Setup {
    fn take(&mut self, i: u64) -> Buffer<Bench> {
        self.free[i as usize % SLOTS].take().expect("one is in flight at a time")
    }

    fn put(&mut self, i: u64, buffer: Buffer<Bench>) {
        // The slot is empty, so `replace` returns `None`. `forget` keeps drop code out of the measured loop.
        mem::forget(self.free[i as usize % SLOTS].replace(buffer));
    }

    async fn w1(&mut self, n: u64) {
        for i in 0..n {
            let buffer = self.take(i);
            let back = self.sender.send(buffer).expect("room").await.expect("success");
            self.put(i, back);
        }
    }

    async fn w2(&mut self, n: u64) {
        for i in 0..n {
            let buffer = self.take(i);
            let back = self.sender.write(buffer, &self.target[i as usize % SLOTS]).expect("room");
            let back = back.await.expect("success");
            self.put(i, back);
        }
    }

    async fn w3(&mut self, n: u64) {
        let Self { sender, target, batches: [free, waiting], empty, .. } = self;
        let (mut to, mut to_next) = target.split_at(BATCH);
        for _ in 0..n {
            let mut targets = to.iter();
            let mut left = BATCH;
            let write = move |buffer| {
                left -= 1;
                let write = WorkRequest::write(buffer, targets.next().expect("a target"));
                if left == 0 { write } else { write.unsignalled() }
            };
            let posted = sender.post_all(free, write).expect("a batch").into_vec(mem::take(empty));
            *empty = mem::replace(free, posted.await.expect("success"));
            mem::swap(free, waiting);
            mem::swap(&mut to, &mut to_next);
        }
    }

    async fn w4(&mut self, n: u64) {
        for i in 0..n {
            let bytes = &self.bytes[i as usize % SLOTS * MESSAGE..][..INLINE];
            self.sender.send(Inline(bytes)).expect("room").await.expect("success");
        }
    }

    async fn w5(&mut self, n: u64) {
        for i in 0..n {
            let buffer = self.take(i);
            let sent = self.sender.send(buffer).expect("room");
            let message = self.receiver.next().await.expect("a receive").expect("success");
            let message = message.into_buffer().expect("a buffer");
            assert!(message.len() == MESSAGE);
            self.receiver.post_receive(message).expect("room");
            let back = sent.await.expect("success");
            self.put(i, back);
        }
    }
}

async fn run(workload: &str, n: u64) -> Result<(), Box<dyn Error>> {
    let domain = Context::open("null0")?.named_domain(Bench)?;
    let port = domain.context().active_port()?;
    let (queue, poller) = domain.completion_queue(256)?;
    let limits = Limits { sends: 128, receives: 128, inline_bytes: INLINE as u32, elements: 1, ..Limits::default() };
    let pair = domain.reliable(&queue, &limits)?.into_init(&port)?;
    let myself = pair.endpoint();
    let mut pair = pair.connect(&myself)?;
    if workload == "W5" {
        for buffer in domain.buffers(SLOTS, MESSAGE)? {
            pair.post_receive(buffer)?;
        }
    }
    let region = domain.register::<RemoteWrite, _>(vec![0_u64; SLOTS * MESSAGE / 8])?;
    let poller = SharedPoller::new(poller);
    let _driver = aio::spawn(poller.driver().expect("no other driver"))?;
    let (sender, receiver) = poller.split(pair)?;
    let mut setup = Setup {
        sender,
        receiver,
        free: [const { None }; SLOTS],
        target: [region.remote(); SLOTS],
        batches: [domain.buffers(BATCH, MESSAGE)?, domain.buffers(BATCH, MESSAGE)?],
        empty: Vec::with_capacity(BATCH),
        bytes: vec![7; SLOTS * MESSAGE],
    };
    for (slot, buffer) in setup.free.iter_mut().zip(domain.buffers(SLOTS, MESSAGE)?) {
        *slot = Some(buffer);
    }
    for (start, target) in (0..).step_by(MESSAGE).zip(&mut setup.target) {
        *target = region.remote().slice(start..start + MESSAGE as u64)?;
    }
    let start = Instant::now();
    match workload {
        "W1" => setup.w1(n).await,
        "W2" => setup.w2(n).await,
        "W3" => setup.w3(n).await,
        "W4" => setup.w4(n).await,
        "W5" => setup.w5(n).await,
        _ => std::process::exit(2),
    }
    println!("NS {}", start.elapsed().as_nanos());
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, workload, iterations] = &arguments[..] else {
        return Err("usage: rs-interlock-aio W1..W5 ITERATIONS".into());
    };
    Builder::new_current_thread().enable_io().build()?.block_on(run(workload, iterations.parse()?))
}
