//! Requests that failed.

use crate::inflight::{Operation, PostedMemory, Status, WorkId};
use crate::memory::Buffer;
use crate::trace;
use crate::types::Qpn;
use std::{error, fmt};

/// A request that failed, with its memory.
///
/// A failed request may have been executed in part or in whole: the peer may have executed a request that was flushed
/// or timed out.
///
/// Like other errors it has fields, so that a pattern takes it apart. A [`Success`](super::Success) is read by methods.
#[non_exhaustive]
pub struct Failure<B> {
    /// The id that the post returned.
    pub id: WorkId,
    /// The queue pair that the request was posted to; for a shared receive, the pair that took it.
    pub queue_pair: Qpn,
    /// The operation of the request.
    pub operation: Operation,
    /// Why it failed.
    pub status: Status,
    /// The provider's own code, which only its vendor can explain.
    #[doc(alias = "vendor_err")]
    pub vendor_error: u32,
    /// The first failure of the pair, if this failure follows from it; `None` if this failure is the first, or if the
    /// first is unknown.
    pub first_failure: Option<Status>,
    /// The memory of the request. After a failed read or atomic, the bytes that the request was to fill count as
    /// filled.
    pub memory: PostedMemory<B>,
}

/// A [`Failure`] without its memory. It has no brand, so it can leave the closure of
/// [`Context::with_domain`](crate::Context::with_domain).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FailureCause {
    /// The queue pair.
    pub queue_pair: Qpn,
    /// The operation of the request.
    pub operation: Operation,
    /// Why it failed.
    pub status: Status,
    /// The provider's own code, which only its vendor can explain.
    pub vendor_error: u32,
    /// The first failure of the pair, if this failure follows from it; `None` if this failure is the first, or if the
    /// first is unknown.
    pub first_failure: Option<Status>,
}

impl<B> Failure<B> {
    /// Reports the failure to a subscriber of `tracing`.
    pub(super) fn trace(&self) {
        let (pair, status) = (self.queue_pair.value(), self.status);
        match self.first_failure {
            None if !matches!(status, Status::Flushed | Status::Destroyed) => {
                trace::request_failed(pair, &self.operation, &status, self.vendor_error);
            }
            first => {
                let first = first.as_ref().map(|first| first as &dyn fmt::Display);
                trace::request_ended(pair, &self.operation, &status, first);
            }
        }
    }
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on queue pair {:#x} failed: {}", self.operation, self.queue_pair, self.status)?;
        if self.vendor_error != 0 {
            write!(f, " (vendor error {})", self.vendor_error)?;
        }
        if let Some(first) = self.first_failure {
            write!(f, " (the first failure of the queue pair: {first})")?;
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
    /// A copy of the failure without its memory, to be kept or logged.
    pub fn cause(&self) -> FailureCause {
        let Self { queue_pair, operation, status, vendor_error, first_failure, .. } = *self;
        FailureCause { queue_pair, operation, status, vendor_error, first_failure }
    }

    /// The failure without its memory, which is dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> FailureCause {
        self.cause()
    }

    /// The buffer of the request, if it had one. Other memory is dropped.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_the_vendor_error_and_the_first_failure_if_there_are_any() {
        let cause = FailureCause {
            queue_pair: Qpn::new(56).unwrap(),
            operation: Operation::Send,
            status: Status::General,
            vendor_error: 129,
            first_failure: Some(Status::Fatal),
        };
        let text = cause.to_string();
        assert!(text.starts_with("Send on queue pair 0x38 failed: general error of the transport ["), "{text}");
        assert!(text.contains("] (vendor error 129) (the first failure of the queue pair: fatal error"), "{text}");
        let alone = FailureCause { vendor_error: 0, first_failure: None, ..cause };
        assert!(alone.to_string().ends_with("see docs/failures.md#general]"), "{alone}");
    }
}
