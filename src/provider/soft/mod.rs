//! The soft device: an RDMA device inside the process, for tests, doctests and the first run without hardware.
//!
//! All devices of one [`Fabric`] share one lock and one clock. Real devices work in hardware and on a wire; this device
//! does its work in small units: one attempt to carry a request to the peer, one answer coming back, one flushed
//! request, one timer. An automatic fabric does all units that it can before a verb returns. A manual fabric does a
//! unit only in [`Fabric::step`].
//!
//! The device follows the specification, even where Linux soft-RoCE differs. Where the specification leaves a choice,
//! the [`Profile`] decides.
//!
//! # Examples
//!
//! The peer never answers. The test does not wait out the timeouts: on a manual fabric it moves the clock itself.
//!
//! ```
//! use interlock::soft::{Fabric, Fault};
//! use interlock::{Context, Limits, Status};
//!
//! interlock::domain! { struct Test; }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fabric = Fabric::manual();
//! let context = Context::open_on(&fabric, "dev0")?;
//! let port = context.active_port()?;
//! let domain = context.named_domain(Test)?;
//! let (queue, mut poller) = domain.completion_queue(16)?;
//! let left = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
//! let right = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
//! let (to_left, to_right) = (left.endpoint(), right.endpoint());
//! let (mut left, _right) = (left.connect(&to_right)?, right.connect(&to_left)?);
//!
//! fabric.inject(Fault::RequestsLost { count: u32::MAX });
//! left.post_send(domain.buffer(64)?)?;
//! fabric.run();
//! while let Some(timer) = fabric.next_timer() {
//!     fabric.advance(timer);
//!     fabric.run();
//! }
//! let failure = poller.poll()?.expect("a completion").check().unwrap_err();
//! assert_eq!(failure.status, Status::RetryExceeded);
//! # Ok(())
//! # }
//! ```

// | module | what it holds |
// |---|---|
// | `fabric` | the lock, the clock, the queue of runnable pairs, timers |
// | `device` | addresses and limits |
// | `objects` | tables, protection domains |
// | `regions` | memory regions and their keys |
// | `window` | memory windows |
// | `memory` | how the device accesses memory |
// | `completion` | completion queues, channels, the fields of completions |
// | `events` | asynchronous events |
// | `pair` | queue pairs |
// | `transition`, `modify` | the states of queue pairs, and the transitions between them |
// | `srq` | shared receive queues |
// | `work` | work queues and the requests in them |
// | `posted`, `request`, `post` | how posts of the C interface become requests in the work queues |
// | `engine` | the requester |
// | `responder` | the responder |
// | `datagram` | address handles, datagrams, multicast groups |
// | `cm` | rdma_cm |
// | `fault` | injected faults |
// | `profile` | the habits of each real provider, where the specification leaves a choice |
// | `latitude` | the code behind the habits of a profile |
// | `random` | random numbers, the same for the same seed |
// | `handles` | the objects behind the pointers of the C interface |
// | `verbs`, `memory_verbs`, `queue_verbs` | the control path: the implementation of `Provider` |
// | `data_path` | the data path: `ibv_post_*`, `ibv_bind_mw`, `ibv_poll_cq` and `ibv_req_notify_cq` |
// | `session` | the data path: `ibv_wr_*` |
// | `polling` | the data path: `ibv_start_poll` and the functions that go with it |
//
// All `unsafe` code, except that of tests, is in `handles`, `verbs`, `posted`, `memory` and the three modules of the
// data path. Only these modules dereference pointers. The other modules find an object in its table, by its number.

#[cfg(feature = "cm")]
mod cm;
mod completion;
mod data_path;
mod datagram;
mod device;
mod engine;
mod events;
mod fabric;
mod fault;
mod handles;
mod latitude;
mod memory;
mod memory_verbs;
mod modify;
mod objects;
mod pair;
mod polling;
mod post;
mod posted;
mod profile;
mod queue_verbs;
mod random;
mod regions;
mod request;
mod responder;
mod session;
mod srq;
mod transition;
mod verbs;
mod window;
mod work;

#[cfg(test)]
mod tests;

pub use fabric::Fabric;
pub use fault::{Fault, Verb};
pub use profile::Profile;

pub(crate) use verbs::Soft;

use super::Listed;

/// The devices of [`Fabric::process`].
pub(crate) fn devices() -> Vec<Listed> {
    Fabric::process().devices()
}
