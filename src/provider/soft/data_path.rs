//! The verbs of the data path: the C functions of the context. They never unwind into C, because none of them panics.
#![allow(unsafe_code, reason = "C functions on raw objects")]

use super::{
    fabric::State,
    fault::Verb,
    handles::{Handle, find},
    latitude::pause_in_poll,
    post::Refused,
    posted::{BindRequest, Linked, Post},
};
use crate::sys::{
    ibv_context_ops, ibv_cq, ibv_mw, ibv_mw_bind, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc, ibv_wc_status,
};
use libc::c_int;
use std::{mem::MaybeUninit, slice};

/// Puts the data-path functions into the table of a context.
pub(super) fn fill(ops: &mut ibv_context_ops) {
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
    ops.bind_mw = Some(bind_mw);
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
}

/// The errno with which a data-path verb must fail, because of a fault, or because its device or object is gone. `None`
/// if the verb may go on.
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

/// Posts a list with `enqueue`, and returns the result as the C function does.
fn post<T: Handle, W: Linked>(
    post: Post<'_, T, W>,
    verb: Verb,
    device_of: impl FnOnce(&State, usize) -> Option<usize>,
    enqueue: impl FnOnce(&mut State, &Post<'_, T, W>) -> Result<(), Refused<W>>,
) -> c_int {
    let mut state = post.object.context.fabric.lock();
    let device = device_of(&state, post.object.index);
    let result = match failure(&mut state, device, verb) {
        Some(errno) => Err(Refused { errno, at: post.first() }),
        None => {
            let enqueued = enqueue(&mut state, &post);
            state.belie(enqueued, post.first())
        }
    };
    state.settle();
    let Err(Refused { errno, at }) = result else { return 0 };
    post.refuse(at);
    state.latitudes.code(errno)
}

fn device_of_pair(state: &State, index: usize) -> Option<usize> {
    state.pairs.get(index).map(|pair| pair.device)
}

/// `ibv_post_send`.
///
/// # Safety
///
/// `ibv_post_send(3)`, on a live queue pair of this provider.
unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the queue pair is alive, and the arguments are as `ibv_post_send(3)` requires (caller).
    let list = unsafe { Post::new(qp, wr, bad) };
    post(list, Verb::PostSend, device_of_pair, |state, list| {
        let kept = state.faults.send_kept();
        state.post_send(list, kept)
    })
}

/// `ibv_post_recv`.
///
/// # Safety
///
/// `ibv_post_recv(3)`, on a live queue pair of this provider.
unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the queue pair is alive, and the arguments are as `ibv_post_recv(3)` requires (caller).
    let list = unsafe { Post::new(qp, wr, bad) };
    post(list, Verb::PostRecv, device_of_pair, |state, list| {
        let kept = state.faults.receive_kept();
        state.post_receive(list, kept)
    })
}

/// `ibv_post_srq_recv`.
///
/// # Safety
///
/// `ibv_post_srq_recv(3)`, on a live queue of this provider.
unsafe extern "C" fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the queue is alive, and the arguments are as `ibv_post_srq_recv(3)` requires (caller).
    let list = unsafe { Post::new(srq, wr, bad) };
    let device_of_queue = |state: &State, index| state.srqs.get(index).map(|srq| srq.device);
    post(list, Verb::PostSrqRecv, device_of_queue, State::post_shared)
}

/// The member `bind_mw` of the context, which the inline function `ibv_bind_mw` of C calls.
///
/// # Safety
///
/// `ibv_bind_mw(3)`, on live objects of this provider.
unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the pair is alive (caller).
    let pair = unsafe { find(qp) };
    // SAFETY: the arguments are as `ibv_bind_mw(3)` requires (caller).
    let mut request = unsafe { BindRequest::new(mw, bind) };
    let state = &mut *pair.context.fabric.lock();
    let device = device_of_pair(state, pair.index);
    let result = match failure(state, device, Verb::BindMw) {
        Some(errno) => Err(errno),
        None => state.post_bind(pair.index, &mut request),
    };
    state.settle();
    let code = result.err().unwrap_or(0);
    state.latitudes.code(code)
}

/// `ibv_poll_cq`.
///
/// # Safety
///
/// `ibv_poll_cq(3)`, on a live completion queue of this provider. If the profile leaves fields of completions
/// unwritten, the caller has initialized the array.
unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the queue is alive (caller).
    let queue = unsafe { find(cq) };
    let (fabric, index) = (queue.context.fabric, queue.index);
    let mut state = fabric.lock();
    let device = state.cqs.get(index).map(|cq| cq.device);
    if let Some(errno) = failure(&mut state, device, Verb::PollCq) {
        return -errno;
    }
    let Ok(room) = usize::try_from(entries) else { return -libc::EINVAL };
    let mut state = pause_in_poll(state, fabric, index);
    state.settle();
    let room = state.latitudes.filled(room);
    let latitudes = &state.latitudes;
    let [of_failures, of_all] = [!latitudes.is_strict, latitudes.habits.leaves_fields];
    let mut found = 0;
    if room > 0 {
        // SAFETY: the caller's array has `entries` elements, and `room` is at most that number.
        let array = unsafe { slice::from_raw_parts_mut(to.cast::<MaybeUninit<ibv_wc>>(), room) };
        for place in array {
            match state.poll(index) {
                Ok(Some(mut wc)) => {
                    let is_failure = wc.status != ibv_wc_status::IBV_WC_SUCCESS;
                    if of_all || is_failure && of_failures {
                        // SAFETY: the profile leaves fields of this completion unwritten. For such a profile, the array
                        // is initialized (caller).
                        leave_fields(&mut wc, unsafe { place.assume_init_ref() });
                    }
                    place.write(wc);
                    found += 1;
                }
                Ok(None) => break,
                Err(errno) if found == 0 => return -errno,
                Err(_) => break,
            }
        }
    }
    if found > 0 && state.latitudes.takes(|habits| habits.lossy_polls) {
        state.fail_queue(index);
        return -libc::EIO;
    }
    found
}

/// Keeps fields that the array held before. After a success these are the flag bits and the sender's address; after a
/// failure, all fields except the id, the status, the vendor error and the queue pair number.
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
    // SAFETY: the queue is alive (caller).
    let queue = unsafe { find(cq) };
    let state = &mut *queue.context.fabric.lock();
    let device = state.cqs.get(queue.index).map(|cq| cq.device);
    if let Some(errno) = failure(state, device, Verb::ReqNotifyCq) {
        return errno;
    }
    let armed = state.arm(queue.index, solicited_only != 0);
    state.settle();
    armed.err().unwrap_or(0)
}
