//! The example programs of librdmacm, both sides of each. The peer is another instance of this program, or the C
//! program of the same name in the package rdmacm-utils.
//!
//! ```sh
//! cm_peers rdma_server -b 192.0.2.1        # one message of 16 bytes each way, the client's first
//! cm_peers rdma_client -s 192.0.2.1
//! cm_peers ucmatose -b 192.0.2.1           # 10 messages of 100 bytes each way, the server's first
//! cm_peers ucmatose -s 192.0.2.1
//! cm_peers udaddy -b 192.0.2.1             # 10 datagrams of 100 bytes each way, the client's first
//! cm_peers udaddy -s 192.0.2.1
//! ```
//!
//! `-p` chooses another port. The device is the one that `INTERLOCK_DEVICE` names, or the only one of the machine.
//!
//! In both games over a connection, the side that receives the last message disconnects, and the other side waits for
//! the disconnect. Datagrams have no connection: a server answers whoever sent the first datagram.
#![forbid(unsafe_code)]

use anyhow::{Context as _, bail, ensure};
use interlock::attributes::DatagramInitAttributes;
use interlock::cm::{self, AcceptData, AnswerData, ConnectData, Connection, LookupData, Parameters};
use interlock::datagram::{Datagram, Recipient};
use interlock::number::Qkey;
use interlock::request::WorkRequest;
use interlock::{Buffer, Context, Init, Limits, Poller, ProtectionDomain, QueuePair, Work};
use lexopt::prelude::*;
use std::net::IpAddr;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);
/// The length of the header before a datagram.
const HEADER: usize = 40;

interlock::domain! { struct Peers; }

/// What the command line says.
struct Options {
    program: String,
    /// On a client: the server's address.
    server: Option<IpAddr>,
    /// On a server: its own address.
    own: Option<IpAddr>,
    port: Option<u16>,
}

impl Options {
    fn parse() -> anyhow::Result<Self> {
        let mut options = Self { program: String::new(), server: None, own: None, port: None };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Value(program) if options.program.is_empty() => options.program = program.string()?,
                Short('s') => options.server = Some(parser.value()?.parse()?),
                Short('b') => options.own = Some(parser.value()?.parse()?),
                Short('p') => options.port = Some(parser.value()?.parse()?),
                Short('h') => {
                    println!("cm_peers rdma_server|rdma_client|ucmatose|udaddy -s SERVER|-b ADDRESS [-p PORT]");
                    std::process::exit(0);
                }
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(options)
    }

    fn server(&self, usual_port: u16) -> anyhow::Result<(IpAddr, u16)> {
        let address = self.server.or(self.own).context("give -s for a client or -b for a server")?;
        Ok((address, self.port.unwrap_or(usual_port)))
    }
}

/// The messages that the two sides of a program exchange.
#[derive(Clone, Copy)]
struct Game {
    messages: u32,
    bytes: usize,
    begins: bool,
}

/// The objects of a side besides its pair, and its progress in the game.
struct Side {
    domain: ProtectionDomain<Peers>,
    poller: Poller<Peers>,
    game: Game,
    sent: u32,
    received: u32,
    first_datagram: Option<Datagram<Peers>>,
}

impl Side {
    fn new(context: &Context, game: Game) -> anyhow::Result<(Self, interlock::CompletionQueue<Peers>, Limits)> {
        let domain = context.named_domain(Peers)?;
        let limits = Limits { sends: game.messages, receives: game.messages, ..Limits::default() };
        let (queue, poller) = domain.completion_queue(limits.completions())?;
        Ok((Self { domain, poller, game, sent: 0, received: 0, first_datagram: None }, queue, limits))
    }

    /// A side for a connection, and its pair with a receive for each message.
    fn connected(context: &Context, game: Game) -> anyhow::Result<(Self, QueuePair<Peers, Init>)> {
        let (side, queue, limits) = Self::new(context, game)?;
        let mut pair = side.domain.reliable(&queue, &limits)?.into_init(&context.active_port()?)?;
        for _ in 0..game.messages {
            pair.post_receive(side.domain.buffer(game.bytes)?)?;
        }
        Ok((side, pair))
    }

    fn message(&self) -> anyhow::Result<Buffer<Peers>> {
        let mut message = self.domain.buffer(self.game.bytes)?;
        message.write(&vec![b'x'; self.game.bytes])?;
        Ok(message)
    }

    /// Waits until `sent` messages were sent and `received` messages were received in all.
    fn reach(&mut self, sent: u32, received: u32) -> anyhow::Result<()> {
        while self.sent < sent || self.received < received {
            match self.poller.wait(PATIENCE)?.check()?.into_work() {
                Work::Received(message) => {
                    ensure!(message.buffer.len() == self.game.bytes, "a message of {} bytes", message.buffer.len());
                    self.received += 1;
                }
                Work::Datagram(datagram) => {
                    ensure!(datagram.message().len() == self.game.bytes, "a wrong length: {datagram:?}");
                    self.received += 1;
                    self.first_datagram.get_or_insert(datagram);
                }
                _ => self.sent += 1,
            }
        }
        Ok(())
    }

    /// Plays a whole game over a connection.
    fn play(mut self, mut connection: Connection<Peers>) -> anyhow::Result<()> {
        let Game { messages, begins, .. } = self.game;
        if !begins {
            self.reach(0, messages)?;
        }
        for _ in 0..messages {
            connection.pair.post_send(self.message()?)?;
        }
        self.reach(messages, if begins { messages } else { 0 })?;
        if !begins {
            connection.wait_end(PATIENCE)?.context("the peer does not disconnect")?;
        }
        let mut ended = connection.disconnect().map_err(|failed| failed.into_cause())?;
        ended.pair.drain(&mut self.poller, PATIENCE, drop)?;
        Ok(())
    }
}

fn serve(context: &Context, at: (IpAddr, u16), game: Game) -> anyhow::Result<()> {
    let request = cm::listen(context, at)?.next(PATIENCE)?;
    let (side, pair) = Side::connected(context, game)?;
    let accepting = request.accept(pair, &Parameters::default(), &AcceptData::none());
    let accepting = accepting.map_err(|failed| failed.into_cause())?;
    side.play(accepting.wait(PATIENCE).map_err(|failed| failed.into_cause())?)
}

fn connect(context: &Context, to: (IpAddr, u16), game: Game) -> anyhow::Result<()> {
    let (side, pair) = Side::connected(context, game)?;
    let connection = cm::connect(to, pair, &ConnectData::none(), PATIENCE);
    side.play(connection.map_err(|failed| failed.into_cause())?)
}

/// `udaddy`, either side. Each datagram carries the number of the pair that sent it.
fn datagrams(context: &Context, at: (IpAddr, u16), is_server: bool) -> anyhow::Result<()> {
    let game = Game { messages: 10, bytes: 100, begins: !is_server };
    let (mut side, queue, limits) = Side::new(context, game)?;
    let port = context.active_port()?;
    let attributes = DatagramInitAttributes { qkey: Qkey::CONNECTION_MANAGER, ..DatagramInitAttributes::from(&port) };
    let mut pair = side.domain.datagram(&queue, &limits)?.into_init(attributes)?.open()?;
    for _ in 0..game.messages {
        pair.post_receive(side.domain.buffer(HEADER + game.bytes)?)?;
    }
    let peer: Recipient<Peers> = if is_server {
        cm::serve(context, at)?.next(PATIENCE)?.answer(&pair, &AnswerData::none())?;
        side.reach(0, game.messages)?;
        let first = side.first_datagram.as_ref().context("no datagram")?;
        ensure!(first.immediate == Some(first.sender.value()), "not the number of the sender: {first:?}");
        side.domain.sender(&port, first, Qkey::CONNECTION_MANAGER)?
    } else {
        cm::look_up(context, at, &LookupData::none(), PATIENCE)?.recipient(&side.domain)?
    };
    let own_number = pair.number().value();
    for _ in 0..game.messages {
        pair.post(WorkRequest::send_to(side.message()?, &peer).with_immediate(own_number))?;
    }
    side.reach(game.messages, game.messages)
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse()?;
    let context = Context::open_default()?;
    ensure!(!context.is_soft(), "{} is a soft device, which no other process reaches", context.name());
    let is_server = options.server.is_none();
    match options.program.as_str() {
        "rdma_server" => serve(&context, options.server(7471)?, Game { messages: 1, bytes: 16, begins: false }),
        "rdma_client" => connect(&context, options.server(7471)?, Game { messages: 1, bytes: 16, begins: true }),
        "ucmatose" => {
            let (at, game) = (options.server(7471)?, Game { messages: 10, bytes: 100, begins: is_server });
            if is_server { serve(&context, at, game) } else { connect(&context, at, game) }
        }
        "udaddy" => datagrams(&context, options.server(7174)?, is_server),
        _ => bail!("name a program: rdma_server, rdma_client, ucmatose or udaddy"),
    }
}
