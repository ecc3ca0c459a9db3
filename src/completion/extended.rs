//! Polling through `ibv_start_poll`, `ibv_next_poll` and `ibv_end_poll`: as many completions as one look takes are copied
//! out between the first and the last, so that what follows is the same for both ways of polling.
//!
//! In between, the provider holds the lock of the queue, which the end of a pair takes too. So nothing of the program
//! runs there.
//!
//! ASSUMPTION: what `ibv_create_cq_ex(3)` says of these functions; and `ibv_start_poll` and `ibv_next_poll` order what the device
//! wrote before what is read after them, as `ibv_poll_cq` does.
#![allow(unsafe_code, reason = "calls the provider's poll functions")]

use super::desk::BATCH;
use super::options::CompletionQueueError;
use super::queue::Attached;
use crate::error::VerbError;
use crate::inflight::{QueueKind, WorkId};
use crate::provider::reviewed::Walk;
use crate::sys::inline::{self as verbs, PollCq};
use crate::sys::{
    self, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_create_cq_wc_flags as with, ibv_poll_cq_attr, ibv_wc,
    ibv_wc_flags, ibv_wc_opcode, ibv_wc_status,
};
use libc::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{ptr, ptr::NonNull, sync::Arc};

#[cfg(all(test, not(loom)))]
mod tests;

/// How completions are taken from the device, as [`CompletionQueueOptions::polling`](crate::CompletionQueueOptions::polling)
/// has it. What comes out is the same.
///
/// # Examples
///
/// ```
/// # use interlock::{CompletionQueueError, CompletionQueueOptions, Context, Polling};
/// # interlock::domain! { struct Docs; }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = Context::open("soft0")?.named_domain(Docs)?;
/// let options = CompletionQueueOptions { polling: Polling::Extended, ..Default::default() };
/// let (queue, poller) = match domain.completion_queue_with(64, &options) {
///     Err(CompletionQueueError::NotExtended(_)) => domain.completion_queue(64)?,
///     made => made?,
/// };
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum Polling {
    /// Into an array, `ibv_poll_cq(3)`. Every device has it.
    #[default]
    #[doc(alias = "ibv_poll_cq")]
    Array,
    /// One by one, with `ibv_start_poll`, `ibv_next_poll` and `ibv_end_poll` of an extended completion queue,
    /// `ibv_create_cq_ex(3)`: some devices are faster so, and some do not have it.
    #[doc(alias = "ibv_cq_ex")]
    #[doc(alias = "ibv_start_poll")]
    #[doc(alias = "ibv_next_poll")]
    #[doc(alias = "ibv_end_poll")]
    Extended,
}

/// The fields that are read. Operation, flags and the provider's code are always there.
const FIELDS: u32 = with::IBV_WC_EX_WITH_BYTE_LEN.0
    | with::IBV_WC_EX_WITH_IMM.0
    | with::IBV_WC_EX_WITH_QP_NUM.0
    | with::IBV_WC_EX_WITH_SRC_QP.0
    | with::IBV_WC_EX_WITH_SLID.0
    | with::IBV_WC_EX_WITH_SL.0;

/// What an extended queue is asked for with.
pub(super) fn attributes(
    entries: u32,
    channel: NonNull<sys::ibv_comp_channel>,
    vector: u32,
    served: &Arc<Served>,
) -> ibv_cq_init_attr_ex {
    ibv_cq_init_attr_ex {
        cqe: entries,
        cq_context: Arc::as_ptr(served).cast_mut().cast(),
        channel: channel.as_ptr(),
        comp_vector: vector,
        wc_flags: u64::from(FIELDS),
        ..Default::default()
    }
}

/// How a device is polled, if its provider keeps to `ibv_create_cq_ex(3)`.
pub(super) fn poll_of(walk: Walk) -> Result<PollCq, CompletionQueueError> {
    match walk {
        Walk::No => Err(none()),
        Walk::Singly => Ok(poll_singly),
        Walk::Yes => Ok(poll),
    }
}

/// What a device without it answers.
pub(super) fn none() -> CompletionQueueError {
    CompletionQueueError::NotExtended(VerbError::unsupported("ibv_create_cq_ex"))
}

/// Why there is no extended queue.
pub(super) fn explain(error: VerbError) -> CompletionQueueError {
    if error.is_unsupported() { CompletionQueueError::NotExtended(error) } else { error.into() }
}

/// Whether the context is `served`, and all functions are there that are called.
///
/// # Safety
///
/// `cq` is alive, and nobody else uses it yet.
pub(super) unsafe fn is_complete(cq: NonNull<ibv_cq_ex>, served: &Arc<Served>) -> bool {
    // SAFETY: alive (caller).
    let cq = unsafe { cq.as_ref() };
    let context = ptr::eq(cq.cq_context.cast(), Arc::as_ptr(served));
    let walk = cq.start_poll.is_some() && cq.next_poll.is_some() && cq.end_poll.is_some();
    let always = cq.read_opcode.is_some() && cq.read_wc_flags.is_some() && cq.read_vendor_err.is_some();
    let messages = cq.read_byte_len.is_some() && cq.read_imm_data.is_some() && cq.read_qp_num.is_some();
    let datagrams = cq.read_src_qp.is_some() && cq.read_slid.is_some() && cq.read_sl.is_some();
    context && walk && always && messages && datagrams
}

/// What has to be known of a queue when it is polled; its `cq_context` points here.
#[derive(Default)]
pub(super) struct Served {
    /// Pairs for datagrams were attached: of a receive, the sender has to be read too.
    datagrams: AtomicBool,
}

impl Served {
    /// A work queue has come. Before anything can be posted there, so whoever sees its completions sees this.
    pub(super) fn attach(&self, attached: &Attached) {
        if attached.retirer.origin().datagrams() {
            self.datagrams.store(true, Ordering::Relaxed);
        }
    }
}

/// As `ibv_poll_cq`, of an extended queue: takes up to [`BATCH`] completions, and writes of each what the library reads of
/// one of its kind. Fewer: there are no more.
///
/// # Safety
///
/// `ibv_poll_cq(3)`, with room for [`BATCH`]. `cq` is an `ibv_cq_ex` that [is complete](is_complete), whose context is a
/// [`Served`] that lives, and nobody else polls it.
pub(super) unsafe extern "C" fn poll(cq: *mut ibv_cq, _: c_int, mut to: *mut ibv_wc) -> c_int {
    let cq = cq.cast::<ibv_cq_ex>();
    // SAFETY: alive, and the function is there (caller).
    match unsafe { verbs::ibv_start_poll(cq, &mut ibv_poll_cq_attr::default()) } {
        0 => {}
        // Neither of them is to be ended.
        libc::ENOENT => return 0,
        _ => return -1,
    }
    let mut count = 0;
    loop {
        // SAFETY: there is a completion, and room for it.
        unsafe { copy(cq, to) };
        count += 1;
        if count == BATCH {
            break;
        }
        // SAFETY: alive, and the function is there (caller); it was started, and not ended.
        match unsafe { verbs::ibv_next_poll(cq) } {
            0 => {}
            libc::ENOENT => break,
            _ => {
                // SAFETY: the caller's promise.
                unsafe { fail_next(cq) };
                break;
            }
        }
        // SAFETY: there is room for another.
        to = unsafe { to.add(1) };
    }
    // SAFETY: alive, and the function is there (caller); it was started, and not ended.
    unsafe { verbs::ibv_end_poll(cq) };
    count as c_int
}

/// As [`poll`], without `ibv_next_poll`: a look for each.
///
/// # Safety
///
/// As for [`poll`].
pub(super) unsafe extern "C" fn poll_singly(cq: *mut ibv_cq, _: c_int, to: *mut ibv_wc) -> c_int {
    let cq = cq.cast::<ibv_cq_ex>();
    for count in 0..BATCH {
        // SAFETY: alive, and the function is there (caller).
        match unsafe { verbs::ibv_start_poll(cq, &mut ibv_poll_cq_attr::default()) } {
            0 => {}
            libc::ENOENT => return count as c_int,
            _ if count == 0 => return -1,
            _ => {
                // SAFETY: the caller's promise.
                unsafe { fail_next(cq) };
                return count as c_int;
            }
        }
        // SAFETY: there is room for so many.
        let to = unsafe { to.add(count) };
        // SAFETY: there is a completion, and room for it.
        unsafe { copy(cq, to) };
        // SAFETY: alive, and the function is there (caller); it was started, and not ended.
        unsafe { verbs::ibv_end_poll(cq) };
    }
    BATCH as c_int
}

/// A completion is lost: whose, nobody knows. What came before it is given out, and the next look fails.
///
/// # Safety
///
/// As for [`poll`].
#[cold]
unsafe fn fail_next(cq: *mut ibv_cq_ex) {
    unsafe extern "C" fn failed(_: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
        libc::EIO
    }
    // SAFETY: alive; only who polls uses this member, and that is the caller.
    unsafe { (*cq).start_poll = Some(failed) };
}

/// Copies what is read of the current completion. Each field is written as wide as it is read later: a load of
/// what two stores wrote waits for both.
///
/// # Safety
///
/// There is one; `cq` is as for [`poll`], and `to` may be written.
#[inline(always)]
unsafe fn copy(cq: *mut ibv_cq_ex, to: *mut ibv_wc) {
    // SAFETY: alive (caller).
    let id = WorkId::from_raw(unsafe { (*cq).wr_id });
    // SAFETY: alive (caller).
    let status = unsafe { (*cq).status };
    // SAFETY: may be written (caller).
    let to = unsafe { &mut *to };
    to.wr_id = id.raw();
    to.status = status;
    if status != ibv_wc_status::IBV_WC_SUCCESS {
        // SAFETY: the caller's promise.
        unsafe { copy_failed(cq, to) };
    } else if id.key().kind() != QueueKind::Send {
        // SAFETY: the caller's promise.
        unsafe { copy_received(cq, to) };
    }
}

/// Of a receive that succeeded.
///
/// # Safety
///
/// As for [`copy`].
#[inline(never)]
unsafe fn copy_received(cq: *mut ibv_cq_ex, to: &mut ibv_wc) {
    const EXTRAS: u32 = ibv_wc_flags::IBV_WC_WITH_IMM.0 | ibv_wc_flags::IBV_WC_WITH_INV.0;
    // SAFETY: alive (caller).
    let served = unsafe { (*cq).cq_context }.cast::<Served>();
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "the fields of one completion")]
    // SAFETY: the functions are there, and there is a completion (caller); the fields of the union are numbers of 4 bytes.
    unsafe {
        to.byte_len = verbs::ibv_wc_read_byte_len(cq);
        to.wc_flags = verbs::ibv_wc_read_wc_flags(cq);
        to.opcode = ibv_wc_opcode::IBV_WC_RECV;
        if to.wc_flags & EXTRAS != 0 {
            // Only a write with immediate is another operation.
            to.opcode = verbs::ibv_wc_read_opcode(cq);
            // Or the key that was invalidated.
            to.__bindgen_anon_1.imm_data = verbs::ibv_wc_read_imm_data(cq);
        }
        if WorkId::from_raw(to.wr_id).key().kind() == QueueKind::Shared {
            to.qp_num = verbs::ibv_wc_read_qp_num(cq);
        }
        if (*served).datagrams.load(Ordering::Relaxed) {
            to.src_qp = verbs::ibv_wc_read_src_qp(cq);
            // As wide as `ibv_poll_cq` has it.
            to.slid = verbs::ibv_wc_read_slid(cq) as u16;
            to.sl = verbs::ibv_wc_read_sl(cq);
        }
    }
}

/// Of a request that failed.
///
/// # Safety
///
/// As for [`copy`].
#[cold]
#[inline(never)]
unsafe fn copy_failed(cq: *mut ibv_cq_ex, to: &mut ibv_wc) {
    // SAFETY: the function is there, and there is a completion (caller).
    to.vendor_err = unsafe { verbs::ibv_wc_read_vendor_err(cq) };
    // Of a shared receive it tells whose it was.
    // SAFETY: as above.
    to.qp_num = unsafe { verbs::ibv_wc_read_qp_num(cq) };
}
