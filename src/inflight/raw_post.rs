//! Posting one request: here memory enters a ledger, and a request reaches the provider.
//!
//! A post goes through these steps: check the request ([`WorkRequest::plain`]), fill the provider's struct
//! ([`Staged`]), put the memory into the ledger ([`FreeSlot`](super::ledger::FreeSlot)), call the provider, and check
//! its answer ([`WorkQueue::refused`]).
//!
//! The other parts of a send queue have files of their own: batches
//! ([`PendingPosts`](super::pending_posts::PendingPosts)), vectors (`post_all`) and memory windows (`windows`).
//!
//! ASSUMPTION: if the provider has `refusal_is_sure` (`provider/reviewed.rs`), a post that points `bad_wr` at a request
//! of ours has queued the requests before that one and no other (`ibv_post_send(3)`, RETURN VALUE). A post that fails
//! otherwise may have queued any of its requests.
#![allow(unsafe_code, reason = "calls the provider's post functions")]

use super::ledger::Poster;
use super::pair_status::ENDED;
use super::peers::{Parked, Peers};
use super::raw_session::{Call, Sessions};
use super::request::{Accepted, Action, Bounds, PostLimits, Postable, SIGNALED, To, WorkRequest};
use super::slab::Vacancy;
use super::stage::{Staged, Taken, undo_fill};
use super::{Entry, Operation, PairStatus, PostError, Posting, RequestFlaw, WorkId, is_broken, unlikely};
use crate::domain::{Brand, DomainId};
use crate::memory::{Buffer, ListInner};
use crate::provider::handles::{ObjectPtr, PostEnd, PostRight};
use crate::provider::reviewed::Promises;
use crate::provider::window_handles::{HeldWindow, NotPosted};
use crate::seal::KEY;
use crate::sys::inline::{PostReceive as PostReceiveVerb, PostSend as PostSendVerb, PostShared};
use crate::sys::{self, ibv_send_flags, ibv_wr_opcode};
use crate::types::ReadDepth;
use crate::verb_error::VerbError;
use std::{ptr, ptr::NonNull, sync::Arc};

/// A work queue of a queue pair. `V` is the provider's function that posts to it. Only the holder of `&mut` posts.
///
/// It is a few words: the rest of what a post needs is in the header of the ledger. The processor fetches that cache
/// line and the provider's data of the pair at the same time, since neither address depends on the other.
pub(crate) struct WorkQueue<V> {
    pub(super) poster: Poster<Entry, QueueData>,
    /// # Invariants
    ///
    /// 0. Until the queue has [ended](Self::end), it has the [right](ColdData::right) to post, and nobody else has it.
    ///    So the pair is alive whenever there is room for a request. The types of the pair let posts through only in
    ///    states that allow them.
    pub(super) raw: ObjectPtr<sys::ibv_qp>,
    /// 1. The function posts to `raw`, and may be called while (0) holds.
    verb: V,
}

pub(crate) type SendQueue = WorkQueue<PostSendVerb>;
pub(crate) type ReceiveQueue = WorkQueue<PostReceiveVerb>;

/// The limits that posts are checked against, and the status that posts share with the poller.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) limits: PostLimits,
    pub(crate) status: Arc<PairStatus>,
}

/// The data that a queue keeps in the header of its ledger: two words, since there is no more room.
pub(super) struct QueueData {
    limits: PostLimits,
    cold: Box<ColdData>,
}

/// Data that few posts need.
struct ColdData {
    /// The domain of `status`, copied here so that a post can compare domains without reading `status`.
    domain: DomainId,
    status: Arc<PairStatus>,
    /// `None` once the queue has [ended](WorkQueue::end).
    right: Option<PostRight>,
    /// For datagrams: the address handles of the requests in flight.
    peers: Option<Peers>,
}

// Any thread is allowed to use the raw pair, and one thread is allowed to post sends while another posts receives: the
// provider takes the locks that it needs. (No device is opened while an environment variable turns these locks off: see
// `device/context.rs`.)
static_assertions::assert_impl_all!(SendQueue: Send, Sync);
static_assertions::assert_impl_all!(ReceiveQueue: Send, Sync);

impl<V> WorkQueue<V> {
    /// The queue that posts through `end`. It posts in sessions only if the pair has all functions for them.
    pub(crate) fn new(poster: Poster<Entry>, end: PostEnd<sys::ibv_qp, V>, terms: Terms) -> Self {
        let Terms { mut limits, status } = terms;
        let (raw, verb, right, has_sessions) = end.into_parts();
        if !has_sessions {
            limits.posting = Posting::List;
        }
        let cold = Box::new(ColdData { domain: status.domain, status, right: Some(right), peers: None });
        Self { poster: poster.with(QueueData { limits, cold }), raw, verb }
    }

    /// Continues with a new ledger after a reset of the pair. A queue that has ended stays ended.
    pub(crate) fn renew(&mut self, poster: Poster<Entry>, status: Arc<PairStatus>) {
        let QueueData { limits, cold } = self.poster.user_data_mut();
        let mut peers = cold.peers.take();
        if let Some(peers) = &mut peers {
            peers.make_room(poster.free());
        }
        let cold = Box::new(ColdData { domain: status.domain, status, right: None, peers });
        let data = QueueData { limits: *limits, cold };
        poster.detour_of().set(self.poster.detour() & ENDED);
        let mut poster = poster.with(data);
        poster.user_data_mut().cold.right = self.poster.user_data_mut().cold.right.take();
        self.poster = poster;
    }

    /// Refuses all later posts: the pair is destroyed.
    fn end(&mut self) {
        self.poster.detour_of().set(ENDED);
    }

    /// Takes the right to post out of the queue.
    fn lend_right(&mut self) -> Option<(PostRight, LentRight<'_, V>)> {
        let right = self.poster.user_data_mut().cold.right.take()?;
        Some((right, LentRight(self)))
    }

    #[inline(always)]
    pub(crate) fn limits(&self) -> PostLimits {
        self.poster.user_data().limits
    }

    #[inline(always)]
    fn status(&self) -> &PairStatus {
        &self.poster.user_data().cold.status
    }

    /// The domain to which the memory of requests must belong.
    #[inline(always)]
    pub(crate) fn domain(&self) -> DomainId {
        self.poster.user_data().cold.domain
    }

    /// How many requests are in flight.
    pub(crate) fn outstanding(&self) -> u32 {
        self.poster.outstanding()
    }

    /// How many more requests fit; 0 if the queue is broken.
    #[inline(always)]
    pub(crate) fn room(&self) -> u32 {
        if self.is_broken() { 0 } else { self.poster.free() }
    }

    #[inline(always)]
    pub(super) fn is_broken(&self) -> bool {
        is_broken(self.poster.detour())
    }

    /// The error of a `request` for which there is no room.
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
    pub(crate) fn id(&self) -> WorkId {
        WorkId::from_raw(self.poster.next_id())
    }

    /// The bounds that requests are checked against.
    #[inline(always)]
    pub(super) fn bounds(&self) -> Bounds {
        Bounds { domain: self.domain(), limits: self.limits() }
    }

    /// Refuses all later posts: the device may have a request that the provider did not account for.
    pub(crate) fn poison(&self) {
        self.status().poison();
    }

    /// The error of a post that did not queue everything, and a pointer to the first request that was not queued. The
    /// pointer is null if it is not certain which request that is.
    ///
    /// On siw, such a post returns 0, names a request in `bad_wr`, and has queued the requests before it.
    #[cold]
    fn not_posted<R>(&self, verb: &'static str, result: i32, bad: *mut R) -> (VerbError, *mut R) {
        let errno = if result == 0 { libc::EINVAL } else { result.wrapping_abs() };
        let bad = if self.status().refusal_is_sure { bad } else { ptr::null_mut() };
        (VerbError::new(verb, errno), bad)
    }

    /// The error for the newest request, which the provider refused. `restore` rebuilds the request from its entry.
    #[cold]
    fn refused<R>(
        &mut self,
        (source, unqueued): PostFailure,
        id: WorkId,
        restore: impl FnOnce(Entry) -> Option<R>,
    ) -> PostError<R> {
        let entry = unqueued.and_then(|mut unqueued| self.take_back(&mut unqueued));
        match entry.and_then(restore) {
            Some(request) => PostError::Refused { request, source },
            None => {
                self.poison();
                PostError::Uncertain { id, source }
            }
        }
    }

    /// Takes back the newest request, which the provider did not queue.
    pub(super) fn take_back(&mut self, unqueued: &mut Unqueued) -> Option<Entry> {
        unqueued.0 = unqueued.0.checked_sub(1)?;
        // SAFETY: `unqueued` shows that the device was not given the newest request.
        unsafe { self.poster.take_back() }
    }
}

/// A queue whose right to post is lent. This borrows the queue, so nobody posts meanwhile. If the right has not come
/// back when this is dropped, the queue ends.
struct LentRight<'q, V>(&'q mut WorkQueue<V>);

impl<V> LentRight<'_, V> {
    fn give_back(self, right: PostRight) {
        self.0.poster.user_data_mut().cold.right = Some(right);
    }
}

impl<V> Drop for LentRight<'_, V> {
    fn drop(&mut self) {
        if self.0.poster.user_data().cold.right.is_none() {
            self.0.end();
        }
    }
}

/// Calls `destroy` with the rights to post of a pair's two queues. If `destroy` fails and returns the rights, the
/// queues get them back; otherwise the queues end, and refuse every post. `EBUSY`: a queue had ended before.
pub(super) fn with_rights<R>(
    send: &mut SendQueue,
    receive: &mut ReceiveQueue,
    destroy: impl FnOnce([PostRight; 2]) -> Result<R, (VerbError, Option<[PostRight; 2]>)>,
) -> Result<R, VerbError> {
    let busy = VerbError::new("ibv_destroy_qp", libc::EBUSY);
    let (send_right, send) = send.lend_right().ok_or(busy)?;
    let Some((receive_right, receive)) = receive.lend_right() else {
        send.give_back(send_right);
        return Err(busy);
    };
    destroy([send_right, receive_right]).map_err(|(error, rights)| {
        if let Some([send_right, receive_right]) = rights {
            send.give_back(send_right);
            receive.give_back(receive_right);
        }
        error
    })
}

/// Shows how many of the newest requests the provider certainly did not queue. Taking one back lowers the number.
pub(super) struct Unqueued(u32);

impl Unqueued {
    pub(super) fn count(&self) -> u32 {
        self.0
    }
}

/// Why a post did not queue all requests, and which requests it certainly did not queue, if that is known.
pub(super) type PostFailure = (VerbError, Option<Unqueued>);

impl SendQueue {
    /// Makes this the queue of a datagram pair, which keeps the address handles of its requests with that pair.
    pub(super) fn for_datagrams(mut self, pair: &Parked) -> Self {
        let depth = self.poster.free() + self.poster.outstanding();
        self.poster.user_data_mut().cold.peers = Some(Peers::new(depth, pair));
        self
    }

    /// Sets whether the pair may have reads and atomics outstanding: with a depth of 0 the queue refuses them.
    pub(crate) fn set_initiator_depth(&mut self, depth: ReadDepth) {
        let limits = &mut self.poster.user_data_mut().limits;
        *limits = limits.with_reads(depth.value() != 0);
    }

    /// Sets how many bytes a datagram may have.
    pub(crate) fn set_datagram_bytes(&mut self, bytes: u16) {
        self.poster.user_data_mut().limits.datagram_bytes = bytes;
    }

    /// The address of the pair, for comparisons only.
    pub(super) fn raw(&self) -> NonNull<sys::ibv_qp> {
        self.raw.0
    }

    /// The value that opens sessions, if the queue posts in sessions.
    #[inline(always)]
    pub(super) fn sessions(&self) -> Option<Sessions> {
        // SAFETY: the queue posts in sessions only if the pair has all functions for them (`new`). The pair is alive
        // whenever a session is opened (0).
        self.limits().posting.is_in_sessions().then(|| unsafe { Sessions::of(self.raw.0) })
    }

    /// Makes the device continue with its send queue after Send Queue Drain. Only for providers whose row in
    /// `provider/reviewed.rs` says that their device does not continue by itself: rxe.
    ///
    /// Posts a list of one invalid request, an atomic on no bytes. The provider of rxe refuses the request and rings
    /// the doorbell all the same.
    #[cold]
    pub(crate) fn nudge_after_drain(&mut self, row: &Promises) {
        if !row.quirks.nudge_after_drain || self.poster.detour() & ENDED != 0 {
            return;
        }
        if let Some(sessions) = self.sessions() {
            // SAFETY: the pair is in a state that sends (0), and nobody else posts (`&mut`). No session is open: an
            // open session would borrow this queue.
            let session = unsafe { sessions.open() };
            // The session is empty, so a failure of `complete` leaves nothing uncertain.
            let _ = session.complete();
            return;
        }
        let (request, mut bad) = (Staged::new(), ptr::null_mut());
        request.fill_empty(u64::MAX, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD);
        // SAFETY: the list is one request, which names no memory.
        unsafe { self.call(&request, &mut bad) };
    }

    /// Calls the provider's post function.
    ///
    /// # Safety
    ///
    /// `first` starts a list of filled requests. The ledger owns the memory that they name, or the provider copies it.
    #[inline(always)]
    unsafe fn call(&mut self, first: &Staged, bad: &mut *mut sys::ibv_send_wr) -> i32 {
        // SAFETY: the pair is alive and in a state that sends (0), nobody else posts (`&mut`), and the list is valid
        // (caller).
        unsafe { (self.verb)(self.raw.0.as_ptr(), first.as_wr(), bad) }
    }

    /// Hands the list that starts at `first` to the device.
    ///
    /// # Safety
    ///
    /// As for [`call`](Self::call). The requests of the list are the newest ones of the ledger.
    #[inline(always)]
    pub(super) unsafe fn ring(&mut self, first: &Staged) -> Result<(), PostFailure> {
        let mut bad = ptr::null_mut();
        // SAFETY: the caller guarantees what `call` requires.
        let result = unsafe { self.call(first, &mut bad) };
        // One test checks both that the result is 0 and that `bad` names no request.
        if bad.addr() | result as usize == 0 {
            return Ok(());
        }
        // SAFETY: the caller guarantees what `not_rung` requires.
        Err(unsafe { self.not_rung(first, result, bad) })
    }

    /// Finds out which requests of the list that starts at `first` were certainly not queued.
    ///
    /// # Safety
    ///
    /// As for [`ring`](Self::ring).
    #[cold]
    unsafe fn not_rung(&self, first: &Staged, result: i32, bad: *mut sys::ibv_send_wr) -> PostFailure {
        let (source, bad) = self.not_posted("ibv_post_send", result, bad);
        let (mut at, mut unqueued) = (first.as_wr(), None);
        while !at.is_null() {
            if at == bad || unqueued.is_some() {
                unqueued = Some(Unqueued(unqueued.map_or(0, |Unqueued(count)| count) + 1));
            }
            // SAFETY: `at` is a request of the list (caller).
            at = unsafe { (*at).next };
        }
        (source, unqueued)
    }

    /// Posts an empty request, also on a broken pair: its flush brings back unsignalled requests that succeeded before
    /// it.
    ///
    /// `None` if there is no room: then the newest request is signalled, and no marker is needed. `None` also if the
    /// pair is poisoned or the post fails.
    #[cold]
    pub(crate) fn post_marker<B: Brand, M: Postable<B>, K>(&mut self, request: WorkRequest<M, K>) -> Option<WorkId> {
        // A poisoned pair gets no marker: its ledger perhaps contains a request that the device never got, and the
        // completion of the marker would report that request as a success. (`is_poisoned` is also true for a destroyed
        // pair, which takes no posts.)
        if self.status().is_poisoned() {
            return None;
        }
        let request = request.check(self.bounds()).ok()?;
        self.post_accepted(request, |_| (), |_: WorkRequest<M, K>| ()).ok()
    }

    /// Keeps the address handle of the recipient for as long as the request `id` may be in flight. The slot of this id
    /// is free, and the caller posts the request next.
    #[inline]
    pub(super) fn keep(&mut self, id: WorkId, to: To<'_>) {
        if let Some(peers) = &mut self.poster.user_data_mut().cold.peers {
            peers.keep(id, to.handle);
        }
    }

    /// Posts a request. If it is not posted, `back` turns it into the value that the program gets.
    #[inline(always)]
    pub(crate) fn post<B: Brand, M: Postable<B>, K, R>(
        &mut self,
        request: WorkRequest<M, K>,
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        let bounds = self.bounds();
        let next = self.poster.next();
        let request = match request.plain(bounds) {
            Ok(request) => request,
            Err(request) => return self.post_any(request, back),
        };
        let (id, action) = (WorkId::from_raw(next.id()), *request.action());
        // The last free slot is for a signalled request, so an unsignalled one needs two free slots.
        let Some(slot) = next.if_free(!action.is_signalled()) else {
            unlikely();
            return self.post_in_session_or(request, back);
        };
        let staged = Staged::new();
        let Taken { entry, rest, filled_before } = staged.fill(request, id, false);
        slot.push(entry);
        // SAFETY: `staged` is one filled request, and the newest of the ledger. The push gave its memory to the ledger.
        // The provider copies inline bytes during this call. They stay borrowed until this function returns, since
        // their lifetime is part of the type `M`.
        match unsafe { self.ring(&staged) } {
            Ok(()) => Ok(id),
            Err(failed) => Err(self.not_taken(failed, id, action, (rest, filled_before), back)),
        }
    }

    /// [`post`](Self::post) of a plain request, in a session if the queue posts in sessions and has room.
    ///
    /// Although this is inlined, it costs the fast path of lists nothing: the call is marked [`unlikely`], and the
    /// values that it needs from before the branch wait in memory, not in callee-saved registers.
    #[inline(always)]
    fn post_in_session_or<B: Brand, M: Postable<B>, K, R>(
        &mut self,
        request: Accepted<M, true>,
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        let request = request.out_of_registers();
        match self.sessions() {
            Some(sessions) if !self.is_broken() && self.poster.next().has_room(!request.action().is_signalled()) => {
                self.post_in_session(sessions, request, false, back)
            }
            _ => self.post_any(request.into_request(), back),
        }
    }

    /// [`post`](Self::post) of any request to any queue: the slow path.
    #[cold]
    #[inline(never)]
    fn post_any<B: Brand, M: Postable<B>, K, R>(
        &mut self,
        request: WorkRequest<M, K>,
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        self.post_amended(request, |_| (), back)
    }

    /// [`post`](Self::post) of any request. `amend` changes the staged request before it is posted in a list. Requests
    /// in sessions are not amended.
    #[inline(always)]
    fn post_amended<B: Brand, M: Postable<B>, K, R>(
        &mut self,
        request: WorkRequest<M, K>,
        amend: impl FnOnce(&Staged),
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        let request = match request.check(self.bounds()) {
            Ok(request) => request,
            Err((request, flaw)) => return Err(PostError::Flawed { request: back(request), flaw }),
        };
        if self.is_broken() {
            return Err(self.no_room(back(request.into_request())));
        }
        self.post_accepted(request, amend, back)
    }

    /// Posts a request, also on a broken pair. Signals the request if it takes the queue's last free slot.
    #[inline(always)]
    fn post_accepted<B: Brand, M: Postable<B>, K, R>(
        &mut self,
        request: Accepted<M, false>,
        amend: impl FnOnce(&Staged),
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        let (id, room) = (self.id(), self.poster.free());
        if room == 0 {
            return Err(self.no_room(back(request.into_request())));
        }
        if let Some(to) = request.recipient() {
            self.keep(id, to);
        }
        if let Some(sessions) = self.sessions() {
            return self.post_in_session(sessions, request, room == 1, back);
        }
        let Some(slot) = self.poster.next().if_room() else {
            return Err(self.no_room(back(request.into_request())));
        };
        let (staged, action) = (Staged::new(), *request.action());
        let Taken { entry, rest, filled_before } = staged.fill(request, id, room == 1);
        amend(&staged);
        slot.push(entry);
        // SAFETY: `staged` is one filled request, and the newest of the ledger. The push gave its memory to the ledger.
        // The provider copies inline bytes during this call. They stay borrowed until this function returns, since
        // their lifetime is part of the type `M`.
        match unsafe { self.ring(&staged) } {
            Ok(()) => Ok(id),
            Err(failed) => Err(self.not_taken(failed, id, action, (rest, filled_before), back)),
        }
    }

    /// The error for the newest request, which the provider refused. `rest` is the part of its memory that the ledger
    /// does not keep, and `filled_before` is how many bytes of the memory were filled before the post.
    #[cold]
    fn not_taken<B, M: Postable<B>, K, R>(
        &mut self,
        failed: PostFailure,
        id: WorkId,
        action: Action,
        (rest, filled_before): (M::Rest, usize),
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> PostError<R> {
        self.refused(failed, id, move |entry| {
            undo_fill(&entry, filled_before);
            Some(back(WorkRequest::new(M::from_entry(entry, rest, KEY)?, action)))
        })
    }

    /// Posts a request in a session of its own. `last`: the request takes the queue's last free slot, so it is
    /// signalled. The handle of the recipient, if there is one, is already kept.
    #[inline(always)]
    fn post_in_session<const PLAIN: bool, B, M: Postable<B>, K, R>(
        &mut self,
        sessions: Sessions,
        request: Accepted<M, PLAIN>,
        last: bool,
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> Result<WorkId, PostError<R>> {
        let id = self.id();
        let Some(slot) = self.poster.next().if_room() else {
            return Err(self.no_room(back(request.into_request())));
        };
        // SAFETY: the pair is in a state that sends (0), and nobody else posts (`&mut`). No session is open: an open
        // session would borrow this queue.
        let mut session = unsafe { sessions.open() };
        let (call, entry) = Call::of(request, last);
        slot.push(entry);
        // SAFETY: the push gave the entry to the ledger. Inline bytes stay borrowed until this function returns, since
        // their lifetime is part of the type `M`; the session is closed earlier. The request was checked for this queue
        // (`Accepted`), and the pair's type allows its operation. A request with a recipient comes from
        // `post_accepted`, which has called `keep` for the address handle of the recipient.
        unsafe { session.add(call, id) };
        session.complete().map(|()| id).map_err(|source| {
            self.poison();
            PostError::Uncertain { id, source }
        })
    }

    /// Sends the filled part of `memory`, fenced, and ends the peer's window with the key `rkey`. The queue must post
    /// in lists.
    pub(super) fn post_invalidating<B: Brand, M: Postable<B>>(
        &mut self,
        memory: M,
        rkey: u32,
    ) -> Result<WorkId, PostError<M>> {
        let request = WorkRequest::<M, ()>::new(memory, Action::send()).with_flags(ibv_send_flags::IBV_SEND_FENCE);
        let amend = |staged: &Staged| staged.invalidate(ibv_wr_opcode::IBV_WR_SEND_WITH_INV, rkey);
        self.post_amended(request, amend, WorkRequest::into_inner)
    }

    /// Posts a request about a window of type 2. `entry` has the window and its memory, and `fill` fills in the empty
    /// request for the device. If the provider refuses the request, `restore` turns the entry into the value that the
    /// program gets. There must be room.
    pub(super) fn post_about_window<R>(
        &mut self,
        entry: Entry,
        fill: impl FnOnce(&Staged),
        restore: impl FnOnce(Entry, NotPosted) -> Option<R>,
    ) -> Result<WorkId, PostError<R>> {
        let id = self.id();
        let staged = Staged::new();
        staged.fill_empty(id.raw(), ibv_wr_opcode::IBV_WR_LOCAL_INV);
        fill(&staged);
        self.poster.push(entry);
        // SAFETY: `staged` is one filled request without bytes, and the newest of the ledger. The ledger owns the
        // window that the request names.
        unsafe { self.ring(&staged) }.map(|()| id).map_err(|failed| {
            self.refused(failed, id, |entry| {
                // SAFETY: the entry came back, so the request about its window was not posted.
                restore(entry, unsafe { NotPosted::new() })
            })
        })
    }

    /// Binds or unbinds a window of type 1, which is in `entry`. `held` keeps the window from being freed. There must
    /// be room.
    pub(super) fn post_bind_type_1<R>(
        &mut self,
        held: HeldWindow<'_>,
        entry: Entry,
        bind_info: sys::ibv_mw_bind_info,
    ) -> Result<WorkId, PostError<R>> {
        let id = self.id();
        self.poster.push(entry);
        let bind = sys::ibv_mw_bind { wr_id: id.raw(), send_flags: SIGNALED, bind_info };
        // SAFETY: the pair is alive and in a state that sends (0), and nobody else posts (`&mut`). The ledger owns the
        // memory behind the window, and this memory keeps the region registered.
        match unsafe { held.bind(self.raw.0, bind) } {
            Ok(()) => Ok(id),
            // `ibv_bind_mw` has no `bad_wr`, so it is uncertain whether the request was queued.
            Err(source) => Err(self.refused((source, None), id, |_| None)),
        }
    }
}

impl ReceiveQueue {
    /// Posts a receive. The first `header_bytes` of the memory are for the routing header.
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
        // SAFETY: the pair is alive and in Init or later (0), and nobody else posts (`&mut`). `wr` is one receive, and
        // the ledger owns its memory.
        let result = unsafe { (self.verb)(self.raw.0.as_ptr(), &mut wr, &mut bad) };
        // One test checks both that the result is 0 and that `bad` names no request.
        if bad.addr() | result as usize == 0 {
            return Ok(id);
        }
        let restore = |entry| M::from_entry(entry, rest, KEY);
        let (source, bad) = self.not_posted("ibv_post_recv", result, bad);
        let unqueued = ptr::eq(bad, &wr).then_some(Unqueued(1));
        Err(self.refused((source, unqueued), id, restore))
    }
}

/// The means to post to a shared receive queue. Only the holder of `&mut` posts.
pub(super) struct SharedPosts {
    /// # Invariants
    ///
    /// 0. The queue is alive while `right` is there.
    raw: ObjectPtr<sys::ibv_srq>,
    /// 1. The function of the queue's provider.
    verb: PostShared,
    /// `None` once nothing more is posted.
    right: Option<PostRight>,
}

impl SharedPosts {
    pub(super) fn new(end: PostEnd<sys::ibv_srq, PostShared>) -> Self {
        let (raw, verb, right, _) = end.into_parts();
        Self { raw, verb, right: Some(right) }
    }

    /// Whether receives may be posted.
    #[inline(always)]
    pub(super) fn may_post(&self) -> bool {
        self.right.is_some()
    }

    /// Gives up the right: nothing more is posted, unless it [comes back](Self::give_back).
    pub(super) fn give_up(&mut self) -> Option<PostRight> {
        self.right.take()
    }

    pub(super) fn give_back(&mut self, right: Option<PostRight>) {
        self.right = right;
    }

    /// Posts a receive into all of `buffer`. The slab gets the buffer first. On failure, also returns whether `bad_wr`
    /// points to the request. The caller has checked [`may_post`](Self::may_post).
    #[inline(always)]
    pub(super) fn post<B>(
        &mut self,
        vacancy: Vacancy<'_, Entry>,
        buffer: Buffer<B>,
    ) -> (WorkId, Result<(), (VerbError, bool)>) {
        let verb = "ibv_post_srq_recv";
        let sg_list = buffer.part().whole_element();
        // An element of length 0 means 2^31 bytes to some devices.
        let num_sge = i32::from(buffer.capacity() != 0);
        let id = vacancy.fill(Entry::unique(Operation::Receive, buffer));
        if !self.may_post() {
            return (id, Err((VerbError::new(verb, libc::EIO), true)));
        }
        let mut wr = sys::ibv_recv_wr { wr_id: id.raw(), next: ptr::null_mut(), sg_list, num_sge };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is alive, since the right is there (0). Nobody else posts (`&mut`), and the slab owns the
        // buffer.
        let result = unsafe { (self.verb)(self.raw.0.as_ptr(), &mut wr, &mut bad) };
        if result == 0 && bad.is_null() {
            return (id, Ok(()));
        }
        let errno = if result == 0 { libc::EINVAL } else { result.wrapping_abs() };
        (id, Err((VerbError::new(verb, errno), ptr::eq(bad, &wr))))
    }
}
