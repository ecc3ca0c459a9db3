//! Requests that did not succeed.

use crate::inflight::{Operation, PostedMemory, Status, WorkId};
use crate::memory::Buffer;
use crate::types::Qpn;
use std::{error, fmt};

/// A request that did not succeed, with its memory.
///
/// What of it was done before is not known: a flushed or timed-out request may have been executed by the peer.
#[non_exhaustive]
pub struct Failure<B> {
    /// The id that posting gave.
    pub id: WorkId,
    /// The queue pair that it was posted to; of a shared receive, the one that took it.
    pub queue_pair: Qpn,
    /// What it should have done.
    pub operation: Operation,
    /// Why it did not.
    pub status: Status,
    /// The provider's own code, for its vendor.
    #[doc(alias = "vendor_err")]
    pub vendor_error: u32,
    /// What broke the pair, where this is only what followed; `None` where this is the first or the first is unknown.
    pub first_failure: Option<Status>,
    /// The memory of the request. What counts as filled after a failed read or atomic is what it should have brought.
    pub memory: PostedMemory<B>,
}

/// What a [`Failure`] says, without the memory: it can leave a scoped domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FailureCause {
    /// The queue pair.
    pub queue_pair: Qpn,
    /// What the request should have done.
    pub operation: Operation,
    /// Why it did not.
    pub status: Status,
    /// The provider's own code, for its vendor.
    pub vendor_error: u32,
    /// What broke the pair, where this is only what followed.
    pub first_failure: Option<Status>,
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on queue pair {:#x} failed: {}", self.operation, self.queue_pair, self.status)?;
        if let Some(first) = self.first_failure {
            write!(f, " (after: {first})")?;
        }
        Ok(())
    }
}

impl error::Error for FailureCause {}

impl<B> From<Failure<B>> for FailureCause {
    fn from(failure: Failure<B>) -> Self {
        failure.cause()
    }
}

impl<B> Failure<B> {
    /// What it says, without the memory.
    pub fn cause(&self) -> FailureCause {
        let Self { queue_pair, operation, status, vendor_error, first_failure, .. } = *self;
        FailureCause { queue_pair, operation, status, vendor_error, first_failure }
    }

    /// What it says, without the memory, which is dropped: it can leave a scoped domain.
    pub fn into_cause(self) -> FailureCause {
        self.cause()
    }

    /// The buffer, if the request had one of its own.
    #[inline]
    pub fn into_buffer(self) -> Option<Buffer<B>> {
        self.memory.into_buffer()
    }
}

impl<B> fmt::Display for Failure<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause().fmt(f)
    }
}

impl<B> fmt::Debug for Failure<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("id", &self.id)
            .field("queue_pair", &self.queue_pair)
            .field("operation", &self.operation)
            .field("status", &self.status)
            .field("vendor_error", &self.vendor_error)
            .field("first_failure", &self.first_failure)
            .field("memory", &self.memory)
            .finish()
    }
}

impl<B> error::Error for Failure<B> {}
