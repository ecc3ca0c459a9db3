//! What a posted request gives: the memory that was posted, or why there is no answer.

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
    /// Requests whose future was dropped before it had the answer.
    pub strays: u64,
    /// Strays that nobody has taken in time, whose memory was dropped.
    pub dropped_strays: u64,
    /// The fewest receives that were still posted when a receiver took one. If it comes near 0, the peer may have to
    /// wait, or fail: post more. `None` for a sender, and before the first one was taken.
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

    /// The error without the memory, which is dropped: this error can leave a scoped domain.
    pub fn into_cause(self) -> RequestErrorCause {
        match self {
            Self::Failed(failure) => RequestErrorCause::Failed(failure.into_cause()),
            Self::Queue(error) => RequestErrorCause::Queue(error),
        }
    }
}

/// An [`RequestError`] without its memory.
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
