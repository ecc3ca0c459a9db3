//! Posting what binds and ends memory windows.
//!
//! ASSUMPTION: on a provider whose windows are barriers (`Windows` of `provider/reviewed.rs`), the completion of an invalidation, or of
//! the unbinding of a window of a type that is named there, comes after the device's last access through the window.
#![allow(unsafe_code, reason = "calls the provider's post functions")]

use super::pair::QueuePair;
use super::post::SendQueue;
use super::post_error::PostError;
use super::post_error::RequestFlaw;
use super::request::{BindWindow, Fenced, Revoke, SendInvalidating, SendMemory, WorkRequest};
use super::staged::Staged;
use super::state::{PostSend, State};
use super::transport::{Carries, Transport};
use super::{SendHalf, request};
use crate::domain::{Brand, DomainId};
use crate::error::VerbError;
use crate::inflight::{Entry, Operation, WorkId};
use crate::memory::{
    Bindable, BoundWindow, Exposed, RemoteWindow, Type2, Window, WindowInner, WindowRights, WindowType, window_of_pair,
    window_rights,
};
use crate::sys::{self, ibv_send_flags, ibv_wr_opcode};
use std::{mem, ptr};

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;

/// A window, and what it shall be bound over.
type Unbound<B, K> = (Window<B, K>, Bindable<B>);

impl SendQueue {
    /// Why a request about that window is not posted here.
    fn window_flaw<B: Brand>(&self, window: &WindowInner) -> Option<RequestFlaw> {
        if B::CHECKED && window.domain() != self.domain() {
            return Some(RequestFlaw::OtherDomain);
        }
        if self.session().is_some() {
            return Some(RequestFlaw::NotInSession);
        }
        // Of this pair, which is alive, or of one that was destroyed and had its address.
        if window.has_ended() {
            return Some(RequestFlaw::WindowEnded);
        }
        (!window.serves(self.raw)).then_some(RequestFlaw::WindowOfAnotherPair)
    }

    pub(super) fn post_bind<W: WindowRights, B: Brand, K: WindowType>(
        &mut self,
        window: Window<B, K>,
        memory: Bindable<B>,
    ) -> Result<WorkId, PostError<Unbound<B, K>>> {
        let flaw = self.window_flaw::<B>(window.inner());
        let flaw = flaw.or_else(|| memory_flaw(&memory, self.domain(), window.inner().is_barrier()));
        if let Some(flaw) = flaw {
            return Err(PostError::Flawed { request: (window, memory), flaw });
        }
        if self.room() == 0 {
            return Err(self.no_room((window, memory)));
        }
        let mut inner = window.into_inner();
        let one = inner.is_type_1();
        let bind = inner.begin(memory, window_rights::<W>());
        let id = self.push_window(Operation::Bind, inner);
        let (verb, ours) = if one {
            let bind_info = bind.info;
            // SAFETY: alive, as was seen above: of type 1 only its handle ends it, which waits until this is over. The pair is
            // alive and in a state that sends (0), and nobody else posts (`&mut`).
            let posted = unsafe {
                bind.core.bind(self.raw, sys::ibv_mw_bind { wr_id: id.raw(), send_flags: SIGNALED, bind_info })
            };
            (posted, false)
        } else {
            let mut wr = request_of(ibv_wr_opcode::IBV_WR_BIND_MW, id);
            let (mw, rkey, bind_info) = (bind.core.raw(), bind.rkey, bind.info);
            wr.__bindgen_anon_2.bind_mw = sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey, bind_info };
            self.hand_over(&mut wr)
        };
        let restore = |entry: Entry| {
            let mut inner = entry.into_window()?;
            let memory = inner.undo()?;
            Some((Window::of(inner), memory))
        };
        verb.map(|()| id).map_err(|source| self.refused(ours, source, id, restore))
    }

    pub(super) fn post_revoke<B: Brand, K: WindowType>(
        &mut self,
        window: BoundWindow<B, K>,
    ) -> Result<WorkId, PostError<BoundWindow<B, K>>> {
        let inner = window.inner();
        let flaw = self.window_flaw::<B>(inner).or((!inner.is_revocable()).then_some(RequestFlaw::NoBarrier));
        if let Some(flaw) = flaw {
            return Err(PostError::Flawed { request: window, flaw });
        }
        if self.room() == 0 {
            return Err(self.no_room(window));
        }
        let (one, rkey, core) = (inner.is_type_1(), inner.rkey(), inner.core());
        let id = self.push_window(Operation::Revoke, window.into_inner());
        let (verb, ours) = if one {
            let bind_info = sys::ibv_mw_bind_info { mr: ptr::null_mut(), addr: 0, length: 0, mw_access_flags: 0 };
            // SAFETY: as for a bind.
            let posted =
                unsafe { core.bind(self.raw, sys::ibv_mw_bind { wr_id: id.raw(), send_flags: SIGNALED, bind_info }) };
            (posted, false)
        } else {
            let mut wr = request_of(ibv_wr_opcode::IBV_WR_LOCAL_INV, id);
            wr.__bindgen_anon_1.invalidate_rkey = rkey.0;
            self.hand_over(&mut wr)
        };
        let restore = |entry: Entry| entry.into_window().map(BoundWindow::of);
        verb.map(|()| id).map_err(|source| self.refused(ours, source, id, restore))
    }

    /// Puts a window into the ledger; there is room.
    fn push_window(&mut self, operation: Operation, inner: Box<WindowInner>) -> WorkId {
        let id = self.id();
        // SAFETY: there is room, as the callers have seen; nobody else posts.
        unsafe { self.poster.next().push(Entry::window(operation, inner)) };
        id
    }

    /// Posts a request of no bytes; says too whether a refusal names it.
    fn hand_over(&mut self, wr: &mut sys::ibv_send_wr) -> (Result<(), VerbError>, bool) {
        let (wr, mut bad) = (ptr::from_mut(wr), ptr::null_mut());
        // SAFETY: alive, in a state that sends (0), and nobody else posts (`&mut`); the ledger owns what the request names.
        let result = unsafe { (self.verb)(self.raw.as_ptr(), wr, &mut bad) };
        if result == 0 && bad.is_null() {
            return (Ok(()), false);
        }
        let (source, bad) = self.not_posted("ibv_post_send", result, bad);
        (Err(source), ptr::eq(bad, wr))
    }

    fn post_send_invalidating<B: Brand, M: SendMemory<B>, A: Exposed>(
        &mut self,
        memory: M,
        window: &RemoteWindow<A>,
    ) -> Result<WorkId, PostError<M>> {
        let refuse = |request, flaw| Err(PostError::Flawed { request, flaw });
        if self.session().is_some() {
            return refuse(memory, RequestFlaw::NotInSession);
        }
        if !self.most().has_barrier() {
            return refuse(memory, RequestFlaw::NoBarrier);
        }
        let request: WorkRequest<M, Fenced<request::Send>> = WorkRequest::send(memory).fenced();
        let rkey = window.region().rkey().0;
        let amend = |staged: *mut Staged| {
            // SAFETY: staged just now, by the caller of this.
            unsafe { Staged::invalidate(staged, rkey) };
        };
        self.post_amended(request, amend, WorkRequest::into_inner)
    }
}

/// Why no window is bound over `memory`. Where windows are no barriers, they let peers into the whole region.
fn memory_flaw<B: Brand>(memory: &Bindable<B>, domain: DomainId, barriers: bool) -> Option<RequestFlaw> {
    if B::CHECKED && !memory.is_of(domain) {
        return Some(RequestFlaw::OtherDomain);
    }
    let (address, len_bytes, region_bytes) = memory.extent();
    if !address.is_multiple_of(8) || !len_bytes.is_multiple_of(8) {
        return Some(RequestFlaw::NotInWords { address, len_bytes });
    }
    (!barriers && len_bytes != region_bytes).then_some(RequestFlaw::WindowOverPart { len_bytes, region_bytes })
}

/// A signalled request of no bytes.
fn request_of(opcode: ibv_wr_opcode, id: WorkId) -> sys::ibv_send_wr {
    // SAFETY: a C struct of numbers and pointers, for which zero is a value.
    let mut wr: sys::ibv_send_wr = unsafe { mem::zeroed() };
    (wr.wr_id, wr.opcode, wr.send_flags) = (id.raw(), opcode, SIGNALED);
    wr.sg_list = (&raw const sys::NO_ELEMENT).cast_mut();
    wr
}

/// Memory windows, on the transports that have them.
impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// A window for this pair alone.
    ///
    /// `ibv_alloc_mw(3)`, of type 2. It is freed before the pair is destroyed.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the device has none. `ENOMEM`: no more.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn window(&mut self) -> Result<Window<B, Type2>, VerbError>
    where
        T: Carries<BindWindow>,
    {
        let Some(core) = self.inner.unsplit() else {
            return Err(VerbError::new("ibv_alloc_mw", libc::EBUSY));
        };
        let (window, of_pair) = window_of_pair(&core.domain, core.raw())?;
        core.keep_window(of_pair);
        Ok(window)
    }

    /// Binds `window` over all of `memory`, so that peers reach it with the rights `W`:
    /// `pair.post_bind::<RemoteWrite, _>(window, memory)`.
    ///
    /// `ibv_post_send(3)` with `IBV_WR_BIND_MW`, for a window of type 1 `ibv_bind_mw(3)`. Both are in flight until
    /// the completion, whose [`Work::Bound`](crate::Work::Bound) (or [`BoundType1`](crate::Work::BoundType1)) has the
    /// bound window, and with it the record for the peer. Each bind has a key of its own.
    ///
    /// # Errors
    ///
    /// [`PostError`] gives both back, but for [`PostError::Uncertain`], which any failure of `ibv_bind_mw` is.
    /// [`RequestFlaw::WindowOverPart`]: the device does not keep peers within a window, so it takes a whole region.
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
    /// [`Work::Revoked`](crate::Work::Revoked) (or [`RevokedType1`](crate::Work::RevokedType1)) has the window, to be
    /// bound again, and the memory, which no peer reaches any more. It fails, and breaks the pair, where the peer has
    /// ended the window before.
    ///
    /// # Errors
    ///
    /// As [`post_bind`](Self::post_bind). [`RequestFlaw::NoBarrier`]: the end of a window gives no memory back on
    /// this device, or does harm; [`dealloc`](BoundWindow::dealloc) it.
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

    /// Sends what is filled of `memory`, and ends the peer's window with it: "done".
    ///
    /// `ibv_post_send(3)` with `IBV_WR_SEND_WITH_INV`, fenced: after all earlier reads and atomics of the queue. The
    /// peer's receive says so: [`Received::invalidated`](crate::Received::invalidated).
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send). [`RequestFlaw::NoBarrier`]: the local device is not reviewed for it.
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
