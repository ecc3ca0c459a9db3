//! The client's side of a round as a task of tokio, which awaits each request: `--futures`.
//!
//! Without `--event` nothing drives the completion queues: a future that waits polls whenever the runtime lets it. With
//! `--event`, drivers sleep on the two queues. The other side is the same as always.

use crate::Perf;
use crate::common::fault::{Doing, Fault};
use crate::line::Task;
use crate::options::{Action, Measure, Until};
use crate::report::Figures;
use crate::round::{Client, Place, Player, Stopwatch, WARM_UP, lost, message, pool};
use interlock::aio::{self, Posted, PostedAll, Receiver, Sender, SharedPoller};
use interlock::completion::Received;
use interlock::error::PostAllError;
use interlock::request::RequestMemory;
use interlock::transport::Carries;
use interlock::{
    Buffer, Inline, MemoryRegion, ReliableConnection, RemoteReadWrite, RemoteRegion, SharedBuffer, Work, WorkRequest,
};
use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;

/// Measures with the client's side, which must end clean, and returns what is left of it.
pub(crate) fn measure(
    client: &mut Client<'_>,
    player: Player,
    place: &Place,
    task: Task,
) -> Result<(Figures, Box<dyn Any>), Fault> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let Player { wire, sends, receives, region, peer, size, is_inline, .. } = player;
        let [sends, receives] = [sends, receives].map(SharedPoller::new);
        if place.manner.event {
            for driver in [&sends, &receives].map(SharedPoller::driver).into_iter().flatten() {
                drop(aio::spawn(driver)?);
            }
        }
        if place.manner.yields && !place.manner.event {
            // Perhaps the other side needs this processor, so a task yields the processor again and again.
            drop(tokio::spawn(async {
                loop {
                    thread::yield_now();
                    tokio::task::yield_now().await;
                }
            }));
        }
        let (pair, link) = wire.into_pair();
        let (sender, receiver) = SharedPoller::split_on(&sends, &receives, pair)?;
        let progress = Cell::new(0);
        let mut ends = Ends { sender, receiver, region, peer, size, is_inline, progress: &progress };
        let figures = tokio::select! {
            figures = ends.measured(client, place, task) => figures?,
            fault = standstill(&progress, place.manner.patience) => return Err(fault),
        };
        match sends.unknown_completions() + receives.unknown_completions() {
            0 => {
                let left: Box<dyn Any> = Box::new((ends.sender, ends.receiver, ends.region, link));
                Ok((figures, left))
            }
            unknown => Err(Fault::new(format!("the device reported {unknown} completions that nobody waits for"))),
        }
    })
}

/// Ends when nothing has completed for a while.
async fn standstill(progress: &Cell<u64>, patience: Duration) -> Fault {
    let mut before = progress.get();
    loop {
        tokio::time::sleep(patience).await;
        if progress.get() == before {
            return Fault::new(format!("nothing happened for {patience:?}, while waiting for a completion"));
        }
        before = progress.get();
    }
}

/// A side that is connected, taken apart.
struct Ends<'run> {
    sender: Sender<Perf>,
    receiver: Receiver<Perf>,
    region: MemoryRegion<Perf, RemoteReadWrite>,
    peer: RemoteRegion<RemoteReadWrite>,
    size: usize,
    is_inline: bool,
    /// Grows with each request that has completed.
    progress: &'run Cell<u64>,
}

/// A message that was posted.
enum Sent {
    Memory(Posted<Perf, Buffer<Perf>>),
    /// The bytes were copied when the message was posted.
    Inline(Posted<Perf, ()>, Buffer<Perf>),
}

impl Sent {
    async fn back(self) -> Result<Buffer<Perf>, Fault> {
        match self {
            Self::Memory(posted) => Ok(posted.await?),
            Self::Inline(posted, message) => {
                posted.await?;
                Ok(message)
            }
        }
    }
}

impl Ends<'_> {
    async fn measured(&mut self, client: &mut Client<'_>, place: &Place, task: Task) -> Result<Figures, Fault> {
        match task.measure {
            Measure::Latency => self.latency(client, place, task).await,
            Measure::Bandwidth => self.bandwidth(client, place, task).await,
        }
    }

    async fn latency(&mut self, client: &mut Client<'_>, place: &Place, task: Task) -> Result<Figures, Fault> {
        let legs = if task.action == Action::Read { 1 } else { 2 };
        let mut message = message(place, task)?;
        let mut stopwatch = Stopwatch::new(client, legs)?;
        let (mut number, mut start) = (0, Instant::now());
        loop {
            if number == WARM_UP {
                stopwatch.restart();
                start = Instant::now();
            }
            if number > WARM_UP && stopwatch.is_over(start) {
                break;
            }
            number += 1;
            let sent = self.post(task.action, message, number as u8)?;
            stopwatch.posted()?;
            message = sent.back().await?;
            match task.action {
                Action::Send => self.receive().await?,
                Action::Write => {
                    if !stopwatch.watch().until_byte(&self.region, self.size - 1, number as u8)? {
                        return Err(Fault::new("the other side speaks out of turn"));
                    }
                }
                Action::Read => {}
            }
            self.progress.set(number);
        }
        let figures = stopwatch.figures();
        client.done = number;
        Ok(figures)
    }

    /// Posts the message. A write gets `number` as the last byte of its message.
    fn post(&mut self, action: Action, mut message: Buffer<Perf>, number: u8) -> Result<Sent, Fault> {
        let Self { sender, peer, is_inline, .. } = self;
        if let (Action::Write, Some(last)) = (action, message.last_mut()) {
            *last = number;
        }
        Ok(match (action, is_inline) {
            (Action::Send, false) => Sent::Memory(sender.send(message).doing("cannot post a send")?),
            (Action::Send, true) => {
                let posted = sender.send(Inline(&message)).doing("cannot post a send")?;
                Sent::Inline(posted, message)
            }
            (Action::Write, false) => Sent::Memory(sender.write(message, peer).doing("cannot post a write")?),
            (Action::Write, true) => {
                let posted = sender.write(Inline(&message), peer).doing("cannot post a write")?;
                Sent::Inline(posted, message)
            }
            (Action::Read, _) => Sent::Memory(sender.read(message, peer).doing("cannot post a read")?),
        })
    }

    /// Receives a message, and posts its buffer again.
    async fn receive(&mut self) -> Result<(), Fault> {
        let success = self.receiver.next().await.ok_or_else(lost)??;
        let Work::Received(Received { buffer, .. }) = success.into_work() else { return Err(lost()) };
        if buffer.len() != self.size {
            return Err(Fault::new(format!("a message of {} bytes came instead of {}", buffer.len(), self.size)));
        }
        self.receiver.post_receive(buffer).doing("cannot post a receive")?;
        Ok(())
    }

    async fn bandwidth(&mut self, client: &mut Client<'_>, place: &Place, task: Task) -> Result<Figures, Fault> {
        let depth = if task.action == Action::Read { pool(task.depth, task.size) } else { task.depth };
        let memory = match task.action {
            Action::Read => Memory::Buffers(
                place.domain.buffers(depth as usize, task.size as usize).doing("cannot register the buffers")?,
            ),
            _ if self.is_inline => Memory::Inline(message(place, task)?),
            // The device only reads the message, so the same memory can be in flight many times.
            _ => Memory::Shared(message(place, task)?.share()),
        };
        let mut stream = Stream { memory, action: task.action, depth: u64::from(depth), empty: Vec::new() };
        self.run(client, &mut stream, Until::Count(WARM_UP)).await?;
        let start = Instant::now();
        let completed = self.run(client, &mut stream, client.until).await?;
        client.done = WARM_UP + completed;
        Ok(Figures::bandwidth(completed, self.size, start.elapsed()))
    }

    /// Keeps as many requests in flight as the depth allows. Returns how many have completed.
    async fn run(&mut self, client: &mut Client<'_>, stream: &mut Stream, until: Until) -> Result<u64, Fault> {
        // The requests of a group are posted together, and awaited as one future.
        let group = (stream.depth / 8).clamp(1, 16);
        let start = Instant::now();
        let (mut posted, mut completed, mut now) = (0, 0, start);
        let mut flights = VecDeque::new();
        loop {
            let left = match until {
                Until::Count(count) => count - posted,
                Until::Time(time) if now - start < time => group,
                Until::Time(_) => 0,
            };
            let next = left.min(group);
            if next > 0 && posted - completed + next <= stream.depth {
                flights.push_back((next, stream.post(&mut self.sender, &self.peer, next as usize)?));
                posted += next;
                now = Instant::now();
                client.tell(now, completed)?;
            } else if let Some((count, flight)) = flights.pop_front() {
                stream.take_back(flight.await?);
                completed += count;
                self.progress.set(self.progress.get() + count);
            } else {
                return Ok(completed);
            }
        }
    }
}

/// What a stream of requests is made of.
struct Stream {
    memory: Memory,
    action: Action,
    /// The most requests in flight.
    depth: u64,
    /// Vectors for buffers that come back, so that nothing is allocated for each group.
    empty: Vec<Vec<Buffer<Perf>>>,
}

/// The memory of the messages.
enum Memory {
    /// Its bytes go with the requests.
    Inline(Buffer<Perf>),
    Shared(SharedBuffer<Perf>),
    /// The buffers that are not in flight.
    Buffers(Vec<Buffer<Perf>>),
}

/// Posts the requests of a group, of which the last one is signalled.
fn post_group<'env, X, M: RequestMemory<Perf, K> + 'env, K>(
    sender: &mut Sender<Perf>,
    mut items: Vec<X>,
    request: impl Fn(X) -> WorkRequest<M, K>,
) -> Result<PostedAll<Perf>, Fault>
where
    ReliableConnection: Carries<K>,
    PostAllError<Perf, WorkRequest<M, K>>: Error,
{
    let mut left = items.len();
    let posted = sender.post_all(&mut items, |item| {
        left -= 1;
        if left == 0 { request(item) } else { request(item).unsignalled() }
    });
    Ok(posted?)
}

impl Stream {
    fn post(
        &mut self,
        sender: &mut Sender<Perf>,
        peer: &RemoteRegion<RemoteReadWrite>,
        count: usize,
    ) -> Result<PostedAll<Perf>, Fault> {
        let posted = match (&mut self.memory, self.action) {
            (Memory::Inline(message), Action::Send) => {
                post_group(sender, vec![Inline(message); count], WorkRequest::send)?
            }
            (Memory::Inline(message), _) => {
                post_group(sender, vec![Inline(message); count], |bytes| WorkRequest::write(bytes, peer))?
            }
            (Memory::Shared(share), Action::Send) => post_group(sender, vec![share.clone(); count], WorkRequest::send)?,
            (Memory::Shared(share), _) => {
                post_group(sender, vec![share.clone(); count], |share| WorkRequest::write(share, peer))?
            }
            (Memory::Buffers(buffers), _) => {
                let items = buffers.split_off(buffers.len() - count);
                post_group(sender, items, |buffer| WorkRequest::read(buffer, peer))?
            }
        };
        if posted.len() != count {
            return Err(Fault::new("the queue took fewer requests than it has room for"));
        }
        Ok(posted.into_vec(self.empty.pop().unwrap_or_default()))
    }

    fn take_back(&mut self, mut came: Vec<Buffer<Perf>>) {
        if let Memory::Buffers(buffers) = &mut self.memory {
            buffers.append(&mut came);
        }
        self.empty.push(came);
    }
}
