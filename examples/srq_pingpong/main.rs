//! Many queue pairs play ping-pong at once, and each side receives all its messages from one shared receive queue.
//!
//! Without arguments both sides are in this process. Otherwise the peer is another `srq_pingpong` or the C program
//! `ibv_srq_pingpong` of rdma-core: see `srq_pingpong -h`.
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
mod game;
mod options;

use common::fault::{Doing, Fault};
use common::meeting::Meeting;
use common::{device, tcp};
use game::{Seat, completions, play};
use interlock::{Endpoint, Port, ProtectionDomain};
use options::{HELP, MOST_PAIRS, Options};
use std::io::{self, Write};
use std::process::ExitCode;

interlock::domain! { pub(crate) struct PingPong; }

fn main() -> ExitCode {
    match run(&mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            _ = writeln!(io::stderr(), "srq_pingpong: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn run(out: &mut impl Write) -> Result<(), Fault> {
    let Some(options) = options::parse()? else {
        return Ok(out.write_all(HELP.as_bytes())?);
    };
    let context = device::open(options.device.as_deref())?;
    let mut port = context.active_port()?;
    if let Some(row) = options.gid_row {
        port = port.with_gid(|entry| entry.index() == row).doing(format_args!("no GID at index {row}"))?;
    }
    let domain = context.named_domain(PingPong)?;
    let seconds = match (&options.host, options.is_server) {
        (None, false) => both(&domain, &port, &options)?,
        _ => one(out, &domain, &port, &options)?,
    };
    let Options { size, iterations, pairs, .. } = options;
    let rate = 16.0 * f64::from(size) * f64::from(iterations) / 1e6 / seconds;
    writeln!(
        out,
        "{iterations} messages of {size} bytes each way on {pairs} queue pairs in {seconds:.3} s = {rate:.1} Mbit/s"
    )?;
    Ok(writeln!(out, "every byte checked")?)
}

/// Runs both sides in this process, each with its own shared receive queue, on one completion queue.
fn both(domain: &ProtectionDomain<PingPong>, port: &Port, options: &Options) -> Result<f64, Fault> {
    let (queue, mut poller) = domain.completion_queue(2 * completions(options)).doing("no completion queue")?;
    let left = Seat::new(domain, &queue, port, options)?;
    let right = Seat::new(domain, &queue, port, options)?;
    let (to_left, to_right) = (left.endpoints(), right.endpoints());
    let left = left.connect(&to_right, options.mtu, true, options)?;
    let right = right.connect(&to_left, options.mtu, false, options)?;
    play(&mut [left, right], &mut poller, options)
}

/// Runs one side in this process. The TCP connection leads to the other.
fn one(
    out: &mut impl Write,
    domain: &ProtectionDomain<PingPong>,
    port: &Port,
    options: &Options,
) -> Result<f64, Fault> {
    let (queue, mut poller) = domain.completion_queue(completions(options)).doing("no completion queue")?;
    let seat = Seat::new(domain, &queue, port, options)?;
    let own = seat.endpoints();
    // Like the C program, always send `MOST_PAIRS` addresses. The addresses after the last pair mean nothing.
    let say = |meeting: &mut Meeting| {
        own.iter().cycle().take(MOST_PAIRS).try_for_each(|endpoint| meeting.say_address(endpoint))
    };
    let hear = |meeting: &mut Meeting| -> Result<Vec<Endpoint>, Fault> {
        (0..MOST_PAIRS).map(|_| meeting.hear_address(options.mtu)).collect()
    };
    let player = if let Some(host) = &options.host {
        let mut meeting = Meeting::with_server(host, options.tcp_port, options.patience)?;
        say(&mut meeting)?;
        let player = seat.connect(&hear(&mut meeting)?, options.mtu, true, options)?;
        meeting.say_done()?;
        player
    } else {
        let listener = tcp::listen(options.tcp_port)?;
        writeln!(out, "  waiting for a client on TCP port {}", options.tcp_port)?;
        let mut meeting = Meeting::with_client(&listener, options.patience)?;
        let peers = hear(&mut meeting)?;
        let player = seat.connect(&peers, options.mtu, false, options)?;
        say(&mut meeting)?;
        meeting.hear_done()?;
        player
    };
    play(&mut [player], &mut poller, options)
}
