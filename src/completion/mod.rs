//! Completion queues, the one poller of each, and what it gives back.

mod entry;
pub(crate) mod mailbox;
mod poller;
mod queue;

pub use entry::{Completion, Failure, Received, Status, Success, Work, WrittenWithImmediate};
pub use poller::{PollError, Poller, WaitError};
pub(crate) use queue::{Attached, CqInner, Message, Orphan, Place, QueueStatus, create};
pub use queue::{CompletionQueue, NoRoom};
