//! The verbs of the data path: the C functions of the context. They never unwind, since nothing here panics.
#![allow(unsafe_code, reason = "verbs on raw objects")]

use super::{
    fabric::State,
    fault::Verb,
    handles::{cq_parts, fabric_of, qp_parts, srq_parts},
    latitude::pause_in_poll,
    post::Refused,
};
use crate::sys::{
    ibv_context_ops, ibv_cq, ibv_mw, ibv_mw_bind, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc, ibv_wc_status,
};
use libc::c_int;
use std::ptr;

/// Puts the functions into the table of a context.
pub(super) fn fill(ops: &mut ibv_context_ops) {
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
    ops.bind_mw = Some(bind_mw);
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
}

/// What a data-path verb is to answer instead of doing its work.
pub(super) fn failure(state: &mut State, device: Option<usize>, verb: Verb) -> Option<c_int> {
    if let Some(errno) = state.faults.verb(verb) {
        return Some(errno);
    }
    match device.and_then(|device| state.devices.get(device)) {
        Some(device) if !device.refuses(verb) => None,
        Some(_) => Some(libc::EIO),
        None => Some(libc::EINVAL),
    }
}

/// Reports a refused post in the way of C.
///
/// # Safety
///
/// `bad` is null or may be written.
unsafe fn answer<W>(state: &mut State, result: Result<(), Refused<W>>, bad: *mut *mut W) -> c_int {
    let Err(Refused { errno, at }) = result else { return 0 };
    if !at.is_null() && !bad.is_null() {
        // SAFETY: the caller's promise.
        unsafe { bad.write(at) };
    }
    state.latitudes.code(errno)
}

/// What a post answers that queued only a part, and says 0.
pub(super) const HALF: c_int = 0;

/// `ibv_post_send`.
///
/// # Safety
///
/// `ibv_post_send(3)`, on a live queue pair of this provider.
unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: alive (caller).
    let (context, index) = unsafe { qp_parts(qp) };
    // SAFETY: its context is open.
    let mut state = unsafe { fabric_of(context) }.lock();
    let device = state.pairs.get(index).map(|pair| pair.device);
    let result = match failure(&mut state, device, Verb::PostSend) {
        Some(errno) => Err(Refused { errno, at: wr }),
        None => {
            let kept = state.faults.send_kept();
            // SAFETY: the caller's promise.
            let posted = unsafe { state.post_send(index, wr, kept) };
            state.belie(posted, wr)
        }
    };
    state.settle();
    // SAFETY: the caller's promise.
    unsafe { answer(&mut state, result, bad) }
}

/// `ibv_post_recv`.
///
/// # Safety
///
/// `ibv_post_recv(3)`, on a live queue pair of this provider.
unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: alive (caller).
    let (context, index) = unsafe { qp_parts(qp) };
    // SAFETY: its context is open.
    let mut state = unsafe { fabric_of(context) }.lock();
    let device = state.pairs.get(index).map(|pair| pair.device);
    let result = match failure(&mut state, device, Verb::PostRecv) {
        Some(errno) => Err(Refused { errno, at: wr }),
        None => {
            let kept = state.faults.receive_kept();
            // SAFETY: the caller's promise.
            let posted = unsafe { state.post_receive(index, wr, kept) };
            state.belie(posted, wr)
        }
    };
    state.settle();
    // SAFETY: the caller's promise.
    unsafe { answer(&mut state, result, bad) }
}

/// `ibv_post_srq_recv`.
///
/// # Safety
///
/// `ibv_post_srq_recv(3)`, on a live queue of this provider.
unsafe extern "C" fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: alive (caller).
    let (context, index) = unsafe { srq_parts(srq) };
    // SAFETY: its context is open.
    let mut state = unsafe { fabric_of(context) }.lock();
    let device = state.srqs.get(index).map(|srq| srq.device);
    let result = match failure(&mut state, device, Verb::PostSrqRecv) {
        Some(errno) => Err(Refused { errno, at: wr }),
        None => {
            // SAFETY: the caller's promise.
            let posted = unsafe { state.post_shared(index, wr) };
            state.belie(posted, wr)
        }
    };
    state.settle();
    // SAFETY: the caller's promise.
    unsafe { answer(&mut state, result, bad) }
}

/// `ibv_bind_mw`, what is left of it behind the inline function.
///
/// # Safety
///
/// `ibv_bind_mw(3)`, on live objects of this provider.
unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: alive (caller).
    let (context, index) = unsafe { qp_parts(qp) };
    // SAFETY: its context is open.
    let mut state = unsafe { fabric_of(context) }.lock();
    let device = state.pairs.get(index).map(|pair| pair.device);
    // SAFETY: may be read (caller).
    let bind = unsafe { &*bind };
    let result = match failure(&mut state, device, Verb::BindMw) {
        Some(errno) => Err(errno),
        // SAFETY: the caller's promise.
        None => unsafe { state.post_bind(index, mw, bind) },
    };
    state.settle();
    let code = result.err().unwrap_or(0);
    state.latitudes.code(code)
}

/// `ibv_poll_cq`.
///
/// # Safety
///
/// `ibv_poll_cq(3)`, on a live completion queue of this provider.
unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: alive (caller).
    let (context, index) = unsafe { cq_parts(cq) };
    // SAFETY: its context is open.
    let mut state = unsafe { fabric_of(context) }.lock();
    let device = state.cqs.get(index).map(|cq| cq.device);
    if let Some(errno) = failure(&mut state, device, Verb::PollCq) {
        return -errno;
    }
    let Ok(room) = usize::try_from(entries) else { return -libc::EINVAL };
    // SAFETY: its context is open.
    let mut state = pause_in_poll(state, unsafe { fabric_of(context) }, index);
    state.settle();
    let mut found = 0;
    let room = state.latitudes.filled(room);
    let latitudes = &state.latitudes;
    let [of_failures, of_all] = [!latitudes.is_strict, latitudes.habits.keeps_fields];
    while found < room {
        match state.poll(index) {
            Ok(Some(mut wc)) => {
                // SAFETY: `found` is less than `entries`.
                let place = unsafe { to.add(found) };
                let is_failure = wc.status != ibv_wc_status::IBV_WC_SUCCESS;
                if of_all || is_failure && of_failures {
                    // SAFETY: an element of the caller's array, of numbers.
                    leave_fields(&mut wc, unsafe { &*place });
                }
                // SAFETY: an element of the caller's array.
                unsafe { ptr::write(place, wc) };
                found += 1;
            }
            Ok(None) => break,
            Err(errno) if found == 0 => return -errno,
            Err(_) => break,
        }
    }
    if found > 0 && state.latitudes.takes(|habits| habits.lossy_polls) {
        state.fail_queue(index);
        return -libc::EIO;
    }
    // At most `entries`, which fits.
    c_int::try_from(found).unwrap_or(c_int::MAX)
}

/// Fields of a completion that stay as they were: bits of the flags, the sender's place in the fabric; and of a failure all but
/// its request, its status and its pair.
fn leave_fields(wc: &mut ibv_wc, before: &ibv_wc) {
    if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
        let ibv_wc { wr_id, status, vendor_err, qp_num, .. } = *wc;
        *wc = ibv_wc { wr_id, status, vendor_err, qp_num, ..*before };
        return;
    }
    wc.wc_flags |= before.wc_flags;
    (wc.slid, wc.sl, wc.pkey_index) = (before.slid, before.sl, before.pkey_index);
    wc.dlid_path_bits = before.dlid_path_bits;
}

/// `ibv_req_notify_cq`.
///
/// # Safety
///
/// `ibv_req_notify_cq(3)`, on a live completion queue of this provider.
unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: alive (caller).
    let (context, index) = unsafe { cq_parts(cq) };
    // SAFETY: its context is open.
    let mut state = unsafe { fabric_of(context) }.lock();
    let device = state.cqs.get(index).map(|cq| cq.device);
    if let Some(errno) = failure(&mut state, device, Verb::ReqNotifyCq) {
        return errno;
    }
    let armed = state.arm(index, solicited_only != 0);
    state.settle();
    armed.err().unwrap_or(0)
}
