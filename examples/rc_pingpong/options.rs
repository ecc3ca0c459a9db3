//! The command line.

use super::common::fault::{Doing, Fault};
use super::common::number::{mtu, number};
use super::transport::Game;
use interlock::memory::MAX_MESSAGE_BYTES;
use interlock::number::{Mtu, PortNumber};
use lexopt::prelude::*;
use std::net::IpAddr;
use std::time::Duration;

pub(crate) fn help<T: Game>() -> String {
    let (letters, usual_size) = (T::LETTERS, T::USUAL_SIZE);
    let mtu = match T::HAS_PATH_MTU {
        true => {
            "\
  -m, --mtu BYTES        path MTU, the same on both sides (default 1024; in one process: that of the port)
"
        }
        false => "",
    };
    let by_cm = match T::HAS_CM {
        true => {
            "\
  -R, --rdma-cm          connect by rdma_cm, at the address of HOST; -R -b HOST has both ends here at that address
"
        }
        false => "",
    };
    format!(
        "\
Sends messages back and forth between two queue pairs, and checks every byte.

  {letters}_pingpong                 both ends in this process
  {letters}_pingpong -d DEVICE       a server for one client; Ctrl-C ends it
  {letters}_pingpong HOST            a client of the server on HOST
The peer is another {letters}_pingpong or the ibv_{letters}_pingpong of rdma-core, which needs -g on RoCE.

  -d, --ib-dev DEVICE    the RDMA device (default: the first with an active port, or else soft0)
  -i, --ib-port PORT     its port (default: the first that is active)
  -g, --gid-idx INDEX    the index in its GID table (default: the entry that suits RoCE v2 best)
  -p, --port PORT        TCP port to meet at (default 18515); without HOST: a server
  -s, --size BYTES       length of a message (default {usual_size})
  -n, --iters COUNT      messages each way (default 1000)
{mtu}{by_cm}  -r, --rx-depth COUNT   posted receives, each with a buffer of its own (default 32)
  -l, --sl LEVEL         service level (default 0)
  -e, --events           sleep until a completion comes (default: poll)
  -c, --chk              for a peer with -c, which expects the first byte of each page to be 0
  -b, --both             both ends in this process, even with -d or -p
      --patience SECONDS give up after so long without progress (default 10)
  -h, --help             print this help
"
    )
}

/// Which ends run in this process.
pub(crate) enum Mode {
    Both,
    Server,
    Client(String),
}

/// How the two sides connect.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Way {
    /// By the records that they tell each other over TCP.
    Records,
    /// By rdma_cm. If both ends are in this process, they connect at this address, or without one at the port's
    /// address.
    ByCm(Option<IpAddr>),
}

pub(crate) struct Options {
    pub(crate) mode: Mode,
    pub(crate) way: Way,
    pub(crate) device: Option<String>,
    pub(crate) device_port: Option<PortNumber>,
    pub(crate) gid_row: Option<u8>,
    pub(crate) tcp_port: u16,
    pub(crate) size: u32,
    pub(crate) iterations: u32,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) receives: u32,
    pub(crate) service_level: u8,
    pub(crate) events: bool,
    pub(crate) zero_page_starts: bool,
    pub(crate) patience: Duration,
}

/// Parses the command line; `None` if it asks for help.
pub(crate) fn parse<T: Game>() -> Result<Option<Options>, Fault> {
    let mut options = Options {
        mode: Mode::Both,
        way: Way::Records,
        device: None,
        device_port: None,
        gid_row: None,
        tcp_port: 18515,
        size: T::USUAL_SIZE,
        iterations: 1000,
        mtu: None,
        receives: 32,
        service_level: 0,
        events: false,
        zero_page_starts: false,
        patience: Duration::from_secs(10),
    };
    let (mut host, mut server, mut both, mut of_path) = (None, false, false, None);
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('d') | Long("ib-dev") => (options.device, server) = (Some(parser.value()?.string()?), true),
            Short('i') | Long("ib-port") => {
                options.device_port = Some(PortNumber::new(number(&mut parser, "-i", 1..=254)?)?);
            }
            Short('R') | Long("rdma-cm") if T::HAS_CM => options.way = Way::ByCm(None),
            Short('g') | Long("gid-idx") => {
                (options.gid_row, of_path) = (Some(number(&mut parser, "-g", 0..=255)?), Some("-g"));
            }
            Short('p') | Long("port") => (options.tcp_port, server) = (number(&mut parser, "-p", 1..=65535)?, true),
            Short('s') | Long("size") => options.size = number(&mut parser, "-s", 1..=MAX_MESSAGE_BYTES as u32)?,
            Short('n') | Long("iters") => options.iterations = number(&mut parser, "-n", 1..=i32::MAX as u32)?,
            Short('m') | Long("mtu") if T::HAS_PATH_MTU => {
                (options.mtu, of_path) = (Some(mtu(&mut parser)?), Some("-m"));
            }
            Short('r') | Long("rx-depth") => options.receives = number(&mut parser, "-r", 1..=1 << 20)?,
            Short('l') | Long("sl") => {
                (options.service_level, of_path) = (number(&mut parser, "-l", 0..=15)?, Some("-l"));
            }
            Short('e') | Long("events") => options.events = true,
            Short('c') | Long("chk") => options.zero_page_starts = true,
            Short('b') | Long("both") => both = true,
            Long("patience") => {
                options.patience = Duration::from_secs(number(&mut parser, "--patience", 1..=86400)?);
            }
            Short('h') | Long("help") => return Ok(None),
            Value(name) if host.is_none() => host = Some(name.string()?),
            other => return Err(Fault::new(format!("{} (-h lists what there is)", other.unexpected()))),
        }
    }
    if let (Way::ByCm(_), Some(option)) = (&options.way, of_path) {
        return Err(Fault::new(format!("-R takes no {option}: rdma_cm chooses the path")));
    }
    if let (Way::ByCm(at), true, Some(name)) = (&mut options.way, both, &host) {
        *at = Some(name.parse().doing(format_args!("{name} is no address"))?);
        host = None;
    }
    options.mode = match host {
        Some(_) if both => return Err(Fault::new("--both takes no host: both ends are here")),
        Some(host) => Mode::Client(host),
        None if server && !both => Mode::Server,
        None => Mode::Both,
    };
    Ok(Some(options))
}
