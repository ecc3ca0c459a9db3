//! The verbs that make queues and queue pairs. Their addresses are noted, for events.
#![allow(unsafe_code, reason = "verbs on raw objects")]

use super::{
    device,
    fabric::State,
    fault::Verb,
    handles::{SoftChannel, control, cq_in, cq_parts, give_if, handle, srq_parts},
    objects::Raw,
    pair::Creation,
    polling::SoftQueue,
    session::SoftPair,
    transition::Transport,
};
use crate::{
    error::VerbError,
    sys::{
        ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_srq,
        ibv_srq_init_attr,
    },
};
use libc::c_int;
use std::ptr::NonNull;

/// What a pair can have.
const LARGEST: ibv_qp_cap = ibv_qp_cap {
    max_send_wr: device::MAX_QP_WR,
    max_recv_wr: device::MAX_QP_WR,
    max_send_sge: device::MAX_SGE,
    max_recv_sge: device::MAX_SGE,
    max_inline_data: device::MAX_INLINE,
};

/// `ibv_create_cq`; or `ibv_create_cq_ex`, if fields of `ibv_wc_read_*` are asked for.
///
/// # Safety
///
/// The context is open, the channel alive.
pub(super) unsafe fn create_cq(
    context: NonNull<ibv_context>,
    cqe: u32,
    channel: NonNull<ibv_comp_channel>,
    vector: u32,
    fields: Option<u64>,
) -> Result<NonNull<SoftQueue>, VerbError> {
    if vector >= device::COMPLETION_VECTORS {
        return Err(VerbError::new("ibv_create_cq", libc::EINVAL));
    }
    // SAFETY: alive (caller).
    let owner = unsafe { channel.cast::<SoftChannel>().read() }.index;
    let entries = c_int::try_from(cqe).unwrap_or(c_int::MAX);
    let cq = ibv_cq { context: context.as_ptr(), channel: channel.as_ptr(), cqe: entries, ..ibv_cq::default() };
    let queue = SoftQueue::new(cq, fields).map_err(|errno| VerbError::new("ibv_create_cq", errno))?;
    give_if(queue, |queue| {
        let cq = queue.cast::<ibv_cq>();
        let create = |state: &mut State, index| {
            let granted = state.latitudes.entries(cqe, device::MAX_CQE);
            let handle = handle(state.create_cq(index, granted, owner, Raw::new(cq))?)?;
            Ok((handle, granted))
        };
        // SAFETY: open (caller).
        let (handle, granted) = unsafe { control(context.as_ptr(), Verb::CreateCq, create) }?;
        // SAFETY: made just now, and nobody else's yet.
        unsafe { (*cq.as_ptr()).handle = handle };
        // SAFETY: as above.
        unsafe { (*cq.as_ptr()).cqe = c_int::try_from(granted).unwrap_or(c_int::MAX) };
        Ok(())
    })
}

/// `ibv_resize_cq`.
///
/// # Safety
///
/// Alive; nobody else uses its `cqe` meanwhile.
pub(super) unsafe fn resize_cq(cq: NonNull<ibv_cq>, cqe: u32) -> Result<(), VerbError> {
    // SAFETY: alive (caller).
    let (context, index) = unsafe { cq_parts(cq.as_ptr()) };
    // SAFETY: its context is open.
    unsafe {
        control(context, Verb::ResizeCq, |state, _| {
            state.latitudes.resizes();
            state.resize_cq(index, cqe)
        })
    }?;
    // SAFETY: alive, and this member is ours for now (caller).
    unsafe { (*cq.as_ptr()).cqe = c_int::try_from(cqe).unwrap_or(c_int::MAX) };
    Ok(())
}

/// `ibv_create_srq`.
///
/// # Safety
///
/// The protection domain is alive.
pub(super) unsafe fn create_srq(
    pd: NonNull<ibv_pd>,
    attributes: &mut ibv_srq_init_attr,
) -> Result<NonNull<ibv_srq>, VerbError> {
    // SAFETY: alive (caller).
    let ibv_pd { context, handle: domain, .. } = unsafe { pd.read() };
    let srq_context = attributes.srq_context;
    let srq = ibv_srq { context, srq_context, pd: pd.as_ptr(), ..ibv_srq::default() };
    give_if(srq, |srq| {
        let create = |state: &mut State, _| {
            let index = state.create_srq(domain as usize, &attributes.attr, Raw::new(srq))?;
            attributes.attr = state.query_srq(index)?;
            handle(index)
        };
        // SAFETY: its context is open.
        let handle = unsafe { control(context, Verb::CreateSrq, create) }?;
        // SAFETY: made just now, and nobody else's yet.
        unsafe { (*srq.as_ptr()).handle = handle };
        Ok(())
    })
}

/// `ibv_create_qp`; or `ibv_create_qp_ex`, if `operations` of `ibv_wr_*` are asked for.
///
/// # Safety
///
/// The protection domain is alive, and so are the queues in the attributes.
pub(super) unsafe fn create_qp(
    pd: NonNull<ibv_pd>,
    attributes: &mut ibv_qp_init_attr,
    operations: Option<u64>,
) -> Result<NonNull<SoftPair>, VerbError> {
    // SAFETY: alive (caller).
    let ibv_pd { context, handle: domain, .. } = unsafe { pd.read() };
    let ibv_qp_init_attr { send_cq, recv_cq, srq, mut cap, qp_type, sq_sig_all, qp_context } = *attributes;
    // SAFETY: alive, or null (caller).
    let send = unsafe { cq_in(send_cq, context) };
    // SAFETY: as above.
    let receive = unsafe { cq_in(recv_cq, context) };
    let shared = if srq.is_null() {
        None
    } else {
        // Not looked at where receives are shared.
        cap.max_recv_wr = 0;
        cap.max_recv_sge = 0;
        // SAFETY: not null, so alive (caller).
        Some(unsafe { srq_parts(srq) })
    };
    let state = ibv_qp_state::IBV_QPS_RESET;
    let pd_raw = pd.as_ptr();
    let qp = ibv_qp { context, qp_context, pd: pd_raw, send_cq, recv_cq, srq, state, qp_type, ..ibv_qp::default() };
    let refused = |errno| VerbError::new(Verb::CreateQp.name(), errno);
    let transport = Transport::from_raw(qp_type).ok_or(refused(libc::EOPNOTSUPP))?;
    let pair = SoftPair::new(qp, transport, operations).map_err(refused)?;
    let pair = give_if(pair, |pair| {
        let qp = pair.cast::<ibv_qp>();
        let create = |state: &mut State, _| {
            if operations.is_some() {
                state.latitudes.opens_session();
            }
            state.latitudes.grant(&mut cap, &LARGEST);
            let (Some(send_cq), Some(receive_cq)) = (send, receive) else { return Err(libc::EINVAL) };
            if shared.is_some_and(|(owner, _)| owner != context) {
                return Err(libc::EINVAL);
            }
            let (index, qpn) = state.create_pair(Creation {
                raw: Raw::new(qp),
                transport,
                srq: shared.map(|(_, index)| index),
                pd: domain as usize,
                send_cq,
                receive_cq,
                cap,
                signal_all: sq_sig_all != 0,
            })?;
            Ok((handle(index)?, qpn))
        };
        // SAFETY: its context is open.
        let (handle, qpn) = unsafe { control(context, Verb::CreateQp, create) }?;
        // SAFETY: made just now, and nobody else's yet.
        unsafe { (*qp.as_ptr()).handle = handle };
        // SAFETY: as above.
        unsafe { (*qp.as_ptr()).qp_num = qpn };
        Ok(())
    })?;
    attributes.cap = cap;
    Ok(pair)
}
