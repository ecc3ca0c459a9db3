//! Receives of a shared receive queue, for tasks.

use super::desk::Desk;
use super::lane::Parked;
use super::outcome::RequestError;
use super::shared_poller::SharedPoller;
use crate::completion::Success;
use crate::domain::Brand;
use crate::queue::shared::{Arrivals, SharedReceiveQueue};
use futures_core::Stream;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The receives of a shared receive queue that complete on one completion queue: a stream that never ends.
///
/// [`Success::queue_pair`](crate::Success::queue_pair) names the pair that took the message. The program posts the
/// receives with [`SharedReceiveQueue::post_receive`]. The future of a wait holds no buffer, so it may be dropped at
/// any time.
pub struct SharedReceives<B> {
    poller: SharedPoller<B>,
    number: u32,
}
static_assertions::assert_impl_all!(SharedReceives<()>: Send);
static_assertions::assert_not_impl_any!(SharedReceives<()>: Clone);

/// Why there is no stream of the receives of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceivesError {
    /// The queue belongs to another protection domain than the poller. This happens only with the brand
    /// [`Checked`](crate::Checked): with other brands it does not compile.
    #[error(
        "the shared receive queue belongs to another protection domain than the poller: make both from one domain (see \
         docs/failures.md#no-stream-of-receives)"
    )]
    OtherDomain,
    /// There is a stream of this queue's receives on this poller already.
    #[error(
        "this poller already has a stream of this queue's receives: use that stream, or drop it first (see \
         docs/failures.md#no-stream-of-receives)"
    )]
    Taken,
}

impl<B: Brand> SharedPoller<B> {
    /// A stream of the receives of `queue` that complete on this poller's completion queue. Those are the receives that
    /// were taken by pairs whose receives complete here. A poller has at most one such stream at a time for each
    /// `queue`.
    ///
    /// # Errors
    ///
    /// [`ReceivesError`].
    pub fn receives_of<A: Arrivals>(
        &self,
        queue: &SharedReceiveQueue<B, A>,
    ) -> Result<SharedReceives<B>, ReceivesError> {
        if queue.domain() != self.domain() {
            return Err(ReceivesError::OtherDomain);
        }
        let number = queue.number();
        let depth = queue.limits().receives;
        if !self.desk().with_after(|state, after| state.lanes.attach_shared(number, depth, after)) {
            return Err(ReceivesError::Taken);
        }
        Ok(SharedReceives { poller: self.clone(), number })
    }
}

impl<B> SharedReceives<B> {
    fn desk(&self) -> &Arc<Desk<B>> {
        self.poller.desk()
    }
}

impl<B: Brand> SharedReceives<B> {
    /// The next receive that completes.
    ///
    /// # Errors
    ///
    /// The receive failed or was flushed: the error has its memory. Or the completion queue failed.
    pub async fn next(&mut self) -> Result<Success<B>, RequestError<B>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`next`](Self::next), for a future written by hand.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Success<B>, RequestError<B>>> {
        let number = self.number;
        let found = self.desk().poll_for(
            context,
            |state| state.lanes.with_shared(number, |lane, _| lane.next_received())?,
            |state, waker, mine, after| {
                let parked = state.lanes.with_shared(number, |lane, tally| lane.park_reader(waker, mine, tally, after));
                parked.unwrap_or(Parked::Yes)
            },
        );
        found.map(|result| match result {
            Ok(completion) => completion.check().map_err(RequestError::Failed),
            Err(error) => Err(RequestError::Queue(error)),
        })
    }
}

impl<B: Brand> Stream for SharedReceives<B> {
    type Item = Result<Success<B>, RequestError<B>>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_next(context).map(Some)
    }
}

impl<B> Drop for SharedReceives<B> {
    fn drop(&mut self) {
        // The lane is dropped without the lock, since the drop of its wakers and memory can run code of the program.
        drop(self.desk().with(|state| state.lanes.detach_shared(self.number)));
    }
}

impl<B> fmt::Debug for SharedReceives<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceives").field("number", &self.number).finish_non_exhaustive()
    }
}
