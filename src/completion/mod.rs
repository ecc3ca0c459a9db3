//! Completion queues, the one poller of each, and what it gives back.

mod channel;
#[allow(clippy::module_inception, reason = "holds the type of that name")]
mod completion;
mod departing;
mod desk;
mod extended;
mod failure;
mod options;
mod poller;
mod queue;
mod resize;
mod retired;
mod shares;
mod singly;
mod statuses;
mod success;
mod turns;
mod wait;
mod waker;

pub use channel::CompletionChannel;
pub use completion::Completion;
pub(crate) use departing::Departing;
pub use extended::Polling;
pub use failure::{Failure, FailureCause};
pub use options::{CompletionQueueError, CompletionQueueOptions};
pub use poller::{PollError, Poller, WaitError};
pub(crate) use queue::{Attached, CqInner, Orphan, Place};
pub use queue::{CompletionQueue, NoRoom};
pub use resize::ResizeError;
pub use retired::{Retired, Unsignalled};
pub(crate) use shares::Member;
pub use success::{Datagram, Received, Scattered, Success, Work, WrittenWithImmediate};
pub(crate) use turns::turn;
pub use wait::{Armed, Wait, WakeFor};
