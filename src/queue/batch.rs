//! Batches: requests that are handed to the device together.

use super::request_kinds::RequestMemory;
use super::transport::{Carries, ReliableConnection};
use crate::domain::Brand;
use crate::inflight::{self, BatchError, PostError, RawBatch, SendQueue, WorkId, WorkRequest};
use std::{fmt, marker::PhantomData};

/// A type that is invariant in both lifetimes.
type Section<'batch, 'env> = fn(&'batch (), &'env ()) -> (&'batch (), &'env ());

/// Requests that are handed to the device together, with one doorbell. Lent by
/// [`QueuePair::batch`](crate::QueuePair::batch).
///
/// Each batch gets a new lifetime `'batch`, so that two batches cannot be swapped. The bytes of an
/// [`Inline`](crate::Inline) request are copied only when the doorbell rings, so they must live for `'env`. When the
/// closure panics, requests that the device does not have yet were never posted, and their ids are used again.
pub struct Batch<'batch, 'env, B, T = ReliableConnection> {
    raw: RawBatch<'batch, 'env, B>,
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
    /// Adds a request. The device gets the request at the end of the batch, or earlier: when 32 requests have come
    /// together, or when the queue is full, so that polling can make room again.
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post`](crate::QueuePair::post). The other requests of the batch are not affected.
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

    /// Adds requests until the iterator ends, and returns how many. Faster than one [`post`](Self::post) for each.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post), with the request that was refused. The requests before it are added; the requests after
    /// it are still in the iterator. To keep those, pass an iterator by reference: `&mut requests`.
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

    /// Calls `make` on each of `items` and adds the request, while the queue has room, and returns how many were added.
    /// Items that do not fit stay in `items`.
    ///
    /// Only the last request makes a completion, whatever the requests ask for; that completion
    /// [retires](crate::Poller::poll_retired) them all. (One more completion comes if a request took the last slot and
    /// polling then made room for more.)
    ///
    /// If there is nothing else in the batch, [`QueuePair::post_all`](crate::QueuePair::post_all) is faster.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post), with the request that was refused, but never [`QueueFull`](PostError::QueueFull). The
    /// requests before it are added, and the next request that makes a completion retires them. The items after it stay
    /// in `items`.
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
