//! A round: one operation with messages of one size, between two queue pairs that are made for it.
//!
//! As in perftest, a side that sends waits for its own completion, and then for the peer. Sends and receives complete
//! on two queues. Nothing is inline unless `-I` asks for it. Each message is sent from the same memory.

use crate::Perf;
use crate::common::fault::{Doing, Fault};
use crate::line::{Card, Line, OTHER_SIDE, Said, Task};
use crate::options::{Action, Measure, Until};
use crate::report::Figures;
#[cfg(feature = "tokio")]
use crate::tasks;
use crate::watch::{Manner, Progress, Watch};
use hdrhistogram::Histogram;
use interlock::attributes::ConnectAttributes;
use interlock::cm::{self, AcceptData, Channel, ConnectData, Connection, Failed, Idle, Listener, Parameters};
use interlock::completion::Received;
use interlock::memory::Pages;
use interlock::number::{AckTimeout, ReadDepth};
use interlock::request::SendMemory;
use interlock::transport::Carries;
use interlock::{
    Buffer, Init, Inline, Limits, MemoryRegion, Poller, Port, PostError, ProtectionDomain, QueuePair,
    ReliableConnection, RemoteReadWrite, RemoteRegion, Work, WorkRequest,
};
use std::any::Any;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Exchanges before the measurement begins.
pub(crate) const WARM_UP: u64 = 16;
/// The most memory for all buffers of a queue, in bytes.
const MOST_POOL_BYTES: u64 = 64 << 20;

/// The objects that all rounds of a side use.
pub(crate) struct Place {
    pub(crate) domain: ProtectionDomain<Perf>,
    pub(crate) port: Port,
    pub(crate) manner: Manner,
    /// Where the server is, if the client connects by rdma_cm. A server does what its client does.
    pub(crate) by_cm: Option<IpAddr>,
}

/// A side before it is connected.
struct Seat {
    pair: QueuePair<Perf, Init>,
    sends: Poller<Perf>,
    receives: Poller<Perf>,
    /// The memory that the other side may write and read.
    region: MemoryRegion<Perf, RemoteReadWrite>,
}

/// A connected pair, with what keeps it connected.
pub(crate) enum Wire {
    ByRecords(QueuePair<Perf>),
    ByCm(Connection<Perf>),
}

impl Wire {
    fn pair(&mut self) -> &mut QueuePair<Perf> {
        match self {
            Self::ByRecords(pair) => pair,
            Self::ByCm(connection) => &mut connection.pair,
        }
    }

    /// The pair, and what keeps it connected.
    #[cfg(feature = "tokio")]
    pub(crate) fn into_pair(self) -> (QueuePair<Perf>, Option<cm::Link>) {
        match self {
            Self::ByRecords(pair) => (pair, None),
            Self::ByCm(Connection { pair, link, .. }) => (pair, Some(link)),
        }
    }
}

/// A side that is connected.
pub(crate) struct Player {
    pub(crate) wire: Wire,
    pub(crate) sends: Poller<Perf>,
    pub(crate) receives: Poller<Perf>,
    pub(crate) region: MemoryRegion<Perf, RemoteReadWrite>,
    pub(crate) peer: RemoteRegion<RemoteReadWrite>,
    pub(crate) size: usize,
    pub(crate) is_inline: bool,
    /// Buffers whose messages were received, and which the receive queue had no room for yet.
    spare: Vec<Buffer<Perf>>,
}

/// The number of buffers of `size` for a queue of `depth`.
pub(crate) fn pool(depth: u32, size: u32) -> u32 {
    depth.min((MOST_POOL_BYTES / u64::from(size)) as u32).max(1)
}

impl Seat {
    fn new(place: &Place, task: Task) -> Result<Self, Fault> {
        let domain = &place.domain;
        let receives = match (task.action, task.measure) {
            (Action::Send, Measure::Latency) => pool(16, task.size),
            // 512 receives, as in perftest, or fewer if the messages are long. At least two: one can take a message
            // while the program handles the other.
            (Action::Send, Measure::Bandwidth) => pool(512, task.size).max(2),
            _ => 0,
        };
        let sends = match task.measure {
            Measure::Latency => 1,
            Measure::Bandwidth => task.depth,
        };
        let limits =
            Limits { sends, receives: receives.max(1), inline_bytes: task.inline_bytes(), ..Limits::default() };
        let (send_queue, send_poller) = domain.completion_queue(limits.sends).doing("no completion queue")?;
        let (receive_queue, receive_poller) = domain.completion_queue(limits.receives).doing("no completion queue")?;
        let pair = domain.reliable_on(&send_queue, &receive_queue, &limits).doing("cannot make a queue pair")?;
        let mut pair = pair.into_init(&place.port)?;
        let what = format!("cannot register {receives} buffers of {} bytes", task.size);
        if receives > 0 {
            for buffer in domain.buffers(receives as usize, task.size as usize).doing(what)? {
                pair.post_receive(buffer).doing("cannot post a receive")?;
            }
        }
        let exposed = if task.action == Action::Send { 8 } else { task.size.next_multiple_of(8) };
        let region = domain.register(Pages::new(exposed as usize)?).doing("cannot register memory for the peer")?;
        Ok(Self { pair, sends: send_poller, receives: receive_poller, region })
    }

    fn card(&self) -> Card {
        Card { endpoint: self.pair.endpoint(), region: self.region.remote(), cm_port: 0 }
    }

    /// Connects to a server that listens at `to`.
    fn ask(self, place: &Place, task: Task, peer: Card, to: SocketAddr) -> Result<Player, Fault> {
        let Self { pair, sends, receives, region } = self;
        let patience = place.manner.patience;
        let idle = Idle::new(&Channel::open(&place.domain.context())?)?;
        let resolving = idle.resolve(to, patience).map_err(Failed::into_cause)?;
        let resolved = resolving.wait(patience).map_err(Failed::into_cause)?;
        let connecting = resolved.connect(pair, &parameters()?, &ConnectData::none()).map_err(Failed::into_cause)?;
        let connection = connecting.wait(patience).map_err(Failed::into_cause)?;
        Player::new(Wire::ByCm(connection), [sends, receives], region, task, peer)
    }

    /// Accepts the client.
    fn accept(self, task: Task, peer: Card, listener: &mut Listener, patience: Duration) -> Result<Player, Fault> {
        let Self { pair, sends, receives, region } = self;
        let request = listener.next(patience).doing("the client did not connect")?;
        let accepting = request.accept(pair, &parameters()?, &AcceptData::none()).map_err(Failed::into_cause)?;
        let connection = accepting.wait(patience).map_err(Failed::into_cause)?;
        Player::new(Wire::ByCm(connection), [sends, receives], region, task, peer)
    }

    fn connect(self, task: Task, peer: Card) -> Result<Player, Fault> {
        let attributes = ConnectAttributes {
            // After about two seconds, the device gives up on a peer that is gone.
            timeout: AckTimeout::new(16)?,
            // As in perftest, as many reads in flight as the device allows: `connect_with` lowers 255 to that number.
            read_depth: ReadDepth::new(255)?,
            ..ConnectAttributes::default()
        };
        let Self { pair, sends, receives, region } = self;
        let pair = pair.connect_with(&peer.endpoint, &attributes)?;
        Player::new(Wire::ByRecords(pair), [sends, receives], region, task, peer)
    }
}

/// The parameters for rdma_cm: as many reads at a time as possible.
fn parameters() -> Result<Parameters, Fault> {
    let most = ReadDepth::new(255)?;
    Ok(Parameters { responder_depth: most, initiator_depth: most, ..Parameters::default() })
}

/// The client's side of a round.
pub(crate) fn ask(
    place: &Place,
    line: &mut Line,
    task: Task,
    until: Until,
    progress: &mut Progress,
) -> Result<Figures, Fault> {
    let seat = Seat::new(place, task)?;
    line.say(Said::Round(task, Card { cm_port: place.by_cm.is_some().into(), ..seat.card() }))?;
    let Said::Ready(peer) = line.hear_news("the other side's queue pair")? else {
        return Err(Fault::new("the other side speaks out of turn"));
    };
    let player = match (place.by_cm, peer.cm_port) {
        (Some(host), port @ 1..) => seat.ask(place, task, peer, (host, port).into())?,
        (Some(_), 0) => return Err(Fault::new("the other side does not connect by rdma_cm")),
        (None, _) => seat.connect(task, peer)?,
    };
    let mut client = Client { watch: Watch::of_client(line, place.manner), until, progress, done: 0 };
    let measured = client.measure(player, place, task);
    let done = client.done;
    // `_side` lives until the other side has sent its count. If `_side` were dropped earlier, the other side would
    // report an error.
    let (figures, _side) = measured.map_err(|fault| why(line, fault))?;
    line.say(Said::Stop(done))?;
    let counts = task.action == Action::Send || (task.measure, task.action) == (Measure::Latency, Action::Write);
    match line.hear_news("the other side's count")? {
        Said::Stopped(count) if count == done || !counts => {}
        Said::Stopped(count) => {
            return Err(Fault::new(format!("of {done} messages the other side counted {count}")));
        }
        _ => return Err(Fault::new("the other side speaks out of turn")),
    }
    Ok(figures)
}

/// Returns the error that the other side has reported meanwhile, since it may have caused `fault`; otherwise `fault`.
fn why(line: &mut Line, fault: Fault) -> Fault {
    while line.is_talking().unwrap_or(false) {
        match line.hear("") {
            Ok(_) => {}
            Err(theirs) if theirs.to_string().starts_with(OTHER_SIDE) => return theirs,
            Err(_) => break,
        }
    }
    fault
}

pub(crate) struct Client<'round> {
    watch: Watch<'round>,
    pub(crate) until: Until,
    progress: &'round mut Progress,
    /// Messages, including the warm-up.
    pub(crate) done: u64,
}

impl Client<'_> {
    /// Measures with this side, which must end clean, and returns what is left of it.
    fn measure(&mut self, mut player: Player, place: &Place, task: Task) -> Result<(Figures, Box<dyn Any>), Fault> {
        #[cfg(feature = "tokio")]
        if place.manner.futures {
            return tasks::measure(self, player, place, task);
        }
        let figures = match task.measure {
            Measure::Latency => self.latency(&mut player, place, task),
            Measure::Bandwidth => self.bandwidth(&mut player, place, task),
        }?;
        player.is_clean()?;
        Ok((figures, Box::new(player)))
    }

    /// Prints progress, if it is time.
    pub(crate) fn tell(&mut self, now: Instant, measured: u64) -> Result<(), Fault> {
        let until = self.until;
        let of = || match until {
            Until::Count(count) => count.to_string(),
            Until::Time(time) => format!("{} s worth", time.as_secs()),
        };
        self.progress.tell(now, measured, of);
        self.watch.give_life(now)
    }

    fn latency(&mut self, player: &mut Player, place: &Place, task: Task) -> Result<Figures, Fault> {
        let mut message = Some(message(place, task)?);
        match task.action {
            Action::Send => self.time_each(2, |stopwatch, _| {
                player.post_send(&mut message)?;
                stopwatch.posted()?;
                let watch = stopwatch.watch();
                player.get_back(&mut message, watch)?;
                let completion = watch.next(&mut player.receives)?;
                player.take_message(completion)
            }),
            Action::Write => self.time_each(2, |stopwatch, number| {
                player.post_write(&mut message, number as u8)?;
                stopwatch.posted()?;
                let watch = stopwatch.watch();
                player.get_back(&mut message, watch)?;
                match watch.until_byte(&player.region, player.size - 1, number as u8)? {
                    true => Ok(()),
                    false => Err(Fault::new("the other side speaks out of turn")),
                }
            }),
            Action::Read => self.time_each(1, |stopwatch, _| {
                player.post_read(&mut message)?;
                stopwatch.posted()?;
                player.get_back(&mut message, stopwatch.watch())
            }),
        }
    }

    /// Calls `exchange` again and again, with numbers from 1 on. `exchange` reports when it has posted. A latency is
    /// the time from one post to the next, divided by `legs`.
    fn time_each(
        &mut self,
        legs: u64,
        mut exchange: impl FnMut(&mut Stopwatch<'_, '_>, u64) -> Result<(), Fault>,
    ) -> Result<Figures, Fault> {
        let mut stopwatch = Stopwatch::new(self, legs)?;
        let mut number = 0;
        while number < WARM_UP {
            number += 1;
            exchange(&mut stopwatch, number)?;
        }
        stopwatch.restart();
        let start = Instant::now();
        while !stopwatch.is_over(start) {
            number += 1;
            exchange(&mut stopwatch, number)?;
        }
        let figures = stopwatch.figures();
        self.done = number;
        Ok(figures)
    }

    fn bandwidth(&mut self, player: &mut Player, place: &Place, task: Task) -> Result<Figures, Fault> {
        let peer = player.peer;
        match task.action {
            Action::Send | Action::Write if player.is_inline => {
                let bytes = message(place, task)?;
                let pool = vec![Inline(&bytes); task.depth as usize];
                let again = |_| Some(Inline(&bytes));
                if task.action == Action::Send {
                    self.stream(player, pool, WorkRequest::send, again)
                } else {
                    self.stream(player, pool, |bytes| WorkRequest::write(bytes, &peer), again)
                }
            }
            // The device only reads the message, so the same memory can be in flight many times.
            Action::Send | Action::Write => {
                let share = message(place, task)?.share();
                let pool: Vec<_> = (0..task.depth).map(|_| share.clone()).collect();
                if task.action == Action::Send {
                    self.stream(player, pool, WorkRequest::send, Work::into_shared)
                } else {
                    self.stream(player, pool, |share| WorkRequest::write(share, &peer), Work::into_shared)
                }
            }
            Action::Read => {
                let buffers = pool(task.depth, task.size) as usize;
                let what = format!("cannot register {buffers} buffers of {} bytes", task.size);
                let pool = place.domain.buffers(buffers, task.size as usize).doing(what)?;
                self.stream(player, pool, |buffer| WorkRequest::read(buffer, &peer), Work::into_buffer)
            }
        }
    }

    /// Keeps as many requests in flight as the pool has memory for.
    fn stream<M: SendMemory<Perf>, K>(
        &mut self,
        player: &mut Player,
        mut pool: Vec<M>,
        request: impl Fn(M) -> WorkRequest<M, K>,
        memory: impl Fn(Work<Perf>) -> Option<M>,
    ) -> Result<Figures, Fault>
    where
        ReliableConnection: Carries<K>,
    {
        // The requests of a group are posted together, and only the last one is signalled.
        let group = (pool.len() as u64 / 8).clamp(1, 16);
        let depth = u64::from(player.wire.pair().limits().sends);
        let mut start = Instant::now();
        let mut now = start;
        let (mut posted, mut completed, mut warm) = (0, 0, false);
        loop {
            let left = match self.until {
                _ if !warm => WARM_UP - posted,
                Until::Count(count) => count - posted,
                Until::Time(time) => {
                    if now - start < time {
                        group
                    } else {
                        0
                    }
                }
            };
            let next = left.min(group);
            // A slot is free only when the slots before it are free. So if requests completed out of order, the pool
            // can have memory although the queue has no room.
            let has_room = u64::from(player.wire.pair().sends_in_flight()) + next <= depth;
            if next > 0 && pool.len() as u64 >= next && has_room {
                player.wire.pair().batch(|batch| {
                    for memory in pool.drain(pool.len() - next as usize..).enumerate() {
                        let (number, memory) = memory;
                        let request = request(memory);
                        let last = number as u64 + 1 == next;
                        batch.post(if last { request } else { request.unsignalled() })?;
                    }
                    Ok::<_, Fault>(())
                })??;
                posted += next;
                now = Instant::now();
                self.tell(now, completed)?;
            } else if completed < posted {
                let success = self.watch.next(&mut player.sends)?.check()?;
                pool.push(memory(success.into_work()).ok_or_else(lost)?);
                completed += 1;
            } else if !warm {
                warm = true;
                (posted, completed) = (0, 0);
                start = Instant::now();
                now = start;
            } else {
                break;
            }
        }
        self.done = WARM_UP + completed;
        Ok(Figures::bandwidth(completed, player.size, start.elapsed()))
    }
}

/// Measures the time from post to post. Like perftest, it stores the times, and evaluates them only now and then.
pub(crate) struct Stopwatch<'client, 'round> {
    client: &'client mut Client<'round>,
    histogram: Histogram<u64>,
    legs: u64,
    /// The times of the posts since the last evaluation.
    posts: Vec<Instant>,
    /// When the next evaluation is due, unless `posts` is full before.
    due: Instant,
}

impl<'client, 'round> Stopwatch<'client, 'round> {
    const ROOM: usize = 1024;

    pub(crate) fn new(client: &'client mut Client<'round>, legs: u64) -> Result<Self, Fault> {
        // The histogram covers 1 ns to a minute, with three digits.
        let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
        Ok(Self { client, histogram, legs, posts: Vec::with_capacity(Self::ROOM), due: Instant::now() })
    }

    /// Forgets what was measured so far.
    pub(crate) fn restart(&mut self) {
        self.posts.clear();
        self.histogram.reset();
    }

    pub(crate) fn figures(mut self) -> Figures {
        self.record();
        Figures::latency(&self.histogram)
    }

    /// Called right after a post, when the message is already under way.
    #[inline]
    pub(crate) fn posted(&mut self) -> Result<(), Fault> {
        let now = Instant::now();
        self.posts.push(now);
        // An evaluation needs at least two timestamps, even if one message takes longer than the interval.
        if self.posts.len() == Self::ROOM || (now >= self.due && self.posts.len() > 1) {
            self.look(now)
        } else {
            Ok(())
        }
    }

    /// Evaluates the times. The exchange that is in progress meanwhile does not count.
    #[cold]
    fn look(&mut self, now: Instant) -> Result<(), Fault> {
        self.record();
        self.due = now + Progress::PAUSE;
        self.client.tell(now, self.histogram.len())
    }

    fn record(&mut self) {
        for two in self.posts.windows(2) {
            self.histogram.saturating_record((two[1] - two[0]).as_nanos() as u64 / self.legs);
        }
        self.posts.clear();
    }

    pub(crate) fn watch(&mut self) -> &mut Watch<'round> {
        &mut self.client.watch
    }

    fn measured(&self) -> u64 {
        self.histogram.len() + self.posts.len().saturating_sub(1) as u64
    }

    pub(crate) fn is_over(&self, start: Instant) -> bool {
        match self.client.until {
            Until::Count(count) => self.measured() >= count,
            Until::Time(time) => self.measured() > 0 && self.posts.last().is_some_and(|&last| last - start >= time),
        }
    }
}

pub(crate) fn lost() -> Fault {
    Fault::new("a completion without its memory")
}

/// The server's side of all rounds.
pub(crate) fn serve(place: &Place, line: &mut Line) -> Result<(), Fault> {
    loop {
        match line.hear_news("what to measure")? {
            Said::Round(task, peer) => {
                let served = serve_round(place, line, task, peer);
                served.map_err(|fault| why(line, fault))?;
            }
            Said::End => return Ok(()),
            _ => return Err(Fault::new("the other side speaks out of turn")),
        }
    }
}

fn serve_round(place: &Place, line: &mut Line, task: Task, peer: Card) -> Result<(), Fault> {
    let seat = Seat::new(place, task)?;
    let card = seat.card();
    let message = match task.measure {
        Measure::Latency => Some(message(place, task)?),
        Measure::Bandwidth => None,
    };
    let mut player = if peer.cm_port == 0 {
        let player = seat.connect(task, peer)?;
        line.say(Said::Ready(card))?;
        player
    } else {
        let mut listener = cm::listen(&place.domain.context(), (Ipv4Addr::UNSPECIFIED, 0))?;
        let cm_port = listener.local_address().map_or(0, |at| at.port());
        line.say(Said::Ready(Card { cm_port, ..card }))?;
        seat.accept(task, peer, &mut listener, place.manner.patience)?
    };
    let mut watch = Watch::of_server(line, place.manner);
    let count = match (task.measure, task.action) {
        (Measure::Latency, Action::Send) => player.answer_messages(message, &mut watch)?,
        (Measure::Latency, Action::Write) => player.answer_writes(message, &mut watch)?,
        (Measure::Bandwidth, Action::Send) => player.receive_messages(&mut watch)?,
        _ => match watch.line.hear_news("the other side's count")? {
            Said::Stop(_) => 0,
            _ => return Err(Fault::new("the other side speaks out of turn")),
        },
    };
    line.say(Said::Stopped(count))?;
    player.is_clean()
}

/// The memory that is sent, written from or read into.
pub(crate) fn message(place: &Place, task: Task) -> Result<Buffer<Perf>, Fault> {
    let mut message = place.domain.buffer(task.size as usize).doing("cannot register a buffer")?;
    for (at, byte) in message.iter_mut().enumerate() {
        *byte = at as u8;
    }
    Ok(message)
}

impl Player {
    fn new(
        wire: Wire,
        [sends, receives]: [Poller<Perf>; 2],
        region: MemoryRegion<Perf, RemoteReadWrite>,
        task: Task,
        peer: Card,
    ) -> Result<Self, Fault> {
        let peer = if task.action == Action::Send {
            peer.region
        } else {
            peer.region.slice(0..u64::from(task.size)).doing("the other side's memory")?
        };
        let (size, is_inline) = (task.size as usize, task.inline_bytes() > 0);
        Ok(Self { wire, sends, receives, region, peer, size, is_inline, spare: Vec::new() })
    }

    fn post_send(&mut self, message: &mut Option<Buffer<Perf>>) -> Result<(), Fault> {
        let bytes = message.take().ok_or_else(lost)?;
        if self.is_inline {
            self.wire.pair().post_send(Inline(&bytes)).doing("cannot post a send")?;
            *message = Some(bytes);
        } else {
            self.wire.pair().post_send(bytes).doing("cannot post a send")?;
        }
        Ok(())
    }

    /// Writes the message, with `number` as its last byte.
    fn post_write(&mut self, message: &mut Option<Buffer<Perf>>, number: u8) -> Result<(), Fault> {
        let mut bytes = message.take().ok_or_else(lost)?;
        if let Some(last) = bytes.last_mut() {
            *last = number;
        }
        if self.is_inline {
            self.wire.pair().post_write(Inline(&bytes), &self.peer).doing("cannot post a write")?;
            *message = Some(bytes);
        } else {
            self.wire.pair().post_write(bytes, &self.peer).doing("cannot post a write")?;
        }
        Ok(())
    }

    fn post_read(&mut self, message: &mut Option<Buffer<Perf>>) -> Result<(), Fault> {
        let bytes = message.take().ok_or_else(lost)?;
        self.wire.pair().post_read(bytes, &self.peer).doing("cannot post a read")?;
        Ok(())
    }

    /// Waits until the posted request has completed. An inline request returns no buffer, since the program kept it.
    fn get_back(&mut self, message: &mut Option<Buffer<Perf>>, watch: &mut Watch<'_>) -> Result<(), Fault> {
        if let Some(bytes) = watch.next(&mut self.sends)?.check()?.into_buffer() {
            *message = Some(bytes);
        }
        Ok(())
    }

    /// Posts the buffer of a received message again.
    fn take_message(&mut self, completion: interlock::Completion<Perf>) -> Result<(), Fault> {
        let Work::Received(Received { buffer, .. }) = completion.check()?.into_work() else { return Err(lost()) };
        if buffer.len() != self.size {
            return Err(Fault::new(format!("a message of {} bytes came instead of {}", buffer.len(), self.size)));
        }
        self.spare.push(buffer);
        while let Some(buffer) = self.spare.pop() {
            match self.wire.pair().post_receive(buffer) {
                Ok(_) => {}
                // The receives completed out of order. The slot is free when those before it have completed.
                Err(PostError::QueueFull(buffer)) => {
                    self.spare.push(buffer);
                    break;
                }
                Err(error) => return Err(error).doing("cannot post a receive"),
            }
        }
        Ok(())
    }

    fn answer_messages(&mut self, mut message: Option<Buffer<Perf>>, watch: &mut Watch<'_>) -> Result<u64, Fault> {
        let mut count = 0;
        while let Some(completion) = watch.next_unless_stopped(&mut self.receives)? {
            self.take_message(completion)?;
            self.post_send(&mut message)?;
            self.get_back(&mut message, watch)?;
            count += 1;
        }
        Ok(count)
    }

    fn answer_writes(&mut self, mut message: Option<Buffer<Perf>>, watch: &mut Watch<'_>) -> Result<u64, Fault> {
        let mut count = 0_u64;
        while watch.until_byte(&self.region, self.size - 1, (count + 1) as u8)? {
            count += 1;
            self.post_write(&mut message, count as u8)?;
            self.get_back(&mut message, watch)?;
        }
        Ok(count)
    }

    fn receive_messages(&mut self, watch: &mut Watch<'_>) -> Result<u64, Fault> {
        let mut count = 0;
        while watch.stop != Some(count) {
            // `watch.stop` is `None` until the other side has finished. From then on it is the number of messages that
            // the other side has sent. Perhaps this side must still poll the last of them.
            let completion = match watch.stop {
                None => watch.next_unless_stopped(&mut self.receives)?,
                Some(_) => Some(watch.next(&mut self.receives)?),
            };
            if let Some(completion) = completion {
                self.take_message(completion)?;
                count += 1;
            }
        }
        Ok(count)
    }

    fn is_clean(&self) -> Result<(), Fault> {
        match self.sends.unknown_completions() + self.receives.unknown_completions() {
            0 => Ok(()),
            unknown => Err(Fault::new(format!("the device reported {unknown} completions that nobody waits for"))),
        }
    }
}
