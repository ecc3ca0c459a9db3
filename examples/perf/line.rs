//! The connection over which two sides agree on what to measure: records with a head of 16 bytes.
//!
//! | head | |
//! |---|---|
//! | `b"IPRF"` | 4 bytes |
//! | version | 1 byte |
//! | kind | 1 byte |
//! | zero | 2 bytes |
//! | number | 8 bytes, network byte order: a count of messages, or of the bytes of a text |
//!
//! For each size the client sends `Round`, and the server answers with `Ready`. Then the sides use only the queue
//! pairs, except for an `Alive` each second. The client ends the round with `Stop` and the number of messages, and the
//! server answers with `Stopped` and the number that it counted. After the last round the client sends `End`. Either
//! side may send `Failed`, with a text, at any time.

use crate::common::fault::{Doing, Fault};
use crate::common::tcp;
use crate::options::{Action, MOST_BYTES, MOST_DEPTH, MOST_INLINE, Measure};
use interlock::{Endpoint, RemoteReadWrite, RemoteRegion};
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const MAGIC: [u8; 4] = *b"IPRF";
const VERSION: u8 = 3;
const MOST_TEXT_BYTES: u64 = 1024;

/// The beginning of an error text that the other side reported.
pub(crate) const OTHER_SIDE: &str = "the other side failed: ";

/// The settings of one round.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) measure: Measure,
    pub(crate) action: Action,
    pub(crate) size: u32,
    pub(crate) depth: u32,
    /// Sends and writes go inline up to this size.
    pub(crate) inline: u16,
}

/// The address of a side: its queue pair, and the memory that the other side may use.
#[derive(Clone, Copy)]
pub(crate) struct Card {
    pub(crate) endpoint: Endpoint,
    pub(crate) region: RemoteRegion<RemoteReadWrite>,
    /// 0: the sides connect by records. Any other number: they connect by rdma_cm. A server's number is then its port.
    pub(crate) cm_port: u16,
}

pub(crate) enum Said {
    Round(Task, Card),
    Ready(Card),
    Alive,
    Stop(u64),
    Stopped(u64),
    End,
}

const TASK_BYTES: usize = 12;
const ENDPOINT_BYTES: usize = Endpoint::RECORD_BYTES;
const REGION_END: usize = ENDPOINT_BYTES + RemoteRegion::<RemoteReadWrite>::RECORD_BYTES;
const CARD_BYTES: usize = REGION_END + 2;

impl Task {
    fn to_bytes(self) -> [u8; TASK_BYTES] {
        let mut bytes = [0; TASK_BYTES];
        bytes[0] = self.measure as u8;
        bytes[1] = self.action as u8;
        bytes[2..4].copy_from_slice(&self.inline.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_be_bytes());
        bytes[8..].copy_from_slice(&self.depth.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; TASK_BYTES]) -> Option<Self> {
        let [measure, action, i0, i1, s0, s1, s2, s3, d0, d1, d2, d3] = bytes;
        let (size, depth) = (u32::from_be_bytes([s0, s1, s2, s3]), u32::from_be_bytes([d0, d1, d2, d3]));
        let inline = u16::from_be_bytes([i0, i1]);
        let is_possible =
            inline <= MOST_INLINE && (1..=MOST_BYTES).contains(&size) && (1..=MOST_DEPTH).contains(&depth);
        let measure = Measure::ALL.into_iter().find(|known| *known as u8 == measure)?;
        let action = Action::ALL.into_iter().find(|known| *known as u8 == action)?;
        is_possible.then_some(Self { measure, action, size, depth, inline })
    }

    /// The bytes that go inline in each request; 0 if the request points to them.
    pub(crate) fn inline_bytes(self) -> u32 {
        if self.action != Action::Read && self.size <= u32::from(self.inline) { self.size } else { 0 }
    }
}

impl Card {
    fn to_bytes(self) -> [u8; CARD_BYTES] {
        let mut bytes = [0; CARD_BYTES];
        bytes[..ENDPOINT_BYTES].copy_from_slice(&self.endpoint.to_bytes());
        bytes[ENDPOINT_BYTES..REGION_END].copy_from_slice(&self.region.to_bytes());
        bytes[REGION_END..].copy_from_slice(&self.cm_port.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; CARD_BYTES]) -> Result<Self, Fault> {
        let endpoint = Endpoint::from_bytes(&bytes[..ENDPOINT_BYTES]).doing("the other side's queue pair")?;
        let region = RemoteRegion::from_bytes(&bytes[ENDPOINT_BYTES..REGION_END]).doing("the other side's memory")?;
        let cm_port = u16::from_be_bytes([bytes[REGION_END], bytes[REGION_END + 1]]);
        Ok(Self { endpoint, region, cm_port })
    }
}

/// A connection to the other side.
pub(crate) struct Line(TcpStream);

impl Line {
    pub(crate) fn to_client(listener: &TcpListener, patience: Duration) -> Result<Self, Fault> {
        let (stream, _) = listener.accept().doing("no client")?;
        stream.set_nodelay(true)?;
        Self::new(stream, patience)
    }

    pub(crate) fn to_server(host: &str, port: u16, patience: Duration) -> Result<Self, Fault> {
        let stream = tcp::connect(host, port, patience)?;
        stream.set_nodelay(true)?;
        Self::new(stream, patience)
    }

    /// The address of the other side.
    pub(crate) fn peer(&self) -> Result<IpAddr, Fault> {
        Ok(self.0.peer_addr().doing("the other side has no address")?.ip().to_canonical())
    }

    /// The two ends of a connection inside this process.
    pub(crate) fn pair(patience: Duration) -> Result<(Self, Self), Fault> {
        let (one, other) = UnixStream::pair()?;
        // Each `TcpStream` gets a Unix socket. This works because the program uses only operations that all sockets
        // have, such as reads, writes and timeouts.
        let line = |stream| Self::new(TcpStream::from(OwnedFd::from(stream)), patience);
        Ok((line(one)?, line(other)?))
    }

    fn new(stream: TcpStream, patience: Duration) -> Result<Self, Fault> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self(stream))
    }

    pub(crate) fn say(&mut self, what: Said) -> Result<(), Fault> {
        let (kind, number, body) = match what {
            Said::Round(task, card) => (1, 0, [&task.to_bytes()[..], &card.to_bytes()].concat()),
            Said::Ready(card) => (2, 0, card.to_bytes().to_vec()),
            Said::Alive => (3, 0, Vec::new()),
            Said::Stop(count) => (4, count, Vec::new()),
            Said::Stopped(count) => (5, count, Vec::new()),
            Said::End => (6, 0, Vec::new()),
        };
        self.record(kind, number, &body).doing("cannot talk to the other side")
    }

    /// Tells the other side why this side stops. The other side may be gone already.
    pub(crate) fn complain(&mut self, fault: &Fault) {
        let text = fault.to_string();
        let text = &text.as_bytes()[..text.len().min(MOST_TEXT_BYTES as usize)];
        _ = self.record(7, text.len() as u64, text);
    }

    fn record(&mut self, kind: u8, number: u64, body: &[u8]) -> io::Result<()> {
        let head = [&MAGIC[..], &[VERSION, kind, 0, 0], &number.to_be_bytes()].concat();
        self.0.write_all(&[&head, body].concat())
    }

    /// Whether a record or the end of the connection is ready to read.
    pub(crate) fn is_talking(&mut self) -> Result<bool, Fault> {
        self.0.set_nonblocking(true)?;
        let peeked = self.0.peek(&mut [0]);
        self.0.set_nonblocking(false)?;
        match peeked {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            _ => Ok(true),
        }
    }

    /// The next record.
    pub(crate) fn hear(&mut self, what: &str) -> Result<Said, Fault> {
        let head = self.read::<16>(what)?;
        let [b'I', b'P', b'R', b'F', version, kind, 0, 0, number @ ..] = head else {
            return Err(Fault::new(format!(
                "waited for {what}: the other side is no perf of this library: it said \"{}\"",
                head.escape_ascii()
            )));
        };
        if version != VERSION {
            return Err(Fault::new(format!("the other side talks version {version}; this one talks {VERSION}")));
        }
        let number = u64::from_be_bytes(number);
        Ok(match kind {
            1 => {
                let task = Task::from_bytes(self.read(what)?)
                    .ok_or_else(|| Fault::new("the other side asks for what this one does not know"))?;
                Said::Round(task, Card::from_bytes(self.read(what)?)?)
            }
            2 => Said::Ready(Card::from_bytes(self.read(what)?)?),
            3 => Said::Alive,
            4 => Said::Stop(number),
            5 => Said::Stopped(number),
            6 => Said::End,
            7 if number <= MOST_TEXT_BYTES => return Err(self.complaint(number)),
            _ => return Err(Fault::new(format!("the other side sent a record of unknown kind {kind}"))),
        })
    }

    fn complaint(&mut self, bytes: u64) -> Fault {
        let mut text = Vec::new();
        _ = (&self.0).take(bytes).read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text).replace(char::is_control, " ");
        Fault::new(format!("{OTHER_SIDE}{text}"))
    }

    /// Skips each `Alive`, and returns the next other record.
    pub(crate) fn hear_news(&mut self, what: &str) -> Result<Said, Fault> {
        loop {
            match self.hear(what)? {
                Said::Alive => {}
                news => return Ok(news),
            }
        }
    }

    fn read<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        self.0
            .read_exact(&mut bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => io::Error::other("the other side closed the connection"),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::other("the other side says nothing"),
                _ => error,
            })
            .doing(format_args!("waited for {what}"))?;
        Ok(bytes)
    }
}
