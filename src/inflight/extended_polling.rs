//! Polling through `ibv_start_poll`, `ibv_next_poll` and `ibv_end_poll`. One poll copies up to [`BATCH`] completions
//! into an array, as `ibv_poll_cq` does. So the rest of the library treats both ways of polling the same.
//!
//! Between `ibv_start_poll` and `ibv_end_poll` the provider holds the lock of the queue. Destroying a queue pair takes
//! the same lock. So no code of the program runs in between.
//!
//! ASSUMPTION: these functions do what `ibv_create_cq_ex(3)` says. `ibv_start_poll` and `ibv_next_poll` also order the
//! device's writes before later reads, as `ibv_poll_cq` does.
#![allow(unsafe_code, reason = "calls the poll functions of an extended completion queue")]

use super::raw_completion_queue::BATCH;
use super::{QueueKind, WorkId};
use crate::provider::reviewed::Walk;
use crate::sys::inline::{self as verbs, PollCq};
use crate::sys::{
    ibv_cq, ibv_cq_ex, ibv_create_cq_wc_flags as with, ibv_poll_cq_attr, ibv_wc, ibv_wc_flags, ibv_wc_opcode,
    ibv_wc_status,
};
use libc::c_int;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{ptr, ptr::NonNull, sync::Arc};

#[cfg(all(test, not(loom)))]
mod tests;

/// The fields that the library reads. The operation, the flags and the provider's code are not in the list, because
/// every extended queue has them.
pub(super) const FIELDS: u32 = with::IBV_WC_EX_WITH_BYTE_LEN.0
    | with::IBV_WC_EX_WITH_IMM.0
    | with::IBV_WC_EX_WITH_QP_NUM.0
    | with::IBV_WC_EX_WITH_SRC_QP.0
    | with::IBV_WC_EX_WITH_SLID.0
    | with::IBV_WC_EX_WITH_SL.0;

/// The function that polls a queue of a provider with this ability; `None` if the provider cannot be polled in this
/// way.
pub(super) fn poll_of(walk: Walk) -> Option<PollCq> {
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
    /// `cq` is an `ibv_cq_ex` for which (0) holds, and `to` points to [`BATCH`] completions; both for the length of
    /// `'q`.
    #[inline(always)]
    unsafe fn new(cq: *mut ibv_cq, to: *mut ibv_wc) -> (Self, &'q mut [ibv_wc; BATCH]) {
        // SAFETY: `cq` is alive (caller), so it is not null.
        let cq = unsafe { NonNull::new_unchecked(cq.cast()) };
        // SAFETY: `to` points to `BATCH` completions (caller), which consist of numbers.
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
        // SAFETY: the queue is alive and has all these functions (0). `copy`, `poll` and `poll_singly` call them only
        // between start and end, where there is a current completion.
        unsafe { function(self.cq.as_ptr()) }
    }

    /// The struct of the queue. Its `wr_id` and `status` are those of the current completion.
    #[inline(always)]
    fn fields(self) -> &'q ibv_cq_ex {
        // SAFETY: the struct is alive (0). The provider writes it only during start and next, when no such reference is
        // in use.
        unsafe { self.cq.as_ref() }
    }

    fn context(self) -> &'q ExtendedContext {
        // SAFETY: `cq_context` points to an `ExtendedContext`, which is alive (0).
        unsafe { &*self.fields().cq_context.cast::<ExtendedContext>() }
    }

    /// A completion was lost, and nobody knows of which request. Makes the next poll fail; this poll still returns the
    /// completions before the lost one.
    #[cold]
    fn fail_next(self) {
        unsafe extern "C" fn failed(_: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
            libc::EIO
        }
        // SAFETY: the struct is alive (0). Only a poll uses this member, and this is the only poll.
        unsafe { (*self.cq.as_ptr()).start_poll = Some(failed) };
    }

    /// Copies the fields of the current completion that the library reads. Each field is written with the width of the
    /// later read: a load that spans two stores would wait for both.
    #[inline(always)]
    fn copy(self, to: &mut ibv_wc) {
        let id = WorkId::from_raw(self.fields().wr_id);
        let status = self.fields().status;
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
            // The operation may also be a write with immediate.
            to.opcode = self.call(verbs::ibv_wc_read_opcode);
            // This call reads the invalidated key, too: it is in the same place as the immediate.
            to.__bindgen_anon_1.imm_data = self.call(verbs::ibv_wc_read_imm_data);
        }
        if WorkId::from_raw(to.wr_id).key().kind() == QueueKind::Shared {
            to.qp_num = self.call(verbs::ibv_wc_read_qp_num);
        }
        if self.context().datagrams.load(Ordering::Relaxed) {
            to.src_qp = self.call(verbs::ibv_wc_read_src_qp);
            // `ibv_poll_cq` reports only 16 bits of this field, too.
            to.slid = self.call(verbs::ibv_wc_read_slid) as u16;
            to.sl = self.call(verbs::ibv_wc_read_sl);
        }
    }

    /// Copies the fields of a request that failed.
    #[cold]
    #[inline(never)]
    fn copy_failed(self, to: &mut ibv_wc) {
        to.vendor_err = self.call(verbs::ibv_wc_read_vendor_err);
        // For a shared receive, `qp_num` names the pair that took it.
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
pub(super) unsafe extern "C" fn poll(cq: *mut ibv_cq, _: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the caller of this function guarantees what `new` asks for.
    let (queue, room) = unsafe { PolledQueue::new(cq, to) };
    match queue.start() {
        0 => {}
        // `ibv_start_poll` found nothing, so `ibv_end_poll` must not be called.
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
pub(super) unsafe extern "C" fn poll_singly(cq: *mut ibv_cq, _: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the caller of this function guarantees what `new` asks for.
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
