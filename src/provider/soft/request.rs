//! Turns the requests that a program posts into requests of this device.
#![forbid(unsafe_code)]

use super::{
    completion::Extra,
    datagram::Destination,
    memory::AtomicOp,
    pair::Pair,
    posted::{BindRequest, Request},
    transition::Transport,
    work::{Operation, SendWork, Sges, total},
};
use crate::sys::{ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc_opcode, ibv_wr_opcode};
use libc::c_int;

/// Whether a transport has an operation.
pub(super) fn serves(transport: Transport, opcode: ibv_wr_opcode) -> bool {
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

/// A request of the send side, before it is checked against its pair.
pub(super) struct Asked<'a> {
    pub(super) id: u64,
    pub(super) flags: u32,
    pub(super) operation: Operation,
    pub(super) extra: Extra,
    /// The destination of a datagram.
    pub(super) to: Option<Destination>,
    pub(super) elements: &'a [ibv_sge],
    /// How many bytes the request carries.
    pub(super) len: u64,
}

/// Converts a request of `ibv_post_send`. `Err` if this device cannot execute it at all.
pub(super) fn send_work(pair: &mut Pair, request: &Request<'_, ibv_send_wr>) -> Result<SendWork, c_int> {
    if !serves(pair.transport, request.opcode) {
        return Err(libc::EINVAL);
    }
    let elements = request.elements(pair.cap.max_send_sge)?;
    let (operation, extra) = request.operation()?;
    let elements = if operation.is_local() { &[] } else { elements };
    let to = match pair.transport {
        Transport::Datagram => Some(request.destination()?),
        Transport::Reliable | Transport::Unreliable => None,
    };
    let (id, flags, len) = (request.wr_id, request.send_flags, total(elements));
    let asked = Asked { id, flags, operation, extra, to, elements, len };
    checked(pair, asked, |data| request.copy_inline(elements, data))
}

/// Checks a request against its pair. For inline data, `copy_inline` appends the bytes to a vector.
pub(super) fn checked(
    pair: &mut Pair,
    asked: Asked<'_>,
    copy_inline: impl FnOnce(&mut Vec<u8>) -> Result<(), c_int>,
) -> Result<SendWork, c_int> {
    let Asked { id, flags, operation, extra, to, elements, len } = asked;
    let has = |flag: ibv_send_flags| flags & flag.0 != 0;
    let inline = if has(ibv_send_flags::IBV_SEND_INLINE) && !operation.is_local() {
        // `max_inline_data` does not limit an atomic write: its 8 bytes always have room in the request.
        let most = if matches!(operation, Operation::AtomicWrite(_)) { 8 } else { pair.cap.max_inline_data };
        if !operation.is_outgoing() || len > u64::from(most) {
            return Err(libc::EINVAL);
        }
        let mut data = pair.spare.pop().unwrap_or_default();
        data.clear();
        copy_inline(&mut data)?;
        Some(data)
    } else {
        None
    };
    let named = if inline.is_some() { &[] } else { elements };
    Ok(SendWork {
        id,
        operation,
        opcode: completes_as(operation),
        extra,
        to,
        signaled: pair.signal_all || has(ibv_send_flags::IBV_SEND_SIGNALED),
        solicited: has(ibv_send_flags::IBV_SEND_SOLICITED),
        sges: Sges::new(named, || pair.send.spare_list()),
        inline,
        len,
    })
}

/// The opcode of the completion of an operation.
fn completes_as(operation: Operation) -> ibv_wc_opcode {
    match operation {
        Operation::Send => ibv_wc_opcode::IBV_WC_SEND,
        Operation::Write(_) => ibv_wc_opcode::IBV_WC_RDMA_WRITE,
        Operation::Read(_) => ibv_wc_opcode::IBV_WC_RDMA_READ,
        Operation::AtomicWrite(_) => ibv_wc_opcode::IBV_WC_ATOMIC_WRITE,
        Operation::Atomic(_, AtomicOp::CompareAndSwap { .. }) => ibv_wc_opcode::IBV_WC_COMP_SWAP,
        Operation::Atomic(..) => ibv_wc_opcode::IBV_WC_FETCH_ADD,
        Operation::Invalidate(_) => ibv_wc_opcode::IBV_WC_LOCAL_INV,
        Operation::Bind(_) => ibv_wc_opcode::IBV_WC_BIND_MW,
    }
}

/// Converts a request of `ibv_bind_mw`.
pub(super) fn bind_work(pair: &mut Pair, request: &BindRequest<'_>) -> Result<SendWork, c_int> {
    if pair.transport == Transport::Datagram {
        return Err(libc::EINVAL);
    }
    let operation = Operation::Bind(request.bind()?);
    let flags = request.flags() & ibv_send_flags::IBV_SEND_SIGNALED.0;
    let asked = Asked { id: request.id(), flags, operation, extra: Extra::Nothing, to: None, elements: &[], len: 0 };
    checked(pair, asked, |_| Ok(()))
}
