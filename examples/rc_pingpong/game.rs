//! The game: each side answers a message with its own next message, until both have sent all of theirs.

use super::PingPong;
use super::by_cm::Meet;
use super::common::fault::{Doing, Fault};
use super::options::Options;
use super::transport::{Game, Ready, Route};
use interlock::attributes::PeerPath;
use interlock::cm::Connection;
use interlock::completion::Received;
use interlock::device::LinkLayer;
use interlock::number::{Mtu, Qpn};
use interlock::request::Operation;
use interlock::{
    Buffer, Completion, CompletionQueue, Endpoint, Failure, Init, Limits, Poller, Port, ProtectionDomain, QueuePair,
    Status, Work,
};
use std::time::{Duration, Instant};
use std::{hint, thread};

/// The client sends first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// The most completions that one player can cause at the same time.
pub(crate) fn completions(options: &Options) -> u32 {
    options.receives + 1
}

/// A player before it is connected. Its receives are posted, so that no message comes too early.
pub(crate) struct Seat<T> {
    pair: QueuePair<PingPong, Init, T>,
    idle: Buffer<PingPong>,
    domain: ProtectionDomain<PingPong>,
    port: Port,
}

impl<T: Game> Seat<T> {
    pub(crate) fn new(
        domain: &ProtectionDomain<PingPong>,
        queue: &CompletionQueue<PingPong>,
        port: &Port,
        options: &Options,
    ) -> Result<Self, Fault> {
        let size = options.size as usize;
        let limits = Limits { sends: 1, receives: options.receives, ..Limits::default() };
        let pair = T::create(domain, queue, &limits).doing("cannot make a queue pair")?;
        let mut pair = pair.into_init(T::init(port))?;
        let with_header = T::HEADER_BYTES + size;
        let what = format!("cannot register {} buffers of {with_header} bytes", options.receives);
        for buffer in domain.buffers(options.receives as usize, with_header).doing(what)? {
            pair.post_receive(buffer).doing("cannot post a receive")?;
        }
        let idle = domain.buffer(size).doing("cannot register a buffer to send from")?;
        Ok(Self { pair, idle, domain: domain.clone(), port: port.clone() })
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.pair.endpoint()
    }

    pub(crate) fn connect(self, peer: &Endpoint, mtu: Mtu, side: Side, options: &Options) -> Result<Player<T>, Fault> {
        if peer.gid().is_none() && self.port.link_layer() == LinkLayer::Ethernet {
            return Err(Fault::new(
                "the peer named no GID, without which Ethernet does not reach it: start it with -g",
            ));
        }
        let gid = peer.gid().unwrap_or_default();
        let path =
            PeerPath { gid: peer.gid(), lid: peer.lid(), service_level: options.service_level, ..PeerPath::to(gid) };
        let Self { pair, idle, domain, port } = self;
        let (pair, to_peer) = T::connect(pair, &Route { domain: &domain, port: &port, peer, path, mtu })?;
        Ok(Player { from: Some(peer.queue_pair()), ..Player::new(Line::ByRecords(pair), to_peer, idle, side, options) })
    }
}

/// Connects the seats of this process by rdma_cm.
pub(crate) fn connect_by_cm<T: Game>(
    seats: Vec<(Seat<T>, Side)>,
    meet: Meet<'_>,
    options: &Options,
) -> Result<Vec<Player<T>>, Fault> {
    let (mut pairs, mut rest) = (Vec::new(), Vec::new());
    for (seat, side) in seats {
        pairs.push(seat.pair);
        rest.push((seat.idle, side));
    }
    let connected = T::by_cm(pairs, meet, options.patience)?;
    let player =
        |((connection, to_peer), (idle, side))| Player::new(Line::ByCm(connection), to_peer, idle, side, options);
    Ok(connected.into_iter().zip(rest).map(player).collect())
}

/// A connected pair, with the objects that keep it connected.
enum Line<T> {
    ByRecords(Ready<T>),
    ByCm(Connection<PingPong, T>),
}

impl<T: Game> Line<T> {
    fn number(&self) -> Qpn {
        match self {
            Self::ByRecords(pair) => pair.number(),
            Self::ByCm(connection) => connection.pair.number(),
        }
    }

    fn pair(&mut self) -> &mut Ready<T> {
        match self {
            Self::ByRecords(pair) => pair,
            Self::ByCm(connection) => &mut connection.pair,
        }
    }
}

/// The programs that the peer may be. Only its messages tell which it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Another instance of this program, which sends a pattern of its own.
    pub(crate) plays: bool,
    /// The C program, which sends from the buffer that it receives into. So it sends the message that it received last,
    /// and at first bytes of 0x7b.
    pub(crate) echoes: bool,
}

pub(crate) struct Player<T: Game> {
    side: Side,
    line: Line<T>,
    to_peer: T::Peer,
    /// The queue pair that datagrams of the peer must come from.
    from: Option<Qpn>,
    /// The buffer to send from; `None` while the device has it.
    idle: Option<Buffer<PingPong>>,
    iterations: u32,
    pattern: Pattern,
    sent: u32,
    received: u32,
    peer: Peer,
    expected: Vec<u8>,
}

impl<T: Game> Player<T> {
    fn new(line: Line<T>, to_peer: T::Peer, idle: Buffer<PingPong>, side: Side, options: &Options) -> Self {
        Self {
            side,
            line,
            to_peer,
            from: None,
            idle: Some(idle),
            iterations: options.iterations,
            pattern: Pattern::new(options.size as usize, options.zero_page_starts),
            sent: 0,
            received: 0,
            peer: Peer { plays: true, echoes: true },
            expected: vec![0; options.size as usize],
        }
    }

    /// If rdma_cm made the connection, waits until the server has ended it too: the last message of a side is sure to
    /// arrive only while the other side keeps the connection.
    pub(crate) fn part(self, patience: Duration) -> Result<(), Fault> {
        match (self.line, self.side) {
            (Line::ByCm(connection), Side::Client) => T::part(connection, patience),
            _ => Ok(()),
        }
    }

    /// Which program the peer turned out to be.
    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }

    fn is_done(&self) -> bool {
        self.sent == self.iterations && self.received == self.iterations && self.idle.is_some()
    }

    /// Sends the next message if it is this side's turn and its last message has completed.
    fn send_if_due(&mut self) -> Result<(), Fault> {
        let due = self.received + u32::from(self.side == Side::Client);
        if self.sent == due.min(self.iterations) {
            return Ok(());
        }
        let Some(mut message) = self.idle.take() else { return Ok(()) };
        self.pattern.write(&mut message, self.side, self.sent);
        T::send(self.line.pair(), message, &self.to_peer).doing("cannot post a send")?;
        self.sent += 1;
        Ok(())
    }

    fn take(&mut self, work: Work<PingPong>) -> Result<(), Fault> {
        match work {
            Work::Sent(memory) => self.idle = memory.into_buffer(),
            Work::Received(Received { buffer, .. }) => {
                self.check(&buffer)?;
                self.receive_another(buffer)?;
            }
            // Any queue pair on the network can send a datagram to this one.
            Work::Datagram(datagram) if Some(datagram.sender) != self.from => {
                return Err(Fault::new(format!("a datagram of a stranger, queue pair {:#x}", datagram.sender)));
            }
            Work::Datagram(datagram) => {
                self.check(datagram.message())?;
                self.receive_another(datagram.into_buffer())?;
            }
            other => return Err(Fault::new(format!("unexpected completion: {other:?}"))),
        }
        Ok(())
    }

    fn receive_another(&mut self, buffer: Buffer<PingPong>) -> Result<(), Fault> {
        self.received += 1;
        self.line.pair().post_receive(buffer).doing("cannot post a receive")?;
        Ok(())
    }

    /// Compares a message with what each kind of peer would send, and notes which kinds remain possible.
    fn check(&mut self, message: &[u8]) -> Result<(), Fault> {
        let number = self.received;
        if message.len() != self.expected.len() {
            let (is, should) = (message.len(), self.expected.len());
            return Err(Fault::new(format!(
                "message {number} of the peer has {is} bytes instead of {should}: give both sides the same -s"
            )));
        }
        let before = self.peer;
        if before.plays {
            self.pattern.write(&mut self.expected, self.side.other(), number);
            self.peer.plays = message == self.expected;
        }
        if before.echoes {
            self.write_echo(number);
            self.peer.echoes = message == self.expected;
        }
        if self.peer.plays || self.peer.echoes {
            return Ok(());
        }
        // `expected` still holds the pattern of the last comparison.
        let wrong = message.iter().zip(&self.expected).position(|(is, should)| is != should).unwrap_or(0);
        let (is, should) = (message[wrong], self.expected[wrong]);
        Err(Fault::new(format!(
            "message {number} of the peer is not what was sent: byte {wrong} is {is:#04x} instead of {should:#04x}"
        )))
    }

    /// Writes message `number` of a peer that echoes into `expected`.
    fn write_echo(&mut self, number: u32) {
        let echoed = match self.side {
            Side::Client => Some(number),
            Side::Server => number.checked_sub(1),
        };
        match echoed {
            Some(own) => self.pattern.write(&mut self.expected, self.side, own),
            None => {
                self.expected.fill(0x7b);
                self.pattern.zero(&mut self.expected);
            }
        }
    }

    fn waits_for(&self) -> String {
        let of = self.iterations;
        match self.idle {
            None => format!("the acknowledgement of message {} of {of}", self.sent - 1),
            Some(_) => format!("message {} of {of} from the peer{}", self.received, T::LOSS),
        }
    }
}

/// The content of messages. Unless they are very short, no two messages of a game are equal, and no two parts of one
/// message.
struct Pattern {
    /// Random bytes. Each message starts at another place in them.
    bytes: Vec<u8>,
    zero_page_starts: bool,
}

impl Pattern {
    const STARTS: usize = 509;

    fn new(size: usize, zero_page_starts: bool) -> Self {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        };
        Self { bytes: (0..size + Self::STARTS).map(|_| next()).collect(), zero_page_starts }
    }

    /// Writes message `number` of `sender`. The number is stamped on every 256 bytes, which is the smallest packet.
    fn write(&self, message: &mut [u8], sender: Side, number: u32) {
        let number = 2 * u64::from(number) + u64::from(sender == Side::Server);
        let start = (number % Self::STARTS as u64) as usize;
        message.copy_from_slice(&self.bytes[start..start + message.len()]);
        let stamp = number.to_le_bytes();
        for packet in message.chunks_mut(256) {
            let len = packet.len().min(stamp.len());
            packet[..len].copy_from_slice(&stamp[..len]);
        }
        self.zero(message);
    }

    /// Zeroes the bytes that the C program checks with `-c`.
    fn zero(&self, message: &mut [u8]) {
        if self.zero_page_starts {
            message.iter_mut().step_by(4096).for_each(|byte| *byte = 0);
        }
    }
}

/// Plays to the end, and returns how long it took.
pub(crate) fn play<T: Game>(
    players: &mut [Player<T>],
    poller: &mut Poller<PingPong>,
    events: bool,
    patience: Duration,
) -> Result<Duration, Fault> {
    let start = Instant::now();
    for player in &mut *players {
        player.send_if_due()?;
    }
    while !players.iter().all(Player::is_done) {
        let Some(completion) = next(poller, events, patience)? else {
            let waiting = players.iter().find(|player| !player.is_done()).map(Player::waits_for).unwrap_or_default();
            return Err(Fault::new(format!("nothing happened for {patience:?}, while waiting for {waiting}")));
        };
        let success = completion.check().map_err(|failure| explain(failure, &players[0]))?;
        let Some(player) = players.iter_mut().find(|player| player.line.number() == success.queue_pair()) else {
            return Err(Fault::new(format!("a completion of a stranger: {success:?}")));
        };
        player.take(success.into_work())?;
        player.send_if_due()?;
    }
    Ok(start.elapsed())
}

/// Devices use different statuses for a message that is too long for its buffer.
fn explain<T: Game>(failure: Failure<PingPong>, player: &Player<T>) -> Fault {
    match (failure.operation, failure.status) {
        (Operation::Receive, Status::LocalLength | Status::LocalQueuePairOperation) => {
            let size = player.expected.len();
            Fault::new(format!("a message longer than {size} bytes came: give both sides the same -s: {failure}"))
        }
        _ => failure.into(),
    }
}

/// The next completion, by polling or by sleeping; `None` if none comes within `patience`.
fn next(
    poller: &mut Poller<PingPong>,
    events: bool,
    patience: Duration,
) -> Result<Option<Completion<PingPong>>, Fault> {
    if events {
        return Ok(poller.wait_for(patience)?);
    }
    let deadline = Instant::now() + patience;
    loop {
        for _ in 0..100 {
            if let Some(completion) = poller.poll()? {
                return Ok(Some(completion));
            }
            hint::spin_loop();
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        // A soft device needs processor time too.
        thread::yield_now();
    }
}
