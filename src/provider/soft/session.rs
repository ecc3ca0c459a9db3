//! The `ibv_wr_*` interface: a session collects requests call by call, and posts them together.
//!
//! Either all requests of a session are posted, or none.
#![allow(unsafe_code, reason = "C functions on raw objects")]

use super::{
    completion::Extra,
    data_path::failure,
    datagram::Destination,
    fault::Verb,
    handles::find,
    memory::AtomicOp,
    pair::Pair,
    posted::{bind_of_type_2, destination},
    request::{Asked, checked, serves},
    transition::Transport,
    work::{Operation, Remote, SendWork, total},
};
use crate::sys::{
    ibv_ah, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_create_send_ops_flags as SendOps, ibv_qp_ex, ibv_send_flags,
    ibv_sge, ibv_wr_opcode,
};
use libc::{c_int, c_void};
use std::{mem, slice};

/// The C struct of a queue pair, followed by the session that is open on it.
#[repr(C)]
pub(super) struct SoftPair {
    pub(super) base: ibv_qp_ex,
    drafts: Vec<Draft>,
}

/// A request of a session.
pub(super) struct Draft {
    id: u64,
    flags: u32,
    opcode: ibv_wr_opcode,
    /// `Err` if the request names an object that it must not name. `complete` then returns this errno.
    operation: Result<Operation, c_int>,
    extra: Extra,
    to: Result<Destination, c_int>,
    elements: Vec<ibv_sge>,
    /// Inline data, instead of elements.
    inline: Option<Vec<u8>>,
}

impl Draft {
    pub(super) fn is_signaled(&self) -> bool {
        self.flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0
    }

    /// Converts the draft to a request. `Err` if this device cannot execute it at all.
    pub(super) fn work(&self, pair: &mut Pair) -> Result<SendWork, c_int> {
        if !serves(pair.transport, self.opcode) {
            return Err(libc::EINVAL);
        }
        // Inline data count as one element.
        let (count, len) = match &self.inline {
            Some(data) => (1, data.len() as u64),
            None => (self.elements.len(), total(&self.elements)),
        };
        if count > pair.cap.max_send_sge as usize {
            return Err(libc::EINVAL);
        }
        let operation = self.operation?;
        let (elements, len) = if operation.is_local() { (&[][..], 0) } else { (&*self.elements, len) };
        let to = match pair.transport {
            Transport::Datagram => Some(self.to?),
            Transport::Reliable | Transport::Unreliable => None,
        };
        // Ignore the program's inline flag. The data are inline if the program set them by `wr_set_inline_data` or
        // `wr_atomic_write`.
        let inline = ibv_send_flags::IBV_SEND_INLINE.0;
        let flags = if self.inline.is_some() { self.flags | inline } else { self.flags & !inline };
        let asked = Asked { id: self.id, flags, operation, extra: self.extra, to, elements, len };
        checked(pair, asked, |data| {
            data.extend_from_slice(self.inline.as_deref().unwrap_or(&[]));
            Ok(())
        })
    }
}

/// The operations that a transport has.
fn operations(transport: Transport) -> SendOps {
    let sends = SendOps::IBV_QP_EX_WITH_SEND | SendOps::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let connected = SendOps::IBV_QP_EX_WITH_RDMA_WRITE
        | SendOps::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | SendOps::IBV_QP_EX_WITH_SEND_WITH_INV
        | SendOps::IBV_QP_EX_WITH_LOCAL_INV
        | SendOps::IBV_QP_EX_WITH_BIND_MW;
    let reliable = SendOps::IBV_QP_EX_WITH_RDMA_READ
        | SendOps::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | SendOps::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | SendOps::IBV_QP_EX_WITH_ATOMIC_WRITE;
    match transport {
        Transport::Datagram => sends,
        Transport::Unreliable => sends | connected,
        Transport::Reliable => sends | connected | reliable,
    }
}

impl SoftPair {
    /// A pair with the functions that were asked for. The other function pointers are null, as with any provider.
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

    /// Sets the handle and the number of the pair.
    pub(super) fn name(&mut self, handle: u32, qpn: u32) {
        self.base.qp_base.handle = handle;
        self.base.qp_base.qp_num = qpn;
    }
}

/// Sets the functions of a pair. Functions that begin a request are set only if `has` names the operation.
fn fill(qp: &mut ibv_qp_ex, has: impl Fn(SendOps) -> bool) {
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_send = has(SendOps::IBV_QP_EX_WITH_SEND).then_some(send as _);
    qp.wr_send_imm = has(SendOps::IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(send_imm as _);
    qp.wr_send_inv = has(SendOps::IBV_QP_EX_WITH_SEND_WITH_INV).then_some(send_inv as _);
    qp.wr_rdma_write = has(SendOps::IBV_QP_EX_WITH_RDMA_WRITE).then_some(rdma_write as _);
    qp.wr_rdma_write_imm = has(SendOps::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(rdma_write_imm as _);
    qp.wr_rdma_read = has(SendOps::IBV_QP_EX_WITH_RDMA_READ).then_some(rdma_read as _);
    qp.wr_atomic_cmp_swp = has(SendOps::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(atomic_cmp_swp as _);
    qp.wr_atomic_fetch_add = has(SendOps::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(atomic_fetch_add as _);
    qp.wr_atomic_write = has(SendOps::IBV_QP_EX_WITH_ATOMIC_WRITE).then_some(atomic_write as _);
    qp.wr_local_inv = has(SendOps::IBV_QP_EX_WITH_LOCAL_INV).then_some(local_inv as _);
    qp.wr_bind_mw = has(SendOps::IBV_QP_EX_WITH_BIND_MW).then_some(bind_mw as _);
}

/// The session that is open on a pair.
struct Session<'a> {
    drafts: &'a mut Vec<Draft>,
    /// The id of the next request.
    id: u64,
    flags: u32,
}

/// Finds the session that is open on a pair.
///
/// # Safety
///
/// The pair is alive and of this provider, and nobody else posts sends on it while the result is used.
unsafe fn session<'a>(qp: *mut ibv_qp_ex) -> Session<'a> {
    // SAFETY: the pair is alive, and nobody else posts (caller). Each pair of this provider is the beginning of a
    // `SoftPair`.
    let drafts = unsafe { &mut (*qp.cast::<SoftPair>()).drafts };
    // SAFETY: the pair is alive (caller).
    let id = unsafe { (*qp).wr_id };
    // SAFETY: the pair is alive (caller).
    let flags = unsafe { (*qp).wr_flags };
    Session { drafts, id, flags }
}

impl Session<'_> {
    /// Adds a request to the session.
    fn draft(&mut self, opcode: ibv_wr_opcode, operation: Operation, extra: Extra) {
        self.try_draft(opcode, Ok(operation), extra);
    }

    fn try_draft(&mut self, opcode: ibv_wr_opcode, operation: Result<Operation, c_int>, extra: Extra) {
        let (id, flags) = (self.id, self.flags);
        let (to, elements, inline) = (Err(libc::EINVAL), Vec::new(), None);
        self.drafts.push(Draft { id, flags, opcode, operation, extra, to, elements, inline });
    }

    /// Changes the last request of the session.
    fn last(&mut self, change: impl FnOnce(&mut Draft)) {
        if let Some(draft) = self.drafts.last_mut() {
            change(draft);
        }
    }
}

/// Defines functions of `ibv_qp_ex`. Each body gets the session of its pair.
macro_rules! functions {
    ($(fn $name:ident($session:ident $(, $argument:ident: $type:ty)*) $body:block)*) => {$(
        /// # Safety
        ///
        /// `ibv_wr_post(3)`, on a live queue pair of this provider.
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: the pair is alive, and nobody else posts (caller).
            #[allow(unused_mut, reason = "some only read")]
            let mut $session = unsafe { session(qp) };
            $body
        }
    )*};
}
functions! {
    fn start(session) { session.drafts.clear() }

    fn abort(session) { session.drafts.clear() }

    fn send(session) { session.draft(ibv_wr_opcode::IBV_WR_SEND, Operation::Send, Extra::Nothing) }

    fn send_imm(session, immediate_be: u32) {
        session.draft(ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, Operation::Send, Extra::Immediate(immediate_be))
    }

    fn send_inv(session, rkey: u32) {
        session.draft(ibv_wr_opcode::IBV_WR_SEND_WITH_INV, Operation::Send, Extra::Invalidated(rkey))
    }

    fn rdma_write(session, rkey: u32, addr: u64) {
        let write = Operation::Write(Remote { addr, rkey });
        session.draft(ibv_wr_opcode::IBV_WR_RDMA_WRITE, write, Extra::Nothing)
    }

    fn rdma_write_imm(session, rkey: u32, addr: u64, immediate_be: u32) {
        let write = Operation::Write(Remote { addr, rkey });
        session.draft(ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, write, Extra::Immediate(immediate_be))
    }

    fn rdma_read(session, rkey: u32, addr: u64) {
        session.draft(ibv_wr_opcode::IBV_WR_RDMA_READ, Operation::Read(Remote { addr, rkey }), Extra::Nothing)
    }

    fn atomic_cmp_swp(session, rkey: u32, addr: u64, compare: u64, swap: u64) {
        let operation = Operation::Atomic(Remote { addr, rkey }, AtomicOp::CompareAndSwap { compare, swap });
        session.draft(ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, operation, Extra::Nothing)
    }

    fn atomic_fetch_add(session, rkey: u32, addr: u64, add: u64) {
        let operation = Operation::Atomic(Remote { addr, rkey }, AtomicOp::Add(add));
        session.draft(ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, operation, Extra::Nothing)
    }

    fn atomic_write(session, rkey: u32, addr: u64, value: *const c_void) {
        // SAFETY: `value` points to 8 readable bytes (caller). An array of bytes needs no alignment.
        let value = unsafe { value.cast::<[u8; 8]>().read() };
        let write = Operation::AtomicWrite(Remote { addr, rkey });
        session.draft(ibv_wr_opcode::IBV_WR_ATOMIC_WRITE, write, Extra::Nothing);
        session.last(|draft| draft.inline = Some(value.to_vec()))
    }

    fn local_inv(session, rkey: u32) {
        session.draft(ibv_wr_opcode::IBV_WR_LOCAL_INV, Operation::Invalidate(rkey), Extra::Nothing)
    }

    fn bind_mw(session, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
        // SAFETY: `info` points to a readable struct (caller).
        let info = unsafe { info.read() };
        // SAFETY: the window is alive, and the region is alive or null (caller).
        let bind = unsafe { bind_of_type_2(mw, rkey, info) };
        session.try_draft(ibv_wr_opcode::IBV_WR_BIND_MW, bind.map(Operation::Bind), Extra::Nothing)
    }

    fn set_ud_addr(session, ah: *mut ibv_ah, number: u32, qkey: u32) {
        // SAFETY: the address handle is alive (caller).
        let to = unsafe { destination(ah, number, qkey) };
        session.last(|draft| draft.to = to)
    }

    fn set_sge(session, lkey: u32, addr: u64, length: u32) {
        session.last(|draft| draft.elements = vec![ibv_sge { addr, length, lkey }])
    }

    fn set_sge_list(session, count: usize, list: *const ibv_sge) {
        // SAFETY: the list has `count` elements (caller), and `count` is not 0 in this branch.
        let elements = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(list, count) } };
        session.last(|draft| draft.elements = elements.to_vec())
    }

    fn set_inline_data(session, data: *mut c_void, len: usize) {
        // SAFETY: `data` points to `len` readable bytes (caller).
        let bytes = if len == 0 { &[] } else { unsafe { slice::from_raw_parts(data.cast::<u8>(), len) } };
        session.last(|draft| draft.inline = Some(bytes.to_vec()))
    }
}

/// # Safety
///
/// `ibv_wr_post(3)`, on a live queue pair of this provider.
unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the pair is alive, and nobody else posts (caller).
    let drafts = mem::take(unsafe { session(qp) }.drafts);
    // SAFETY: the pair is alive (caller). Each pair of this provider is the beginning of a `SoftPair`.
    let pair = unsafe { find(qp.cast::<SoftPair>()) };
    let mut state = pair.context.fabric.lock();
    let device = state.pairs.get(pair.index).map(|pair| pair.device);
    let result = match failure(&mut state, device, Verb::PostSend) {
        Some(errno) => Err(errno),
        None => {
            let kept = state.faults.send_kept();
            let posted = state.post_session(pair.index, &drafts, kept);
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
