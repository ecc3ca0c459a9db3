//! Posting one request: here memory enters a ledger, and a request reaches the provider.
//!
//! A post goes through these steps: check the request ([`WorkRequest::plain`], in `request`), fill the provider's
//! struct ([`Staged`]), put the memory into the ledger (`FreeSlot::push`, in `ledger::ring`), call the provider
//! ([`WorkQueue::hand_over`]), and check its answer ([`WorkQueue::refused_or_uncertain`]). Then come receives, which
//! take the same steps in one function, requests that the library itself makes, requests about memory windows, and the
//! receives of shared receive queues.
//!
//! The other parts of a send queue have files of their own: batches
//! ([`PendingPosts`](crate::inflight::pending_posts::PendingPosts)), vectors (`post_all`), and the checks of requests
//! about memory windows (`windows`).
//!
//! ASSUMPTION: if the provider has `refusal_is_sure` (`provider/reviewed.rs`), a post that points `bad_wr` at a request
//! of ours has queued the requests before that one and no other (`ibv_post_send(3)`, RETURN VALUE). A post that fails
//! otherwise may have queued any of its requests.
#![allow(unsafe_code, reason = "calls the provider's post functions")]

use super::{ReceiveQueue, SendQueue, WorkQueue};
use crate::domain::Brand;
use crate::inflight::entry::sealed::Postable;
use crate::inflight::pair_status::ENDED;
use crate::inflight::raw_session::{Call, Sessions};
use crate::inflight::request::{Accepted, Action, SIGNALED, WorkRequest};
use crate::inflight::slab::Vacancy;
use crate::inflight::{Entry, Operation, PostError, QueueKind, RequestFlaw, WorkId, unlikely};
use crate::memory::{Buffer, ListInner};
use crate::provider::handles::{ObjectPtr, PostEnd, PostRight};
use crate::provider::reviewed::Promises;
use crate::provider::window_handles::{HeldWindow, NotPosted};
use crate::seal::KEY;
use crate::sys::inline::PostShared;
use crate::sys::{self, ibv_send_flags, ibv_send_wr, ibv_wr_opcode};
use crate::verb_error::VerbError;
use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::mem::{MaybeUninit, offset_of};
use std::ptr;

impl SendQueue {
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
        // `if_free` returns `None` if there is no room, if the queue is broken, or if the queue posts in sessions. The
        // last free slot is for a signalled request, so an unsignalled one needs two free slots.
        let Some(slot) = next.if_free(!action.is_signalled()) else {
            unlikely();
            return self.post_off_fast_path(request, back);
        };
        let staged = Staged::new();
        let Filled { entry, rest, filled_before } = staged.fill(request, id, false);
        slot.push(entry);
        // SAFETY: `staged` is one filled request, and the newest of the ledger. The push gave its memory to the ledger.
        // The provider copies inline bytes during this call. They stay borrowed until this function returns, since
        // their lifetime is part of the type `M`.
        match unsafe { self.hand_over(&staged) } {
            Ok(()) => Ok(id),
            Err(failed) => Err(self.send_error(failed, id, action, (rest, filled_before), back)),
        }
    }

    /// [`post`](Self::post) of a plain request off the fast path: in a session if the queue posts in sessions and has
    /// room; otherwise by [`post_any`](Self::post_any), which finds out why there is no slot.
    ///
    /// Although this is inlined, it costs the fast path of lists nothing: the call is marked [`unlikely`], and the
    /// values that it needs from before the branch wait in memory, not in callee-saved registers.
    #[inline(always)]
    fn post_off_fast_path<B: Brand, M: Postable<B>, K, R>(
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
            return Err(self.refusal(back(request.into_request())));
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
            return Err(self.refusal(back(request.into_request())));
        }
        if let Some(to) = request.recipient() {
            self.keep(id, to);
        }
        if let Some(sessions) = self.sessions() {
            return self.post_in_session(sessions, request, room == 1, back);
        }
        let Some(slot) = self.poster.next().if_room() else {
            return Err(self.refusal(back(request.into_request())));
        };
        let (staged, action) = (Staged::new(), *request.action());
        let Filled { entry, rest, filled_before } = staged.fill(request, id, room == 1);
        amend(&staged);
        slot.push(entry);
        // SAFETY: `staged` is one filled request, and the newest of the ledger. The push gave its memory to the ledger.
        // The provider copies inline bytes during this call. They stay borrowed until this function returns, since
        // their lifetime is part of the type `M`.
        match unsafe { self.hand_over(&staged) } {
            Ok(()) => Ok(id),
            Err(failed) => Err(self.send_error(failed, id, action, (rest, filled_before), back)),
        }
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
            return Err(self.refusal(back(request.into_request())));
        };
        // SAFETY: the pair is in a state that sends (0 of `WorkQueue`), and nobody else posts (`&mut`). No session is
        // open: whoever opens a session borrows this queue until the session is closed.
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
}

type Immediate = sys::ibv_send_wr__bindgen_ty_1;
type Target = sys::ibv_send_wr__bindgen_ty_2;
type Rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1;
type Atomic = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2;
type Datagram = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_3;
type Shared = sys::ibv_send_wr__bindgen_ty_3;
type Other = sys::ibv_send_wr__bindgen_ty_4;
type Bind = sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1;

/// A request in the form that the provider reads: the members of an [`ibv_send_wr`], and behind them the element of an
/// inline request. Of the unions the provider reads only the member that the opcode uses, with one exception: the
/// provider of rxe reads the immediate of each request, and refuses a bind whose immediate is not 0.
///
/// The members are [`Cell`]s: the requests of a [stage](crate::inflight::stage) point to each other, so shared
/// references to all of them exist at once. Members that the provider does not always read are `MaybeUninit`, so that
/// they need not be initialized.
#[repr(C)]
pub(in crate::inflight) struct Staged {
    wr_id: Cell<u64>,
    next: Cell<*mut ibv_send_wr>,
    sg_list: Cell<*mut sys::ibv_sge>,
    num_sge: Cell<c_int>,
    opcode: Cell<ibv_wr_opcode>,
    send_flags: Cell<c_uint>,
    immediate: Cell<Immediate>,
    target: Cell<MaybeUninit<Target>>,
    _shared: Cell<MaybeUninit<Shared>>,
    other: Cell<MaybeUninit<Other>>,
    /// The element of an inline request. Other requests point to an element in a descriptor.
    element: Cell<MaybeUninit<sys::ibv_sge>>,
}
const _: () = {
    assert!(offset_of!(Staged, wr_id) == offset_of!(ibv_send_wr, wr_id));
    assert!(offset_of!(Staged, next) == offset_of!(ibv_send_wr, next));
    assert!(offset_of!(Staged, sg_list) == offset_of!(ibv_send_wr, sg_list));
    assert!(offset_of!(Staged, num_sge) == offset_of!(ibv_send_wr, num_sge));
    assert!(offset_of!(Staged, opcode) == offset_of!(ibv_send_wr, opcode));
    assert!(offset_of!(Staged, send_flags) == offset_of!(ibv_send_wr, send_flags));
    assert!(offset_of!(Staged, immediate) == offset_of!(ibv_send_wr, __bindgen_anon_1));
    assert!(offset_of!(Staged, target) == offset_of!(ibv_send_wr, wr));
    assert!(offset_of!(Staged, _shared) == offset_of!(ibv_send_wr, qp_type));
    assert!(offset_of!(Staged, other) == offset_of!(ibv_send_wr, __bindgen_anon_2));
    assert!(offset_of!(Staged, element) >= size_of::<ibv_send_wr>());
    assert!(align_of::<Staged>() >= align_of::<ibv_send_wr>());
};

/// The memory of a request that was staged, taken apart.
pub(super) struct Filled<R> {
    /// The entry for the ledger, which must have it before the doorbell rings.
    pub(super) entry: Entry,
    rest: R,
    /// If the request fills one buffer: how many bytes of the buffer were filled before. Otherwise 0.
    pub(super) filled_before: usize,
}

impl Staged {
    pub(super) const fn new() -> Self {
        Self {
            wr_id: Cell::new(0),
            next: Cell::new(ptr::null_mut()),
            sg_list: Cell::new(ptr::null_mut()),
            num_sge: Cell::new(0),
            opcode: Cell::new(ibv_wr_opcode::IBV_WR_RDMA_WRITE),
            send_flags: Cell::new(0),
            immediate: Cell::new(Immediate { imm_data: 0 }),
            target: Cell::new(MaybeUninit::uninit()),
            _shared: Cell::new(MaybeUninit::uninit()),
            other: Cell::new(MaybeUninit::uninit()),
            element: Cell::new(MaybeUninit::uninit()),
        }
    }

    /// A pointer to the request, for the provider.
    #[inline(always)]
    pub(super) fn as_wr(&self) -> *mut ibv_send_wr {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// Splits a request: writes the device's part into `self`, and returns the entry for the ledger. `last`: the
    /// request takes the queue's last free slot, so it is signalled.
    ///
    /// An inline request points to the element in `self`.
    #[inline(always)]
    pub(super) fn fill<const PLAIN: bool, B, M: Postable<B>>(
        &self,
        request: Accepted<M, PLAIN>,
        id: WorkId,
        last: bool,
    ) -> Filled<M::Rest> {
        let (mut memory, action, length) = request.into_parts();
        let mut flags = action.flags | if last { SIGNALED } else { 0 };
        let (mut count, mut filled_before) = (1, 0);
        let sg_list = if let Some(part) = memory.descriptor(KEY) {
            if action.operation.fills() {
                filled_before = part.filled();
                part.set_filled(length as usize);
            }
            // The element covers the filled bytes, which are `length` bytes. For a send or a write, `length` is the
            // number of filled bytes. For a read or an atomic, `set_filled` has just set that number to `length`.
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
            // The provider makes a pointer from this address, and reads the bytes through it during the post.
            let addr = memory.bytes(KEY).as_ptr().expose_provenance() as u64;
            self.element.set(MaybeUninit::new(sys::ibv_sge { addr, length, lkey: 0 }));
            self.element.as_ptr().cast()
        };
        if !PLAIN && length == 0 {
            // An element of length 0 means 2^31 bytes to some devices.
            count = 0;
        }
        self.wr_id.set(id.raw());
        self.sg_list.set(sg_list);
        self.num_sge.set(count as c_int);
        self.opcode.set(action.opcode);
        self.send_flags.set(flags);
        if action.has_immediate() {
            self.immediate.set(Immediate { imm_data: action.immediate_be });
        }
        if let Some(to) = memory.recipient(KEY) {
            let (ah, remote_qpn, remote_qkey) = (to.handle.raw(), to.queue_pair.value(), to.qkey.0);
            self.aim(Target { ud: Datagram { ah, remote_qpn, remote_qkey } });
        }
        match action.operation {
            Operation::Write | Operation::Read => {
                let (remote_addr, rkey) = (action.remote_addr, action.rkey);
                self.aim(Target { rdma: Rdma { remote_addr, rkey } });
            }
            Operation::CompareAndSwap | Operation::FetchAndAdd => {
                let (remote_addr, rkey) = (action.remote_addr, action.rkey);
                let (compare_add, swap) = (action.compare_add, action.swap);
                self.aim(Target { atomic: Atomic { remote_addr, compare_add, swap, rkey } });
            }
            // Sends have no remote address. The others never come here: receives are not staged, atomic writes go in
            // sessions only, and requests about windows are filled by other functions.
            Operation::Send | Operation::Receive | Operation::AtomicWrite | Operation::Bind | Operation::Revoke => {}
        }
        let (entry, rest) = Entry::of(memory, action.operation);
        Filled { entry, rest, filled_before }
    }

    #[inline(always)]
    fn aim(&self, target: Target) {
        self.target.set(MaybeUninit::new(target));
    }

    /// Makes the request a signalled one.
    #[inline(always)]
    pub(super) fn signal(&self) {
        let flags = &self.send_flags;
        flags.set(flags.get() | SIGNALED);
    }

    /// Links the request to the next one of its list; null if it is the last one.
    #[inline(always)]
    pub(super) fn link_to(&self, next: *mut ibv_send_wr) {
        self.next.set(next);
    }

    /// Makes this a signalled request without bytes.
    fn fill_empty(&self, wr_id: u64, opcode: ibv_wr_opcode) {
        self.wr_id.set(wr_id);
        self.sg_list.set((&raw const sys::NO_ELEMENT).cast_mut());
        self.num_sge.set(0);
        self.opcode.set(opcode);
        self.send_flags.set(SIGNALED);
    }

    /// Makes the request invalidate the key `rkey`, by an `opcode` that does so.
    fn invalidate(&self, opcode: ibv_wr_opcode, rkey: u32) {
        self.opcode.set(opcode);
        self.immediate.set(Immediate { invalidate_rkey: rkey });
    }

    /// Makes the request bind a window of type 2.
    fn bind(&self, mw: *mut sys::ibv_mw, rkey: u32, bind_info: sys::ibv_mw_bind_info) {
        self.opcode.set(ibv_wr_opcode::IBV_WR_BIND_MW);
        self.immediate.set(Immediate { imm_data: 0 });
        self.other.set(MaybeUninit::new(Other { bind_mw: Bind { mw, rkey, bind_info } }));
    }
}

impl SendQueue {
    /// Hands the list that starts at `first` to the device.
    ///
    /// # Safety
    ///
    /// As for [`call`](Self::call). The requests of the list are the newest ones of the ledger.
    #[inline(always)]
    pub(in crate::inflight) unsafe fn hand_over(&mut self, first: &Staged) -> Result<(), PostFailure> {
        let mut bad = ptr::null_mut();
        // SAFETY: the caller guarantees what `call` requires.
        let result = unsafe { self.call(first, &mut bad) };
        // One test checks both that the result is 0 and that `bad` names no request.
        if bad.addr() | result as usize == 0 {
            return Ok(());
        }
        // SAFETY: the caller guarantees what `count_unqueued` requires.
        Err(unsafe { self.count_unqueued(first, result, bad) })
    }

    /// Calls the provider's post function.
    ///
    /// # Safety
    ///
    /// `first` starts a list of filled requests. The ledger owns the memory that they name, or the provider copies it.
    #[inline(always)]
    unsafe fn call(&mut self, first: &Staged, bad: &mut *mut sys::ibv_send_wr) -> i32 {
        // SAFETY: the pair is alive and in a state that sends (0 of `WorkQueue`), nobody else posts (`&mut`), and the
        // list is valid (caller).
        unsafe { (self.verb)(self.raw.0.as_ptr(), first.as_wr(), bad) }
    }

    /// The value that opens sessions, if the queue posts in sessions.
    #[inline(always)]
    pub(in crate::inflight) fn sessions(&self) -> Option<Sessions> {
        // SAFETY: the queue posts in sessions only if the pair has all functions for them (`new`). The pair is alive
        // whenever a session is opened (0 of `WorkQueue`).
        self.limits().posting.is_in_sessions().then(|| unsafe { Sessions::of(self.raw.0) })
    }
}

/// Shows how many of the newest requests the provider certainly did not queue. Taking one back lowers the number.
pub(in crate::inflight) struct Unqueued(u32);

impl Unqueued {
    pub(in crate::inflight) fn count(&self) -> u32 {
        self.0
    }
}

/// Why a post did not queue all requests, and which requests it certainly did not queue, if that is known.
pub(in crate::inflight) type PostFailure = (VerbError, Option<Unqueued>);

impl SendQueue {
    /// Finds out which requests of the list that starts at `first` were certainly not queued.
    ///
    /// # Safety
    ///
    /// As for [`hand_over`](Self::hand_over).
    #[cold]
    unsafe fn count_unqueued(&self, first: &Staged, result: i32, bad: *mut sys::ibv_send_wr) -> PostFailure {
        let (source, bad) = self.error_and_bad("ibv_post_send", result, bad);
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

    /// The error for the newest request, which the provider refused. `rest` is the part of its memory that the ledger
    /// does not keep, and `filled_before` is how many bytes of the memory were filled before the post.
    #[cold]
    fn send_error<B, M: Postable<B>, K, R>(
        &mut self,
        failed: PostFailure,
        id: WorkId,
        action: Action,
        (rest, filled_before): (M::Rest, usize),
        back: impl FnOnce(WorkRequest<M, K>) -> R,
    ) -> PostError<R> {
        self.refused_or_uncertain(failed, id, move |entry| {
            undo_fill(&entry, filled_before);
            Some(back(WorkRequest::new(M::from_entry(entry, rest, KEY)?, action)))
        })
    }
}

impl<V> WorkQueue<V> {
    /// The error of a post that did not queue everything, and a pointer to the first request that was not queued. The
    /// pointer is null if it is not certain which request that is.
    ///
    /// On siw, such a post returns 0, names a request in `bad_wr`, and has queued the requests before it.
    #[cold]
    fn error_and_bad<R>(&self, verb: &'static str, result: i32, bad: *mut R) -> (VerbError, *mut R) {
        let bad = if self.status().refusal_is_sure { bad } else { ptr::null_mut() };
        (VerbError::of_data_path(verb, result), bad)
    }

    /// The error for the newest request. If it is certain that the provider did not queue the request, the error gives
    /// it back: `restore` rebuilds it from its entry. Otherwise the memory stays in the ledger, and the pair takes no
    /// more posts.
    #[cold]
    fn refused_or_uncertain<R>(
        &mut self,
        (source, unqueued): PostFailure,
        id: WorkId,
        restore: impl FnOnce(Entry) -> Option<R>,
    ) -> PostError<R> {
        let entry = unqueued.and_then(|mut unqueued| self.take_back(&mut unqueued));
        // If `restore` is called, it returns `Some`: the entry holds the same kind of memory as the request.
        match entry.and_then(restore) {
            Some(request) => PostError::Refused { request, source },
            None => {
                self.poison();
                PostError::Uncertain { id, source }
            }
        }
    }

    /// Takes back the newest request, which the provider did not queue.
    pub(in crate::inflight) fn take_back(&mut self, unqueued: &mut Unqueued) -> Option<Entry> {
        unqueued.0 = unqueued.0.checked_sub(1)?;
        // SAFETY: `unqueued` shows that the device was not given the newest request.
        unsafe { self.poster.take_back() }
    }
}

/// Restores the filled length of memory that a request would have filled. The request was not posted.
#[cold]
pub(super) fn undo_fill(entry: &Entry, filled_before: usize) {
    if !entry.operation(QueueKind::Send).fills() {
        return;
    }
    if let Some(part) = entry.descriptor() {
        part.set_filled(filled_before);
    } else if let Some(list) = entry.as_list() {
        list.restore();
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
        let Some(slot) = next.if_free(false) else { return Err(self.refusal(memory)) };
        let (sg_list, count) = match (memory.descriptor(KEY), 1) {
            (Some(part), one) => (part.whole_element(), one),
            (None, _) => memory.list(KEY).map_or((ptr::null_mut(), 0), ListInner::whole_elements),
        };
        let (entry, rest) = Entry::of(memory, Operation::Receive);
        slot.push(entry);
        let mut wr = sys::ibv_recv_wr { wr_id: id.raw(), next: ptr::null_mut(), sg_list, num_sge: count as i32 };
        if capacity == 0 {
            unlikely();
            // An element of length 0 means 2^31 bytes to some devices.
            wr.num_sge = 0;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the pair is alive and in Init or later (0 of `WorkQueue`), and nobody else posts (`&mut`). `wr` is
        // one receive, and the ledger owns its memory.
        let result = unsafe { (self.verb)(self.raw.0.as_ptr(), &mut wr, &mut bad) };
        // One test checks both that the result is 0 and that `bad` names no request.
        if bad.addr() | result as usize == 0 {
            return Ok(id);
        }
        let restore = |entry| M::from_entry(entry, rest, KEY);
        let (source, bad) = self.error_and_bad("ibv_post_recv", result, bad);
        let unqueued = ptr::eq(bad, &wr).then_some(Unqueued(1));
        Err(self.refused_or_uncertain((source, unqueued), id, restore))
    }
}

impl SendQueue {
    /// Posts an empty request, also on a broken pair: its flush brings back unsignalled requests that succeeded before
    /// it.
    ///
    /// `None` if there is no room: then the newest request is signalled, and no marker is needed. `None` also if the
    /// pair is poisoned or the post is refused. If the outcome of the post is uncertain, the marker may complete.
    #[cold]
    pub(crate) fn post_marker<B: Brand, M: Postable<B>, K>(&mut self, request: WorkRequest<M, K>) -> Option<WorkId> {
        // A poisoned pair gets no marker: its ledger perhaps contains a request that the device never got, and the
        // completion of the marker would report that request as a success. (`is_poisoned` is also true for a destroyed
        // pair, which takes no posts.)
        if self.status().is_poisoned() {
            return None;
        }
        let request = request.check(self.bounds()).ok()?;
        match self.post_accepted(request, |_| (), |_: WorkRequest<M, K>| ()) {
            Ok(id) | Err(PostError::Uncertain { id, .. }) => Some(id),
            Err(_) => None,
        }
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
            // SAFETY: the pair is in a state that sends (0 of `WorkQueue`), and nobody else posts (`&mut`). No session
            // is open: whoever opens a session borrows this queue until the session is closed.
            let session = unsafe { sessions.open() };
            // The session has no requests, so a failure of `complete` does no harm.
            let _ = session.complete();
            return;
        }
        let (request, mut bad) = (Staged::new(), ptr::null_mut());
        request.fill_empty(u64::MAX, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD);
        // SAFETY: the list is one request, which names no memory.
        unsafe { self.call(&request, &mut bad) };
    }
}

/// A request about a window of type 2.
pub(in crate::inflight) enum AboutWindow<'h> {
    /// Binds the window with the new key `rkey`.
    Bind { window: &'h HeldWindow<'h>, rkey: u32, bind_info: sys::ibv_mw_bind_info },
    /// Ends the window with the key `rkey`.
    Invalidate { rkey: u32 },
}

impl SendQueue {
    /// Sends the filled part of `memory`, fenced, and ends the peer's window with the key `rkey`. The queue must post
    /// in lists.
    pub(in crate::inflight) fn post_invalidating<B: Brand, M: Postable<B>>(
        &mut self,
        memory: M,
        rkey: u32,
    ) -> Result<WorkId, PostError<M>> {
        let request = WorkRequest::<M, ()>::new(memory, Action::send()).with_flags(ibv_send_flags::IBV_SEND_FENCE);
        let amend = |staged: &Staged| staged.invalidate(ibv_wr_opcode::IBV_WR_SEND_WITH_INV, rkey);
        self.post_amended(request, amend, WorkRequest::into_inner)
    }

    /// Posts a request about a window of type 2. `entry` has the window and its memory. If the provider refuses the
    /// request, `restore` turns the entry into the value that the program gets. There must be room.
    pub(in crate::inflight) fn post_about_window<R>(
        &mut self,
        entry: Entry,
        what: AboutWindow<'_>,
        restore: impl FnOnce(Entry, NotPosted) -> Option<R>,
    ) -> Result<WorkId, PostError<R>> {
        let id = self.id();
        let staged = Staged::new();
        staged.fill_empty(id.raw(), ibv_wr_opcode::IBV_WR_LOCAL_INV);
        match what {
            AboutWindow::Bind { window, rkey, bind_info } => staged.bind(window.as_ptr(), rkey, bind_info),
            AboutWindow::Invalidate { rkey } => staged.invalidate(ibv_wr_opcode::IBV_WR_LOCAL_INV, rkey),
        }
        self.poster.push(entry);
        // SAFETY: `staged` is one filled request without bytes, and the newest of the ledger. The ledger owns the
        // window that the request names.
        unsafe { self.hand_over(&staged) }.map(|()| id).map_err(|failed| {
            self.refused_or_uncertain(failed, id, |entry| {
                // SAFETY: the entry came back, so the request about its window was not posted.
                restore(entry, unsafe { NotPosted::new() })
            })
        })
    }

    /// Binds or unbinds a window of type 1, which is in `entry`. `held` keeps the window from being freed. There must
    /// be room.
    pub(in crate::inflight) fn post_bind_type_1<R>(
        &mut self,
        held: HeldWindow<'_>,
        entry: Entry,
        bind_info: sys::ibv_mw_bind_info,
    ) -> Result<WorkId, PostError<R>> {
        let id = self.id();
        self.poster.push(entry);
        let bind = sys::ibv_mw_bind { wr_id: id.raw(), send_flags: SIGNALED, bind_info };
        // SAFETY: the pair is alive and in a state that sends (0 of `WorkQueue`), and nobody else posts (`&mut`). The
        // region in `bind_info`, if there is one, is of the window's domain (`post_bind`). The entry in the ledger owns
        // the window with its memory, which keeps the region registered. The window keeps that memory until no peer
        // reaches it through the window any more (0 of `WindowInner`).
        match unsafe { held.bind(self.raw.0, bind) } {
            Ok(()) => Ok(id),
            // `ibv_bind_mw` has no `bad_wr`, so it is uncertain whether the request was queued.
            Err(source) => Err(self.refused_or_uncertain((source, None), id, |_| None)),
        }
    }
}

/// The means to post to a shared receive queue. Only the holder of `&mut` posts.
pub(in crate::inflight) struct SharedPosts {
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
    pub(in crate::inflight) fn new(end: PostEnd<sys::ibv_srq, PostShared>) -> Self {
        let (raw, verb, right, _) = end.into_parts();
        Self { raw, verb, right: Some(right) }
    }

    /// Whether receives may be posted.
    #[inline(always)]
    pub(in crate::inflight) fn may_post(&self) -> bool {
        self.right.is_some()
    }

    /// Gives up the right: nothing more is posted, unless it [comes back](Self::give_back).
    pub(in crate::inflight) fn give_up(&mut self) -> Option<PostRight> {
        self.right.take()
    }

    pub(in crate::inflight) fn give_back(&mut self, right: Option<PostRight>) {
        self.right = right;
    }

    /// Posts a receive into all of `buffer`. The slab gets the buffer first. On failure, also returns whether `bad_wr`
    /// points to the request. The caller has checked [`may_post`](Self::may_post).
    #[inline(always)]
    pub(in crate::inflight) fn post<B>(
        &mut self,
        vacancy: Vacancy<'_, Entry>,
        buffer: Buffer<B>,
    ) -> (WorkId, Result<(), (VerbError, bool)>) {
        let verb = "ibv_post_srq_recv";
        let sg_list = buffer.descriptor().whole_element();
        // An element of length 0 means 2^31 bytes to some devices.
        let num_sge = i32::from(buffer.capacity() != 0);
        let id = vacancy.fill(Entry::unique(Operation::Receive, buffer));
        if !self.may_post() {
            return (id, Err((VerbError::new(verb, libc::EIO), true)));
        }
        let mut wr = sys::ibv_recv_wr { wr_id: id.raw(), next: ptr::null_mut(), sg_list, num_sge };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is alive, since `may_post` has found the right to post (0). Nobody else posts (`&mut`), and
        // the slab owns the buffer.
        let result = unsafe { (self.verb)(self.raw.0.as_ptr(), &mut wr, &mut bad) };
        if result == 0 && bad.is_null() {
            return (id, Ok(()));
        }
        (id, Err((VerbError::of_data_path(verb, result), ptr::eq(bad, &wr))))
    }
}
