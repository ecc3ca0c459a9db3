//! Completion queues, the one poller of each, and what it gives back.

mod entry;
pub(crate) mod mailbox;
mod poller;
mod queue;
mod waker;

pub use entry::{Completion, Failure, FailureCause, Received, Status, Success, Work, WrittenWithImmediate};
pub use poller::{PollError, Poller, WaitError};
pub(crate) use queue::{Attached, CqInner, Orphan, Place, QueueStatus, create};
pub use queue::{CompletionQueue, NoRoom};
