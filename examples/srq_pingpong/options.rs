//! The command line.

use crate::common::fault::Fault;
use crate::common::number::{mtu, number};
use interlock::memory::MAX_MESSAGE_BYTES;
use interlock::number::Mtu;
use lexopt::prelude::*;
use std::time::Duration;

/// The two sides always exchange this many addresses. Those of the pairs come first.
pub(crate) const MOST_PAIRS: usize = 256;

pub(crate) const HELP: &str = "\
Sends messages back and forth on many queue pairs. All receives of a side come from one shared receive queue.

  srq_pingpong                 both sides in this process
  srq_pingpong -d DEVICE       a server for one client
  srq_pingpong HOST            a client of the server on HOST
The peer is another srq_pingpong or the ibv_srq_pingpong of rdma-core, which needs -g on RoCE.

  -d, --ib-dev DEVICE    the RDMA device (default: the first with an active port, or else soft0)
  -g, --gid-idx INDEX    the index in its GID table (default: the entry that suits RoCE v2 best)
  -p, --port PORT        TCP port to meet at (default 18515); without HOST: a server
  -s, --size BYTES       length of a message, the same on both sides (default 4096)
  -n, --iters COUNT      messages each way, on all pairs together, the same on both sides (default 1000)
  -m, --mtu BYTES        path MTU, the same on both sides (default 1024)
  -q, --num-qp COUNT     queue pairs, up to 256, the same on both sides (default 16)
  -r, --rx-depth COUNT   posted receives, at least one for each pair (default 500)
      --patience SECONDS give up after so long without progress (default 10)
  -h, --help             print this help
";

pub(crate) struct Options {
    pub(crate) host: Option<String>,
    pub(crate) is_server: bool,
    pub(crate) device: Option<String>,
    pub(crate) gid_row: Option<u8>,
    pub(crate) tcp_port: u16,
    pub(crate) size: u32,
    pub(crate) iterations: u32,
    pub(crate) mtu: Mtu,
    pub(crate) pairs: u32,
    pub(crate) receives: u32,
    pub(crate) patience: Duration,
}

/// Parses the command line; `None` if it asks for help.
pub(crate) fn parse() -> Result<Option<Options>, Fault> {
    let mut options = Options {
        host: None,
        is_server: false,
        device: None,
        gid_row: None,
        tcp_port: 18515,
        size: 4096,
        iterations: 1000,
        mtu: Mtu::Bytes1024,
        pairs: 16,
        receives: 500,
        patience: Duration::from_secs(10),
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('d') | Long("ib-dev") => {
                (options.device, options.is_server) = (Some(parser.value()?.string()?), true)
            }
            Short('g') | Long("gid-idx") => options.gid_row = Some(number(&mut parser, "-g", 0..=255)?),
            Short('p') | Long("port") => {
                (options.tcp_port, options.is_server) = (number(&mut parser, "-p", 1..=65535)?, true)
            }
            Short('s') | Long("size") => options.size = number(&mut parser, "-s", 1..=MAX_MESSAGE_BYTES as u32)?,
            Short('n') | Long("iters") => options.iterations = number(&mut parser, "-n", 1..=i32::MAX as u32)?,
            Short('m') | Long("mtu") => options.mtu = mtu(&mut parser)?,
            Short('q') | Long("num-qp") => options.pairs = number(&mut parser, "-q", 1..=MOST_PAIRS as u32)?,
            Short('r') | Long("rx-depth") => options.receives = number(&mut parser, "-r", 1..=1 << 20)?,
            Long("patience") => options.patience = Duration::from_secs(number(&mut parser, "--patience", 1..=86400)?),
            Short('h') | Long("help") => return Ok(None),
            Value(name) if options.host.is_none() => options.host = Some(name.string()?),
            other => return Err(Fault::new(format!("{} (-h lists what there is)", other.unexpected()))),
        }
    }
    if options.receives < options.pairs {
        return Err(Fault::new("-r takes at least as many receives as -q has pairs"));
    }
    Ok(Some(options))
}
