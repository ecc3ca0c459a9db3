//! A queue pair split for two threads.

use super::batch::{Batch, batch};
use super::datagram::header_bytes;
use super::pair::QueuePair;
use super::request::{self, FillMemory, RequestMemory, SendMemory};
use super::state::ReadyToSend;
use super::transport::{Carries, ReliableConnection, Transport};
use super::untyped::{PairCore, UntypedPair};
use crate::domain::Brand;
use crate::domain::brand::Branded;
use crate::inflight::PostError;
use crate::inflight::{BatchError, PostAllError, Status, WorkId, WorkRequest, post_all};
use crate::inflight::{ReceiveQueue, SendQueue};
use crate::types::Qpn;
use std::convert::identity;
use std::{fmt, marker::PhantomData, sync::Arc};

/// The half of a pair that sends. The pair is destroyed when both halves are dropped.
///
/// Transitions need the whole pair: [`join`](Self::join) the halves first.
pub struct SendHalf<B, T = ReliableConnection> {
    half: (SendQueue, Arc<PairCore>),
    brand: Branded<B>,
    transport: PhantomData<fn() -> T>,
}

/// The half of a pair that receives.
pub struct ReceiveHalf<B, T = ReliableConnection> {
    half: (ReceiveQueue, Arc<PairCore>),
    brand: Branded<B>,
    transport: PhantomData<fn() -> T>,
}
static_assertions::assert_impl_all!(SendHalf<()>: Send);
static_assertions::assert_impl_all!(ReceiveHalf<()>: Send);
static_assertions::assert_not_impl_any!(SendHalf<()>: Clone, Copy);
static_assertions::assert_not_impl_any!(ReceiveHalf<()>: Clone, Copy);

/// Two halves of different pairs. Both come back.
#[derive(thiserror::Error)]
#[error("the halves belong to different queue pairs")]
pub struct JoinHalvesError<B, T> {
    /// The half that sends.
    pub send: SendHalf<B, T>,
    /// The half that receives.
    pub receive: ReceiveHalf<B, T>,
}

impl<B, T> JoinHalvesError<B, T> {
    /// The error without the halves, which are dropped: this error can leave a scoped domain.
    pub fn into_cause(self) -> OfDifferentPairs {
        OfDifferentPairs
    }
}

/// A [`JoinHalvesError`] without the halves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the halves belong to different queue pairs")]
#[non_exhaustive]
pub struct OfDifferentPairs;

impl<B, T> fmt::Debug for JoinHalvesError<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHalvesError").finish_non_exhaustive()
    }
}

impl<B: Brand, T: Transport> SendHalf<B, T> {
    pub(super) fn new(queue: SendQueue, core: Arc<PairCore>) -> Self {
        Self { half: (queue, core), brand: PhantomData, transport: PhantomData }
    }

    pub(super) fn queue_mut(&mut self) -> &mut SendQueue {
        &mut self.half.0
    }

    /// Posts a request: see [`QueuePair::post`].
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post`].
    #[inline]
    pub fn post<M: RequestMemory<B, K>, K>(
        &mut self,
        request: WorkRequest<M, K>,
    ) -> Result<WorkId, PostError<WorkRequest<M, K>>>
    where
        T: Carries<K>,
    {
        self.half.0.post(request, identity)
    }

    /// Sends the filled part of `memory`: see [`QueuePair::post_send`].
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_send`].
    #[inline]
    pub fn post_send<M: SendMemory<B>>(&mut self, memory: M) -> Result<WorkId, PostError<M>>
    where
        T: Carries<request::Send>,
    {
        self.half.0.post(WorkRequest::send(memory), WorkRequest::into_inner)
    }

    /// Lends `f` a batch: see [`QueuePair::batch`].
    ///
    /// # Errors
    ///
    /// As [`QueuePair::batch`].
    #[inline]
    pub fn batch<'env, R>(
        &mut self,
        f: impl for<'batch> FnOnce(&mut Batch<'batch, 'env, B, T>) -> R,
    ) -> Result<R, BatchError<B, R>> {
        batch(&mut self.half.0, f)
    }

    /// Posts requests for the items of a vector: see [`QueuePair::post_all`].
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_all`].
    #[inline]
    pub fn post_all<'env, X, M: RequestMemory<B, K> + 'env, K>(
        &mut self,
        items: &mut Vec<X>,
        make: impl FnMut(X) -> WorkRequest<M, K>,
    ) -> Result<usize, PostAllError<B, WorkRequest<M, K>>>
    where
        T: Carries<K>,
    {
        post_all(&mut self.half.0, items, make)
    }

    /// The number of the pair.
    pub fn number(&self) -> Qpn {
        self.half.1.qpn()
    }

    /// The first failure of the pair that the poller saw.
    pub fn first_failure(&self) -> Option<Status> {
        self.half.1.first_failure()
    }

    /// Rebuilds the whole pair from its two halves.
    ///
    /// # Errors
    ///
    /// `receive` is of another pair; both come back.
    pub fn join(self, receive: ReceiveHalf<B, T>) -> Result<QueuePair<B, ReadyToSend, T>, JoinHalvesError<B, T>> {
        if !Arc::ptr_eq(&self.half.1, &receive.half.1) {
            return Err(JoinHalvesError { send: self, receive });
        }
        let (send, core) = self.half;
        let (receive, other) = receive.half;
        // After this drop the pair holds the only reference to its core.
        drop(other);
        Ok(QueuePair::assume_state(UntypedPair { send, core, receive }))
    }
}

impl<B: Brand, T: Transport> ReceiveHalf<B, T> {
    pub(super) fn new(queue: ReceiveQueue, core: Arc<PairCore>) -> Self {
        Self { half: (queue, core), brand: PhantomData, transport: PhantomData }
    }

    /// Posts a receive: see [`QueuePair::post_receive`].
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_receive`].
    #[inline]
    pub fn post_receive<M: FillMemory<B>>(&mut self, memory: M) -> Result<WorkId, PostError<M>> {
        self.half.0.post(memory, header_bytes::<T>())
    }

    /// The number of the pair.
    pub fn number(&self) -> Qpn {
        self.half.1.qpn()
    }
}

impl<B, T> fmt::Debug for SendHalf<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendHalf").field("number", &self.half.1.qpn()).finish_non_exhaustive()
    }
}

impl<B, T> fmt::Debug for ReceiveHalf<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveHalf").field("number", &self.half.1.qpn()).finish_non_exhaustive()
    }
}
