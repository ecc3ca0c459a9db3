//! Completion queues, the one poller of each, and the completions that it returns.
//!
//! Every posted request completes once. The [`Poller`] returns its [`Completion`], which holds the memory of the
//! request; [`check`](Completion::check) tells a [`Success`] from a [`Failure`]. A queue pair reserves room for all its
//! requests when it is created, so a completion queue never overflows.
//!
//! Ways to get completions: [`poll`](Poller::poll) never sleeps; [`wait`](Poller::wait) sleeps until a completion comes
//! or the time is over; [`poll_each`](Poller::poll_each) hands over all completions that there are; [`Armed`] waits in
//! an event loop of your own; a [`CompletionChannel`] waits for several queues.
//!
//! ```
//! use interlock::completion::Poller;
//! use interlock::{Brand, Buffer};
//! use std::time::Duration;
//!
//! /// The next message that arrives; sends that complete meanwhile are dropped.
//! fn next_message<B: Brand>(poller: &mut Poller<B>) -> Option<Buffer<B>> {
//!     loop {
//!         let success = poller.wait(Duration::from_secs(1)).ok()?.check().ok()?;
//!         if let Ok(message) = success.into_received() {
//!             return Some(message);
//!         }
//!     }
//! }
//! ```
#![forbid(unsafe_code)]

mod channel;
#[allow(clippy::module_inception, reason = "holds the type of that name")]
mod completion;
pub(crate) mod control;
mod departing;
mod event_channel;
mod failure;
mod message;
pub(crate) mod options;
mod out_of_order;
pub(crate) mod poller;
mod queue;
pub(crate) mod resize;
mod retired;
mod shared_leases;
mod shared_receivers;
mod statuses;
pub(crate) mod wait;
pub(crate) mod work;

pub use crate::inflight::{FaultSide, Status};
pub use channel::CompletionChannel;
pub use completion::{Completion, Success};
pub(crate) use control::NoRoom;
#[cfg(feature = "aio")]
pub(crate) use departing::Leftover;
pub(crate) use departing::{Departing, FLUSH_INTERVAL, HOPELESS_FLUSHES, Remains};
pub use failure::{Failure, FailureCause};
pub(crate) use message::{Attached, Orphan, Place};
pub use options::{CompletionQueueOptions, Polling};
pub(crate) use poller::PollError;
pub use poller::Poller;
pub use queue::CompletionQueue;
pub(crate) use queue::CqInner;
pub use retired::{Retired, Unsignalled};
pub(crate) use shared_receivers::SharedReceiver;
pub(crate) use wait::WaitError;
pub use wait::{Armed, Wait, WakeFor};
pub(crate) use work::Datagram;
pub use work::{Received, Scattered, Work, WrittenWithImmediate};
