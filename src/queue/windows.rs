//! Memory windows of a queue pair: making, binding and ending them.

use super::halves::SendHalf;
use super::pair::QueuePair;
use super::request::{BindWindow, Revoke, SendInvalidating, SendMemory};
use super::state::{PostSend, State};
use super::transport::{Carries, Transport};
use crate::domain::Brand;
use crate::inflight::{PostError, WorkId};
use crate::memory::{
    Bindable, BoundWindow, Exposed, RemoteWindow, Type2, Window, WindowRights, WindowType, window_of_pair,
};
use crate::verb_error::VerbError;

/// Memory windows, on the transports that have them.
impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// A window that only this pair can bind.
    ///
    /// `ibv_alloc_mw(3)`, of type 2. It is freed before the pair is destroyed.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the device has no windows. `ENOMEM`: it has no more of them.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn window(&mut self) -> Result<Window<B, Type2>, VerbError>
    where
        T: Carries<BindWindow>,
    {
        let Some(core) = self.inner.unsplit() else {
            return Err(VerbError::new("ibv_alloc_mw", libc::EBUSY));
        };
        let (window, of_pair) = window_of_pair(&core.domain, core.raw.raw())?;
        core.raw.add_window(of_pair);
        Ok(window)
    }

    /// Binds `window` over all of `memory`, so that peers reach it with the rights `W`:
    /// `pair.post_bind::<RemoteWrite, _>(window, memory)`.
    ///
    /// `ibv_post_send(3)` with `IBV_WR_BIND_MW`, for a window of type 1 `ibv_bind_mw(3)`. The window and the memory are
    /// in flight until the completion. Its [`Work::Bound`](crate::Work::Bound) (or
    /// [`BoundType1`](crate::Work::BoundType1)) holds the bound window, and with it the record for the peer. Each bind
    /// has a key of its own.
    ///
    /// # Errors
    ///
    /// [`PostError`] gives both back, except [`PostError::Uncertain`], which every failure of `ibv_bind_mw` is.
    /// [`RequestFlaw::WindowOverPart`](crate::error::RequestFlaw::WindowOverPart): the device does not keep peers
    /// within a window, so it takes a whole region.
    #[doc(alias = "IBV_WR_BIND_MW")]
    #[doc(alias = "ibv_bind_mw")]
    #[allow(clippy::type_complexity, reason = "a window and its memory")]
    pub fn post_bind<W: WindowRights, K: WindowType>(
        &mut self,
        window: Window<B, K>,
        memory: Bindable<B>,
    ) -> Result<WorkId, PostError<(Window<B, K>, Bindable<B>)>>
    where
        S: PostSend,
        T: Carries<BindWindow>,
    {
        self.inner.send.post_bind::<W, B, K>(window, memory)
    }

    /// Ends `window`: invalidates one of type 2, unbinds one of type 1.
    ///
    /// `ibv_post_send(3)` with `IBV_WR_LOCAL_INV`, or `ibv_bind_mw(3)` over no bytes. The completion's
    /// [`Work::Revoked`](crate::Work::Revoked) (or [`RevokedType1`](crate::Work::RevokedType1)) holds the window, which
    /// can be bound again, and the memory, which no peer reaches any more. If the peer has already ended the window,
    /// the request fails and breaks the pair.
    ///
    /// # Errors
    ///
    /// As [`post_bind`](Self::post_bind). [`RequestFlaw::NoBarrier`](crate::error::RequestFlaw::NoBarrier): on this
    /// device, ending a window does not keep peers from the memory, or does harm; [`dealloc`](BoundWindow::dealloc) the
    /// window instead.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    #[doc(alias = "ibv_bind_mw")]
    pub fn post_revoke<K: WindowType>(
        &mut self,
        window: BoundWindow<B, K>,
    ) -> Result<WorkId, PostError<BoundWindow<B, K>>>
    where
        S: PostSend,
        T: Carries<Revoke<K>>,
    {
        self.inner.send.post_revoke(window)
    }

    /// Sends the filled part of `memory`, and ends a window of the peer with the same message.
    ///
    /// `ibv_post_send(3)` with `IBV_WR_SEND_WITH_INV`, fenced: it starts after all earlier reads and atomics of the
    /// queue. The peer's receive reports it: [`Received::invalidated`](crate::completion::Received::invalidated).
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send). [`RequestFlaw::NoBarrier`](crate::error::RequestFlaw::NoBarrier): the
    /// provider of the local device was not reviewed for this operation.
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    pub fn post_send_invalidating<M: SendMemory<B>, A: Exposed>(
        &mut self,
        memory: M,
        window: &RemoteWindow<A>,
    ) -> Result<WorkId, PostError<M>>
    where
        S: PostSend,
        T: Carries<SendInvalidating>,
    {
        self.inner.send.post_send_invalidating(memory, window)
    }
}

/// Memory windows.
impl<B: Brand, T: Transport> SendHalf<B, T> {
    /// Binds a window: see [`QueuePair::post_bind`].
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_bind`].
    #[allow(clippy::type_complexity, reason = "a window and its memory")]
    pub fn post_bind<W: WindowRights, K: WindowType>(
        &mut self,
        window: Window<B, K>,
        memory: Bindable<B>,
    ) -> Result<WorkId, PostError<(Window<B, K>, Bindable<B>)>>
    where
        T: Carries<BindWindow>,
    {
        self.queue_mut().post_bind::<W, B, K>(window, memory)
    }

    /// Ends a window: see [`QueuePair::post_revoke`].
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_revoke`].
    pub fn post_revoke<K: WindowType>(
        &mut self,
        window: BoundWindow<B, K>,
    ) -> Result<WorkId, PostError<BoundWindow<B, K>>>
    where
        T: Carries<Revoke<K>>,
    {
        self.queue_mut().post_revoke(window)
    }

    /// Sends, and ends the peer's window: see [`QueuePair::post_send_invalidating`].
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_send_invalidating`].
    pub fn post_send_invalidating<M: SendMemory<B>, A: Exposed>(
        &mut self,
        memory: M,
        window: &RemoteWindow<A>,
    ) -> Result<WorkId, PostError<M>>
    where
        T: Carries<SendInvalidating>,
    {
        self.queue_mut().post_send_invalidating(memory, window)
    }
}
