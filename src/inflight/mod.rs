//! Posting and polling for every state and transport, without types for these: work queues that post, the end that
//! polls, and between them the ledgers of requests in flight. Also the mailbox between the two sides, and `raw_*`,
//! which give the handles of `provider::handles` their ledgers and rights.

mod batch_error;
mod cell;
pub(crate) mod entry;
pub(crate) mod ledger;
mod mailbox;
mod operation;
mod pair_status;
mod peers;
mod pending_posts;
mod polling;
mod polling_lock;
mod post_all;
mod post_error;
mod posted_memory;
mod posting;
mod raw_batch;
mod raw_channel;
mod raw_completion_queue;
mod raw_pair;
mod raw_session;
mod raw_shared;
mod request;
mod slab;
mod status;
mod windows;
mod work_id;
mod work_queue;

pub(crate) use crate::provider::handles::Quiescent;
pub use batch_error::{BatchCause, BatchError, PostAllCause, PostAllError};
pub(crate) use cell::{Finish, FinishOnDrop};
pub(crate) use entry::sealed::Postable;
pub(crate) use entry::{Entry, RawEntry};
pub(crate) use mailbox::Mailbox;
pub use operation::Operation;
pub(crate) use pair_status::{PairStatus, is_broken};
pub(crate) use peers::{AhInner, To};
pub(crate) use polling::{Completed, Pending, PollEnd, PollFailed, immediate_or_key};
pub(crate) use polling_lock::polling_lock;
pub(crate) use post_all::post_all;
pub use post_error::{PostError, RequestFlaw};
pub use posted_memory::PostedMemory;
pub use posting::Posting;
pub(crate) use raw_batch::{RawBatch, batch};
pub(crate) use raw_channel::{RawChannel, Waker};
pub(crate) use raw_completion_queue::RawCompletionQueue;
pub(crate) use raw_pair::{PairAttributes, RawPair};
#[cfg(all(test, not(loom)))]
pub(crate) use raw_session::has_all_functions;
pub(crate) use raw_shared::{SharedCore, SharedPoster};
pub use request::WorkRequest;
pub(crate) use request::{Action, PostLimits};
pub(crate) use slab::{SharedLedger, SlabPoster, slab};
pub use status::{FaultSide, Status};
pub use work_id::WorkId;
pub(crate) use work_id::{MAX_SHARED, MAX_SLOTS, QueueKey, QueueKind};
pub(crate) use work_queue::{ReceiveQueue, SendQueue, Terms};

/// The length of the routing header in front of each datagram that is received.
pub(crate) const HEADER_BYTES: usize = 40;

/// Marks the branch that calls it as unlikely. The call itself leaves no code.
#[cold]
#[inline(never)]
pub(crate) fn unlikely() {}
