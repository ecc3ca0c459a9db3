//! Calls over send and receive, for many tasks of many clients.
//!
//! ```sh
//! rpc_service server 192.0.2.1        # on one machine: its address on the RDMA network
//! rpc_service client 192.0.2.1        # on the other
//! INTERLOCK_DEVICE=soft0 rpc_service  # both ends here, with everything that can go wrong
//! ```
//!
//! (`rpc_service` is `cargo run --features tokio --example rpc_service --`.)
//!
//! `rpc.rs` has the client and the server, `wire.rs` a connection, `frame.rs` the messages, `place.rs` the queue pairs.
#![forbid(unsafe_code)]

mod both;
#[path = "../common/device.rs"]
mod device;
mod frame;
mod place;
mod rpc;
mod service;
mod wire;

use anyhow::{Context as _, anyhow, bail, ensure};
use lexopt::prelude::*;
use place::Place;
use rpc::{Client, ClientReport, LIMITS, Server};
use service::Service;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

interlock::domain! { struct Rpc; }

const HELP: &str = "\
Calls over send and receive, for many tasks of many clients.

  rpc_service [both [ADDRESS]]  a server and its clients in this process, with everything that can go wrong
  rpc_service server ADDRESS    a server; ends with its standard input, or after --clients
  rpc_service client ADDRESS    calls it

ADDRESS is an address of IPv4 or IPv6 on the RDMA network, with or without a port (default 18521).

  -d, --ib-dev DEVICE    the RDMA device (default: the first with an active port, or else soft0)
      --records          connect by records over TCP, as without rdma_cm
      --clients COUNT    server: end after this many clients (default: with the standard input)
      --calls COUNT      client: the number of calls (default 1000)
  -h, --help             print this help
";

/// The most clients of a server at a time.
const MOST_CLIENTS: u32 = 32;
/// Longer than any step takes on a machine that is not overloaded.
const PATIENCE: Duration = Duration::from_secs(30);

struct Options {
    command: Command,
    device: Option<String>,
    by_records: bool,
    clients: Option<usize>,
    calls: usize,
}

enum Command {
    Both(Option<SocketAddr>),
    Server(SocketAddr),
    Client(SocketAddr),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            _ = writeln!(io::stderr(), "rpc_service: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a line. A closed pipe must not stop a server, so errors are ignored.
fn say(line: impl AsRef<str>) {
    _ = writeln!(io::stdout(), "{}", line.as_ref());
}

fn run() -> anyhow::Result<()> {
    let Some(options) = parse()? else {
        say(HELP.trim_end());
        return Ok(());
    };
    let context = device::open(options.device.as_deref())?;
    ensure!(
        !context.is_soft() || matches!(options.command, Command::Both(_)),
        "{} is a soft device, which no other process reaches: server and clients must be here",
        context.name()
    );
    let domain = context.named_domain(Rpc)?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let place = Place::new(domain, MOST_CLIENTS, LIMITS, options.by_records)?;
        match options.command {
            Command::Both(address) => {
                say(format!("rpc_service on {}, by {}", context.name(), place.way()));
                let own = place.address().map(|address| SocketAddr::new(address, 0));
                let address = address.or(own).context("the device has no address of IPv4: give one after `both`")?;
                both::run(&place, address).await
            }
            Command::Server(address) => serve(&place, address, options.clients).await,
            Command::Client(address) => call(&place, address, options.calls).await,
        }
    })
}

async fn serve(place: &Arc<Place<Rpc>>, address: SocketAddr, clients: Option<usize>) -> anyhow::Result<()> {
    let listener = place.listen(address).await?;
    say(format!("listens at {}, by {}", listener.address()?, place.way()));
    let mut server = Server::start(place, listener, Service::new().handler());
    match clients {
        Some(count) => server.has_served(count).await,
        None => {
            let end = Arc::new(Notify::new());
            let of_input = Arc::clone(&end);
            thread::spawn(move || {
                _ = io::stdin().lock().read_to_end(&mut Vec::new());
                of_input.notify_one();
            });
            end.notified().await;
        }
    }
    let report = server.shut_down(PATIENCE).await;
    for client in &report.clients {
        let how = client.broken.as_ref().map_or_else(|| "left".to_owned(), |broken| broken.to_string());
        say(format!("a client had {} answers: {how}", client.answered));
    }
    let buffers = place.is_empty(PATIENCE).await?;
    say(format!("{} clients were served, and all {buffers} buffers are home", report.served));
    Ok(())
}

async fn call(place: &Arc<Place<Rpc>>, address: SocketAddr, calls: usize) -> anyhow::Result<()> {
    let client = Arc::new(Client::start(place, address));
    let mut tasks = JoinSet::new();
    // This many tasks are enough to use all credits.
    for first in 0..(2 * rpc::CREDITS).min(calls) {
        let client = Arc::clone(&client);
        tasks.spawn(async move {
            for number in (first..calls).step_by(2 * rpc::CREDITS) {
                both::ask(&client, &format!("question {number}")).await?;
                if number == 0 {
                    say("the first call was answered");
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended?.with_context(|| match client.report() {
            ClientReport { connects: 0, last_failure: Some(why), .. } => format!("cannot connect to {address} ({why})"),
            _ => "a call failed".to_owned(),
        })?;
    }
    let client = Arc::into_inner(client).context("a task still has the client")?;
    let report = client.close(PATIENCE).await;
    let buffers = place.is_empty(PATIENCE).await?;
    say(format!(
        "{calls} calls were answered over {} connections, and all {buffers} buffers are home",
        report.connects
    ));
    Ok(())
}

/// Parses the command line; `None` if it asks for help.
fn parse() -> anyhow::Result<Option<Options>> {
    let mut options =
        Options { command: Command::Both(None), device: None, by_records: false, clients: None, calls: 1000 };
    let mut words = Vec::new();
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('d') | Long("ib-dev") => options.device = Some(parser.value()?.string()?),
            Long("records") => options.by_records = true,
            Long("clients") => options.clients = Some(number(&mut parser, "--clients")?),
            Long("calls") => options.calls = number(&mut parser, "--calls")?,
            Short('h') | Long("help") => return Ok(None),
            Value(word) => words.push(word.string()?),
            other => bail!("{} (-h lists what there is)", other.unexpected()),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    options.command = match words[..] {
        [] | ["both"] => Command::Both(None),
        ["both", at] => Command::Both(Some(address(at, 0)?)),
        ["server", at] => Command::Server(address(at, 18521)?),
        ["client", at] => Command::Client(address(at, 18521)?),
        [command @ ("server" | "client"), ..] => bail!("{command} takes one ADDRESS (-h lists what there is)"),
        ["both", ..] => bail!("both takes at most one ADDRESS (-h lists what there is)"),
        [word, ..] => bail!("{word:?} is no command (-h lists what there is)"),
    };
    Ok(Some(options))
}

fn number(parser: &mut lexopt::Parser, option: &str) -> anyhow::Result<usize> {
    let text = parser.value()?.string()?;
    let number = text.parse().ok().filter(|number| (1..=1_000_000).contains(number));
    number.with_context(|| format!("{option} takes a number from 1 to 1000000, not {text:?}"))
}

fn address(text: &str, port: u16) -> anyhow::Result<SocketAddr> {
    let address = text.parse().or_else(|_| text.parse::<IpAddr>().map(|address| SocketAddr::new(address, port)));
    address.map_err(|_| anyhow!("{text:?} is no address"))
}
