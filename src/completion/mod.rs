//! Completion queues, the one poller of each, and what it gives back.

mod desk;
mod entry;
mod failure;
pub(crate) mod mailbox;
mod poller;
mod queue;
mod retired;
mod shares;
mod status;
mod success;
mod waker;

pub use entry::Completion;
pub use failure::{Failure, FailureCause};
pub use poller::{PollError, Poller, WaitError};
pub(crate) use queue::{Attached, CqInner, Orphan, Place, QueueStatus, create};
pub use queue::{CompletionQueue, NoRoom};
pub use retired::{Retired, Unsignalled};
pub(crate) use shares::Member;
pub use status::Status;
pub use success::{Datagram, Received, Scattered, Success, Work, WrittenWithImmediate};
