//! Batches, as the program sees them: requests that are handed to the device together.

use super::request::RequestMemory;
use super::transport::{Carries, ReliableConnection};
use crate::domain::Brand;
use crate::inflight::{self, BatchError, PostError, RawBatch, SendQueue, WorkId, WorkRequest};
use std::{fmt, marker::PhantomData};

/// Invariant in both lifetimes.
type Section<'batch, 'env> = fn(&'batch (), &'env ()) -> (&'batch (), &'env ());

/// Requests that are handed to the device together, with one doorbell. Lent by
/// [`QueuePair::batch`](crate::QueuePair::batch).
///
/// `'batch` is new for each batch, so that two batches cannot be swapped. What is posted [`Inline`](crate::Inline) is
/// copied by the doorbell, so it lives for `'env`. What a batch that panicked had not handed over was never posted: its
/// ids are given out again.
pub struct Batch<'batch, 'env, B, T = ReliableConnection> {
    raw: RawBatch<'batch, B>,
    transport: PhantomData<fn() -> T>,
    section: PhantomData<Section<'batch, 'env>>,
}

/// Lends `f` a batch on `queue`.
#[inline(always)]
pub(super) fn batch<'env, B, T, R>(
    queue: &mut SendQueue,
    f: impl for<'batch> FnOnce(&mut Batch<'batch, 'env, B, T>) -> R,
) -> Result<R, BatchError<B, R>> {
    inflight::batch(queue, |raw| {
        let mut batch = Batch { raw, transport: PhantomData, section: PhantomData };
        let result = f(&mut batch);
        (batch.raw, result)
    })
}

impl<'env, B: Brand, T> Batch<'_, 'env, B, T> {
    /// Adds a request. It is handed to the device at the end of the batch; earlier, when 32 requests have come
    /// together, or when the queue is full, so that polling makes room again.
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post`](crate::QueuePair::post). The rest of the batch is not touched.
    #[inline(always)]
    pub fn post<M: RequestMemory<B, K> + 'env, K>(
        &mut self,
        request: WorkRequest<M, K>,
    ) -> Result<WorkId, PostError<WorkRequest<M, K>>>
    where
        T: Carries<K>,
    {
        self.raw.post(request)
    }

    /// Adds requests until there are no more, and returns how many. Faster than as many [`post`](Self::post)s.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post), for the request that comes back. Those before it are added, those after it are still in
    /// the iterator. So where errors are to be expected, pass an iterator that you keep: `&mut requests`.
    #[inline(always)]
    pub fn post_each<M: RequestMemory<B, K> + 'env, K>(
        &mut self,
        requests: impl IntoIterator<Item = WorkRequest<M, K>>,
    ) -> Result<usize, PostError<WorkRequest<M, K>>>
    where
        T: Carries<K>,
    {
        self.raw.post_each(requests)
    }

    /// Adds the requests that `make` makes of `items`, as many as the queue has room for, and returns how many. Items
    /// that do not fit stay in `items`.
    ///
    /// Only the last request makes a completion, whatever the requests ask for: it
    /// [retires](crate::Poller::poll_retired) them all. (So does a request that took the last slot, if polling then
    /// made room for more.)
    ///
    /// If there is nothing else in the batch, [`QueuePair::post_all`](crate::QueuePair::post_all) is faster.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post) except [`QueueFull`](PostError::QueueFull), for the request that comes back. Those
    /// before it are added, to be retired by the next request that makes a completion. The items after it stay in
    /// `items`.
    #[inline(always)]
    pub fn post_all<X, M: RequestMemory<B, K> + 'env, K>(
        &mut self,
        items: &mut Vec<X>,
        make: impl FnMut(X) -> WorkRequest<M, K>,
    ) -> Result<usize, PostError<WorkRequest<M, K>>>
    where
        T: Carries<K>,
    {
        self.raw.post_all(items, make)
    }
}

impl<B, T> fmt::Debug for Batch<'_, '_, B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("staged", &self.raw.count()).finish_non_exhaustive()
    }
}
