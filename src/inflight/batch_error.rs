//! The reasons why a batch, or the requests of a vector, were not all posted.

use super::{PostError, PostedMemory};
use crate::verb_error::VerbError;
use std::{error, fmt};

/// Not all requests of a batch were posted. The error gives back the memory that the device certainly does not have.
pub struct BatchError<B, R> {
    /// How many requests were posted before the one that was refused.
    pub posted: usize,
    /// The memory of the refused request and of the requests after it, in the order of posting.
    pub refused: Vec<PostedMemory<B>>,
    /// How many requests the device may or may not have, because the provider did not say which request it refused.
    /// Their memory comes back with completions, or after the pair was reset or destroyed. The pair is broken. This is
    /// 0 if `refused` is not empty.
    pub uncertain: usize,
    /// What the provider answered.
    pub source: VerbError,
    /// What the closure returned.
    pub result: R,
}

/// A [`BatchError`] without memory and result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BatchCause {
    /// How many requests were posted before the one that was refused.
    pub posted: usize,
    /// How many requests were refused.
    pub refused: usize,
    /// How many requests the device may have.
    pub uncertain: usize,
    /// What the provider answered.
    pub source: VerbError,
}

impl fmt::Display for BatchCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { posted, refused, uncertain, .. } = self;
        match uncertain {
            0 => write!(
                f,
                "the provider posted {posted} requests of a batch and refused {refused} (see docs/failures.md#refused)"
            ),
            _ => write!(
                f,
                "the provider failed: it posted {posted} requests of a batch, and perhaps {uncertain} more (see \
                 docs/failures.md#uncertain)"
            ),
        }
    }
}

impl error::Error for BatchCause {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.source)
    }
}

impl<B, R> BatchError<B, R> {
    fn cause(&self) -> BatchCause {
        let Self { posted, uncertain, source, .. } = *self;
        BatchCause { posted, refused: self.refused.len(), uncertain, source }
    }

    /// The error without the memory and the result, which are dropped. The cause has no brand, so it can leave the
    /// closure of [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> BatchCause {
        self.cause()
    }

    /// The same error, with the result replaced by the result of `f`.
    pub fn map<P>(self, f: impl FnOnce(R) -> P) -> BatchError<B, P> {
        let Self { posted, refused, uncertain, source, result } = self;
        BatchError { posted, refused, uncertain, source, result: f(result) }
    }
}

impl<B, R> fmt::Display for BatchError<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause().fmt(f)
    }
}

impl<B, R> fmt::Debug for BatchError<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchError")
            .field("posted", &self.posted)
            .field("refused", &self.refused.len())
            .field("uncertain", &self.uncertain)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl<B, R> error::Error for BatchError<B, R> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Not all items of a vector were posted, although the queue had room. Items that were not made into requests are still
/// in the vector.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PostAllError<B, R> {
    /// A request cannot be posted, and comes back. The requests before it are posted. They complete with the next
    /// signalled request of the queue.
    #[error(transparent)]
    Stopped(Box<PostError<R>>),
    /// The provider refused requests, or failed. The `result` inside is the number of requests that were added; or a
    /// request that was not added, because it cannot be posted or because it came after the failure.
    #[error(transparent)]
    Failed(Box<BatchError<B, Result<usize, PostError<R>>>>),
}

/// A [`PostAllError`] without the requests.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostAllCause {
    /// A request cannot be posted.
    #[error(transparent)]
    Stopped(PostError<()>),
    /// The provider refused requests, or failed.
    #[error(transparent)]
    Failed(BatchCause),
}

impl<B, R> PostAllError<B, R> {
    /// The error without the requests, which are dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> PostAllCause {
        match self {
            Self::Stopped(error) => PostAllCause::Stopped(error.into_cause()),
            Self::Failed(error) => PostAllCause::Failed(error.into_cause()),
        }
    }
}

impl<B, R> fmt::Debug for PostAllError<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(error) => error.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}
