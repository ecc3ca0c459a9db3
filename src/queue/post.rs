//! Posting: the one place where memory enters a ledger and a request reaches the provider.
//!
//! ASSUMPTION: where the provider's row says so, a post that points `bad_wr` at a request of ours has queued those before it and
//! no other (`ibv_post_send(3)`, RETURN VALUE). One that fails otherwise may have queued any.
#![allow(unsafe_code, reason = "calls the provider's post functions")]

use super::attr::Limits;
use super::datagram::Recipient;
use super::post_error::{PostError, RequestFlaw};
use super::request::sealed::Stageable;
use super::request::{Action, FillMemory, Inline, Most, WorkRequest};
use super::session::Extended;
use super::staged::Staged;
use crate::domain::{Brand, DomainId};
use crate::error::VerbError;
use crate::inflight::ledger::Poster;
use crate::inflight::{Entry, Operation, PairStatus, WorkId, is_broken, unlikely};
use crate::memory::ListInner;
use crate::provider::reviewed::Promises;
use crate::seal::KEY;
use crate::sys;
use crate::sys::inline::{PostReceive as PostReceiveVerb, PostSend as PostSendVerb};
use crate::types::ReadDepth;
use std::mem::MaybeUninit;
use std::{hint, ptr, ptr::NonNull, sync::Arc};

/// A work queue of a pair, with `V` the provider's function that posts to it. Whoever holds it `&mut` is the only one who
/// posts. Few words: what else a post needs is in the line of the ledger. That and what the provider has of the pair are
/// fetched at once, since neither leads to the other.
pub(crate) struct WorkQueue<V> {
    pub(super) poster: Poster<Entry, Terms>,
    /// # Invariants
    ///
    /// 0. Alive while this is reachable through a pair or its half; in a state that allows a post while those let one
    ///    through. Made for the [`posting`](Most::posting) of the terms.
    pub(super) raw: NonNull<sys::ibv_qp>,
    pub(super) verb: V,
}

pub(super) type SendQueue = WorkQueue<PostSendVerb>;
pub(super) type ReceiveQueue = WorkQueue<PostReceiveVerb>;

/// What posts are checked by, and what they leave besides their entry.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) most: Most,
    status: Arc<PairStatus>,
}

impl Terms {
    pub(super) fn new(limits: &Limits, row: &Promises, status: Arc<PairStatus>) -> Self {
        let Limits { inline_bytes, elements, posting, .. } = *limits;
        let short = |limit: u32| limit.min(u16::MAX.into()) as u16;
        let most = Most {
            inline_bytes: short(inline_bytes),
            datagram_bytes: 0,
            elements: short(elements.max(1)),
            posting,
            flags: if row.windows.are_barriers() { Most::BARRIER | Most::READS } else { Most::READS },
        };
        Self { most, status }
    }
}

// SAFETY: the raw pair may be used from any thread; send and receive queue are independent (`ibv_post_send(3)`: the
// provider locks each, or was told that nobody shares them).
unsafe impl<V: Send> Send for WorkQueue<V> {}
// SAFETY: shared access does not post: of what a raw pair is for, it reads its address only.
unsafe impl<V: Sync> Sync for WorkQueue<V> {}
// The rest of it, for which those do not ask.
static_assertions::assert_impl_all!(Poster<Entry, Terms>: Send, Sync);

impl<V> WorkQueue<V> {
    pub(super) fn new(poster: Poster<Entry>, raw: NonNull<sys::ibv_qp>, verb: V, terms: Terms) -> Self {
        Self { poster: poster.with(terms), raw, verb }
    }

    /// Begins another life of the pair.
    pub(super) fn renew(&mut self, poster: Poster<Entry>, status: Arc<PairStatus>) {
        let terms = Terms { status, ..self.poster.own().clone() };
        self.poster = poster.with(terms);
    }

    /// What it takes at most.
    #[inline(always)]
    pub(super) fn most(&self) -> Most {
        self.poster.own().most
    }

    #[inline(always)]
    fn status(&self) -> &PairStatus {
        &self.poster.own().status
    }

    /// The domain that its memory is of.
    #[inline(always)]
    pub(super) fn domain(&self) -> DomainId {
        self.status().domain
    }

    pub(super) fn outstanding(&self) -> u32 {
        self.poster.outstanding()
    }

    /// How many requests fit; none where the pair is broken.
    #[inline(always)]
    pub(super) fn room(&self) -> u32 {
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

    /// Takes back the newest entry, which the device was not given.
    pub(super) fn take_back(&mut self) -> Option<Entry> {
        // SAFETY: callers take back only what the provider named as refused.
        unsafe { self.poster.take_back() }
    }

    /// The device may have what the provider did not account for: nothing more is posted.
    pub(super) fn poison(&self) {
        self.status().poison();
    }

    /// What a post has answered that did not queue all, and the request that it surely did not queue, nor those after it.
    ///
    /// siw answers 0 and names a request where it has queued those before.
    #[cold]
    pub(super) fn not_posted<R>(&self, verb: &'static str, result: i32, bad: *mut R) -> (VerbError, *mut R) {
        let errno = if result == 0 { libc::EINVAL } else { result.wrapping_abs() };
        let bad = if self.status().refusal_is_sure { bad } else { ptr::null_mut() };
        (VerbError::new(verb, errno), bad)
    }

    /// What to answer where the provider refused a single request, which `restore` makes of its entry.
    #[cold]
    pub(super) fn refused<R>(
        &mut self,
        ours: bool,
        source: VerbError,
        id: WorkId,
        restore: impl FnOnce(Entry) -> Option<R>,
    ) -> PostError<R> {
        // Only a provider that names our request as the bad one has surely not queued it.
        match if ours { self.take_back().and_then(restore) } else { None } {
            Some(request) => PostError::Refused { request, source },
            None => {
                self.poison();
                PostError::Uncertain { id, source }
            }
        }
    }
}

impl SendQueue {
    /// How many reads and atomics the pair may have outstanding: with none, it takes none.
    pub(super) fn set_initiator_depth(&mut self, depth: ReadDepth) {
        let flags = &mut self.poster.own_mut().most.flags;
        *flags = if depth.value() == 0 { *flags & !Most::READS } else { *flags | Most::READS };
    }

    /// What it posts in, if that is sessions.
    #[inline(always)]
    pub(super) fn session(&self) -> Option<Extended> {
        // SAFETY: made for them (0).
        self.most().posting.is_in_sessions().then(|| unsafe { Extended::of(self.raw) })
    }

    /// Lets rxe look at the queue, which does not by itself go on after Send Queue Drain: by a list whose only request is at
    /// fault (an atomic on no bytes), so that its provider refuses it, and rings all the same.
    #[cold]
    pub(super) fn nudge(&mut self) {
        if let Some(session) = self.session() {
            // SAFETY: of this queue, whose pair sends; nobody else posts (`&mut`).
            return unsafe { session.ring_empty() };
        }
        let opcode = sys::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
        let mut wr = sys::ibv_send_wr { wr_id: u64::MAX, opcode, ..Default::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: alive, in a state that sends (0), and nobody else posts (`&mut`); the request has no memory.
        unsafe { (self.verb)(self.raw.as_ptr(), &mut wr, &mut bad) };
    }

    /// Posts a request of nothing, broken or not: its flush brings back what succeeded before it and made no completion.
    /// `None` where there is no room, and then the newest request is a signalled one; or where it was refused.
    #[cold]
    pub(super) fn post_marker(&mut self) -> Option<WorkId> {
        // After what the device may or may not have, it would say that this succeeded.
        if self.poster.free() == 0 || self.status().is_poisoned() {
            return None;
        }
        let request = WorkRequest::send(Inline(&[]));
        if let Some(session) = self.session() {
            // SAFETY: there is room.
            return unsafe { self.post_in_session::<(), _, _, ()>(session, request, 0, false) }.ok();
        }
        let id = self.id();
        let WorkRequest { memory, action, .. } = request;
        let mut staged = MaybeUninit::uninit();
        let staged: *mut Staged = staged.as_mut_ptr();
        // SAFETY: our own, until the end of this function.
        unsafe { Staged::link(staged, ptr::null_mut()) };
        // SAFETY: as above.
        let (entry, _) = unsafe { Staged::stage_any::<(), _>(staged, memory, &action, 0, id, false) };
        // SAFETY: there is room, and nobody else posts.
        unsafe { self.poster.next().push(entry) };
        match self.ring(staged) {
            Ok(()) => Some(id),
            Err((source, bad)) => {
                self.refused(bad == staged, source, id, Some);
                None
            }
        }
    }

    /// Keeps the address handle of the request with this id, as long as that may be in flight.
    ///
    /// # Safety
    ///
    /// The id is that of a free slot, and the caller the only one who posts.
    #[inline]
    pub(super) unsafe fn keep<B>(&self, id: WorkId, to: &Recipient<B>) {
        if let Some(peers) = &self.status().peers {
            // SAFETY: the caller's promise.
            unsafe { peers.keep(id, to.handle()) };
        }
    }

    /// Hands the list that starts at `first` to the device.
    #[inline(always)]
    pub(super) fn ring(&mut self, first: *mut Staged) -> Result<(), (VerbError, *mut Staged)> {
        let mut bad = ptr::null_mut();
        // SAFETY: alive, in a state that sends (0), and nobody else posts (`&mut`); `first` starts a list of filled
        // requests, whose memory the ledger owns from now on, or which the provider copies.
        let result = unsafe { (self.verb)(self.raw.as_ptr(), first.cast(), &mut bad) };
        // At once that it is 0, and that no request is named.
        if bad.addr() | result as usize == 0 {
            Ok(())
        } else {
            Err(self.not_posted("ibv_post_send", result, bad.cast()))
        }
    }

    /// Posts a request; `back` makes of one that was not posted what the program gets.
    #[inline(always)]
    pub(super) fn post<B: Brand, M: Stageable<B>, K, R>(
        &mut self,
        request: WorkRequest<M, K>,
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        let next = self.poster.next();
        let Some(length) = request.plain_length(self.domain(), self.most()) else {
            return self.post_any(request, back);
        };
        // The last slot is for a signalled one.
        let Some(open) = next.open(!request.is_signalled()) else {
            unlikely();
            return self.post_in_session_or(length, request, back);
        };
        let id = WorkId::from_raw(next.id());
        let WorkRequest { memory, action, .. } = request;
        let mut staged = MaybeUninit::uninit();
        // One pointer for all: the request points into itself.
        let staged: *mut Staged = staged.as_mut_ptr();
        // SAFETY: our own, until the end of this function.
        unsafe { Staged::link(staged, ptr::null_mut()) };
        // SAFETY: as above.
        let (entry, rest) = unsafe { Staged::stage(staged, memory, &action, length, id, false) };
        // SAFETY: there is room, and nobody else posts.
        unsafe { open.push(entry) };
        match self.ring(staged) {
            Ok(()) => Ok(id),
            // SAFETY: staged above.
            Err(failed) => Err(unsafe { self.not_rung::<B, M, K, R>(failed, staged, id, action, rest, back) }),
        }
    }

    /// [`post`](Self::post) of a request of an ordinary `length`, in a session if the queue posts so and can.
    ///
    /// Inlined, and yet nothing to the short way of lists: it is called [`unlikely`], and what is read for it before
    /// they part waits in memory, not in registers that calls preserve.
    #[inline(always)]
    fn post_in_session_or<B: Brand, M: Stageable<B>, K, R>(
        &mut self,
        length: u32,
        mut request: WorkRequest<M, K>,
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        if !matches!(request.action.operation, Operation::Send) {
            let Action { remote_addr, rkey, .. } = request.action;
            (request.action.remote_addr, request.action.rkey) = hint::black_box((remote_addr, rkey));
        }
        match self.session() {
            Some(session) if !self.is_broken() && self.poster.next().has_room(!request.is_signalled()) => {
                // SAFETY: there is room.
                unsafe { self.post_in_session(session, request, length, false) }
            }
            _ => self.post_any(request, back),
        }
    }

    /// [`post`](Self::post) of any request to any queue.
    #[cold]
    #[inline(never)]
    fn post_any<B: Brand, M: Stageable<B>, K, R>(
        &mut self,
        request: WorkRequest<M, K>,
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        self.post_amended(request, |_| (), back)
    }

    /// [`post`](Self::post), where `amend` changes what was staged; nothing is staged of what goes into a session.
    #[inline(always)]
    pub(super) fn post_amended<B: Brand, M: Stageable<B>, K, R>(
        &mut self,
        request: WorkRequest<M, K>,
        amend: impl FnOnce(*mut Staged),
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        let length = match request.action.length(&request.memory, self.domain(), self.most()) {
            Ok(length) => length,
            Err(flaw) => return Err(PostError::Flawed { request: back(request), flaw }),
        };
        let room = self.room();
        if room == 0 {
            return Err(self.no_room(back(request)));
        }
        if let Some(session) = self.session() {
            // SAFETY: there is room.
            return unsafe { self.post_in_session(session, request, length, room == 1) };
        }
        let id = self.id();
        let WorkRequest { memory, action, .. } = request;
        if let Some(to) = memory.recipient(KEY) {
            // SAFETY: there is room; nobody else posts.
            unsafe { self.keep(id, to) };
        }
        let mut staged = MaybeUninit::uninit();
        let staged: *mut Staged = staged.as_mut_ptr();
        // SAFETY: our own, until the end of this function.
        unsafe { Staged::link(staged, ptr::null_mut()) };
        // SAFETY: as above.
        let (entry, rest) = unsafe { Staged::stage_any(staged, memory, &action, length, id, room == 1) };
        amend(staged);
        // SAFETY: there is room, and nobody else posts.
        unsafe { self.poster.next().push(entry) };
        match self.ring(staged) {
            Ok(()) => Ok(id),
            // SAFETY: staged above.
            Err(failed) => Err(unsafe { self.not_rung::<B, M, K, R>(failed, staged, id, action, rest, back) }),
        }
    }

    /// What to answer where the provider refused the request in `staged`, of which the entry was the newest.
    ///
    /// # Safety
    ///
    /// It was staged there.
    #[cold]
    unsafe fn not_rung<B, M: Stageable<B>, K, R>(
        &mut self,
        (source, bad): (VerbError, *mut Staged),
        staged: *mut Staged,
        id: WorkId,
        action: Action,
        rest: M::Rest,
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> PostError<R> {
        self.refused(bad == staged, source, id, move |entry| {
            // SAFETY: staged there (caller).
            unsafe { Staged::unstage(staged, &entry) };
            Some(back(WorkRequest::new(M::from_entry(entry, rest, KEY)?, action)))
        })
    }
}

impl ReceiveQueue {
    /// Posts a receive, of which `header_bytes` are not for the message.
    #[inline(always)]
    pub(super) fn post<B: Brand, M: FillMemory<B>>(
        &mut self,
        mut memory: M,
        header_bytes: usize,
    ) -> Result<WorkId, PostError<M>> {
        if B::CHECKED && !memory.is_of(self.domain(), KEY) {
            return Err(PostError::Flawed { request: memory, flaw: RequestFlaw::OtherDomain });
        }
        let (elements, capacity) = memory.extent(KEY);
        if elements > 1 && elements > usize::from(self.most().elements) {
            let flaw = RequestFlaw::TooManyElements { elements, most: self.most().elements.into() };
            return Err(PostError::Flawed { request: memory, flaw });
        }
        if header_bytes != 0 && capacity < header_bytes {
            let flaw = RequestFlaw::NoRoomForHeader { len_bytes: capacity as u64 };
            return Err(PostError::Flawed { request: memory, flaw });
        }
        let next = self.poster.next();
        let Some(open) = next.open(false) else { return Err(self.no_room(memory)) };
        let id = WorkId::from_raw(next.id());
        let (sg_list, count) = match (memory.part(KEY), 1) {
            (Some(part), one) => (part.whole_element(), one),
            (None, _) => memory.list(KEY).map_or((ptr::null_mut(), 0), ListInner::whole_elements),
        };
        let (entry, rest) = memory.into_entry(Operation::Receive, KEY);
        // SAFETY: there is room; nobody else posts.
        unsafe { open.push(entry) };
        let mut wr = sys::ibv_recv_wr { wr_id: id.raw(), next: ptr::null_mut(), sg_list, num_sge: count as i32 };
        if capacity == 0 {
            unlikely();
            // An element of length 0 means 2^31 bytes to some devices.
            wr.num_sge = 0;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: alive, at or above Init (0), and nobody else posts (`&mut`); the ledger owns the buffer.
        let result = unsafe { (self.verb)(self.raw.as_ptr(), &mut wr, &mut bad) };
        // At once that it is 0, and that no request is named.
        if bad.addr() | result as usize == 0 {
            return Ok(id);
        }
        let (source, bad) = self.not_posted("ibv_post_recv", result, bad);
        Err(self.refused(ptr::eq(bad, &wr), source, id, |entry| M::from_entry(entry, rest, KEY)))
    }
}
