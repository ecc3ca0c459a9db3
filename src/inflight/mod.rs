//! What posting and polling share, and neither owns: the ledgers of requests in flight, the mailbox between the two
//! sides, and the owned handles of the device's objects.

pub(crate) mod entry;
mod extended_polling;
mod finish;
pub(crate) mod ledger;
mod mailbox;
mod operation;
mod pair_status;
mod peers;
mod polling_lock;
mod posted_memory;
mod raw_channel;
mod raw_completion_queue;
mod slab;
mod status;
mod work_id;

pub(crate) use entry::{Entry, RawEntry};
pub(crate) use finish::{Finish, FinishOnDrop};
pub(crate) use mailbox::Mailbox;
pub use operation::Operation;
pub(crate) use pair_status::{PairStatus, is_broken};
pub(crate) use peers::{AhInner, Peers};
pub(crate) use polling_lock::polling_lock;
pub use posted_memory::PostedMemory;
pub(crate) use raw_channel::{RawChannel, Waker};
pub(crate) use raw_completion_queue::{Pending, PollEnd, PollFailed, RawCompletionQueue, immediate_or_key};
pub(crate) use slab::{SharedLedger, SlabPoster, slab};
pub use status::{FaultSide, Status};
pub use work_id::WorkId;
pub(crate) use work_id::{MAX_SHARED, MAX_SLOTS, QueueKey, QueueKind};

/// The bytes of routing header in front of each datagram that is received.
pub(crate) const HEADER_BYTES: usize = 40;

/// Marks the branch in which it is called as unlikely. The call itself leaves no code.
#[cold]
#[inline(never)]
pub(crate) fn unlikely() {}
