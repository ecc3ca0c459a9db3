//! The command line.

use crate::common::fault::Fault;
use crate::common::number::number;
use lexopt::prelude::*;
use std::fmt;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const HELP: &str = "\
Measures latency and bandwidth of sends, writes and reads over a reliable connection, as perftest does.

  perf [OPTIONS]                                   both ends in this process, all measurements
  perf server [-d DEVICE] [-g INDEX] [-p PORT]     a server for one client, which chooses the measurements
  perf [lat|bw] [send|write|read] [OPTIONS] HOST   a client of the server on HOST
  perf [lat|bw] [send|write|read] [OPTIONS]        the same with both ends in this process

lat: one message at a time. Send and write: half of the round trip. Read: the time until it has completed.
bw:  keeps a queue of requests full, in one direction. 1 MiB = 2^20 bytes.

  -d, --device DEVICE    the RDMA device (default: the first with an active port, or else soft0)
  -g, --gid INDEX        the index in its GID table (default: the entry that suits RoCE v2 best)
  -p, --port PORT        TCP port to meet at (default 18515)
  -R, --rdma-cm          connect by rdma_cm, at the address of HOST; the server does as its client
  -s, --size BYTES,...   message sizes in bytes, 1 to 1073741824 (default 64,4096,65536)
  -a, --all              message sizes 2, 4, 8, .. 8388608 bytes
  -n, --iterations COUNT messages of each size (default 1000), after 16 more that are not measured
  -D, --duration SECONDS measure each size for this time, instead of -n
  -I, --inline BYTES     send and write: messages up to this size go inline, 0 to 4096 (default 0)
  -t, --tx-depth COUNT   bw: requests in flight (default 128), fewer where their buffers would take over 64 MiB
      --event            sleep until a completion comes (default: poll)
      --futures          the client is a task of tokio that awaits each request, or each group of a stream
      --json FILE        also write the results as JSON
      --csv FILE         also write the results as CSV
      --svg FILE         also draw the results
      --quiet            no table, and no progress on a terminal
      --patience SECONDS give up after so long without progress (default 10)
  -h, --help             print this help

lat write always polls the last byte of the memory that the peer writes, even with --event, as ib_write_lat does.
";

/// The longest message: long enough to see where a curve ends, and short enough that a server can register memory for
/// it at the request of any client.
pub(crate) const MOST_BYTES: u32 = 1 << 30;
pub(crate) const MOST_DEPTH: u32 = 1 << 15;
pub(crate) const MOST_INLINE: u16 = 1 << 12;

/// Which ends run in this process.
pub(crate) enum Role {
    Both,
    Server,
    Client(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    Latency,
    Bandwidth,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Send,
    Write,
    Read,
}

impl Measure {
    pub(crate) const ALL: [Self; 2] = [Self::Latency, Self::Bandwidth];
}

impl Action {
    pub(crate) const ALL: [Self; 3] = [Self::Send, Self::Write, Self::Read];
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Latency => "lat",
            Self::Bandwidth => "bw",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// The length of a measurement.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    Count(u64),
    Time(Duration),
}

pub(crate) struct Options {
    pub(crate) role: Role,
    pub(crate) measures: Vec<Measure>,
    pub(crate) actions: Vec<Action>,
    pub(crate) device: Option<String>,
    pub(crate) gid_row: Option<u8>,
    pub(crate) tcp_port: u16,
    pub(crate) by_cm: bool,
    pub(crate) sizes: Vec<u32>,
    pub(crate) until: Until,
    pub(crate) depth: u32,
    pub(crate) inline: u16,
    pub(crate) event: bool,
    pub(crate) futures: bool,
    pub(crate) json: Option<PathBuf>,
    pub(crate) csv: Option<PathBuf>,
    pub(crate) svg: Option<PathBuf>,
    pub(crate) quiet: bool,
    pub(crate) patience: Duration,
}

/// Parses the command line; `None` if it asks for help.
pub(crate) fn parse() -> Result<Option<Options>, Fault> {
    let mut options = Options {
        role: Role::Both,
        measures: Vec::new(),
        actions: Vec::new(),
        device: None,
        gid_row: None,
        tcp_port: 18515,
        by_cm: false,
        sizes: vec![64, 4096, 65536],
        until: Until::Count(1000),
        depth: 128,
        inline: 0,
        event: false,
        futures: false,
        json: None,
        csv: None,
        svg: None,
        quiet: false,
        patience: Duration::from_secs(10),
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('d') | Long("device") => options.device = Some(parser.value()?.string()?),
            Short('g') | Long("gid") => options.gid_row = Some(number(&mut parser, "-g", 0..=255)?),
            Short('p') | Long("port") => options.tcp_port = number(&mut parser, "-p", 1..=65535)?,
            Short('R') | Long("rdma-cm") => options.by_cm = true,
            Short('s') | Long("size") => options.sizes = sizes(&parser.value()?.string()?)?,
            Short('a') | Long("all") => options.sizes = (1..=23).map(|power| 1 << power).collect(),
            Short('n') | Long("iterations") => {
                options.until = Until::Count(number(&mut parser, "-n", 1..=u64::from(u32::MAX))?);
            }
            Short('D') | Long("duration") => {
                options.until = Until::Time(Duration::from_secs(number(&mut parser, "-D", 1..=86400)?));
            }
            Short('t') | Long("tx-depth") => options.depth = number(&mut parser, "-t", 1..=MOST_DEPTH)?,
            Short('I') | Long("inline") => options.inline = number(&mut parser, "-I", 0..=MOST_INLINE)?,
            Long("event") => options.event = true,
            Long("futures") if cfg!(feature = "tokio") => options.futures = true,
            Long("futures") => {
                return Err(Fault::new("--futures needs tokio: build this example with `--features tokio`"));
            }
            Long("json") => options.json = Some(parser.value()?.into()),
            Long("csv") => options.csv = Some(parser.value()?.into()),
            Long("svg") => options.svg = Some(parser.value()?.into()),
            Long("quiet") => options.quiet = true,
            Long("patience") => options.patience = Duration::from_secs(number(&mut parser, "--patience", 1..=86400)?),
            Short('h') | Long("help") => return Ok(None),
            Value(word) => options.take_word(word.string()?)?,
            other => return Err(Fault::new(format!("{} (-h lists what there is)", other.unexpected()))),
        }
    }
    if matches!(options.role, Role::Server) && !(options.measures.is_empty() && options.actions.is_empty()) {
        return Err(Fault::new("a server does what its client asks for: give it neither lat, bw nor an operation"));
    }
    if matches!(options.role, Role::Server) && options.futures {
        return Err(Fault::new("--futures is for the client: a server does the same whatever its client awaits"));
    }
    if let Role::Client(host) = &options.role {
        // A misspelt word counts as the name of a host. Resolve the name now, so that such a word fails before anything
        // is measured.
        (host.as_str(), 0).to_socket_addrs().map_err(|error| {
            Fault::new(format!(
                "{host:?} is neither lat, bw, send, write, read nor server, and no host of that name is known: {error}"
            ))
        })?;
    }
    if options.measures.is_empty() {
        options.measures = Measure::ALL.to_vec();
    }
    if options.actions.is_empty() {
        options.actions = Action::ALL.to_vec();
    }
    Ok(Some(options))
}

impl Options {
    fn take_word(&mut self, word: String) -> Result<(), Fault> {
        if let Some(measure) = Measure::ALL.into_iter().find(|measure| measure.to_string() == word) {
            self.measures.push(measure);
        } else if let Some(action) = Action::ALL.into_iter().find(|action| action.to_string() == word) {
            self.actions.push(action);
        } else if !matches!(self.role, Role::Both) {
            return Err(Fault::new(format!("unexpected argument {word:?} (-h lists what there is)")));
        } else {
            self.role = if word == "server" { Role::Server } else { Role::Client(word) };
        }
        Ok(())
    }
}

fn sizes(text: &str) -> Result<Vec<u32>, Fault> {
    let size = |part: &str| part.parse().ok().filter(|size| (1..=MOST_BYTES).contains(size));
    text.split(',').map(size).collect::<Option<_>>().ok_or_else(|| {
        Fault::new(format!("-s takes numbers of bytes from 1 to {MOST_BYTES}, separated by commas, not {text:?}"))
    })
}
