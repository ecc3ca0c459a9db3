//! A queue pair split for two threads.

use super::attributes::Modify;
use super::batch::{Batch, batch};
#[cfg(feature = "aio")]
use super::places::QueueIds;
use super::request_kinds::{self, BindWindow, FillMemory, RequestMemory, Revoke, SendInvalidating, SendMemory};
use super::transport::{Carries, ReliableConnection, Transport, header_bytes};
use super::untyped::PairCore;
use crate::domain::Brand;
use crate::domain::brand::Branded;
use crate::inflight::{
    BatchError, PostAllError, PostError, ReceiveQueue, SendQueue, Status, WorkId, WorkRequest, post_all,
};
use crate::memory::{Bindable, BoundWindow, Exposed, RemoteWindow, Window, WindowRights, WindowType};
use crate::sys::ibv_qp_state;
use crate::types::Qpn;
use crate::verb_error::VerbError;
use std::convert::identity;
use std::{fmt, marker::PhantomData, sync::Arc};

/// The half of a pair that sends. The pair is destroyed when both halves are dropped.
///
/// Transitions need the whole pair: [`join`](Self::join) the halves first.
pub struct SendHalf<B, T = ReliableConnection> {
    pub(super) half: (SendQueue, Arc<PairCore>),
    brand: Branded<B>,
    transport: PhantomData<fn() -> T>,
}

/// The half of a pair that receives.
pub struct ReceiveHalf<B, T = ReliableConnection> {
    pub(super) half: (ReceiveQueue, Arc<PairCore>),
    brand: Branded<B>,
    transport: PhantomData<fn() -> T>,
}
static_assertions::assert_impl_all!(SendHalf<()>: Send);
static_assertions::assert_impl_all!(ReceiveHalf<()>: Send);
static_assertions::assert_not_impl_any!(SendHalf<()>: Clone, Copy);
static_assertions::assert_not_impl_any!(ReceiveHalf<()>: Clone, Copy);

/// Two halves of different pairs. Both come back.
#[derive(thiserror::Error)]
#[error("the halves belong to different queue pairs: join the two halves of one pair")]
pub struct JoinHalvesError<B, T> {
    /// The half that sends.
    pub send: SendHalf<B, T>,
    /// The half that receives.
    pub receive: ReceiveHalf<B, T>,
}

impl<B, T> JoinHalvesError<B, T> {
    /// The error without the halves, which are dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> OfDifferentPairs {
        OfDifferentPairs
    }
}

/// A [`JoinHalvesError`] without the halves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the halves belong to different queue pairs: join the two halves of one pair")]
#[non_exhaustive]
pub struct OfDifferentPairs;

impl<B, T> fmt::Debug for JoinHalvesError<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHalvesError").finish_non_exhaustive()
    }
}

fn broken_by(core: &PairCore) -> Option<Status> {
    core.first_failure().or(core.is_broken().then_some(Status::Flushed))
}

impl<B: Brand, T: Transport> SendHalf<B, T> {
    pub(super) fn new(queue: SendQueue, core: Arc<PairCore>) -> Self {
        Self { half: (queue, core), brand: PhantomData, transport: PhantomData }
    }

    /// The id that the next request gets, unless the pair is reset before.
    #[inline(always)]
    pub(crate) fn next_id(&self) -> WorkId {
        self.half.0.id()
    }

    /// How many more requests fit; 0 if the pair is broken.
    #[inline(always)]
    pub(crate) fn room(&self) -> u32 {
        self.half.0.room()
    }

    /// How many requests are in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.half.0.outstanding()
    }

    /// The ids of the queue.
    #[cfg(feature = "aio")]
    pub(crate) fn ids(&self) -> QueueIds {
        let next = self.next_id();
        let first = self.half.1.places.as_ref().map_or(next, |places| places.send.next);
        QueueIds { first, next, in_flight: self.in_flight(), pair: self.number() }
    }

    /// What broke the pair, as far as the poller saw; [`Status::Flushed`] if it saw no other failure.
    pub(crate) fn broken_by(&self) -> Option<Status> {
        broken_by(&self.half.1)
    }

    /// Moves the pair to Error.
    pub(crate) fn end_traffic(&self) -> Result<(), VerbError> {
        self.half.1.modify(Modify::to(ibv_qp_state::IBV_QPS_ERR))?;
        // If nothing is in flight, no flushed request tells the poller that the pair is in Error. So record that here.
        self.half.1.note_broken();
        Ok(())
    }

    /// Posts a request: see [`QueuePair::post`](crate::QueuePair::post).
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post`](crate::QueuePair::post).
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

    /// Sends the filled part of `memory`: see [`QueuePair::post_send`](crate::QueuePair::post_send).
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_send`](crate::QueuePair::post_send).
    #[inline]
    pub fn post_send<M: SendMemory<B>>(&mut self, memory: M) -> Result<WorkId, PostError<M>>
    where
        T: Carries<request_kinds::Send>,
    {
        self.half.0.post(WorkRequest::send(memory), WorkRequest::into_inner)
    }

    /// Lends `f` a batch: see [`QueuePair::batch`](crate::QueuePair::batch).
    ///
    /// # Errors
    ///
    /// As [`QueuePair::batch`](crate::QueuePair::batch).
    #[inline]
    pub fn batch<'env, R>(
        &mut self,
        f: impl for<'batch> FnOnce(&mut Batch<'batch, 'env, B, T>) -> R,
    ) -> Result<R, BatchError<B, R>> {
        batch(&mut self.half.0, f)
    }

    /// Posts requests for the items of a vector: see [`QueuePair::post_all`](crate::QueuePair::post_all).
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_all`](crate::QueuePair::post_all).
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
}

/// Memory windows.
impl<B: Brand, T: Transport> SendHalf<B, T> {
    /// Binds a window: see [`QueuePair::post_bind`](crate::QueuePair::post_bind).
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_bind`](crate::QueuePair::post_bind).
    #[allow(clippy::type_complexity, reason = "a window and its memory")]
    pub fn post_bind<W: WindowRights, K: WindowType>(
        &mut self,
        window: Window<B, K>,
        memory: Bindable<B>,
    ) -> Result<WorkId, PostError<(Window<B, K>, Bindable<B>)>>
    where
        T: Carries<BindWindow>,
    {
        self.half.0.post_bind::<W, B, K>(window, memory)
    }

    /// Ends a window: see [`QueuePair::post_revoke`](crate::QueuePair::post_revoke).
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_revoke`](crate::QueuePair::post_revoke).
    pub fn post_revoke<K: WindowType>(
        &mut self,
        window: BoundWindow<B, K>,
    ) -> Result<WorkId, PostError<BoundWindow<B, K>>>
    where
        T: Carries<Revoke<K>>,
    {
        self.half.0.post_revoke(window)
    }

    /// Sends, and ends the peer's window: see
    /// [`QueuePair::post_send_invalidating`](crate::QueuePair::post_send_invalidating).
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_send_invalidating`](crate::QueuePair::post_send_invalidating).
    pub fn post_send_invalidating<M: SendMemory<B>, A: Exposed>(
        &mut self,
        memory: M,
        window: &RemoteWindow<A>,
    ) -> Result<WorkId, PostError<M>>
    where
        T: Carries<SendInvalidating>,
    {
        self.half.0.post_send_invalidating(memory, window)
    }
}

impl<B: Brand, T: Transport> ReceiveHalf<B, T> {
    pub(super) fn new(queue: ReceiveQueue, core: Arc<PairCore>) -> Self {
        Self { half: (queue, core), brand: PhantomData, transport: PhantomData }
    }

    /// The id that the next receive gets, unless the pair is reset before.
    pub(crate) fn next_id(&self) -> WorkId {
        self.half.0.id()
    }

    /// The ids of the queue.
    #[cfg(feature = "aio")]
    pub(crate) fn ids(&self) -> QueueIds {
        let next = self.next_id();
        let first = self.half.1.places.as_ref().map_or(next, |places| places.receive.next);
        QueueIds { first, next, in_flight: self.in_flight(), pair: self.number() }
    }

    /// How many receives are in flight.
    #[inline(always)]
    pub(crate) fn in_flight(&self) -> u32 {
        self.half.0.outstanding()
    }

    /// Posts a receive: see [`QueuePair::post_receive`](crate::QueuePair::post_receive).
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_receive`](crate::QueuePair::post_receive).
    #[inline]
    pub fn post_receive<M: FillMemory<B>>(&mut self, memory: M) -> Result<WorkId, PostError<M>> {
        self.half.0.post(memory, header_bytes::<T>())
    }

    /// The number of the pair.
    pub fn number(&self) -> Qpn {
        self.half.1.qpn()
    }

    /// What broke the pair: as [`SendHalf::broken_by`].
    pub(crate) fn broken_by(&self) -> Option<Status> {
        broken_by(&self.half.1)
    }

    /// As [`PairCore::has_stopped_receiving`].
    #[cfg(feature = "aio")]
    pub(crate) fn has_stopped(&self) -> bool {
        self.half.1.has_stopped_receiving()
    }

    /// As [`PairCore::may_keep_requests`].
    #[cfg(feature = "aio")]
    pub(crate) fn may_keep_requests(&self) -> bool {
        self.half.1.may_keep_requests()
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
