//! Extended completion queues: completions one at a time, their fields by functions.
#![allow(unsafe_code, reason = "functions on raw objects")]

use super::{
    completion,
    data_path::failure,
    fault::Verb,
    handles::{cq_parts, fabric_of},
};
use crate::sys::{ibv_cq, ibv_cq_ex, ibv_create_cq_wc_flags as with, ibv_poll_cq_attr, ibv_wc, ibv_wc_opcode};
use libc::{c_int, c_uint};

/// A completion queue as the C interface knows it, and how far who polls it has come.
#[repr(C)]
pub(super) struct SoftQueue {
    base: ibv_cq_ex,
    walk: Walk,
    current: ibv_wc,
}

/// Between `ibv_start_poll` and `ibv_end_poll` a provider holds a lock; here is what would become of that.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    Closed,
    Open,
    /// Ended without a beginning: nobody gets the lock any more.
    Lost,
}

/// The fields that there are.
const FIELDS: with = with(
    with::IBV_WC_EX_WITH_BYTE_LEN.0
        | with::IBV_WC_EX_WITH_IMM.0
        | with::IBV_WC_EX_WITH_QP_NUM.0
        | with::IBV_WC_EX_WITH_SRC_QP.0
        | with::IBV_WC_EX_WITH_SLID.0
        | with::IBV_WC_EX_WITH_SL.0
        | with::IBV_WC_EX_WITH_DLID_PATH_BITS.0,
);

impl SoftQueue {
    /// A queue with the functions that were asked for: the others are not there, as with any provider.
    pub(super) fn new(cq: ibv_cq, asked: Option<u64>) -> Result<Self, c_int> {
        let ibv_cq { context, channel, cq_context, cqe, .. } = cq;
        let mut base = ibv_cq_ex { context, channel, cq_context, cqe, ..ibv_cq_ex::default() };
        if let Some(asked) = asked {
            if asked & !u64::from(FIELDS.0) != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            fill(&mut base, |bit| asked & u64::from(bit.0) != 0);
        }
        Ok(Self { base, walk: Walk::Closed, current: completion::undefined() })
    }
}

/// Puts the functions of the fields for which `has` holds into a queue.
fn fill(cq: &mut ibv_cq_ex, has: impl Fn(with) -> bool) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_byte_len = has(with::IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len as _);
    cq.read_imm_data = has(with::IBV_WC_EX_WITH_IMM).then_some(read_imm_data as _);
    cq.read_qp_num = has(with::IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num as _);
    cq.read_src_qp = has(with::IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp as _);
    cq.read_slid = has(with::IBV_WC_EX_WITH_SLID).then_some(read_slid as _);
    cq.read_sl = has(with::IBV_WC_EX_WITH_SL).then_some(read_sl as _);
    cq.read_dlid_path_bits = has(with::IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits as _);
}

/// How far who polls has come.
///
/// # Safety
///
/// A live completion queue of this provider, which nobody else polls.
unsafe fn walk<'a>(cq: *mut ibv_cq_ex) -> &'a mut Walk {
    // SAFETY: every queue of this provider is the beginning of a `SoftQueue`, and this part of it belongs to who polls (caller).
    unsafe { &mut (*cq.cast::<SoftQueue>()).walk }
}

/// The current completion; one of undefined fields if there is none.
///
/// # Safety
///
/// As [`walk`].
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a mut ibv_wc {
    // SAFETY: as in `walk`.
    unsafe { &mut (*cq.cast::<SoftQueue>()).current }
}

/// Makes a completion the current one, of which two fields are in the queue itself.
///
/// # Safety
///
/// As [`walk`].
unsafe fn set_current(cq: *mut ibv_cq_ex, wc: ibv_wc) {
    // SAFETY: alive, and this member belongs to who polls (caller).
    unsafe { (*cq).wr_id = wc.wr_id };
    // SAFETY: as above.
    unsafe { (*cq).status = wc.status };
    // SAFETY: the caller's promise.
    *unsafe { current(cq) } = wc;
}

/// Takes the next completion.
///
/// # Safety
///
/// As [`walk`].
unsafe fn advance(cq: *mut ibv_cq_ex, starts: bool) -> c_int {
    // SAFETY: alive (caller).
    let (context, index) = unsafe { cq_parts(cq.cast()) };
    // SAFETY: its context is open.
    let mut state = unsafe { fabric_of(context) }.lock();
    state.latitudes.walks(!starts);
    if starts {
        let device = state.cqs.get(index).map(|cq| cq.device);
        if let Some(errno) = failure(&mut state, device, Verb::PollCq) {
            return errno;
        }
        state.settle();
    }
    let (wc, answer) = match state.poll(index) {
        Ok(Some(wc)) => (wc, 0),
        Ok(None) => (completion::undefined(), libc::ENOENT),
        Err(errno) => (completion::undefined(), errno),
    };
    // SAFETY: the caller's promise.
    unsafe { set_current(cq, wc) };
    answer
}

/// # Safety
///
/// As for all functions from here on: `ibv_create_cq_ex(3)`, on a live completion queue of this provider.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attributes: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: may be read (caller).
    if unsafe { (*attributes).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the caller's promise.
    if *unsafe { walk(cq) } != Walk::Closed {
        return libc::EDEADLK;
    }
    // SAFETY: the caller's promise.
    let answer = unsafe { advance(cq, true) };
    if answer == 0 {
        // SAFETY: the caller's promise.
        *unsafe { walk(cq) } = Walk::Open;
    }
    answer
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's promise.
    if *unsafe { walk(cq) } != Walk::Open {
        return libc::EINVAL;
    }
    // SAFETY: the caller's promise.
    unsafe { advance(cq, false) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller's promise.
    let walk = unsafe { walk(cq) };
    *walk = if *walk == Walk::Open { Walk::Closed } else { Walk::Lost };
    // What was read of a completion is gone with it.
    // SAFETY: the caller's promise.
    unsafe { set_current(cq, completion::undefined()) };
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: the caller's promise.
    unsafe { current(cq) }.opcode
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { current(cq) }.vendor_err
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { current(cq) }.byte_len
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    let extra = unsafe { current(cq) }.__bindgen_anon_1;
    // SAFETY: the members of the union are numbers of 4 bytes.
    unsafe { extra.imm_data }
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { current(cq) }.qp_num
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { current(cq) }.src_qp
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: the caller's promise.
    unsafe { current(cq) }.wc_flags
}

unsafe extern "C" fn read_slid(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    u32::from(unsafe { current(cq) }.slid)
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: the caller's promise.
    unsafe { current(cq) }.sl
}

unsafe extern "C" fn read_dlid_path_bits(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: the caller's promise.
    unsafe { current(cq) }.dlid_path_bits
}
