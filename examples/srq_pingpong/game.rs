//! The game: the sides answer each other on each queue pair. All receives of a side come from one shared queue.

use crate::PingPong;
use crate::common::fault::{Doing, Fault};
use crate::options::Options;
use interlock::attributes::ConnectAttributes;
use interlock::number::{Mtu, Qpn, ReadDepth};
use interlock::request::Operation;
use interlock::shared::{SharedLimits, SharedReceiveQueue};
use interlock::transport::OnShared;
use interlock::{
    Buffer, Completion, CompletionQueue, Endpoint, Init, Limits, Poller, Port, ProtectionDomain, QueuePair,
    ReadyToSend, ReliableConnection, Success,
};
use std::time::Instant;

type Pair<S> = QueuePair<PingPong, S, OnShared<ReliableConnection>>;

/// The most completions that one side can cause at the same time.
pub(crate) fn completions(options: &Options) -> u32 {
    options.receives + options.pairs
}

/// A side before it is connected. Its receives are posted, so that no message comes too early.
pub(crate) struct Seat {
    shared: SharedReceiveQueue<PingPong>,
    pairs: Vec<(Pair<Init>, Buffer<PingPong>)>,
}

impl Seat {
    pub(crate) fn new(
        domain: &ProtectionDomain<PingPong>,
        queue: &CompletionQueue<PingPong>,
        port: &Port,
        options: &Options,
    ) -> Result<Self, Fault> {
        let size = options.size as usize;
        let limits = SharedLimits { receives: options.receives, ..SharedLimits::default() };
        let mut shared = domain.shared_receive_queue(&limits).doing("cannot make a shared receive queue")?;
        for buffer in domain.buffers(options.receives as usize, size).doing("cannot register receive buffers")? {
            shared.post_receive(buffer).doing("cannot post a receive")?;
        }
        let limits = Limits { sends: 1, ..Limits::default() };
        let mut pairs = Vec::new();
        for mut buffer in domain.buffers(options.pairs as usize, size).doing("cannot register send buffers")? {
            buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
            let pair = shared.reliable(queue, &limits).doing("cannot make a queue pair")?;
            pairs.push((pair.into_init(port)?, buffer));
        }
        Ok(Self { shared, pairs })
    }

    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        self.pairs.iter().map(|(pair, _)| pair.endpoint()).collect()
    }

    /// Connects each pair to the peer's pair at the same place in the list.
    pub(crate) fn connect(
        self,
        peers: &[Endpoint],
        mtu: Mtu,
        begins: bool,
        options: &Options,
    ) -> Result<Player, Fault> {
        let attributes =
            ConnectAttributes { path_mtu: Some(mtu), read_depth: ReadDepth::new(1)?, ..ConnectAttributes::default() };
        let mut lines = Vec::new();
        for ((pair, buffer), peer) in self.pairs.into_iter().zip(peers) {
            let pair = pair.connect_with(peer, &attributes)?;
            lines.push(Line { pair, idle: Some(buffer), may_send: begins });
        }
        lines.sort_unstable_by_key(|line| line.pair.number().value());
        let size = options.size as usize;
        Ok(Player { shared: self.shared, lines, size, iterations: options.iterations, sent: 0, received: 0 })
    }
}

/// A pair of the game.
struct Line {
    pair: Pair<ReadyToSend>,
    /// The buffer to send from; `None` while the device has it.
    idle: Option<Buffer<PingPong>>,
    /// Whether it is this side's turn.
    may_send: bool,
}

pub(crate) struct Player {
    shared: SharedReceiveQueue<PingPong>,
    /// The lines by the number of their pair.
    lines: Vec<Line>,
    size: usize,
    /// The number of messages over all pairs.
    iterations: u32,
    sent: u32,
    received: u32,
}

impl Player {
    fn is_done(&self) -> bool {
        self.sent >= self.iterations && self.received >= self.iterations
    }

    fn line(&mut self, number: Qpn) -> Option<&mut Line> {
        let at = self.lines.binary_search_by_key(&number.value(), |line| line.pair.number().value()).ok()?;
        self.lines.get_mut(at)
    }

    /// Sends on all pairs. The side that begins calls this.
    fn begin(&mut self) -> Result<(), Fault> {
        self.lines.iter_mut().filter(|line| line.may_send).try_for_each(Line::answer)
    }

    /// Handles a completion of one of this player's pairs.
    fn take(&mut self, success: Success<PingPong>) -> Result<(), Fault> {
        let (number, is_message) = (success.queue_pair(), success.operation() == Operation::Receive);
        let Some(buffer) = success.into_buffer() else { return Err(Fault::new("a request without a buffer")) };
        if is_message {
            self.check(&buffer)?;
            self.shared.post_receive(buffer).doing("cannot post a receive")?;
            self.received += 1;
        } else {
            self.sent += 1;
            let Some(line) = self.line(number) else { return Ok(()) };
            line.idle = Some(buffer);
        }
        let goes_on = self.sent < self.iterations;
        let Some(line) = self.line(number) else { return Ok(()) };
        line.may_send |= is_message;
        if goes_on { line.answer() } else { Ok(()) }
    }

    /// Checks a message. It is the pattern, or partly the zeros with which the buffer of the C program begins.
    fn check(&self, message: &[u8]) -> Result<(), Fault> {
        if message.len() != self.size {
            let (is, should) = (message.len(), self.size);
            return Err(Fault::new(format!(
                "a message of {is} bytes instead of {should}: give both sides the same -s"
            )));
        }
        match message.iter().enumerate().find(|&(at, &byte)| byte != pattern(at) && byte != 0) {
            Some((at, byte)) => Err(Fault::new(format!("byte {at} of a message is {byte:#04x}, which nobody sent"))),
            None => Ok(()),
        }
    }
}

impl Line {
    /// Sends if it is this side's turn and its last message has completed.
    fn answer(&mut self) -> Result<(), Fault> {
        if self.may_send
            && let Some(buffer) = self.idle.take()
        {
            self.pair.post_send(buffer).doing("cannot post a send")?;
            self.may_send = false;
        }
        Ok(())
    }
}

/// The byte at `at` in every message: 0 at the start of a page, for a peer that checks it.
fn pattern(at: usize) -> u8 {
    if at.is_multiple_of(4096) { 0 } else { (at % 251) as u8 }
}

/// Plays until all players have sent and received all their messages. Returns the seconds that this took.
pub(crate) fn play(players: &mut [Player], poller: &mut Poller<PingPong>, options: &Options) -> Result<f64, Fault> {
    let start = Instant::now();
    players.iter_mut().try_for_each(Player::begin)?;
    while !players.iter().all(Player::is_done) {
        let completion: Completion<_> = poller.wait(options.patience)?;
        let success = completion.check()?;
        let number = success.queue_pair();
        let Some(player) = players.iter_mut().find_map(|player| player.line(number).is_some().then_some(player)) else {
            return Err(Fault::new(format!("a completion of a stranger: {success:?}")));
        };
        player.take(success)?;
    }
    Ok(start.elapsed().as_secs_f64())
}
