//! Completion queues, the one poller of each, and what it gives back.

mod channel;
mod departing;
mod desk;
mod entry;
mod extended;
mod failure;
pub(crate) mod mailbox;
mod options;
mod poller;
mod queue;
mod queue_status;
mod resize;
mod retired;
mod shares;
mod singly;
mod status;
mod success;
mod wait;
mod waker;

pub use channel::CompletionChannel;
pub(crate) use channel::create_channel;
pub(crate) use departing::Departing;
pub use entry::Completion;
pub use extended::Polling;
pub use failure::{Failure, FailureCause};
pub use options::{CompletionQueueError, CompletionQueueOptions};
pub use poller::{PollError, Poller, WaitError};
pub(crate) use queue::{Attached, CqInner, Orphan, Place, create};
pub use queue::{CompletionQueue, NoRoom};
pub(crate) use queue_status::{QueueStatus, is_broken};
pub use resize::ResizeError;
pub use retired::{Retired, Unsignalled};
pub(crate) use shares::Member;
pub use status::{FaultSide, Status};
pub use success::{Datagram, Received, Scattered, Success, Work, WrittenWithImmediate};
pub use wait::{Armed, Wait, WakeFor};
