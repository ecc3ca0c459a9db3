//! `rping` of librdmacm: one side listens, the other connects by address and sends pings. The peer is another instance
//! of this program, or the `rping` of the package rdmacm-utils.
//!
//! ```sh
//! rping -s -a 192.0.2.1 -C 3 -v      # the server
//! rping -c -a 192.0.2.1 -C 3 -v      # the client
//! ```
//!
//! For each ping, the client grants 64 bytes of its memory that contain the ping's text. The server reads them and
//! sends a message. Then the client grants another 64 bytes; the server writes the text there and sends a message. A
//! grant is a message of 16 bytes: address, key and length in network byte order.
#![forbid(unsafe_code)]

use anyhow::{Context as _, bail, ensure};
use interlock::cm::{AcceptData, Channel, ConnectData, Connection, Idle, Listener, Parameters};
use interlock::memory::Pages;
use interlock::{
    Buffer, Checked, Context, Init, Limits, MemoryRegion, Poller, ProtectionDomain, QueuePair, RemoteRead,
    RemoteRegion, RemoteWrite, Work,
};
use lexopt::prelude::*;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);
const GRANT_BYTES: usize = 16;

/// The options of the command line.
struct Options {
    is_server: bool,
    address: IpAddr,
    port: u16,
    count: u32,
    size: usize,
    is_verbose: bool,
}

impl Options {
    fn parse() -> anyhow::Result<Self> {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let mut options =
            Self { is_server: false, address: any, port: 7174, count: u32::MAX, size: 64, is_verbose: false };
        let (mut role, mut parser) = (None, lexopt::Parser::from_env());
        while let Some(argument) = parser.next()? {
            match argument {
                Short('s') => role = Some(true),
                Short('c') => role = Some(false),
                Short('a') => options.address = parser.value()?.parse()?,
                Short('p') => options.port = parser.value()?.parse()?,
                Short('C') => options.count = parser.value()?.parse()?,
                Short('S') => options.size = parser.value()?.parse()?,
                Short('v') => options.is_verbose = true,
                Short('h') => {
                    println!("rping -s|-c -a ADDRESS [-p PORT] [-C COUNT] [-S BYTES] [-v]");
                    std::process::exit(0);
                }
                other => return Err(other.unexpected().into()),
            }
        }
        options.is_server = role.context("give -s for the server or -c for the client")?;
        ensure!((16..=65536).contains(&options.size), "-S takes 16 to 65536 bytes");
        Ok(options)
    }
}

/// The objects of one side, except its connection.
struct Side {
    domain: ProtectionDomain<Checked>,
    poller: Poller<Checked>,
    /// Messages that have arrived early: a completion may come before that of an older request.
    arrived: Vec<Buffer<Checked>>,
}

/// The objects of a device, and a pair that has a receive.
fn prepare(device: &str) -> anyhow::Result<(Side, QueuePair<Checked, Init>)> {
    let context = Context::open(device)?;
    let domain = context.checked_domain()?;
    let limits = Limits::default();
    let (queue, poller) = domain.completion_queue(limits.completions())?;
    let mut pair = domain.reliable(&queue, &limits)?.into_init(&context.active_port()?)?;
    pair.post_receive(domain.buffer(GRANT_BYTES)?)?;
    Ok((Side { domain, poller, arrived: Vec::new() }, pair))
}

impl Side {
    /// Returns the next message, and posts another receive for it.
    fn message(&mut self, connection: &mut Connection<Checked>) -> anyhow::Result<Option<Buffer<Checked>>> {
        while self.arrived.is_empty() {
            // When an iWARP peer has disconnected, a request can fail before rdma_cm reports the end. So after a
            // failure, wait for that report first.
            let noted = self.poller.poll()?.map_or(Ok(None), |completion| self.note(completion));
            let patience = if noted.is_ok() { Duration::ZERO } else { PATIENCE };
            if connection.wait_end(patience)?.is_some() {
                return Ok(None);
            }
            noted?;
        }
        connection.pair.post_receive(self.domain.buffer(GRANT_BYTES)?)?;
        Ok(self.arrived.pop())
    }

    /// Waits for a request of this side, and returns its buffer.
    fn done(&mut self) -> anyhow::Result<Buffer<Checked>> {
        loop {
            let completion = self.poller.wait(PATIENCE)?;
            if let Some(buffer) = self.note(completion)? {
                return Ok(buffer);
            }
        }
    }

    /// Keeps a message; returns the buffer of any other request.
    fn note(&mut self, completion: interlock::Completion<Checked>) -> anyhow::Result<Option<Buffer<Checked>>> {
        Ok(match completion.check()?.into_work() {
            Work::Received(message) => {
                self.arrived.push(message.buffer);
                None
            }
            other => other.into_buffer(),
        })
    }

    fn send(&mut self, connection: &mut Connection<Checked>, bytes: &[u8]) -> anyhow::Result<()> {
        let mut message = self.domain.buffer(GRANT_BYTES)?;
        message.write(bytes)?;
        connection.pair.post_send(message)?;
        self.done().map(drop)
    }
}

/// A grant as `rping` sends it.
fn grant_bytes(address: u64, rkey: u32, size: usize) -> [u8; GRANT_BYTES] {
    let mut bytes = [0; GRANT_BYTES];
    bytes[..8].copy_from_slice(&address.to_be_bytes());
    bytes[8..12].copy_from_slice(&rkey.to_be_bytes());
    bytes[12..].copy_from_slice(&(size as u32).to_be_bytes());
    bytes
}

/// Parses a grant of the peer. If it is wrong, the peer's device refuses the access.
fn granted<A: interlock::access::Exposed>(message: &[u8]) -> anyhow::Result<RemoteRegion<A>> {
    let (Some((address, rest)), true) = (message.split_first_chunk(), message.len() == GRANT_BYTES) else {
        bail!("a message of {} bytes, and not of {GRANT_BYTES}", message.len());
    };
    let rkey = u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]);
    let size = u32::from_be_bytes([rest[4], rest[5], rest[6], rest[7]]);
    Ok(RemoteRegion::of_peer(u64::from_be_bytes(*address), size.into(), rkey)?)
}

/// The text of a ping, `size` bytes long, with a zero at the end.
fn ping(number: u32, size: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{number}: ").into_bytes();
    let letters = (b'A'..=b'z').cycle().skip(number as usize % 58);
    text.extend(letters.take(size.saturating_sub(text.len() + 1)));
    text.push(0);
    text
}

fn serve(options: &Options) -> anyhow::Result<()> {
    let idle = Idle::new(&Channel::open_default()?)?;
    let mut listener: Listener = idle.bind((options.address, options.port).into())?.listen(3)?;
    let request = listener.next(Duration::from_secs(3600))?;
    let (mut side, pair) = prepare(request.device())?;
    let accepting = request.accept(pair, &Parameters::default(), &AcceptData::none());
    let accepting = accepting.map_err(|failed| failed.into_cause())?;
    let mut connection = accepting.wait(PATIENCE).map_err(|failed| failed.into_cause())?;
    for number in 0..options.count {
        let Some(message) = side.message(&mut connection)? else { break };
        let source = granted::<RemoteRead>(&message)?;
        let room = side.domain.buffer(usize::try_from(source.len())?)?;
        connection.pair.post_read(room, &source)?;
        let text = side.done()?;
        if options.is_verbose {
            let shown = text.split(|&byte| byte == 0).next().unwrap_or_default();
            println!("server ping data: {}", String::from_utf8_lossy(shown));
        }
        side.send(&mut connection, &[0; GRANT_BYTES])?;
        let message = side.message(&mut connection)?.with_context(|| format!("the client left in ping {number}"))?;
        connection.pair.post_write(text, &granted::<RemoteWrite>(&message)?)?;
        side.done()?;
        side.send(&mut connection, &[0; GRANT_BYTES])?;
    }
    connection.wait_end(PATIENCE)?;
    Ok(())
}

fn play(options: &Options) -> anyhow::Result<()> {
    let idle = Idle::new(&Channel::open_default()?)?;
    let resolving = idle.resolve((options.address, options.port).into(), PATIENCE)?;
    let resolved = resolving.wait(PATIENCE).map_err(|failed| failed.into_cause())?;
    let (mut side, pair) = prepare(resolved.device())?;
    let connecting = resolved.connect(pair, &Parameters::default(), &ConnectData::none());
    let connecting = connecting.map_err(|failed| failed.into_cause())?;
    let mut connection = connecting.wait(PATIENCE).map_err(|failed| failed.into_cause())?;
    let mut source: MemoryRegion<Checked, RemoteRead, _> = side.domain.register(Pages::new(options.size)?)?;
    let sink: MemoryRegion<Checked, RemoteWrite, _> = side.domain.register(Pages::new(options.size)?)?;
    for number in 0..options.count {
        let text = ping(number, options.size);
        source.write_from(0, &text)?;
        let remote = source.remote();
        side.send(&mut connection, &grant_bytes(remote.address(), remote.rkey().value(), options.size))?;
        side.message(&mut connection)?.context("the server left before its read")?;
        let remote = sink.remote();
        side.send(&mut connection, &grant_bytes(remote.address(), remote.rkey().value(), options.size))?;
        side.message(&mut connection)?.context("the server left before its write")?;
        let echo = sink.to_vec(0..options.size)?;
        ensure!(echo[..text.len()] == text, "the server wrote something else");
        if options.is_verbose {
            println!("ping data: {}", String::from_utf8_lossy(&echo[..text.len() - 1]));
        }
    }
    let mut ended = connection.disconnect().map_err(|failed| failed.into_cause())?;
    ended.pair.drain(&mut side.poller, PATIENCE, drop)?;
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse()?;
    if options.is_server { serve(&options) } else { play(&options) }
}
