//! Many posted requests as one future.

use super::desk::Desk;
use super::outcome::RequestErrorCause;
use crate::completion::Completion;
use crate::inflight::WorkId;
use crate::memory::Buffer;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Requests that were posted together. The future is ready when all of them have completed, and gives their buffers
/// back. Memory of other kinds is dropped.
///
/// Dropping the future abandons the answer, not the requests: see [`Posted`](super::Posted). The drop also drops the
/// buffers that have come back already. Call [`take_buffers`](Self::take_buffers) first to keep them.
#[must_use = "the requests are posted; if the future is dropped, their memory goes to its pool or to `Sender::take_stray`"]
pub struct PostedAll<B> {
    desk: Arc<Desk<B>>,
    /// The first request that has not been answered.
    next: WorkId,
    /// How many requests have not been answered.
    left: u32,
    buffers: Vec<Buffer<B>>,
    failure: Option<RequestErrorCause>,
    completed: usize,
}

/// Not all of the requests that were posted together have succeeded.
#[derive(thiserror::Error)]
#[error("{failure} ({completed} of the requests that were posted together succeeded)")]
pub struct PostedAllError<B> {
    /// How many requests succeeded.
    pub completed: usize,
    /// The buffers of all requests that were answered, also of those that failed.
    pub buffers: Vec<Buffer<B>>,
    /// The first failure.
    pub failure: RequestErrorCause,
}

impl<B> fmt::Debug for PostedAllError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostedAllError")
            .field("completed", &self.completed)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl<B> PostedAll<B> {
    /// The requests from the id `first` up to, but without, `end`.
    pub(super) fn new(desk: &Arc<Desk<B>>, first: WorkId, end: WorkId) -> Self {
        let left = end.index().wrapping_sub(first.index());
        Self { desk: Arc::clone(desk), next: first, left, buffers: Vec::new(), failure: None, completed: 0 }
    }

    /// Makes the future put the buffers into the vector `buffers`. If the vector has the capacity, nothing is
    /// allocated.
    pub fn into_vec(mut self, mut buffers: Vec<Buffer<B>>) -> Self {
        buffers.append(&mut self.buffers);
        self.buffers = buffers;
        self
    }

    /// Takes the buffers that have come back so far. The answer then does not have them.
    pub fn take_buffers(&mut self) -> Vec<Buffer<B>> {
        std::mem::take(&mut self.buffers)
    }

    /// How many requests have not been answered yet.
    #[allow(clippy::len_without_is_empty, reason = "a number of requests, not a collection")]
    pub fn len(&self) -> usize {
        self.left as usize
    }

    fn take(&mut self, completion: Completion<B>) {
        self.next = self.next.after(1);
        self.left -= 1;
        match completion.check() {
            Ok(success) => {
                self.completed += 1;
                self.buffers.extend(success.into_buffer());
            }
            Err(failure) => {
                self.failure.get_or_insert(RequestErrorCause::Failed(failure.cause()));
                self.buffers.extend(failure.into_buffer());
            }
        }
    }
}

impl<B> Future for PostedAll<B> {
    type Output = Result<Vec<Buffer<B>>, PostedAllError<B>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.buffers.reserve(this.left as usize);
        while this.left > 0 {
            let (taken, must_settle) = this.desk.take_batch(this.next, this.left, &mut this.buffers);
            this.next = this.next.after(taken);
            this.left -= taken;
            this.completed += taken as usize;
            if must_settle {
                this.desk.settle_taken();
            }
            if this.left == 0 {
                break;
            }
            match this.desk.poll_request(this.next, context) {
                Poll::Ready(Ok(completion)) => this.take(completion),
                Poll::Ready(Err(error)) => {
                    this.left = 0;
                    this.failure.get_or_insert(error.into());
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        let (completed, buffers) = (this.completed, std::mem::take(&mut this.buffers));
        Poll::Ready(match this.failure.take() {
            None => Ok(buffers),
            Some(failure) => Err(PostedAllError { completed, buffers, failure }),
        })
    }
}

impl<B> Drop for PostedAll<B> {
    fn drop(&mut self) {
        self.desk.abandon_all(self.next, self.left);
    }
}

impl<B> fmt::Debug for PostedAll<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostedAll").field("next", &self.next).field("left", &self.left).finish_non_exhaustive()
    }
}
