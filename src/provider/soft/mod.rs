//! The soft device: an RDMA device inside the process, for tests, doctests and the first run without hardware.
//!
//! All devices of one [`Fabric`] share one lock and one machine. What `rdma-core` does in a kernel and on a wire
//! happens here in small units of work: one attempt to carry a request to the peer, one answer coming back, one flushed
//! request, one timer. An automatic fabric runs all of them before a verb returns; a manual one waits for
//! [`Fabric::step`].
//!
//! It does what the specification says. Where Linux soft-RoCE differs, this device follows the specification.
//!
//! | module | what |
//! |---|---|
//! | `fabric` | the lock, the clock, the queue of runnable pairs, timers |
//! | `device` | addresses and limits |
//! | `objects` | tables, protection domains, memory regions and their keys |
//! | `memory` | how the device touches memory |
//! | `completion` | completion queues, channels, what a completion holds |
//! | `pair` | the state machine of a queue pair |
//! | `work` | the queues of a pair, and posting |
//! | `engine` | requester and responder |
//! | `fault` | failures on demand |
//! | `verbs` | the control path, as `Provider` |
//! | `data_path` | the data path, as C functions |

mod completion;
mod data_path;
mod device;
mod engine;
mod fabric;
mod fault;
mod memory;
mod objects;
mod pair;
mod verbs;
mod work;

#[cfg(test)]
mod tests;

pub use fabric::Fabric;
pub use fault::{Fault, Verb};

pub(crate) use verbs::Soft;

use super::Listed;

/// The devices of [`Fabric::process`].
pub(crate) fn devices() -> Vec<Listed> {
    Fabric::process().devices()
}
