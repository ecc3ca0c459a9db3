//! Polling through `ibv_start_poll`, `ibv_next_poll` and `ibv_end_poll`. One look copies up to [`BATCH`] completions
//! into an array, as `ibv_poll_cq` does, so that all that follows is the same for both ways of polling.
//!
//! Between start and end the provider holds the lock of the queue, which the end of a queue pair takes too. So no code
//! of the program runs there.
//!
//! ASSUMPTION: these functions do what `ibv_create_cq_ex(3)` says; and `ibv_start_poll` and `ibv_next_poll` order what
//! the device wrote before what is read after them, as `ibv_poll_cq` does.
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

/// The fields that are read, besides operation, flags and the provider's code, which every extended queue has.
pub(super) const FIELDS: u32 = with::IBV_WC_EX_WITH_BYTE_LEN.0
    | with::IBV_WC_EX_WITH_IMM.0
    | with::IBV_WC_EX_WITH_QP_NUM.0
    | with::IBV_WC_EX_WITH_SRC_QP.0
    | with::IBV_WC_EX_WITH_SLID.0
    | with::IBV_WC_EX_WITH_SL.0;

/// The function that polls a device whose provider can do this much; `None` if the provider cannot be polled so.
pub(super) fn poll_of(walk: Walk) -> Option<PollCq> {
    match walk {
        Walk::No => None,
        Walk::Singly => Some(poll_singly),
        Walk::Yes => Some(poll),
    }
}

/// Whether a queue has this context, and all functions that are called here.
pub(super) fn is_complete(cq: &ibv_cq_ex, context: &Arc<ExtendedContext>) -> bool {
    let context = ptr::eq(cq.cq_context.cast(), Arc::as_ptr(context));
    let walk = cq.start_poll.is_some() && cq.next_poll.is_some() && cq.end_poll.is_some();
    let always = cq.read_opcode.is_some() && cq.read_wc_flags.is_some() && cq.read_vendor_err.is_some();
    let messages = cq.read_byte_len.is_some() && cq.read_imm_data.is_some() && cq.read_qp_num.is_some();
    let datagrams = cq.read_src_qp.is_some() && cq.read_slid.is_some() && cq.read_sl.is_some();
    context && walk && always && messages && datagrams
}

/// What a look must know of its queue. The `cq_context` of the queue points here.
#[derive(Default)]
pub(super) struct ExtendedContext {
    /// Queue pairs for datagrams complete here, so the sender of a receive must be read too.
    datagrams: AtomicBool,
}

impl ExtendedContext {
    /// A queue pair for datagrams was attached. This comes before its first post, so a look that finds a completion of
    /// the pair sees it.
    pub(super) fn expect_datagrams(&self) {
        self.datagrams.store(true, Ordering::Relaxed);
    }
}

/// An extended queue during one look.
#[derive(Clone, Copy)]
struct Look<'q> {
    /// # Invariants
    ///
    /// 0. Alive, and [complete](is_complete) with a context that lives; nobody else polls it.
    cq: NonNull<ibv_cq_ex>,
    queue: PhantomData<&'q ibv_cq_ex>,
}

impl<'q> Look<'q> {
    /// A look at a queue, and the room for what it finds.
    ///
    /// # Safety
    ///
    /// `cq` is an `ibv_cq_ex` as (0) asks for, and `to` has room for [`BATCH`] completions; both for the length of
    /// `'q`.
    #[inline(always)]
    unsafe fn new(cq: *mut ibv_cq, to: *mut ibv_wc) -> (Self, &'q mut [ibv_wc; BATCH]) {
        // SAFETY: alive (caller), so not null.
        let cq = unsafe { NonNull::new_unchecked(cq.cast()) };
        // SAFETY: room for so many (caller), of numbers.
        (Self { cq, queue: PhantomData }, unsafe { &mut *to.cast() })
    }

    /// `ibv_start_poll`. After 0 there is a current completion, and the look must [end](Self::end).
    #[inline(always)]
    fn start(self) -> c_int {
        // SAFETY: alive, with this function, and nobody else polls (0).
        unsafe { verbs::ibv_start_poll(self.cq.as_ptr(), &mut ibv_poll_cq_attr::default()) }
    }

    /// Calls a function of the queue, other than start.
    #[inline(always)]
    fn call<R>(self, function: unsafe fn(*mut ibv_cq_ex) -> R) -> R {
        // SAFETY: alive, with all these functions (0). `copy` and the two polls call them only between start and end,
        // where there is a current completion.
        unsafe { function(self.cq.as_ptr()) }
    }

    /// The struct, whose `wr_id` and `status` are those of the current completion.
    #[inline(always)]
    fn fields(self) -> &'q ibv_cq_ex {
        // SAFETY: alive (0); the provider writes it only in `start` and `next`, during which no such reference is used.
        unsafe { self.cq.as_ref() }
    }

    fn context(self) -> &'q ExtendedContext {
        // SAFETY: the context is one (0), and lives.
        unsafe { &*self.fields().cq_context.cast::<ExtendedContext>() }
    }

    /// A completion was lost, and nobody knows of which request. Those before it are given out, and the next look
    /// fails.
    #[cold]
    fn fail_next(self) {
        unsafe extern "C" fn failed(_: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
            libc::EIO
        }
        // SAFETY: alive (0); only a look uses this member, and this is the only one.
        unsafe { (*self.cq.as_ptr()).start_poll = Some(failed) };
    }

    /// Copies what the library reads of the current completion. Each field is written as wide as it is read later: a
    /// load that spans two stores would wait for both.
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

    /// The fields of a receive that succeeded.
    #[inline(never)]
    fn copy_received(self, to: &mut ibv_wc) {
        const EXTRAS: u32 = ibv_wc_flags::IBV_WC_WITH_IMM.0 | ibv_wc_flags::IBV_WC_WITH_INV.0;
        to.byte_len = self.call(verbs::ibv_wc_read_byte_len);
        to.wc_flags = self.call(verbs::ibv_wc_read_wc_flags);
        to.opcode = ibv_wc_opcode::IBV_WC_RECV;
        if to.wc_flags & EXTRAS != 0 {
            // The other operation is a write with immediate.
            to.opcode = self.call(verbs::ibv_wc_read_opcode);
            // Or the key that was invalidated, in the same place.
            to.__bindgen_anon_1.imm_data = self.call(verbs::ibv_wc_read_imm_data);
        }
        if WorkId::from_raw(to.wr_id).key().kind() == QueueKind::Shared {
            to.qp_num = self.call(verbs::ibv_wc_read_qp_num);
        }
        if self.context().datagrams.load(Ordering::Relaxed) {
            to.src_qp = self.call(verbs::ibv_wc_read_src_qp);
            // `ibv_poll_cq` has 16 bits for it as well.
            to.slid = self.call(verbs::ibv_wc_read_slid) as u16;
            to.sl = self.call(verbs::ibv_wc_read_sl);
        }
    }

    /// The fields of a request that failed.
    #[cold]
    #[inline(never)]
    fn copy_failed(self, to: &mut ibv_wc) {
        to.vendor_err = self.call(verbs::ibv_wc_read_vendor_err);
        // For a shared receive it says which pair took it.
        to.qp_num = self.call(verbs::ibv_wc_read_qp_num);
    }
}

/// Like `ibv_poll_cq`, for an extended queue: takes up to [`BATCH`] completions, whatever count the caller asks for,
/// and writes of each the fields that the library reads of one of its kind. Fewer than `BATCH` means that there are no
/// more.
///
/// # Safety
///
/// As for [`Look::new`].
pub(super) unsafe extern "C" fn poll(cq: *mut ibv_cq, _: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's promise is the same.
    let (look, room) = unsafe { Look::new(cq, to) };
    match look.start() {
        0 => {}
        // `ibv_start_poll` found nothing, so `ibv_end_poll` must not be called.
        libc::ENOENT => return 0,
        _ => return -1,
    }
    let mut count = 0;
    while let Some(to) = room.get_mut(count) {
        look.copy(to);
        count += 1;
        if count == BATCH {
            break;
        }
        match look.call(verbs::ibv_next_poll) {
            0 => {}
            libc::ENOENT => break,
            _ => {
                look.fail_next();
                break;
            }
        }
    }
    look.call(verbs::ibv_end_poll);
    count as c_int
}

/// Like [`poll`], without `ibv_next_poll`: each completion has a start and an end of its own.
///
/// # Safety
///
/// As for [`Look::new`].
pub(super) unsafe extern "C" fn poll_singly(cq: *mut ibv_cq, _: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's promise is the same.
    let (look, room) = unsafe { Look::new(cq, to) };
    let mut count = 0;
    for to in room {
        match look.start() {
            0 => {}
            libc::ENOENT => break,
            _ if count == 0 => return -1,
            _ => {
                look.fail_next();
                break;
            }
        }
        look.copy(to);
        look.call(verbs::ibv_end_poll);
        count += 1;
    }
    count
}
