//! The work request API, `ibv_wr_*`: requests that are drafted call by call and posted together.
//!
//! A session is posted as a whole or not at all.
#![allow(unsafe_code, reason = "functions on raw objects")]

use super::{
    data_path::failure,
    fault::Verb,
    handles::{fabric_of, qp_parts},
    transition::Transport,
};
use crate::sys::{
    ibv_ah, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_create_send_ops_flags as with, ibv_qp_ex, ibv_send_flags,
    ibv_send_wr, ibv_sge, ibv_wr_opcode,
};
use libc::{c_int, c_void};
use std::{mem, ptr, slice};

/// A queue pair as the C interface knows it, with the session that is open on it.
#[repr(C)]
pub(super) struct SoftPair {
    base: ibv_qp_ex,
    drafts: Vec<Draft>,
}

/// A request of a session.
pub(super) struct Draft {
    /// Points nowhere until the session is complete.
    wr: ibv_send_wr,
    elements: Vec<ibv_sge>,
    /// In place of elements.
    inline: Option<Vec<u8>>,
}

impl Draft {
    /// The request, which points into the draft.
    pub(super) fn request(&mut self) -> &mut ibv_send_wr {
        let Self { wr, elements, inline } = self;
        if let Some(data) = inline {
            let addr = data.as_ptr().expose_provenance() as u64;
            // Data that is longer than an element can say is longer than any pair takes.
            let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
            *elements = vec![ibv_sge { addr, length, lkey: 0 }];
            wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        }
        wr.sg_list = elements.as_mut_ptr();
        wr.num_sge = c_int::try_from(elements.len()).unwrap_or(c_int::MAX);
        wr.next = ptr::null_mut();
        wr
    }
}

/// What a transport can be asked for.
fn operations(transport: Transport) -> with {
    let sends = with::IBV_QP_EX_WITH_SEND | with::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let connected = with::IBV_QP_EX_WITH_RDMA_WRITE
        | with::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | with::IBV_QP_EX_WITH_SEND_WITH_INV
        | with::IBV_QP_EX_WITH_LOCAL_INV
        | with::IBV_QP_EX_WITH_BIND_MW;
    let reliable = with::IBV_QP_EX_WITH_RDMA_READ
        | with::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | with::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | with::IBV_QP_EX_WITH_ATOMIC_WRITE;
    match transport {
        Transport::Datagram => sends,
        Transport::Unreliable => sends | connected,
        Transport::Reliable => sends | connected | reliable,
    }
}

impl SoftPair {
    /// A pair with the functions that were asked for: the others are not there, as with any provider.
    pub(super) fn new(qp_base: ibv_qp, transport: Transport, asked: Option<u64>) -> Result<Self, c_int> {
        let mut base = ibv_qp_ex { qp_base, ..ibv_qp_ex::default() };
        if let Some(asked) = asked {
            if asked & !u64::from(operations(transport).0) != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            fill(&mut base, |bit| asked & u64::from(bit.0) != 0);
            if transport != Transport::Datagram {
                base.wr_set_ud_addr = None;
            }
        }
        Ok(Self { base, drafts: Vec::new() })
    }
}

/// Puts the functions of the operations for which `has` holds into a pair.
fn fill(qp: &mut ibv_qp_ex, has: impl Fn(with) -> bool) {
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_send = has(with::IBV_QP_EX_WITH_SEND).then_some(send as _);
    qp.wr_send_imm = has(with::IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(send_imm as _);
    qp.wr_send_inv = has(with::IBV_QP_EX_WITH_SEND_WITH_INV).then_some(send_inv as _);
    qp.wr_rdma_write = has(with::IBV_QP_EX_WITH_RDMA_WRITE).then_some(rdma_write as _);
    qp.wr_rdma_write_imm = has(with::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(rdma_write_imm as _);
    qp.wr_rdma_read = has(with::IBV_QP_EX_WITH_RDMA_READ).then_some(rdma_read as _);
    qp.wr_atomic_cmp_swp = has(with::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(atomic_cmp_swp as _);
    qp.wr_atomic_fetch_add = has(with::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(atomic_fetch_add as _);
    qp.wr_atomic_write = has(with::IBV_QP_EX_WITH_ATOMIC_WRITE).then_some(atomic_write as _);
    qp.wr_local_inv = has(with::IBV_QP_EX_WITH_LOCAL_INV).then_some(local_inv as _);
    qp.wr_bind_mw = has(with::IBV_QP_EX_WITH_BIND_MW).then_some(bind_mw as _);
}

/// The drafts of the open session.
///
/// # Safety
///
/// A live queue pair of this provider, on which nobody else posts sends.
unsafe fn drafts<'a>(qp: *mut ibv_qp_ex) -> &'a mut Vec<Draft> {
    // SAFETY: every pair of this provider is the beginning of a `SoftPair`, and this part of it belongs to who posts (caller).
    unsafe { &mut (*qp.cast::<SoftPair>()).drafts }
}

/// Drafts a request.
///
/// # Safety
///
/// As [`drafts`].
unsafe fn draft(qp: *mut ibv_qp_ex, opcode: ibv_wr_opcode, fill: impl FnOnce(&mut ibv_send_wr)) {
    // SAFETY: alive (caller).
    let wr_id = unsafe { (*qp).wr_id };
    // SAFETY: alive (caller).
    let send_flags = unsafe { (*qp).wr_flags };
    // Whether the data is inline is what the data says.
    let send_flags = send_flags & !ibv_send_flags::IBV_SEND_INLINE.0;
    let mut wr = ibv_send_wr { wr_id, send_flags, opcode, ..ibv_send_wr::default() };
    fill(&mut wr);
    // SAFETY: the caller's promise.
    unsafe { drafts(qp) }.push(Draft { wr, elements: Vec::new(), inline: None });
}

/// Changes the last request.
///
/// # Safety
///
/// As [`drafts`].
unsafe fn last(qp: *mut ibv_qp_ex, change: impl FnOnce(&mut Draft)) {
    // SAFETY: the caller's promise.
    if let Some(draft) = unsafe { drafts(qp) }.last_mut() {
        change(draft);
    }
}

/// # Safety
///
/// As for all functions from here on: `ibv_wr_post(3)`, on a live queue pair of this provider.
unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe { drafts(qp) }.clear();
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe { drafts(qp) }.clear();
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller's promise.
    let mut drafts = mem::take(unsafe { drafts(qp) });
    // SAFETY: alive (caller).
    let (context, index) = unsafe { qp_parts(qp.cast()) };
    // SAFETY: its context is open.
    let mut state = unsafe { fabric_of(context) }.lock();
    let device = state.pairs.get(index).map(|pair| pair.device);
    let result = match failure(&mut state, device, Verb::PostSend) {
        Some(errno) => Err(errno),
        None => {
            let kept = state.faults.send_kept();
            // SAFETY: the caller's promise, for each request.
            let posted = unsafe { state.post_session(index, &mut drafts, kept) };
            if posted.is_ok() && state.latitudes.takes(|habits| habits.hides_posts) {
                Err(libc::ENOMEM)
            } else {
                posted
            }
        }
    };
    state.settle();
    let code = result.err().unwrap_or(0);
    state.latitudes.code(code)
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe { draft(qp, ibv_wr_opcode::IBV_WR_SEND, |_| ()) };
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, immediate_be: u32) {
    let fill = |wr: &mut ibv_send_wr| wr.__bindgen_anon_1.imm_data = immediate_be;
    // SAFETY: the caller's promise.
    unsafe { draft(qp, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, fill) };
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    let fill = |wr: &mut ibv_send_wr| wr.__bindgen_anon_1.invalidate_rkey = rkey;
    // SAFETY: the caller's promise.
    unsafe { draft(qp, ibv_wr_opcode::IBV_WR_SEND_WITH_INV, fill) };
}

/// Fills in what a request reaches of the peer's memory.
fn remote(wr: &mut ibv_send_wr, rkey: u32, remote_addr: u64) {
    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: the caller's promise.
    unsafe { draft(qp, ibv_wr_opcode::IBV_WR_RDMA_WRITE, |wr| remote(wr, rkey, addr)) };
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, immediate_be: u32) {
    let fill = |wr: &mut ibv_send_wr| {
        remote(wr, rkey, addr);
        wr.__bindgen_anon_1.imm_data = immediate_be;
    };
    // SAFETY: the caller's promise.
    unsafe { draft(qp, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, fill) };
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: the caller's promise.
    unsafe { draft(qp, ibv_wr_opcode::IBV_WR_RDMA_READ, |wr| remote(wr, rkey, addr)) };
}

/// Fills in an atomic.
fn atomic(wr: &mut ibv_send_wr, rkey: u32, remote_addr: u64, compare_add: u64, swap: u64) {
    wr.wr.atomic.remote_addr = remote_addr;
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
}

unsafe extern "C" fn atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, compare: u64, swap: u64) {
    let fill = |wr: &mut ibv_send_wr| atomic(wr, rkey, addr, compare, swap);
    // SAFETY: the caller's promise.
    unsafe { draft(qp, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, fill) };
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    let fill = |wr: &mut ibv_send_wr| atomic(wr, rkey, addr, add, 0);
    // SAFETY: the caller's promise.
    unsafe { draft(qp, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, fill) };
}

unsafe extern "C" fn atomic_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, value: *const c_void) {
    // SAFETY: eight bytes at any address (caller).
    let value: [u8; 8] = unsafe { value.cast::<[u8; 8]>().read() };
    // SAFETY: the caller's promise.
    unsafe { draft(qp, ibv_wr_opcode::IBV_WR_ATOMIC_WRITE, |wr| remote(wr, rkey, addr)) };
    // SAFETY: the caller's promise.
    unsafe { last(qp, |draft| draft.inline = Some(value.to_vec())) };
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    let fill = |wr: &mut ibv_send_wr| wr.__bindgen_anon_1.invalidate_rkey = rkey;
    // SAFETY: the caller's promise.
    unsafe { draft(qp, ibv_wr_opcode::IBV_WR_LOCAL_INV, fill) };
}

unsafe extern "C" fn bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: may be read (caller).
    let info = unsafe { info.read() };
    let fill = |wr: &mut ibv_send_wr| {
        wr.__bindgen_anon_2.bind_mw.mw = mw;
        wr.__bindgen_anon_2.bind_mw.rkey = rkey;
        wr.__bindgen_anon_2.bind_mw.bind_info = info;
    };
    // SAFETY: the caller's promise.
    unsafe { draft(qp, ibv_wr_opcode::IBV_WR_BIND_MW, fill) };
}

unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, number: u32, qkey: u32) {
    let change = |draft: &mut Draft| {
        draft.wr.wr.ud.ah = ah;
        draft.wr.wr.ud.remote_qpn = number;
        draft.wr.wr.ud.remote_qkey = qkey;
    };
    // SAFETY: the caller's promise.
    unsafe { last(qp, change) };
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the caller's promise.
    unsafe { last(qp, |draft| draft.elements = vec![ibv_sge { addr, length, lkey }]) };
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: so many elements (caller).
    let elements = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(list, count) } };
    // SAFETY: the caller's promise.
    unsafe { last(qp, |draft| draft.elements = elements.to_vec()) };
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, data: *mut c_void, len: usize) {
    // SAFETY: so many bytes that may be read (caller).
    let bytes = if len == 0 { &[] } else { unsafe { slice::from_raw_parts(data.cast::<u8>(), len) } };
    // SAFETY: the caller's promise.
    unsafe { last(qp, |draft| draft.inline = Some(bytes.to_vec())) };
}
