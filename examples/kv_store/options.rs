//! The command line.

use crate::bench::{Bench, Until};
use crate::client::Address;
use crate::common::fault::Fault;
use crate::common::number::number;
use crate::table::{Key, Text, Value};
use lexopt::prelude::*;
use std::time::Duration;

pub(crate) const HELP: &str = "\
A table of keys and values. Clients read and write it by RDMA; the server's processor takes no part.

  kv_store                    a server and its clients in this process
  kv_store serve              a server; ends with its standard input, after --clients, or with --lease
  kv_store get KEY            prints the value of a key
  kv_store put KEY VALUE      sets it; a key has up to 24 bytes, a value up to 48
  kv_store hold KEY           locks the key and waits; kill it, and the server breaks the lock
  kv_store bench              many clients get and put, and check every value; with a server unless --at

  -d, --ib-dev DEVICE    the RDMA device (default: the first with an active port, or else soft0)
  -a, --at HOST          the host of the server (default 127.0.0.1)
  -p, --port PORT        the TCP port of the server (default 18520)
      --async            get, put, bench: clients are tasks of tokio (needs a build with --features tokio)
      --slots COUNT      serve: the most keys (default 64)
      --clients COUNT    serve: end after this many sessions; bench: clients (default 4)
      --lease SECONDS    serve: how long clients may use the table (default: as long as the server runs)
      --keys COUNT       bench: number of keys (default 4)
      --seconds COUNT    bench: length of the run (default 2)
      --operations COUNT bench: operations of each client, instead of --seconds
      --patience SECONDS give up after so long without progress (default 10)
  -h, --help             print this help
";

pub(crate) enum Command {
    Demo,
    Serve,
    Get(Key),
    Put(Key, Value),
    Hold(Key),
    Bench { server_is_here: bool },
}

pub(crate) struct Options {
    pub(crate) command: Command,
    pub(crate) device: Option<String>,
    pub(crate) server: Address,
    pub(crate) slots: usize,
    pub(crate) clients: Option<usize>,
    pub(crate) lease: Duration,
    pub(crate) keys: usize,
    pub(crate) until: Until,
    pub(crate) patience: Duration,
    /// Clients are tasks.
    pub(crate) as_tasks: bool,
}

impl Options {
    pub(crate) fn bench(&self) -> Bench {
        Bench { clients: self.clients.unwrap_or(4), keys: self.keys, until: self.until }
    }
}

/// Parses the command line; `None` if it asks for help.
pub(crate) fn parse() -> Result<Option<Options>, Fault> {
    let mut options = Options {
        command: Command::Demo,
        device: None,
        server: Address { host: "127.0.0.1".to_owned(), port: 18520 },
        slots: 64,
        clients: None,
        lease: Duration::MAX,
        keys: 4,
        until: Until::Time(Duration::from_secs(2)),
        patience: Duration::from_secs(10),
        as_tasks: false,
    };
    let (mut words, mut at) = (Vec::new(), None);
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('d') | Long("ib-dev") => options.device = Some(parser.value()?.string()?),
            Short('a') | Long("at") => at = Some(parser.value()?.string()?),
            Short('p') | Long("port") => options.server.port = number(&mut parser, "-p", 1..=65535)?,
            Long("async") => options.as_tasks = true,
            Long("slots") => options.slots = number(&mut parser, "--slots", 1..=1 << 20)?,
            Long("clients") => options.clients = Some(number(&mut parser, "--clients", 1..=1000)?),
            Long("lease") => options.lease = Duration::from_secs(number(&mut parser, "--lease", 1..=86400)?),
            Long("keys") => options.keys = number(&mut parser, "--keys", 1..=1 << 20)?,
            Long("seconds") => {
                options.until = Until::Time(Duration::from_secs(number(&mut parser, "--seconds", 1..=86400)?));
            }
            Long("operations") => {
                options.until = Until::Operations(number(&mut parser, "--operations", 1..=1 << 40)?);
            }
            Long("patience") => {
                options.patience = Duration::from_secs(number(&mut parser, "--patience", 1..=86400)?);
            }
            Short('h') | Long("help") => return Ok(None),
            Value(word) => words.push(word.string()?),
            other => return Err(Fault::new(format!("{} (-h lists what there is)", other.unexpected()))),
        }
    }
    let server_is_here = at.is_none();
    if let Some(host) = at {
        options.server.host = host;
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    options.command = match words[..] {
        [] | ["demo"] => Command::Demo,
        ["serve"] => Command::Serve,
        ["get", key] => Command::Get(text("a key", key)?),
        ["put", key, value] => Command::Put(text("a key", key)?, text("a value", value)?),
        ["hold", key] => Command::Hold(text("a key", key)?),
        ["bench"] => Command::Bench { server_is_here },
        [command @ ("get" | "hold"), ..] => {
            return Err(Fault::new(format!("{command} takes one KEY (-h lists what there is)")));
        }
        ["put", ..] => return Err(Fault::new("put takes a KEY and a VALUE (-h lists what there is)")),
        [command @ ("demo" | "serve" | "bench"), ..] => {
            return Err(Fault::new(format!(
                "{command} stands alone, without {:?} (-h lists what there is)",
                words[1..].join(" ")
            )));
        }
        [word, ..] => return Err(Fault::new(format!("{word:?} is no command (-h lists what there is)"))),
    };
    if options.as_tasks {
        if !cfg!(feature = "tokio") {
            return Err(Fault::new("--async needs a build with --features tokio"));
        }
        if !matches!(options.command, Command::Get(_) | Command::Put(..) | Command::Bench { .. }) {
            return Err(Fault::new("--async goes with get, put or bench (-h lists what there is)"));
        }
    }
    Ok(Some(options))
}

fn text<const MOST: usize>(what: &str, text: &str) -> Result<Text<MOST>, Fault> {
    Text::new(text.as_bytes())
        .ok_or_else(|| Fault::new(format!("{what} has up to {MOST} bytes, \"{text}\" has {}", text.len())))
}
