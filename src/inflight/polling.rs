//! Polling: the polling end of a completion queue, and the functions that it calls.
//!
//! A plain queue is polled through the provider's `ibv_poll_cq`, for some providers by way of [`poll_zeroed`]. An
//! extended queue is polled through `ibv_start_poll`, `ibv_next_poll` and `ibv_end_poll`. There, one [`poll`] copies up
//! to [`BATCH`] completions into an array, as `ibv_poll_cq` does. So the rest of the library treats both ways of
//! polling the same.
//!
//! Between `ibv_start_poll` and `ibv_end_poll` the provider holds the lock of the queue. Destroying a queue pair takes
//! the same lock. So no code of the program runs in between.
//!
//! ASSUMPTION: the completion of a request comes after the device's last access to its memory, and `ibv_poll_cq` orders
//! the device's writes before later reads.
//!
//! ASSUMPTION: the functions of an extended queue do what `ibv_create_cq_ex(3)` says. `ibv_start_poll` and
//! `ibv_next_poll` also order the device's writes before later reads, as `ibv_poll_cq` does.
#![allow(unsafe_code, reason = "polls and arms completion queues")]

use super::polling_lock::polling_lock;
use super::raw_completion_queue::RawCompletionQueue;
use super::{QueueKind, WorkId};
use crate::domain::DomainInner;
use crate::provider::handles::ObjectPtr;
use crate::provider::reviewed::{Teardown, Walk};
use crate::sys::inline::{self as verbs, PollCq, RequestNotify};
use crate::sys::{
    ibv_cq, ibv_cq_ex, ibv_create_cq_wc_flags as Fields, ibv_poll_cq_attr, ibv_wc, ibv_wc_flags, ibv_wc_opcode,
    ibv_wc_status,
};
use crate::verb_error::VerbError;
use libc::c_int;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{ptr, ptr::NonNull, sync::Arc};

#[cfg(all(test, not(loom)))]
mod tests;

/// How many completions are taken from the device at once.
pub(crate) const BATCH: usize = 16;

/// The functions that poll and arm the completion queues of a device.
#[derive(Clone, Copy)]
pub(super) struct PollFunctions {
    /// # Invariants
    ///
    /// 0. The functions may be called with a queue of the device: if `are_extended`, with an extended queue that
    ///    [`is_complete`]; otherwise with one that is not extended.
    poll: PollCq,
    request_notify: RequestNotify,
    are_extended: bool,
}

impl PollFunctions {
    /// The functions for queues that `ibv_poll_cq` polls.
    pub(super) fn of(domain: &DomainInner) -> Result<Self, VerbError> {
        let functions = domain.context.functions();
        let promises = domain.context.promises();
        let both = functions.poll_cq.zip(functions.req_notify_cq);
        let (poll, request_notify) = both.ok_or(VerbError::new("ibv_poll_cq", libc::EOPNOTSUPP))?;
        let poll = if promises.teardown == Teardown::Polled {
            poll_zeroed_and_locked
        } else if promises.polls_fresh {
            poll
        } else {
            poll_zeroed
        };
        Ok(Self { poll, request_notify, are_extended: false })
    }

    /// The functions for extended queues; `None` if the provider was not reviewed for them.
    pub(super) fn of_extended(domain: &DomainInner) -> Result<Option<Self>, VerbError> {
        let Self { request_notify, .. } = Self::of(domain)?;
        let poll = poll_of(domain.context.promises().walk);
        Ok(poll.map(|poll| Self { poll, request_notify, are_extended: true }))
    }
}

/// The polling end of a completion queue, with the completions that were taken from the device and are not consumed
/// yet.
pub(crate) struct PollEnd {
    queue: Arc<RawCompletionQueue>,
    /// # Invariants
    ///
    /// 0. The pointer of `queue`, copied so that a poll touches no other cache line.
    raw: ObjectPtr<ibv_cq>,
    /// 1. The functions for this queue: they may be called, with room for [`BATCH`] completions, by the only party that
    ///    polls and arms the queue.
    poll: PollCq,
    request_notify: RequestNotify,
    /// 2. `filled` is at most [`BATCH`].
    filled: u32,
    /// The completions from `next` to before `filled` are not consumed yet.
    next: u32,
    polled: [ibv_wc; BATCH],
}

/// `ibv_poll_cq` failed.
#[derive(Debug)]
pub(crate) struct PollFailed;

impl PollEnd {
    /// The polling end of a queue that was just created. `has_room` says whether the queue has at least the requested
    /// room.
    pub(super) fn of(
        queue: Arc<RawCompletionQueue>,
        functions: PollFunctions,
        has_room: bool,
    ) -> Result<Self, VerbError> {
        if functions.are_extended != queue.is_extended() {
            return Err(VerbError::new("ibv_poll_cq", libc::EINVAL));
        }
        if !has_room {
            // `queue` is the only reference to the completion queue, so this return destroys the completion queue.
            return Err(VerbError::new("ibv_create_cq", libc::ENOMEM));
        }
        let raw = ObjectPtr(queue.handle().raw());
        let PollFunctions { poll, request_notify, .. } = functions;
        Ok(Self { queue, raw, poll, request_notify, filled: 0, next: 0, polled: [ibv_wc::default(); BATCH] })
    }

    pub(crate) fn queue(&self) -> &Arc<RawCompletionQueue> {
        &self.queue
    }

    /// Whether all completions that were taken from the device are consumed.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.next >= self.filled
    }

    /// Takes up to [`BATCH`] completions from the device; `None` if it has none.
    ///
    /// The first of them must be [consumed](Pending::consume) or [kept](Pending::keep): until then this end does not
    /// know which completion is next.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Result<Option<Pending<'_>>, PollFailed> {
        // SAFETY: `raw` is the pointer of `queue` (0), which owns the completion queue, so the completion queue is
        // alive. Only this end polls the completion queue, and `polled` has room for `BATCH` completions (1).
        let count = unsafe { (self.poll)(self.raw.0.as_ptr(), BATCH as c_int, self.polled.as_mut_ptr()) } as u32;
        // One compare finds every count that is not in 1 to `BATCH`: 0 wraps around in the subtraction, and a negative
        // count (a failure) is a large unsigned number. A count above `BATCH` would break (2), so it is a failure, too.
        if count.wrapping_sub(1) >= BATCH as u32 {
            return if count == 0 { Ok(None) } else { Err(PollFailed) };
        }
        self.filled = count;
        let [first, ..] = &self.polled;
        Ok(Some(Pending { wc: first, next: &mut self.next, at: 0 }))
    }

    /// The next completion, of those that were taken from the device.
    #[inline(always)]
    pub(crate) fn pending(&mut self) -> Option<Pending<'_>> {
        let at = self.next;
        if at >= self.filled {
            return None;
        }
        // SAFETY: `at` is less than `filled`, which is at most `BATCH` (2).
        let wc = unsafe { self.polled.get_unchecked(at as usize) };
        Some(Pending { wc, next: &mut self.next, at })
    }

    /// A copy of the next completion.
    pub(crate) fn peek(&self) -> Option<ibv_wc> {
        if self.is_empty() { None } else { self.polled.get(self.next as usize).copied() }
    }

    /// Drops the next completion.
    pub(crate) fn skip(&mut self) {
        self.next += 1;
    }

    /// Drops all completions that were taken from the device.
    pub(crate) fn clear(&mut self) {
        (self.next, self.filled) = (0, 0);
    }

    /// How many completions the last successful poll found. A poll that finds none does not change this number.
    pub(crate) fn found(&self) -> u32 {
        self.filled
    }

    /// `ibv_req_notify_cq`: the next completion raises an event; with `solicited_only`, only a solicited one or a
    /// failure does.
    pub(crate) fn arm(&mut self, solicited_only: bool) -> Result<(), VerbError> {
        // SAFETY: `raw` is the pointer of `queue` (0), which owns the completion queue, so the completion queue is
        // alive. Only this end arms the completion queue (1).
        match unsafe { (self.request_notify)(self.raw.0.as_ptr(), c_int::from(solicited_only)) } {
            0 => Ok(()),
            failed => Err(VerbError::of_data_path("ibv_req_notify_cq", failed)),
        }
    }

    /// `ibv_resize_cq` to at least `entries` completions.
    pub(crate) fn resize(&mut self, entries: u32) -> Result<(), VerbError> {
        // SAFETY: only this end polls or resizes the queue (0 of `RawCompletionQueue`), and this end is borrowed
        // mutably.
        unsafe { self.queue.handle().resize(entries) }
    }
}

/// The next completion, which is not consumed yet.
#[must_use = "a completion that was taken from the device just now is lost unless it is kept or consumed"]
pub(crate) struct Pending<'p> {
    wc: &'p ibv_wc,
    next: &'p mut u32,
    at: u32,
}

impl<'p> Pending<'p> {
    #[inline(always)]
    pub(crate) fn wc(&self) -> &'p ibv_wc {
        self.wc
    }

    /// The proof that the device is done with the request of this completion.
    #[inline(always)]
    pub(crate) fn proof(&self) -> Completed {
        Completed(self.wc.wr_id)
    }

    /// Consumes the completion. The one after it is then the next.
    #[inline(always)]
    pub(crate) fn consume(self) {
        *self.next = self.at + 1;
    }

    /// Keeps the completion, which stays the next one.
    #[inline(always)]
    pub(crate) fn keep(self) {
        *self.next = self.at;
    }
}

/// Shows that the device is done with one request: it has reported a completion with this id.
///
/// The poller needs this proof to take the request out of the ledger. Only [`Pending::proof`] makes it.
#[derive(Clone, Copy)]
pub(crate) struct Completed(u64);

impl Completed {
    /// The id of the request.
    #[inline(always)]
    pub(crate) fn id(self) -> u64 {
        self.0
    }

    /// For tests without a device.
    #[cfg(test)]
    pub(crate) fn without_device(id: u64) -> Self {
        Self(id)
    }
}

/// The immediate of a receive, or the key that it invalidated, as the device wrote it.
#[inline(always)]
pub(crate) fn immediate_or_key(wc: &ibv_wc) -> u32 {
    wc.__bindgen_anon_1.immediate_or_key()
}

/// `ibv_poll_cq` of a provider that leaves fields unchanged, or adds bits to them. The fields are zeroed first.
///
/// # Safety
///
/// As for `ibv_poll_cq`. The function table of the queue's context has that function.
unsafe extern "C" fn poll_zeroed(cq: *mut ibv_cq, count: c_int, polled: *mut ibv_wc) -> c_int {
    // SAFETY: `polled` points to `count` completions (caller), and zero is a valid value of each field.
    unsafe { polled.write_bytes(0, count.try_into().unwrap_or(0)) };
    // SAFETY: the caller guarantees what `ibv_poll_cq` requires.
    unsafe { verbs::ibv_poll_cq(cq, count, polled) }.unwrap_or(-1)
}

/// As [`poll_zeroed`], under a lock that keeps destroys and resets of the queue's pairs out.
///
/// # Safety
///
/// As for `ibv_poll_cq`. The function table of the queue's context has that function.
unsafe extern "C" fn poll_zeroed_and_locked(cq: *mut ibv_cq, count: c_int, polled: *mut ibv_wc) -> c_int {
    let _lock = polling_lock(cq);
    // SAFETY: the caller guarantees what `poll_zeroed` requires.
    unsafe { poll_zeroed(cq, count, polled) }
}

/// The fields that the library reads. The operation, the flags and the provider's code are not in the list, because
/// every extended queue has them.
pub(super) const FIELDS: u32 = Fields::IBV_WC_EX_WITH_BYTE_LEN.0
    | Fields::IBV_WC_EX_WITH_IMM.0
    | Fields::IBV_WC_EX_WITH_QP_NUM.0
    | Fields::IBV_WC_EX_WITH_SRC_QP.0
    | Fields::IBV_WC_EX_WITH_SLID.0
    | Fields::IBV_WC_EX_WITH_SL.0;

/// The function that polls the extended queues of a provider; `None` if the provider was not reviewed for them.
fn poll_of(walk: Walk) -> Option<PollCq> {
    match walk {
        Walk::No => None,
        Walk::Singly => Some(poll_singly),
        Walk::Yes => Some(poll),
    }
}

/// Whether a queue has this context, and all functions that this file calls.
pub(super) fn is_complete(cq: &ibv_cq_ex, context: &Arc<ExtendedContext>) -> bool {
    let context = ptr::eq(cq.cq_context.cast(), Arc::as_ptr(context));
    let walk = cq.start_poll.is_some() && cq.next_poll.is_some() && cq.end_poll.is_some();
    let always = cq.read_opcode.is_some() && cq.read_wc_flags.is_some() && cq.read_vendor_err.is_some();
    let messages = cq.read_byte_len.is_some() && cq.read_imm_data.is_some() && cq.read_qp_num.is_some();
    let datagrams = cq.read_src_qp.is_some() && cq.read_slid.is_some() && cq.read_sl.is_some();
    context && walk && always && messages && datagrams
}

/// The facts about a queue that a poll needs. The `cq_context` of the queue points here.
#[derive(Default)]
pub(super) struct ExtendedContext {
    /// Whether queue pairs for datagrams complete here, so that a poll must also read the sender of a receive.
    datagrams: AtomicBool,
}

impl ExtendedContext {
    /// Records that a queue pair for datagrams was attached. This happens before the first post of the pair, so a poll
    /// that finds a completion of the pair sees the record.
    pub(super) fn expect_datagrams(&self) {
        self.datagrams.store(true, Ordering::Relaxed);
    }
}

/// An extended queue during one poll.
#[derive(Clone, Copy)]
struct PolledQueue<'q> {
    /// # Invariants
    ///
    /// 0. The queue is alive, and is [complete](is_complete) with a context that is alive; nobody else polls it.
    cq: NonNull<ibv_cq_ex>,
    queue: PhantomData<&'q ibv_cq_ex>,
}

impl<'q> PolledQueue<'q> {
    /// The queue that is polled, and the array for the completions.
    ///
    /// # Safety
    ///
    /// `cq` is an `ibv_cq_ex` for which (0) holds, and `to` points to [`BATCH`] completions that nobody else uses; both
    /// for the length of `'q`.
    #[inline(always)]
    unsafe fn new(cq: *mut ibv_cq, to: *mut ibv_wc) -> (Self, &'q mut [ibv_wc; BATCH]) {
        // SAFETY: `cq` is alive (caller), so it is not null.
        let cq = unsafe { NonNull::new_unchecked(cq.cast()) };
        // SAFETY: `to` points to `BATCH` completions that nobody else uses (caller). They consist of numbers, so any
        // bytes are valid.
        (Self { cq, queue: PhantomData }, unsafe { &mut *to.cast() })
    }

    /// `ibv_start_poll`. After 0 there is a current completion, and the poll must be ended with `ibv_end_poll`.
    #[inline(always)]
    fn start(self) -> c_int {
        // SAFETY: the queue is alive and has this function, and nobody else polls it (0).
        unsafe { verbs::ibv_start_poll(self.cq.as_ptr(), &mut ibv_poll_cq_attr::default()) }
    }

    /// Calls a function of the queue, except `ibv_start_poll`.
    #[inline(always)]
    fn call<R>(self, function: unsafe fn(*mut ibv_cq_ex) -> R) -> R {
        // SAFETY: the queue is alive and has the function (0). `poll` and `poll_singly` use `call` only after
        // `ibv_start_poll` has succeeded, up to and including `ibv_end_poll`. `copy` reads fields only while there is a
        // current completion.
        unsafe { function(self.cq.as_ptr()) }
    }

    /// The id of the request whose completion is the current one, and the status of that completion.
    #[inline(always)]
    fn current(self) -> (WorkId, ibv_wc_status) {
        // Make no reference to the whole struct: another thread that acknowledges events writes other fields of it.
        let cq = self.cq.as_ptr();
        // SAFETY: the struct is alive (0). Only the functions of a poll write this field, and nobody else polls the
        // queue (0).
        let id = unsafe { (*cq).wr_id };
        // SAFETY: as for `wr_id` above.
        (WorkId::from_raw(id), unsafe { (*cq).status })
    }

    fn context(self) -> &'q ExtendedContext {
        // SAFETY: the struct is alive (0), and nobody writes this field.
        let context = unsafe { (*self.cq.as_ptr()).cq_context };
        // SAFETY: `cq_context` points to an `ExtendedContext`, which is alive (0).
        unsafe { &*context.cast::<ExtendedContext>() }
    }

    /// A completion was lost, and nobody knows of which request. Makes the next poll fail; this poll still returns the
    /// completions before the lost one.
    #[cold]
    fn fail_next(self) {
        unsafe extern "C" fn failed(_: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
            libc::EIO
        }
        // SAFETY: the struct is alive (0). Only a poll uses `start_poll`, and nobody else polls the queue (0).
        unsafe { (*self.cq.as_ptr()).start_poll = Some(failed) };
    }

    /// Copies the fields of the current completion that the library reads. Each field is written with the width of the
    /// later read: a load that spans two stores would wait for both.
    #[inline(always)]
    fn copy(self, to: &mut ibv_wc) {
        let (id, status) = self.current();
        to.wr_id = id.raw();
        to.status = status;
        if status != ibv_wc_status::IBV_WC_SUCCESS {
            self.copy_failed(to);
        } else if id.key().kind() != QueueKind::Send {
            self.copy_received(to);
        }
    }

    /// Copies the fields of a receive that succeeded.
    #[inline(never)]
    fn copy_received(self, to: &mut ibv_wc) {
        const EXTRAS: u32 = ibv_wc_flags::IBV_WC_WITH_IMM.0 | ibv_wc_flags::IBV_WC_WITH_INV.0;
        to.byte_len = self.call(verbs::ibv_wc_read_byte_len);
        to.wc_flags = self.call(verbs::ibv_wc_read_wc_flags);
        to.opcode = ibv_wc_opcode::IBV_WC_RECV;
        if to.wc_flags & EXTRAS != 0 {
            // The receive was perhaps completed by a write with immediate, not by a send. So read the operation.
            to.opcode = self.call(verbs::ibv_wc_read_opcode);
            // This call also reads the invalidated key, which is in the same place as the immediate.
            to.__bindgen_anon_1.imm_data = self.call(verbs::ibv_wc_read_imm_data);
        }
        if WorkId::from_raw(to.wr_id).key().kind() == QueueKind::Shared {
            to.qp_num = self.call(verbs::ibv_wc_read_qp_num);
        }
        if self.context().datagrams.load(Ordering::Relaxed) {
            to.src_qp = self.call(verbs::ibv_wc_read_src_qp);
            // `ibv_poll_cq`, too, reports only 16 bits of this field.
            to.slid = self.call(verbs::ibv_wc_read_slid) as u16;
            to.sl = self.call(verbs::ibv_wc_read_sl);
        }
    }

    /// Copies the fields of a request that failed.
    #[cold]
    #[inline(never)]
    fn copy_failed(self, to: &mut ibv_wc) {
        to.vendor_err = self.call(verbs::ibv_wc_read_vendor_err);
        // `qp_num` names the pair that took a shared receive. For other failed requests nobody reads `qp_num`.
        to.qp_num = self.call(verbs::ibv_wc_read_qp_num);
    }
}

/// `ibv_poll_cq` for an extended queue. Takes up to [`BATCH`] completions, whatever count the caller asks for, and
/// writes only those fields of each that the library reads. A result below `BATCH` means that no more completions were
/// found.
///
/// # Safety
///
/// As for [`PolledQueue::new`].
unsafe extern "C" fn poll(cq: *mut ibv_cq, _: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the caller of this function guarantees what `new` requires.
    let (queue, room) = unsafe { PolledQueue::new(cq, to) };
    // If `ibv_start_poll` finds nothing (`ENOENT`) or fails, `ibv_end_poll` must not be called.
    match queue.start() {
        0 => {}
        libc::ENOENT => return 0,
        _ => return -1,
    }
    let mut count = 0;
    while let Some(to) = room.get_mut(count) {
        queue.copy(to);
        count += 1;
        if count == BATCH {
            break;
        }
        match queue.call(verbs::ibv_next_poll) {
            0 => {}
            libc::ENOENT => break,
            _ => {
                queue.fail_next();
                break;
            }
        }
    }
    queue.call(verbs::ibv_end_poll);
    count as c_int
}

/// As [`poll`], without `ibv_next_poll`: each completion has a start and an end of its own.
///
/// # Safety
///
/// As for [`PolledQueue::new`].
unsafe extern "C" fn poll_singly(cq: *mut ibv_cq, _: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the caller of this function guarantees what `new` requires.
    let (queue, room) = unsafe { PolledQueue::new(cq, to) };
    let mut count = 0;
    for to in room {
        match queue.start() {
            0 => {}
            libc::ENOENT => break,
            _ if count == 0 => return -1,
            _ => {
                queue.fail_next();
                break;
            }
        }
        queue.copy(to);
        queue.call(verbs::ibv_end_poll);
        count += 1;
    }
    count
}
