//! Posting: where memory enters a ledger, and where a request reaches the provider.
//!
//! A post goes through these steps: check the request ([`WorkRequest::plain_length`]), fill the provider's struct
//! ([`Staged`]), put the memory into the ledger ([`FreeSlot`](super::ledger::FreeSlot)), call the provider, and look at
//! its answer ([`WorkQueue::refused`]).
//!
//! ASSUMPTION: where the provider's row says so, a post that points `bad_wr` at a request of ours has queued the
//! requests before that one and no other (`ibv_post_send(3)`, RETURN VALUE). A post that fails otherwise may have
//! queued any of them.
#![allow(unsafe_code, reason = "fills the provider's structs and calls its post functions")]

use super::ledger::Poster;
use super::raw_session::Sessions;
use super::request::{Action, PostLimits, Postable, SIGNALED, To, WorkRequest};
use super::{Entry, Operation, PairStatus, PostError, QueueKind, RequestFlaw, WorkId, is_broken, unlikely};
use crate::domain::{Brand, DomainId};
use crate::memory::{ListInner, WindowCore};
use crate::seal::KEY;
use crate::sys::inline::{PostReceive as PostReceiveVerb, PostSend as PostSendVerb};
use crate::sys::{self, ibv_send_flags};
use crate::types::ReadDepth;
use crate::verb_error::VerbError;
use std::mem::{self, MaybeUninit};
use std::{hint, ptr, ptr::NonNull, sync::Arc};

/// A work queue of a queue pair, with `V` the provider's function that posts to it. Whoever holds it `&mut` is the only
/// one who posts.
///
/// It is a few words: what else a post needs is in the line of the ledger. The processor fetches that line and the
/// provider's data of the pair at the same time, since neither address depends on the other.
pub(crate) struct WorkQueue<V> {
    pub(super) poster: Poster<Entry, Terms>,
    /// # Invariants
    ///
    /// 0. Alive, and in a state that allows a post, whenever a method that posts is called ([`new`](Self::new)).
    pub(super) raw: NonNull<sys::ibv_qp>,
    /// 1. Posts to `raw`, and may be called while (0) holds.
    verb: V,
}

pub(crate) type SendQueue = WorkQueue<PostSendVerb>;
pub(crate) type ReceiveQueue = WorkQueue<PostReceiveVerb>;

/// What posts are checked against, and the status that they share with the poller.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) limits: PostLimits,
    pub(crate) status: Arc<PairStatus>,
}

// SAFETY: the raw pair may be used from any thread. Its send and receive queue are independent: the provider locks each
// of them, or was told that nobody shares them (`ibv_post_send(3)`).
unsafe impl<V: Send> Send for WorkQueue<V> {}
// SAFETY: shared access does not post. It only reads the address of the raw pair.
unsafe impl<V: Sync> Sync for WorkQueue<V> {}
// The two impls above do not ask this of the other fields.
static_assertions::assert_impl_all!(Poster<Entry, Terms>: Send, Sync);

impl<V> WorkQueue<V> {
    /// # Safety
    ///
    /// `raw` is alive, and in a state that allows a post, whenever a method of the queue posts; `verb` is its
    /// provider's function for this kind of queue. If `terms.limits.posting` is in sessions, the pair was made for
    /// them. Nobody else posts to this queue of `raw`.
    pub(crate) unsafe fn new(poster: Poster<Entry>, raw: NonNull<sys::ibv_qp>, verb: V, terms: Terms) -> Self {
        Self { poster: poster.with(terms), raw, verb }
    }

    /// Goes on with the ledger of the pair's next life.
    pub(crate) fn renew(&mut self, poster: Poster<Entry>, status: Arc<PairStatus>) {
        let terms = Terms { status, ..self.poster.own().clone() };
        self.poster = poster.with(terms);
    }

    #[inline(always)]
    pub(crate) fn limits(&self) -> PostLimits {
        self.poster.own().limits
    }

    #[inline(always)]
    fn status(&self) -> &PairStatus {
        &self.poster.own().status
    }

    /// The domain that its memory belongs to.
    #[inline(always)]
    pub(crate) fn domain(&self) -> DomainId {
        self.status().domain
    }

    /// How many requests are in flight.
    pub(crate) fn outstanding(&self) -> u32 {
        self.poster.outstanding()
    }

    /// How many more requests fit; 0 if the pair is broken.
    #[inline(always)]
    pub(crate) fn room(&self) -> u32 {
        if self.is_broken() { 0 } else { self.poster.free() }
    }

    #[inline(always)]
    pub(super) fn is_broken(&self) -> bool {
        is_broken(self.poster.detour())
    }

    /// Why there is no room for `request`.
    #[cold]
    #[inline(never)]
    pub(super) fn no_room<R>(&self, request: R) -> PostError<R> {
        if self.is_broken() {
            return PostError::Broken { request, first_failure: self.status().first_failure() };
        }
        PostError::QueueFull(request)
    }

    /// The id of the next request.
    #[inline(always)]
    pub(super) fn id(&self) -> WorkId {
        WorkId::from_raw(self.poster.next_id())
    }

    /// Refuses all later posts: the device may have a request that the provider did not account for.
    pub(crate) fn poison(&self) {
        self.status().poison();
    }

    /// The error of a post that did not queue everything, and the request from which on nothing was queued; null where
    /// that is not sure.
    ///
    /// siw answers 0, names a request, and has queued the requests before it.
    #[cold]
    pub(super) fn not_posted<R>(&self, verb: &'static str, result: i32, bad: *mut R) -> (VerbError, *mut R) {
        let errno = if result == 0 { libc::EINVAL } else { result.wrapping_abs() };
        let bad = if self.status().refusal_is_sure { bad } else { ptr::null_mut() };
        (VerbError::new(verb, errno), bad)
    }

    /// [`not_posted`](Self::not_posted) for the single request `ours`.
    #[cold]
    fn not_posted_alone<R>(
        &self,
        verb: &'static str,
        result: i32,
        bad: *mut R,
        ours: *const R,
    ) -> (VerbError, Option<Unqueued>) {
        let (source, bad) = self.not_posted(verb, result, bad);
        (source, ptr::eq(bad, ours).then_some(Unqueued(())))
    }

    /// The answer for the newest request, which the provider refused. `restore` makes the request from its entry again.
    #[cold]
    fn refused<R>(
        &mut self,
        (source, unqueued): (VerbError, Option<Unqueued>),
        id: WorkId,
        restore: impl FnOnce(Entry) -> Option<R>,
    ) -> PostError<R> {
        // SAFETY: the device was not given the request, as the token shows.
        let entry = unqueued.and_then(|Unqueued(())| unsafe { self.poster.take_back() });
        match entry.and_then(restore) {
            Some(request) => PostError::Refused { request, source },
            None => {
                self.poison();
                PostError::Uncertain { id, source }
            }
        }
    }
}

/// Shows that the provider surely did not queue the newest request. Used up by taking the request back.
struct Unqueued(());

impl SendQueue {
    /// Sets how many reads and atomics the pair may have outstanding. With a depth of 0 it takes none.
    pub(crate) fn set_initiator_depth(&mut self, depth: ReadDepth) {
        let flags = &mut self.poster.own_mut().limits.flags;
        *flags = if depth.value() == 0 { *flags & !PostLimits::READS } else { *flags | PostLimits::READS };
    }

    /// Sets the most bytes that a datagram has.
    pub(crate) fn set_datagram_bytes(&mut self, bytes: u16) {
        self.poster.own_mut().limits.datagram_bytes = bytes;
    }

    /// The address of the pair, to compare it.
    pub(super) fn raw(&self) -> NonNull<sys::ibv_qp> {
        self.raw
    }

    /// How to post in sessions, if the queue does so.
    #[inline(always)]
    pub(super) fn sessions(&self) -> Option<Sessions> {
        // SAFETY: the pair was made for sessions (`new`), and is alive when they are used (0).
        self.limits().posting.is_in_sessions().then(|| unsafe { Sessions::of(self.raw) })
    }

    /// Makes rxe look at its send queue, which it does not do by itself after Send Queue Drain.
    ///
    /// The list that is posted has one request, which is at fault: an atomic on no bytes. The provider of rxe refuses
    /// the request and rings the doorbell all the same.
    #[cold]
    pub(crate) fn nudge(&mut self) {
        if let Some(sessions) = self.sessions() {
            return self.ring_empty(sessions);
        }
        let opcode = sys::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
        let mut wr = sys::ibv_send_wr { wr_id: u64::MAX, opcode, ..Default::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: one request, which names no memory.
        unsafe { self.call(&raw mut wr, &mut bad) };
    }

    /// Calls the provider.
    ///
    /// # Safety
    ///
    /// `first` starts a list of filled requests. The ledger owns the memory that they name, or the provider copies it.
    #[inline(always)]
    unsafe fn call(&mut self, first: *mut sys::ibv_send_wr, bad: &mut *mut sys::ibv_send_wr) -> i32 {
        // SAFETY: alive, in a state that sends (0), and nobody else posts (`&mut`). The list is the caller's promise.
        unsafe { (self.verb)(self.raw.as_ptr(), first, bad) }
    }

    /// Hands the list that starts at `first` to the device.
    ///
    /// # Safety
    ///
    /// As for [`call`](Self::call).
    #[inline(always)]
    pub(super) unsafe fn ring(&mut self, first: *mut Staged) -> Result<(), (VerbError, *mut Staged)> {
        let mut bad = ptr::null_mut();
        // SAFETY: the caller's promise.
        let result = unsafe { self.call(first.cast(), &mut bad) };
        // One test for both: the result is 0, and no request is named.
        if bad.addr() | result as usize == 0 {
            Ok(())
        } else {
            Err(self.not_posted("ibv_post_send", result, bad.cast()))
        }
    }

    /// Posts an empty request, also on a broken pair: its flush brings back unsignalled requests that succeeded before
    /// it.
    ///
    /// `None` if there is no room, since then the newest request is a signalled one; or if the provider refused.
    #[cold]
    pub(crate) fn post_marker<B: Brand, M: Postable<B>, K>(&mut self, request: WorkRequest<M, K>) -> Option<WorkId> {
        // Behind a request that the device may not have, a marker would say that the request succeeded.
        if self.poster.free() == 0 || self.status().is_poisoned() {
            return None;
        }
        self.post_checked(request, 0, false, |_| (), |_| ()).ok()
    }

    /// Keeps the address handle of the next requests' recipient for as long as the request `id` may be in flight.
    ///
    /// # Safety
    ///
    /// The id is that of a free slot.
    #[inline]
    pub(super) unsafe fn keep(&mut self, id: WorkId, to: To<'_>) {
        if let Some(peers) = &self.status().peers {
            // SAFETY: the slot is free (caller), and nobody else posts (`&mut`).
            unsafe { peers.keep(id, to.handle) };
        }
    }

    /// Posts a request. Where it was not posted, `back` makes of it what the program gets.
    #[inline(always)]
    pub(crate) fn post<B: Brand, M: Postable<B>, K, R>(
        &mut self,
        request: WorkRequest<M, K>,
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        let (domain, limits) = (self.domain(), self.limits());
        let next = self.poster.next();
        let Some(length) = request.plain_length(domain, limits) else {
            return self.post_any(request, back);
        };
        let id = WorkId::from_raw(next.id());
        // The last slot is for a signalled request.
        let Some(slot) = next.if_free(!request.is_signalled()) else {
            unlikely();
            return self.post_in_session_or(length, request, back);
        };
        let WorkRequest { memory, action, .. } = request;
        let mut staged = MaybeUninit::uninit();
        let staged = Staged::alone(&mut staged);
        // SAFETY: linked just now, and rung below, before `staged` ends. The length is not 0.
        let (entry, rest) = unsafe { Staged::stage::<false, B, M>(staged, memory, &action, length, id, false) };
        slot.push(entry);
        // SAFETY: staged just now; since the push the ledger owns the memory.
        match unsafe { self.ring(staged) } {
            Ok(()) => Ok(id),
            // SAFETY: staged just now, as the newest.
            Err(failed) => Err(unsafe { self.not_rung::<B, M, K, R>(failed, staged, id, action, rest, back) }),
        }
    }

    /// [`post`](Self::post) of a plain request, in a session if the queue posts so and has room.
    ///
    /// It is inlined and yet costs the short way of lists nothing: the call is marked [`unlikely`], and what is read
    /// for it before the two ways part waits in memory, not in registers that calls preserve.
    #[inline(always)]
    fn post_in_session_or<B: Brand, M: Postable<B>, K, R>(
        &mut self,
        length: u32,
        mut request: WorkRequest<M, K>,
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        if !matches!(request.action.operation, Operation::Send) {
            let Action { remote_addr, rkey, .. } = request.action;
            (request.action.remote_addr, request.action.rkey) = hint::black_box((remote_addr, rkey));
        }
        match self.sessions() {
            Some(sessions) if !self.is_broken() && self.poster.next().has_room(!request.is_signalled()) => {
                // SAFETY: there is room.
                unsafe { self.post_in_session(sessions, request, length, false) }
            }
            _ => self.post_any(request, back),
        }
    }

    /// [`post`](Self::post) of any request to any queue.
    #[cold]
    #[inline(never)]
    fn post_any<B: Brand, M: Postable<B>, K, R>(
        &mut self,
        request: WorkRequest<M, K>,
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        self.post_amended(request, |_| (), back)
    }

    /// [`post`](Self::post) of any request, which `amend` changes before it goes out in a list. Requests in sessions
    /// are not amended.
    #[inline(always)]
    fn post_amended<B: Brand, M: Postable<B>, K, R>(
        &mut self,
        request: WorkRequest<M, K>,
        amend: impl FnOnce(&mut sys::ibv_send_wr),
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        let length = match request.length(self.domain(), self.limits()) {
            Ok(length) => length,
            Err(flaw) => return Err(PostError::Flawed { request: back(request), flaw }),
        };
        match self.room() {
            0 => Err(self.no_room(back(request))),
            room => self.post_checked(request, length, room == 1, amend, back),
        }
    }

    /// Posts a request of this `length`, for which there is room. The `last` that fits is signalled.
    #[inline(always)]
    fn post_checked<B: Brand, M: Postable<B>, K, R>(
        &mut self,
        request: WorkRequest<M, K>,
        length: u32,
        last: bool,
        amend: impl FnOnce(&mut sys::ibv_send_wr),
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        if let Some(sessions) = self.sessions() {
            // SAFETY: there is room (caller).
            return unsafe { self.post_in_session(sessions, request, length, last) };
        }
        let id = self.id();
        let WorkRequest { memory, action, .. } = request;
        if let Some(to) = memory.recipient(KEY) {
            // SAFETY: the next slot is free, since there is room.
            unsafe { self.keep(id, to) };
        }
        let mut staged = MaybeUninit::uninit();
        let staged = Staged::alone(&mut staged);
        // SAFETY: linked just now, and rung below, before `staged` ends.
        let (entry, rest) = unsafe { Staged::stage::<true, B, M>(staged, memory, &action, length, id, last) };
        // SAFETY: staged just now; it points to itself only by a pointer that is used after this reference.
        amend(unsafe { &mut (*staged).wr });
        self.poster.push(entry);
        // SAFETY: staged just now; since the push the ledger owns the memory.
        match unsafe { self.ring(staged) } {
            Ok(()) => Ok(id),
            // SAFETY: staged just now, as the newest.
            Err(failed) => Err(unsafe { self.not_rung::<B, M, K, R>(failed, staged, id, action, rest, back) }),
        }
    }

    /// What a post answers where the provider refused the request in `staged`.
    ///
    /// # Safety
    ///
    /// The request is the newest one, and was staged in `staged`.
    #[cold]
    unsafe fn not_rung<B, M: Postable<B>, K, R>(
        &mut self,
        (source, bad): (VerbError, *mut Staged),
        staged: *mut Staged,
        id: WorkId,
        action: Action,
        rest: M::Rest,
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> PostError<R> {
        let unqueued = (bad == staged).then_some(Unqueued(()));
        self.refused((source, unqueued), id, move |entry| {
            // SAFETY: this entry was staged there (caller).
            unsafe { Staged::unstage(staged, &entry) };
            Some(back(WorkRequest::new(M::from_entry(entry, rest, KEY)?, action)))
        })
    }

    /// Sends what is filled of `memory`, fenced, and ends the peer's window with the key `rkey`. The queue posts in
    /// lists.
    pub(super) fn post_invalidating<B: Brand, M: Postable<B>>(
        &mut self,
        memory: M,
        rkey: u32,
    ) -> Result<WorkId, PostError<M>> {
        let request = WorkRequest::<M, ()>::new(memory, Action::send()).with_flags(ibv_send_flags::IBV_SEND_FENCE);
        let amend = |wr: &mut sys::ibv_send_wr| {
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_SEND_WITH_INV;
            wr.__bindgen_anon_1.invalidate_rkey = rkey;
        };
        self.post_amended(request, amend, WorkRequest::into_inner)
    }

    /// Posts a request about a window of type 2. `entry` has the window and its memory; `restore` makes of it what the
    /// program gets where the provider refused. There is room.
    pub(super) fn post_about_window<R>(
        &mut self,
        entry: Entry,
        fill: impl FnOnce(&mut sys::ibv_send_wr),
        restore: impl FnOnce(Entry) -> Option<R>,
    ) -> Result<WorkId, PostError<R>> {
        let id = self.id();
        let sg_list = (&raw const sys::NO_ELEMENT).cast_mut();
        let mut wr = sys::ibv_send_wr { wr_id: id.raw(), sg_list, send_flags: SIGNALED, ..Default::default() };
        fill(&mut wr);
        self.poster.push(entry);
        let (wr, mut bad) = (&raw mut wr, ptr::null_mut());
        // SAFETY: one filled request of no bytes; the ledger owns the window that it names.
        let result = unsafe { self.call(wr, &mut bad) };
        if result == 0 && bad.is_null() {
            return Ok(id);
        }
        Err(self.refused(self.not_posted_alone("ibv_post_send", result, bad, wr), id, restore))
    }

    /// Binds or unbinds the window `core`, of type 1, which is in `entry`. There is room.
    pub(super) fn post_bind_type_1<R>(
        &mut self,
        core: &WindowCore,
        entry: Entry,
        bind_info: sys::ibv_mw_bind_info,
    ) -> Result<WorkId, PostError<R>> {
        let id = self.id();
        self.poster.push(entry);
        let bind = sys::ibv_mw_bind { wr_id: id.raw(), send_flags: SIGNALED, bind_info };
        // SAFETY: the window is alive, since the ledger owns the only handle that ends one of type 1, and freeing waits
        // for this call. The pair is alive and in a state that sends (0), and nobody else posts (`&mut`).
        match unsafe { core.bind(self.raw, bind) } {
            Ok(()) => Ok(id),
            // The verb names no request.
            Err(source) => Err(self.refused((source, None), id, |_| None)),
        }
    }
}

impl ReceiveQueue {
    /// Posts a receive, whose first `header_bytes` are not for the message.
    #[inline(always)]
    pub(crate) fn post<B: Brand, M: Postable<B>>(
        &mut self,
        mut memory: M,
        header_bytes: usize,
    ) -> Result<WorkId, PostError<M>> {
        if B::CHECKED && !memory.is_of(self.domain(), KEY) {
            return Err(PostError::Flawed { request: memory, flaw: RequestFlaw::OtherDomain });
        }
        let (elements, capacity) = memory.extent(KEY);
        if elements > 1 && elements > usize::from(self.limits().elements) {
            let flaw = RequestFlaw::TooManyElements { elements, most: self.limits().elements.into() };
            return Err(PostError::Flawed { request: memory, flaw });
        }
        if header_bytes != 0 && capacity < header_bytes {
            let flaw = RequestFlaw::NoRoomForHeader { len_bytes: capacity as u64 };
            return Err(PostError::Flawed { request: memory, flaw });
        }
        let next = self.poster.next();
        let id = WorkId::from_raw(next.id());
        let Some(slot) = next.if_free(false) else { return Err(self.no_room(memory)) };
        let (sg_list, count) = match (memory.part(KEY), 1) {
            (Some(part), one) => (part.whole_element(), one),
            (None, _) => memory.list(KEY).map_or((ptr::null_mut(), 0), ListInner::whole_elements),
        };
        let (entry, rest) = memory.into_entry(Operation::Receive, KEY);
        slot.push(entry);
        let mut wr = sys::ibv_recv_wr { wr_id: id.raw(), next: ptr::null_mut(), sg_list, num_sge: count as i32 };
        if capacity == 0 {
            unlikely();
            // An element of length 0 means 2^31 bytes to some devices.
            wr.num_sge = 0;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: alive, at or above Init (0), and nobody else posts (`&mut`); the ledger owns the buffer.
        let result = unsafe { (self.verb)(self.raw.as_ptr(), &mut wr, &mut bad) };
        // One test for both: the result is 0, and no request is named.
        if bad.addr() | result as usize == 0 {
            return Ok(id);
        }
        let restore = |entry| M::from_entry(entry, rest, KEY);
        Err(self.refused(self.not_posted_alone("ibv_post_recv", result, bad, &wr), id, restore))
    }
}

/// A request as the provider reads it.
#[repr(C)]
pub(super) struct Staged {
    wr: sys::ibv_send_wr,
    /// The element of an inline request, to which the request points. Other requests have theirs in a descriptor.
    element: sys::ibv_sge,
    /// How many bytes of the memory were filled before, in case it comes back.
    filled_before: usize,
}

impl Staged {
    /// Links `room` as the only request of a list.
    #[inline(always)]
    fn alone(room: &mut MaybeUninit<Self>) -> *mut Self {
        // One pointer for all uses: the request may point into itself.
        let this: *mut Self = room.as_mut_ptr();
        // SAFETY: `room` may be written.
        unsafe { Self::link(this, ptr::null_mut()) };
        this
    }

    /// Makes the request point to `next`.
    ///
    /// # Safety
    ///
    /// `this` may be written.
    #[inline(always)]
    pub(super) unsafe fn link(this: *mut Self, next: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { (*this).wr.next = next.cast() };
    }

    /// Takes a request apart: into `this` for the device, and into an entry for the ledger. The device does not know it
    /// yet. If it is the `last` that the queue has room for, it is signalled. The `length` is not 0, unless it may be
    /// `ANY`.
    ///
    /// # Safety
    ///
    /// `this` may be written, is linked, and stays where it is until it is rung: the request may point to its own
    /// element. `length` is what [`WorkRequest::length`] answered.
    #[inline(always)]
    pub(super) unsafe fn stage<const ANY: bool, B, M: Postable<B>>(
        this: *mut Self,
        mut memory: M,
        action: &Action,
        length: u32,
        id: WorkId,
        last: bool,
    ) -> (Entry, M::Rest) {
        let mut flags = action.flags | if last { SIGNALED } else { 0 };
        let mut count = 1;
        let sg_list = if let Some(part) = memory.part(KEY) {
            if action.operation.fills() {
                // SAFETY: may be written (caller).
                unsafe { (*this).filled_before = part.filled() };
                part.set_filled(length as usize);
            }
            // The element has `length` bytes: those that are filled, or that count as filled from here on.
            part.element()
        } else if let Some(list) = memory.list(KEY) {
            if action.operation.fills() {
                list.note();
                list.fill(length as usize);
            }
            let (elements, filled) = list.filled_elements();
            count = filled;
            elements
        } else {
            flags |= ibv_send_flags::IBV_SEND_INLINE.0;
            // The provider reads the bytes when the request is posted.
            let addr = memory.bytes(KEY).as_ptr().expose_provenance() as u64;
            let element = this.wrapping_byte_add(mem::offset_of!(Self, element)).cast::<sys::ibv_sge>();
            // SAFETY: may be written (caller).
            unsafe { element.write(sys::ibv_sge { addr, length, lkey: 0 }) };
            element
        };
        if ANY && length == 0 {
            // An element of length 0 means 2^31 bytes to some devices.
            count = 0;
        }
        #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one struct, member by member")]
        // SAFETY: `this` may be written (caller); each member is written in place. What the opcode does not use is left
        // as it is.
        unsafe {
            let wr = &raw mut (*this).wr;
            (&raw mut (*wr).wr_id).write(id.raw());
            (&raw mut (*wr).sg_list).write(sg_list);
            (&raw mut (*wr).num_sge).write(count as i32);
            (&raw mut (*wr).opcode).write(action.opcode);
            (&raw mut (*wr).send_flags).write(flags);
            if action.has_immediate() {
                (&raw mut (*wr).__bindgen_anon_1.imm_data).write(action.immediate_be);
            }
            if let Some(to) = memory.recipient(KEY) {
                (&raw mut (*wr).wr.ud.ah).write(to.handle.raw());
                (&raw mut (*wr).wr.ud.remote_qpn).write(to.queue_pair.value());
                (&raw mut (*wr).wr.ud.remote_qkey).write(to.qkey.0);
            }
            match action.operation {
                Operation::Write | Operation::Read => {
                    (&raw mut (*wr).wr.rdma.remote_addr).write(action.remote_addr);
                    (&raw mut (*wr).wr.rdma.rkey).write(action.rkey);
                }
                Operation::CompareAndSwap | Operation::FetchAndAdd => {
                    (&raw mut (*wr).wr.atomic.remote_addr).write(action.remote_addr);
                    (&raw mut (*wr).wr.atomic.rkey).write(action.rkey);
                    (&raw mut (*wr).wr.atomic.compare_add).write(action.compare_add);
                    (&raw mut (*wr).wr.atomic.swap).write(action.swap);
                }
                // Atomic writes go in sessions only; requests about windows are not staged.
                Operation::Send | Operation::Receive | Operation::AtomicWrite | Operation::Bind | Operation::Revoke => {
                }
            }
        }
        memory.into_entry(action.operation, KEY)
    }

    /// Makes the request complete with a completion of its own.
    ///
    /// # Safety
    ///
    /// `this` is staged.
    #[inline(always)]
    pub(super) unsafe fn signal(this: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { (*this).wr.send_flags |= SIGNALED };
    }

    /// Undoes what [`stage`](Self::stage) did to the memory of `entry`.
    ///
    /// # Safety
    ///
    /// `entry` was staged in `this`.
    pub(super) unsafe fn unstage(this: *const Self, entry: &Entry) {
        if !entry.operation(QueueKind::Send).fills() {
            return;
        }
        if let Some(part) = entry.part() {
            // SAFETY: written when the request was staged (caller).
            part.set_filled(unsafe { (*this).filled_before });
        } else if let Some(list) = entry.as_list() {
            list.restore();
        }
    }
}
