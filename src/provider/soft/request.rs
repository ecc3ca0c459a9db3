//! From the lists of the C interface to requests of this device.
#![allow(unsafe_code, reason = "lists, pointers and unions of the C interface")]

use super::{
    completion::Extra,
    datagram::Destination,
    memory::AtomicOp,
    pair::Pair,
    transition::Transport,
    window::{self, Bind},
    work::{Operation, Remote, SendWork, Sges, total},
};
use crate::sys::{
    ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc_opcode,
    ibv_wr_opcode,
};
use libc::c_int;
use std::{ptr, slice};

/// The entries of a list of at most `max`.
///
/// # Safety
///
/// As for `ibv_post_send(3)`: `len` entries at `list`, unless `len` is not positive.
pub(super) unsafe fn entries<'a>(list: *const ibv_sge, len: c_int, max: u32) -> Result<&'a [ibv_sge], c_int> {
    match u32::try_from(len) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's promise.
        Ok(len) if len <= max && !list.is_null() => Ok(unsafe { slice::from_raw_parts(list, len as usize) }),
        _ => Err(libc::EINVAL),
    }
}

/// Whether a transport has an operation.
fn serves(transport: Transport, opcode: ibv_wr_opcode) -> bool {
    match opcode {
        ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => true,
        ibv_wr_opcode::IBV_WR_RDMA_WRITE
        | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        | ibv_wr_opcode::IBV_WR_SEND_WITH_INV
        | ibv_wr_opcode::IBV_WR_LOCAL_INV
        | ibv_wr_opcode::IBV_WR_BIND_MW => transport != Transport::Datagram,
        _ => transport == Transport::Reliable,
    }
}

/// # Safety
///
/// The operation has immediate data.
unsafe fn immediate(wr: &ibv_send_wr) -> Extra {
    // SAFETY: the member that the caller filled.
    Extra::Immediate(unsafe { wr.__bindgen_anon_1.imm_data })
}

/// # Safety
///
/// The operation invalidates a key.
unsafe fn invalidated(wr: &ibv_send_wr) -> u32 {
    // SAFETY: the member that the caller filled.
    unsafe { wr.__bindgen_anon_1.invalidate_rkey }
}

/// # Safety
///
/// The operation is a read or a write.
unsafe fn remote(wr: &ibv_send_wr) -> Remote {
    // SAFETY: the member that the caller filled.
    let rdma = unsafe { wr.wr.rdma };
    Remote { addr: rdma.remote_addr, rkey: rdma.rkey }
}

/// # Safety
///
/// The operation is an atomic.
unsafe fn atomic(wr: &ibv_send_wr) -> (Remote, u64, u64) {
    // SAFETY: the member that the caller filled.
    let atomic = unsafe { wr.wr.atomic };
    (Remote { addr: atomic.remote_addr, rkey: atomic.rkey }, atomic.compare_add, atomic.swap)
}

/// # Safety
///
/// The request is a datagram, and its address handle is alive or null.
unsafe fn destination(wr: &ibv_send_wr) -> Result<Destination, c_int> {
    // SAFETY: the member that the caller filled.
    let ud = unsafe { wr.wr.ud };
    if ud.ah.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: alive (caller).
    let handle = unsafe { (*ud.ah).handle };
    Ok(Destination { address: handle, qpn: ud.remote_qpn, qkey: ud.remote_qkey })
}

/// A bind of a window of that kind.
///
/// # Safety
///
/// The window is alive; so is the region, unless it is null.
unsafe fn bind(mw: *mut ibv_mw, rkey: u32, info: ibv_mw_bind_info, kind: ibv_mw_type) -> Result<Bind, c_int> {
    if mw.is_null() || !window::rights_known(info.mw_access_flags) {
        return Err(libc::EINVAL);
    }
    // SAFETY: alive (caller).
    let window = unsafe { mw.read() };
    if window.type_ != kind {
        return Err(libc::EINVAL);
    }
    let (region, lkey) = if info.mr.is_null() {
        (0, 0)
    } else {
        // SAFETY: alive (caller).
        let region = unsafe { info.mr.read() };
        (region.handle, region.lkey)
    };
    let (addr, len, access) = (info.addr, info.length, info.mw_access_flags);
    let one = kind == ibv_mw_type::IBV_MW_TYPE_1;
    Ok(Bind { window: window.handle, rkey, region, lkey, addr, len, access, one })
}

/// What a request asks for, what its completion calls that, and what it brings beside its bytes.
///
/// # Safety
///
/// As for `ibv_post_send(3)`.
unsafe fn operation(wr: &ibv_send_wr) -> Result<(Operation, ibv_wc_opcode, Extra), c_int> {
    // Only the members that the operation has are read.
    Ok(match wr.opcode {
        ibv_wr_opcode::IBV_WR_SEND => (Operation::Send, ibv_wc_opcode::IBV_WC_SEND, Extra::Nothing),
        ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => {
            // SAFETY: an operation with immediate data.
            (Operation::Send, ibv_wc_opcode::IBV_WC_SEND, unsafe { immediate(wr) })
        }
        ibv_wr_opcode::IBV_WR_SEND_WITH_INV => {
            // SAFETY: an operation that invalidates a key.
            let extra = Extra::Invalidated(unsafe { invalidated(wr) });
            (Operation::Send, ibv_wc_opcode::IBV_WC_SEND, extra)
        }
        ibv_wr_opcode::IBV_WR_RDMA_WRITE => {
            // SAFETY: an operation on the peer's memory.
            (Operation::Write(unsafe { remote(wr) }), ibv_wc_opcode::IBV_WC_RDMA_WRITE, Extra::Nothing)
        }
        ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
            // SAFETY: an operation with immediate data.
            let immediate = unsafe { immediate(wr) };
            // SAFETY: an operation on the peer's memory.
            (Operation::Write(unsafe { remote(wr) }), ibv_wc_opcode::IBV_WC_RDMA_WRITE, immediate)
        }
        ibv_wr_opcode::IBV_WR_RDMA_READ => {
            // SAFETY: an operation on the peer's memory.
            (Operation::Read(unsafe { remote(wr) }), ibv_wc_opcode::IBV_WC_RDMA_READ, Extra::Nothing)
        }
        ibv_wr_opcode::IBV_WR_ATOMIC_WRITE => {
            // SAFETY: an operation on the peer's memory.
            (Operation::AtomicWrite(unsafe { remote(wr) }), ibv_wc_opcode::IBV_WC_ATOMIC_WRITE, Extra::Nothing)
        }
        ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: an atomic.
            let (remote, add, _) = unsafe { atomic(wr) };
            (Operation::Atomic(remote, AtomicOp::Add(add)), ibv_wc_opcode::IBV_WC_FETCH_ADD, Extra::Nothing)
        }
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => {
            // SAFETY: an atomic.
            let (remote, compare, swap) = unsafe { atomic(wr) };
            let operation = Operation::Atomic(remote, AtomicOp::CompareAndSwap { compare, swap });
            (operation, ibv_wc_opcode::IBV_WC_COMP_SWAP, Extra::Nothing)
        }
        ibv_wr_opcode::IBV_WR_LOCAL_INV => {
            // SAFETY: an operation that invalidates a key.
            (Operation::Invalidate(unsafe { invalidated(wr) }), ibv_wc_opcode::IBV_WC_LOCAL_INV, Extra::Nothing)
        }
        ibv_wr_opcode::IBV_WR_BIND_MW => {
            // SAFETY: the member that the caller filled.
            let given = unsafe { wr.__bindgen_anon_2.bind_mw };
            // SAFETY: the objects are alive (caller).
            let bind = unsafe { bind(given.mw, given.rkey, given.bind_info, ibv_mw_type::IBV_MW_TYPE_2) }?;
            (Operation::Bind(bind), ibv_wc_opcode::IBV_WC_BIND_MW, Extra::Nothing)
        }
        _ => return Err(libc::EINVAL),
    })
}

/// The request of `wr`, if this device can do it at all.
///
/// # Safety
///
/// As for `ibv_post_send(3)`; inline data can be read.
pub(super) unsafe fn send_work(pair: &mut Pair, wr: &ibv_send_wr) -> Result<SendWork, c_int> {
    if !serves(pair.transport, wr.opcode) {
        return Err(libc::EINVAL);
    }
    let has = |flag: ibv_send_flags| wr.send_flags & flag.0 != 0;
    // SAFETY: the caller's promise.
    let list = unsafe { entries(wr.sg_list, wr.num_sge, pair.cap.max_send_sge) }?;
    // SAFETY: the caller's promise.
    let (operation, opcode, extra) = unsafe { operation(wr) }?;
    let list = if operation.is_local() { &[] } else { list };
    let to = match pair.transport {
        // SAFETY: a datagram; its address handle is alive (caller).
        Transport::Datagram => Some(unsafe { destination(wr) }?),
        Transport::Reliable | Transport::Unreliable => None,
    };
    let len = total(list);
    let inline = if has(ibv_send_flags::IBV_SEND_INLINE) && !operation.is_local() {
        // The value of an atomic write is part of the request.
        let most = if matches!(operation, Operation::AtomicWrite(_)) { 8 } else { pair.cap.max_inline_data };
        if !operation.is_outgoing() || len > u64::from(most) {
            return Err(libc::EINVAL);
        }
        let mut data = pair.spare.pop().unwrap_or_default();
        data.clear();
        for entry in list.iter().filter(|entry| entry.length > 0) {
            let addr = usize::try_from(entry.addr).ok().filter(|&addr| addr != 0).ok_or(libc::EFAULT)?;
            let from = ptr::with_exposed_provenance::<u8>(addr);
            // SAFETY: inline data, which the caller lends for this call.
            data.extend_from_slice(unsafe { slice::from_raw_parts(from, entry.length as usize) });
        }
        Some(data)
    } else {
        None
    };
    let named: &[ibv_sge] = if inline.is_some() { &[] } else { list };
    Ok(SendWork {
        id: wr.wr_id,
        operation,
        opcode,
        extra,
        to,
        signaled: pair.signal_all || has(ibv_send_flags::IBV_SEND_SIGNALED),
        solicited: has(ibv_send_flags::IBV_SEND_SOLICITED),
        sges: Sges::new(named, || pair.send.spare_list()),
        inline,
        len,
    })
}

/// The request of `ibv_bind_mw` for a window of type 1, with its next key.
///
/// # Safety
///
/// As for `ibv_bind_mw(3)`.
pub(super) unsafe fn bind_work(pair: &Pair, mw: *mut ibv_mw, request: &ibv_mw_bind) -> Result<SendWork, c_int> {
    if pair.transport == Transport::Datagram {
        return Err(libc::EINVAL);
    }
    // SAFETY: alive (caller).
    let rkey = crate::sys::inline::ibv_inc_rkey(unsafe { (*mw).rkey });
    // SAFETY: the objects are alive (caller).
    let bind = unsafe { bind(mw, rkey, request.bind_info, ibv_mw_type::IBV_MW_TYPE_1) }?;
    Ok(SendWork {
        id: request.wr_id,
        operation: Operation::Bind(bind),
        opcode: ibv_wc_opcode::IBV_WC_BIND_MW,
        extra: Extra::Nothing,
        to: None,
        signaled: pair.signal_all || request.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0,
        solicited: false,
        sges: Sges::new(&[], Vec::new),
        inline: None,
        len: 0,
    })
}
