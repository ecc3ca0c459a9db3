//! Why a posted request has no good answer, and counts of what became of requests.

use crate::completion::{Failure, FailureCause, PollError};
use std::fmt;

/// What became of the requests of a sender or a receiver since it was made. A program can export the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Counters {
    /// Requests that were posted.
    pub posted: u64,
    /// Requests that have completed, failed ones included.
    pub completed: u64,
    /// Requests that have failed, or were flushed.
    pub failed: u64,
    /// Requests that have completed, and whose future was dropped before it had the answer, or whose post was
    /// [uncertain](crate::PostError::Uncertain).
    pub strays: u64,
    /// Strays whose memory was dropped, because nobody took them before the depth of the queue was reached.
    pub dropped_strays: u64,
    /// Each time the receiver takes a receive, it notes how many are still posted: this is the lowest number so far. If
    /// it is near 0, post more receives, or the peer's sends may wait or fail. `None` for a sender, and before the
    /// first receive was taken.
    pub fewest_receives: Option<u32>,
}

/// What a [`SharedPoller`](super::SharedPoller) has done since it was made. A program can export the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct PollerCounters {
    /// How often a task went to sleep because nothing had come.
    pub sleeps: u64,
    /// How often the driver has polled for all tasks.
    pub turns: u64,
}

/// Why a posted request has no good answer.
pub enum RequestError<B> {
    /// The request failed. The memory comes back in it.
    Failed(Failure<B>),
    /// The completion queue failed, so no completion can come any more. The memory stays with the device until the
    /// queue pair is destroyed.
    Queue(PollError),
}

impl<B> RequestError<B> {
    /// The failure of the request, if that is the reason.
    pub fn into_failure(self) -> Option<Failure<B>> {
        match self {
            Self::Failed(failure) => Some(failure),
            Self::Queue(_) => None,
        }
    }

    /// The error without the memory, which is dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> RequestErrorCause {
        match self {
            Self::Failed(failure) => RequestErrorCause::Failed(failure.into_cause()),
            Self::Queue(error) => RequestErrorCause::Queue(error),
        }
    }
}

/// A [`RequestError`] without its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestErrorCause {
    /// The request failed.
    #[error(transparent)]
    Failed(#[from] FailureCause),
    /// The completion queue failed.
    #[error(transparent)]
    Queue(#[from] PollError),
}

impl<B> fmt::Display for RequestError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => failure.fmt(f),
            Self::Queue(error) => error.fmt(f),
        }
    }
}

impl<B> fmt::Debug for RequestError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => f.debug_tuple("Failed").field(failure).finish(),
            Self::Queue(error) => f.debug_tuple("Queue").field(error).finish(),
        }
    }
}

impl<B> std::error::Error for RequestError<B> {}

impl<B> From<Failure<B>> for RequestError<B> {
    fn from(failure: Failure<B>) -> Self {
        Self::Failed(failure)
    }
}
