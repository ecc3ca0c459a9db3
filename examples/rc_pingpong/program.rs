//! The program, generic over the transport.

mod by_cm;
#[path = "../common/mod.rs"]
mod common;
mod game;
mod options;
mod transport;

use by_cm::Meet;
use common::fault::{Doing, Fault};
use common::meeting::Meeting;
use common::{device, tcp};
use game::{Peer, Seat, Side, completions, connect_by_cm, play};
use interlock::number::Mtu;
use interlock::{Context, Endpoint, Poller, Port, ProtectionDomain};
use options::{Mode, Options, Way};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::Duration;
use transport::Game;

interlock::domain! { pub(crate) struct PingPong; }

pub(crate) fn main<T: Game>() -> ExitCode {
    match run::<T>(&mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            _ = writeln!(io::stderr(), "{}_pingpong: {fault}", T::LETTERS);
            ExitCode::FAILURE
        }
    }
}

fn run<T: Game>(out: &mut impl Write) -> Result<(), Fault> {
    let Some(options) = options::parse::<T>()? else {
        return Ok(out.write_all(options::help::<T>().as_bytes())?);
    };
    let context = device::open(options.device.as_deref())?;
    let port = choose_port::<T>(&context, &options)?;
    let most = port.active_mtu();
    let mtu = match (&options.mode, options.mtu) {
        (_, Some(mtu)) => mtu,
        // Both sides must use the same MTU. The other side can be the C program, and its default is 1024.
        (Mode::Server | Mode::Client(_), None) if T::HAS_PATH_MTU => Mtu::Bytes1024,
        (_, None) => most,
    };
    if mtu > most {
        return Err(Fault::new(format!("a path MTU of {mtu} is more than the {most} of the port: give a lesser -m")));
    }
    if !T::HAS_PATH_MTU && options.size > most.bytes() {
        let size = options.size;
        return Err(Fault::new(format!(
            "a datagram of {size} bytes is more than the {most} of the port: give a lesser -s"
        )));
    }
    let is_by_cm = matches!(options.way, Way::ByCm(_));
    describe(out, &context, &port, (!is_by_cm).then_some(mtu))?;
    let domain = context.named_domain(PingPong)?;
    match &options.mode {
        _ if is_by_cm => by_cm::<T>(out, &domain, &port, &options),
        Mode::Both => both::<T>(out, &domain, &port, mtu, &options),
        Mode::Server | Mode::Client(_) => one::<T>(out, &domain, &port, mtu, &options),
    }
}

fn choose_port<T: Game>(context: &Context, options: &Options) -> Result<Port, Fault> {
    let name = context.name();
    let is_soft = interlock::devices()?.iter().any(|device| device.is_soft() && device.name() == name);
    if is_soft && !matches!(options.mode, Mode::Both) {
        return Err(Fault::new(format!(
            "{name} is a soft device, which no other process reaches: both ends must be here"
        )));
    }
    if context.is_iwarp() && options.way == Way::Records {
        let remedy = if T::HAS_CM { "give both sides -R" } else { "see rc_pingpong -R" };
        return Err(Fault::new(format!("{name} is an iWARP device, which needs rdma_cm to connect: {remedy}")));
    }
    let port = match options.device_port {
        Some(number) => context.port(number).doing(format_args!("port {number} of {name}"))?,
        None => context.active_port().doing(format_args!("cannot use {name}"))?,
    };
    if !port.is_active() {
        return Err(Fault::new(format!("port {} of {name} is not active, but {:?}", port.number(), port.state())));
    }
    match options.gid_row {
        Some(row) => port.with_gid(|entry| entry.index() == row).doing(format_args!("no GID at index {row}")),
        None => Ok(port),
    }
}

fn describe(out: &mut impl Write, context: &Context, port: &Port, mtu: Option<Mtu>) -> Result<(), Fault> {
    write!(out, "{} port {}", context.name(), port.number())?;
    if let Some(row) = port.gid() {
        write!(out, ", GID {} ({:?}, index {}", row.gid, row.kind, row.index())?;
        match row.interface_name() {
            Some(interface) => write!(out, ", {interface})")?,
            None => write!(out, ")")?,
        }
    }
    match mtu {
        Some(mtu) => writeln!(out, ", path MTU {mtu}")?,
        None => writeln!(out, ", by rdma_cm")?,
    }
    Ok(())
}

/// Runs both ends in this process: two queue pairs on one completion queue.
fn both<T: Game>(
    out: &mut impl Write,
    domain: &ProtectionDomain<PingPong>,
    port: &Port,
    mtu: Mtu,
    options: &Options,
) -> Result<(), Fault> {
    let (queue, mut poller) = domain.completion_queue(2 * completions(options)).doing("no completion queue")?;
    let left = Seat::<T>::new(domain, &queue, port, options)?;
    let right = Seat::<T>::new(domain, &queue, port, options)?;
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let left = left.connect(&to_right, mtu, Side::Client, options)?;
    let right = right.connect(&to_left, mtu, Side::Server, options)?;
    let mut players = [left, right];
    let took = play(&mut players, &mut poller, options.events, options.patience)?;
    if !players.iter().all(|player| player.peer().plays) {
        return Err(Fault::new("messages came back to their sender"));
    }
    report(out, options, took, "both ends were here", &poller)
}

/// Runs the ends that are in this process, and connects them by rdma_cm.
fn by_cm<T: Game>(
    out: &mut impl Write,
    domain: &ProtectionDomain<PingPong>,
    port: &Port,
    options: &Options,
) -> Result<(), Fault> {
    let (queue, mut poller) = domain.completion_queue(2 * completions(options)).doing("no completion queue")?;
    let seat = |side| Ok::<_, Fault>((Seat::<T>::new(domain, &queue, port, options)?, side));
    let context = domain.context();
    let mut players = match &options.mode {
        Mode::Both => {
            let named = if let Way::ByCm(at) = options.way { at } else { None };
            let at = named.map_or_else(|| by_cm::address(port), Ok)?;
            connect_by_cm(vec![seat(Side::Client)?, seat(Side::Server)?], Meet::Both(&context, at), options)?
        }
        Mode::Client(host) => connect_by_cm(vec![seat(Side::Client)?], Meet::Client(host, options.tcp_port), options)?,
        Mode::Server => {
            let mut listener = by_cm::listen(&context, Ipv4Addr::UNSPECIFIED.into(), options.tcp_port)?;
            writeln!(out, "  waiting for a client on port {} of rdma_cm", options.tcp_port)?;
            connect_by_cm(vec![seat(Side::Server)?], Meet::Server(&mut listener), options)?
        }
    };
    let took = play(&mut players, &mut poller, options.events, options.patience)?;
    let are_all_ours = players.iter().all(|player| player.peer().plays);
    if let (1, Some(player)) = (players.len(), players.pop()) {
        player.part(options.patience)?;
    }
    let peer = if are_all_ours { "the peer sent the pattern of this program" } else { "the peer echoed" };
    report(out, options, took, peer, &poller)
}

/// Runs one end in this process. The TCP connection leads to the other.
fn one<T: Game>(
    out: &mut impl Write,
    domain: &ProtectionDomain<PingPong>,
    port: &Port,
    mtu: Mtu,
    options: &Options,
) -> Result<(), Fault> {
    let (queue, mut poller) = domain.completion_queue(completions(options)).doing("no completion queue")?;
    let seat = Seat::<T>::new(domain, &queue, port, options)?;
    let local = seat.endpoint();
    address(out, "local address: ", &local)?;
    let mut players = [match &options.mode {
        Mode::Client(host) => {
            let mut meeting = Meeting::with_server(host, options.tcp_port, options.patience)?;
            meeting.say_address(&local)?;
            let peer = meeting.hear_address(mtu)?;
            address(out, "remote address:", &peer)?;
            let player = seat.connect(&peer, mtu, Side::Client, options)?;
            meeting.say_done()?;
            player
        }
        _ => {
            let listener = tcp::listen(options.tcp_port)?;
            writeln!(out, "  waiting for a client on TCP port {}", options.tcp_port)?;
            let mut meeting = Meeting::with_client(&listener, options.patience)?;
            let peer = meeting.hear_address(mtu)?;
            address(out, "remote address:", &peer)?;
            let player = seat.connect(&peer, mtu, Side::Server, options)?;
            meeting.say_address(&local)?;
            meeting.hear_done()?;
            player
        }
    }];
    let took = play(&mut players, &mut poller, options.events, options.patience)?;
    let peer = match players[0].peer() {
        Peer { plays: true, echoes: false } => "the peer sent the pattern of this program".to_owned(),
        Peer { plays: false, echoes: true } => format!("the peer echoed, as ibv_{}_pingpong does", T::LETTERS),
        _ => "the messages are too short to tell what the peer is".to_owned(),
    };
    report(out, options, took, &peer, &poller)
}

fn address(out: &mut impl Write, whose: &str, endpoint: &Endpoint) -> Result<(), Fault> {
    let (lid, queue_pair, psn) = (endpoint.lid(), endpoint.queue_pair(), endpoint.psn());
    let gid = endpoint.gid().unwrap_or_default();
    Ok(writeln!(out, "  {whose} LID {lid:#06x}, QPN {queue_pair:#08x}, PSN {psn:#08x}, GID {gid}")?)
}

fn report(
    out: &mut impl Write,
    options: &Options,
    took: Duration,
    peer: &str,
    poller: &Poller<PingPong>,
) -> Result<(), Fault> {
    let (size, iterations) = (options.size, options.iterations);
    let bytes = 2 * u64::from(size) * u64::from(iterations);
    let seconds = took.as_secs_f64();
    let rate = bytes as f64 * 8.0 / 1e6 / seconds;
    writeln!(out, "{bytes} bytes in {seconds:.3} s = {rate:.1} Mbit/s")?;
    let each = seconds * 1e6 / f64::from(iterations);
    writeln!(out, "{iterations} iterations of {size} bytes each way, {each:.2} µs per iteration")?;
    writeln!(out, "every byte checked; {peer}")?;
    match poller.unknown_completions() {
        0 => Ok(()),
        unknown => Err(Fault::new(format!("the device reported {unknown} completions that nobody waits for"))),
    }
}
