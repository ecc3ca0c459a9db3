//! Completion queues, the one poller of each, and completions.
//!
//! Each file uses those above it:
//!
//! ```text
//! failure  work  departing                what a request did; pairs that the poller destroys
//! ended  success  completion              the end of a request, told apart by `check`
//! message  shared_receivers  out_of_order statuses  shared_leases
//! control                                 what the control path and the poller share
//! retired                                 the requests that one completion retires
//! poll_state                              what a poller works on
//! event_channel  queue  poller            the objects of the program
//! wait  channel  resize
//! ```
#![forbid(unsafe_code)]

mod channel;
#[allow(clippy::module_inception, reason = "holds the type of that name")]
mod completion;
mod control;
mod departing;
mod ended;
mod event_channel;
mod failure;
mod message;
mod options;
mod out_of_order;
mod poll_state;
mod poller;
mod queue;
mod resize;
mod retired;
mod shared_leases;
mod shared_receivers;
mod statuses;
mod success;
mod wait;
mod work;

pub use channel::CompletionChannel;
pub use completion::Completion;
pub use control::NoRoom;
pub(crate) use departing::Departing;
pub use failure::{Failure, FailureCause};
pub(crate) use message::{Attached, Orphan, Place};
pub use options::{CompletionQueueError, CompletionQueueOptions, Polling};
pub use poll_state::PollError;
pub use poller::Poller;
pub use queue::CompletionQueue;
pub(crate) use queue::CqInner;
pub use resize::ResizeError;
pub use retired::{Retired, Unsignalled};
pub(crate) use shared_receivers::SharedReceiver;
pub use success::Success;
pub use wait::{Armed, Wait, WaitError, WakeFor};
pub use work::{Datagram, Received, Scattered, Work, WrittenWithImmediate};
