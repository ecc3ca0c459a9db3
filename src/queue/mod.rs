//! Queue pairs: how one is made, connected, used, drained and ended.
//!
//! A [`QueuePair<B, S, T>`](QueuePair) has the brand of its domain, its [state](crate::state) and its
//! [transport](crate::transport) as types. [`ProtectionDomain::reliable`](crate::ProtectionDomain::reliable) and its
//! siblings make one in Reset; [`into_init`](QueuePair::into_init) binds it to a port; [`connect`](QueuePair::connect)
//! takes the peer's [`Endpoint`] and brings the pair to Ready To Send. [`split`](QueuePair::split) makes a half for
//! each of two threads, and [`AnyQueuePair`] holds a pair of any state in a struct field.
//!
//! ```
//! use interlock::{Context, Limits};
//!
//! interlock::domain! { struct Docs; }
//! let domain = Context::open("soft0")?.named_domain(Docs)?;
//! let (queue, _poller) = domain.completion_queue(Limits::default().completions())?;
//! let pair = domain.reliable(&queue, &Limits::default())?.into_init(&domain.context().active_port()?)?;
//! let myself = pair.endpoint(); // a peer would be elsewhere
//! let mut pair = pair.connect(&myself)?;
//! pair.post_send(domain.buffer(8)?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// Only unit tests have `unsafe` in this module: the tests of `session` implement a provider, whose functions get raw
// pointers.
#![cfg_attr(not(test), forbid(unsafe_code))]

pub(crate) mod alter;
pub(crate) mod any;
pub(crate) mod attributes;
pub(crate) mod batch;
#[cfg(feature = "cm")]
mod by_cm;
mod create;
pub(crate) mod datagram;
mod drain;
mod endpoint;
pub(crate) mod error;
pub(crate) mod halves;
mod local_port;
mod pair;
mod pair_end;
mod pair_post;
mod places;
pub mod request_kinds;
mod session;
pub(crate) mod shared;
pub(crate) mod state;
mod transitions;
pub(crate) mod transport;
mod untyped;

pub use crate::inflight::Posting;
pub(crate) use crate::inflight::{PostError, RequestFlaw};
pub use any::{AnyQueuePair, Halted};
pub use attributes::Limits;
#[cfg(feature = "cm")]
pub(crate) use by_cm::UnbrandedPair;
#[cfg(feature = "aio")]
pub(crate) use drain::Kicks;
pub use endpoint::Endpoint;
pub use halves::{ReceiveHalf, SendHalf};
pub use pair::QueuePair;
#[cfg(feature = "aio")]
pub(crate) use places::QueueIds;
pub(crate) use request_kinds::{RequestMemory, SendMemory, WorkRequest};
pub(crate) use state::State;
pub(crate) use transport::{Carries, ReliableConnection};
