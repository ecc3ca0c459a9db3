//! Errors of beginning, using and ending a scope.

use super::Ticket;
use crate::completion::{FailureCause, Poller, WaitError};
use crate::inflight::Status;
use crate::memory::{NotAWord, OutOfBounds, RegisterFailure, SplitError, TooLong};
use crate::queue::{PostError, QueuePair};
use std::{error, fmt};

/// A pair and a poller that cannot become an [`Exclusive`](super::Exclusive). Both come back.
pub struct NotExclusive<B> {
    /// The pair.
    pub queue_pair: QueuePair<B>,
    /// The poller.
    pub poller: Poller<B>,
    /// Why the two do not fit.
    pub reason: SharedQueue,
}

/// Why the pair and the poller do not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedQueue {
    /// The pair's sends or receives complete on another queue.
    #[error("the queue pair must complete both its sends and its receives on the poller's queue")]
    OtherQueue,
    /// Other pairs complete on the queue, or could be created on it.
    #[error(
        "the completion queue has {others} other handles (a queue pair counts as two): drop its `CompletionQueue` and \
         the clones, and the other queue pairs on it"
    )]
    Shared {
        /// The number of `CompletionQueue` handles plus twice the number of other pairs. A pair that the device refused
        /// to destroy counts for ever.
        others: usize,
    },
}

impl<B> NotExclusive<B> {
    /// The reason without the pair and the poller, which are dropped. The reason has no brand, so it can leave the
    /// closure of [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> SharedQueue {
        self.reason
    }
}

impl<B> fmt::Display for NotExclusive<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<B> fmt::Debug for NotExclusive<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotExclusive").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<B> error::Error for NotExclusive<B> {}

impl<B> From<NotExclusive<B>> for SharedQueue {
    fn from(error: NotExclusive<B>) -> Self {
        error.reason
    }
}

/// A scope after which the pair is not connected. All lent memory is the caller's again.
///
/// [`Exclusive::into_parts`](super::Exclusive::into_parts) gives the pair in the state that it reached.
#[non_exhaustive]
pub enum ScopeError<R> {
    /// The pair had failed before, so the closure was not called.
    NotConnected {
        /// The state of the pair.
        state: &'static str,
    },
    /// The closure returned, but a request had failed before, or the end of the scope cut requests off.
    Broken {
        /// What the closure returned.
        result: R,
        /// The state of the pair.
        state: &'static str,
        /// How many requests of the scope had not completed by its end. The peer may have seen all, some or nothing of
        /// them.
        cut_off: u32,
        /// The first failure of the pair, if a request failed before anything was cut off.
        first_failure: Option<Status>,
    },
}

impl<R> ScopeError<R> {
    /// The error without the result of the scope's closure, which is dropped. The error then has no brand, so it can
    /// leave the closure of [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> ScopeError<()> {
        match self {
            Self::NotConnected { state } => ScopeError::NotConnected { state },
            Self::Broken { state, cut_off, first_failure, .. } => {
                ScopeError::Broken { result: (), state, cut_off, first_failure }
            }
        }
    }

    /// What the closure returned; `None` if it was not called.
    pub fn into_result(self) -> Option<R> {
        match self {
            Self::NotConnected { .. } => None,
            Self::Broken { result, .. } => Some(result),
        }
    }
}

impl<R> fmt::Display for ScopeError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected { state } => {
                write!(
                    f,
                    "a scope needs a connected queue pair without failures, and this pair is in {state}: take it back \
                     with `Exclusive::into_parts`, and connect it again or use another one"
                )
            }
            Self::Broken { state, first_failure: Some(first), .. } => {
                write!(f, "the queue pair failed in the scope and is now in {state}: {first}")
            }
            Self::Broken { state, cut_off, .. } => {
                write!(
                    f,
                    "{cut_off} requests were cut off at the end of the scope: they had not completed, and may have \
                     been executed; the queue pair is now in {state}"
                )
            }
        }
    }
}

impl<R> fmt::Debug for ScopeError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected { state } => f.debug_struct("NotConnected").field("state", state).finish(),
            Self::Broken { state, cut_off, first_failure, .. } => f
                .debug_struct("Broken")
                .field("state", state)
                .field("cut_off", cut_off)
                .field("first_failure", first_failure)
                .finish_non_exhaustive(),
        }
    }
}

impl<R> error::Error for ScopeError<R> {}

/// A request of a scope that failed, or that has not completed yet.
#[non_exhaustive]
pub enum WaitFailure<'scope, B, M> {
    /// The request failed.
    Failed {
        /// What the device said.
        cause: FailureCause,
        /// Its memory.
        memory: M,
    },
    /// The request has not completed.
    Unfinished {
        /// The ticket, to wait again.
        ticket: Ticket<'scope, B, M>,
        /// Why there is no completion.
        source: WaitError,
    },
}

impl<B, M> WaitFailure<'_, B, M> {
    /// The error without memory and ticket, which are dropped: this error can leave the scope.
    pub fn into_cause(self) -> InScopeError {
        self.into()
    }
}

impl<B, M> fmt::Display for WaitFailure<'_, B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { cause, .. } => cause.fmt(f),
            Self::Unfinished { source, .. } => write!(f, "the request has not completed: {source}"),
        }
    }
}

impl<B, M> fmt::Debug for WaitFailure<'_, B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { cause, .. } => f.debug_struct("Failed").field("cause", cause).finish_non_exhaustive(),
            Self::Unfinished { source, .. } => {
                f.debug_struct("Unfinished").field("source", source).finish_non_exhaustive()
            }
        }
    }
}

impl<B, M> error::Error for WaitFailure<'_, B, M> {}

/// An error inside a scope, without the memory, so that it can leave the closure.
///
/// `?` turns every error of a scope's methods into this type, and drops the handle that the error gives back. The same
/// holds for the errors of the scope's handles, and of the parts of a [`RemoteRegion`](crate::RemoteRegion).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InScopeError {
    /// Memory was not registered.
    #[error(transparent)]
    Lend(#[from] RegisterFailure),
    /// A request was not posted.
    #[error(transparent)]
    Post(PostError<()>),
    /// A request failed.
    #[error(transparent)]
    Failed(FailureCause),
    /// A request has not completed.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// A range that is not inside the memory.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// More bytes than the memory holds.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// A position at which the memory cannot be split.
    #[error(transparent)]
    Split(SplitError<()>),
    /// An atomic on memory that is not a word.
    #[error(transparent)]
    NotAWord(#[from] NotAWord),
}

impl<M> From<PostError<M>> for InScopeError {
    fn from(error: PostError<M>) -> Self {
        Self::Post(error.map(drop))
    }
}

impl<P> From<SplitError<P>> for InScopeError {
    fn from(error: SplitError<P>) -> Self {
        Self::Split(error.map(drop))
    }
}

impl<B, M> From<WaitFailure<'_, B, M>> for InScopeError {
    fn from(failure: WaitFailure<'_, B, M>) -> Self {
        match failure {
            WaitFailure::Failed { cause, .. } => Self::Failed(cause),
            WaitFailure::Unfinished { source, .. } => Self::Wait(source),
        }
    }
}
