//! The verbs that create channels, queues and queue pairs.
//!
//! The table entry of an object holds the address of its C struct, because events name objects by that address. One
//! hold of the lock covers the creation of the object and the store of the address, so no event can come in between.
#![forbid(unsafe_code)]

use super::{
    device,
    fault::Verb,
    handles::{Object, OpenContext, SoftChannel, give, handle},
    objects::Raw,
    pair::Creation,
    polling::SoftQueue,
    session::SoftPair,
    transition::Transport,
};
use crate::{
    error::VerbError,
    sys::{
        ibv_comp_channel, ibv_cq, ibv_cq_init_attr_ex, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state,
        ibv_srq, ibv_srq_init_attr,
    },
};
use libc::c_int;
use std::ptr::NonNull;

/// The largest sizes that a pair can have.
const LARGEST: ibv_qp_cap = ibv_qp_cap {
    max_send_wr: device::MAX_QP_WR,
    max_recv_wr: device::MAX_QP_WR,
    max_send_sge: device::MAX_SGE,
    max_recv_sge: device::MAX_SGE,
    max_inline_data: device::MAX_INLINE,
};

/// `ibv_create_comp_channel`.
pub(super) fn create_channel(context: OpenContext<'_>) -> Result<NonNull<SoftChannel>, VerbError> {
    let (handle, fd) = context.control(Verb::CreateCompChannel, |state, index| {
        let (channel, fd) = state.create_channel(index)?;
        Ok((handle(channel)?, fd))
    })?;
    Ok(give(SoftChannel { base: ibv_comp_channel { context: context.raw, fd, refcnt: 0 }, handle }))
}

/// `ibv_create_cq`; or `ibv_create_cq_ex`, if `fields` of `ibv_wc_read_*` are asked for.
pub(super) fn create_cq(
    context: OpenContext<'_>,
    channel: Option<Object<'_, SoftChannel>>,
    attributes: &ibv_cq_init_attr_ex,
    fields: Option<u64>,
) -> Result<NonNull<SoftQueue>, VerbError> {
    let refused = |errno| VerbError::new(Verb::CreateCq.name(), errno);
    let channel = channel.ok_or(refused(libc::EINVAL))?;
    if attributes.comp_vector >= device::COMPLETION_VECTORS {
        return Err(refused(libc::EINVAL));
    }
    let ibv_cq_init_attr_ex { cqe, cq_context, .. } = *attributes;
    let cq = ibv_cq { context: context.raw, cq_context, channel: attributes.channel, ..ibv_cq::default() };
    let mut queue = SoftQueue::new(cq, fields).map_err(refused)?;
    context.control(Verb::CreateCq, |state, index| {
        let granted = state.latitudes.round_up(cqe, device::MAX_CQE);
        let number = state.create_cq(index, granted, channel.index)?;
        queue.name(handle(number)?, entries(granted));
        let queue = give(queue);
        state.cqs.get_mut(number).ok_or(libc::EINVAL)?.raw = Raw::new(queue.cast());
        Ok(queue)
    })
}

/// Converts a number of entries to the type that C uses.
fn entries(granted: u32) -> c_int {
    c_int::try_from(granted).unwrap_or(c_int::MAX)
}

/// `ibv_resize_cq`. Returns the new value of the queue's `cqe`.
pub(super) fn resize_cq(cq: &Object<'_, ibv_cq>, cqe: u32) -> Result<c_int, VerbError> {
    cq.control(Verb::ResizeCq, |state, index| {
        state.latitudes.resizes();
        state.resize_cq(index, cqe)
    })?;
    Ok(entries(cqe))
}

/// `ibv_create_srq`.
pub(super) fn create_srq(
    domain: &Object<'_, ibv_pd>,
    attributes: &mut ibv_srq_init_attr,
) -> Result<NonNull<ibv_srq>, VerbError> {
    let srq_context = attributes.srq_context;
    domain.control(Verb::CreateSrq, |state, pd| {
        let index = state.create_srq(pd, &attributes.attr)?;
        let (context, pd, handle) = (domain.context.raw, domain.raw, handle(index)?);
        let srq = give(ibv_srq { context, srq_context, pd, handle, ..ibv_srq::default() });
        state.srqs.get_mut(index).ok_or(libc::EINVAL)?.raw = Raw::new(srq);
        attributes.attr = state.query_srq(index)?;
        Ok(srq)
    })
}

/// The queues of a new pair. `None` is a null pointer.
pub(super) struct Queues<'a> {
    pub(super) send: Option<Object<'a, ibv_cq>>,
    pub(super) receive: Option<Object<'a, ibv_cq>>,
    pub(super) shared: Option<Object<'a, ibv_srq>>,
}

/// `ibv_create_qp`; or `ibv_create_qp_ex`, if `operations` of `ibv_wr_*` are asked for.
pub(super) fn create_qp(
    domain: &Object<'_, ibv_pd>,
    queues: &Queues<'_>,
    attributes: &mut ibv_qp_init_attr,
    operations: Option<u64>,
) -> Result<NonNull<SoftPair>, VerbError> {
    let context = domain.context.raw;
    let ibv_qp_init_attr { send_cq, recv_cq, srq, mut cap, qp_type, sq_sig_all, qp_context } = *attributes;
    if queues.shared.is_some() {
        // A pair with a shared receive queue has no receive queue of its own, so ignore the sizes that were asked for.
        cap.max_recv_wr = 0;
        cap.max_recv_sge = 0;
    }
    let (state, pd) = (ibv_qp_state::IBV_QPS_RESET, domain.raw);
    let qp = ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, state, qp_type, ..ibv_qp::default() };
    let refused = |errno| VerbError::new(Verb::CreateQp.name(), errno);
    let transport = Transport::from_raw(qp_type).ok_or(refused(libc::EOPNOTSUPP))?;
    let mut pair = SoftPair::new(qp, transport, operations).map_err(refused)?;
    let pair = domain.control(Verb::CreateQp, |state, pd| {
        if operations.is_some() {
            state.latitudes.opens_session();
        }
        state.latitudes.grant(&mut cap, &LARGEST);
        let of_context = |cq: &Option<Object<'_, ibv_cq>>| {
            cq.as_ref().filter(|cq| cq.context.raw == context).map(|cq| cq.index).ok_or(libc::EINVAL)
        };
        let (send_cq, receive_cq) = (of_context(&queues.send)?, of_context(&queues.receive)?);
        if queues.shared.as_ref().is_some_and(|srq| srq.context.raw != context) {
            return Err(libc::EINVAL);
        }
        let srq = queues.shared.as_ref().map(|srq| srq.index);
        let signal_all = sq_sig_all != 0;
        let creation = Creation { transport, srq, pd, send_cq, receive_cq, cap, signal_all };
        let (index, qpn) = state.create_pair(creation)?;
        pair.name(handle(index)?, qpn);
        let pair = give(pair);
        state.pairs.get_mut(index).ok_or(libc::EINVAL)?.raw = Raw::new(pair.cast());
        Ok(pair)
    })?;
    attributes.cap = cap;
    Ok(pair)
}
