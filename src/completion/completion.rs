//! Completions, which say that a posted request has ended.

use super::ended::Ended;
use super::failure::Failure;
use super::success::Success;
use crate::domain::brand::Branded;
use crate::inflight::{Entry, RawEntry, WorkId};
use std::{fmt, marker::PhantomData};

/// The end of one posted request. Every posted request has exactly one.
///
/// Only its id can be read until [`check`](Self::check) has told success from failure. Dropping it drops the buffer.
///
/// # Rules
///
/// The compiler enforces each rule; programs that break them are in `ui-tests/completion`.
///
/// - C1: a completion says nothing before its status is checked.
/// - C2: a failure has no received message.
/// - C3: a completion comes from the poller, once.
/// - C4: a completion queue has one poller.
/// - C5: a completion channel waits for pollers of its own domain.
/// - C6: only a datagram names its sender.
#[doc(alias = "ibv_wc")]
#[must_use = "it holds the buffer of the request"]
pub struct Completion<B> {
    ended: Ended,
    entry: Entry,
    brand: Branded<B>,
}

impl<B> Completion<B> {
    #[inline(always)]
    pub(super) fn new(ended: Ended, entry: RawEntry) -> Self {
        Self { ended, entry: Entry::from_raw(entry), brand: PhantomData }
    }

    /// The id that the post returned.
    pub fn id(&self) -> WorkId {
        self.ended.id
    }

    /// Tells success from failure. Either result holds the memory of the request.
    ///
    /// # Errors
    ///
    /// [`Failure`]: the request failed, was flushed, or its queue pair was destroyed.
    #[inline(always)]
    pub fn check(self) -> Result<Success<B>, Failure<B>> {
        if self.ended.is_success() {
            return Ok(Success::new(self.ended, self.entry));
        }
        Err(self.ended.into_failure(self.entry))
    }
}

impl<B> fmt::Debug for Completion<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("id", &self.ended.id).field("entry", &self.entry).finish_non_exhaustive()
    }
}
