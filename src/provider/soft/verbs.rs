//! The verbs of the control path. Each finds the objects behind its pointers, and leaves the work to safe code.
#![allow(unsafe_code, reason = "verbs on raw objects")]

use super::{
    device::{Device, PORT},
    fabric::State,
    fault::Verb,
    handles::{SoftChannel, SoftContext, destroy, find, find_unless_null, free, give, handle, open_context},
    memory::Registration,
    memory_verbs,
    polling::SoftQueue,
    queue_verbs,
    session::SoftPair,
};
use crate::provider::reviewed::Promises;
use crate::{
    error::VerbError,
    provider::Provider,
    sys::{
        HAS_ATOMIC_WRITE, ibv_access_flags, ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context,
        ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_mr,
        ibv_mw, ibv_mw_type, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_ex, ibv_qp_init_attr,
        ibv_qp_init_attr_ex, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr,
    },
};
use std::{os::fd::RawFd, ptr::NonNull, time::Duration};

/// The soft device. Each open context keeps its fabric alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Soft;

impl Provider for Soft {
    /// Unlike libibverbs, this refuses while the context has live objects.
    unsafe fn close_device(&self, context: NonNull<ibv_context>) -> Result<(), VerbError> {
        // SAFETY: the context is open (caller).
        let open = unsafe { open_context(context.as_ptr()) };
        open.control(Verb::CloseDevice, |state, index| {
            if state.contexts.get(index).is_none_or(|context| context.children > 0) {
                return Err(libc::EBUSY);
            }
            state.contexts.remove(index);
            Ok(())
        })?;
        // SAFETY: `new_context` made the context with `give`, as a `SoftContext`. The caller does not use it any more.
        unsafe { free(context.cast::<SoftContext>()) };
        Ok(())
    }

    unsafe fn promises(&self, context: NonNull<ibv_context>) -> Option<&'static Promises> {
        // SAFETY: the context is open (caller).
        Some(unsafe { open_context(context.as_ptr()) }.fabric.lock().latitudes.row)
    }

    unsafe fn query_device(&self, context: NonNull<ibv_context>) -> Result<ibv_device_attr, VerbError> {
        // SAFETY: the context is open (caller).
        let context = unsafe { open_context(context.as_ptr()) };
        context.control(Verb::QueryDevice, |state, index| Ok(state.device_of(index)?.attributes()))
    }

    /// Reports no on-demand paging: this device does not pin memory, so it can access every page anyway.
    unsafe fn query_device_ex(&self, context: NonNull<ibv_context>) -> Result<ibv_device_attr_ex, VerbError> {
        // SAFETY: the context is open (caller).
        let orig_attr = unsafe { self.query_device(context) }?;
        Ok(ibv_device_attr_ex { orig_attr, device_cap_flags_ex: HAS_ATOMIC_WRITE, ..Default::default() })
    }

    unsafe fn query_port(&self, context: NonNull<ibv_context>, port: u8) -> Result<ibv_port_attr, VerbError> {
        // SAFETY: the context is open (caller).
        let context = unsafe { open_context(context.as_ptr()) };
        context.control(Verb::QueryPort, |state, index| {
            let device = state.device_of(index)?;
            if port == PORT { Ok(device.port()) } else { Err(libc::EINVAL) }
        })
    }

    unsafe fn query_gid_table(&self, context: NonNull<ibv_context>) -> Result<Vec<ibv_gid_entry>, VerbError> {
        // SAFETY: the context is open (caller).
        let context = unsafe { open_context(context.as_ptr()) };
        context.control(Verb::QueryGidTable, |state, index| Ok(state.device_of(index)?.gid_table()))
    }

    unsafe fn query_pkey(&self, context: NonNull<ibv_context>, port: u8, index: u16) -> Result<u16, VerbError> {
        // SAFETY: the context is open (caller).
        let context = unsafe { open_context(context.as_ptr()) };
        context.control(Verb::QueryPkey, |_, _| Device::pkey(port, index).ok_or(libc::EINVAL))
    }

    unsafe fn take_async_event(&self, context: NonNull<ibv_context>) -> Result<Option<ibv_async_event>, VerbError> {
        // SAFETY: the context is open (caller).
        let context = unsafe { open_context(context.as_ptr()) };
        context.control(Verb::GetAsyncEvent, State::take_async)
    }

    unsafe fn alloc_pd(&self, context: NonNull<ibv_context>) -> Result<NonNull<ibv_pd>, VerbError> {
        // SAFETY: the context is open (caller).
        let context = unsafe { open_context(context.as_ptr()) };
        let handle = context.control(Verb::AllocPd, |state, index| handle(state.alloc_pd(index)?))?;
        Ok(give(ibv_pd { context: context.raw, handle }))
    }

    unsafe fn dealloc_pd(&self, pd: NonNull<ibv_pd>) -> Result<(), VerbError> {
        // SAFETY: the domain is alive, and the caller does not use it after a success.
        unsafe { destroy(pd, Verb::DeallocPd, State::dealloc_pd) }
    }

    unsafe fn reg_mr(
        &self,
        pd: NonNull<ibv_pd>,
        addr: *mut u8,
        len: usize,
        access: ibv_access_flags,
    ) -> Result<NonNull<ibv_mr>, VerbError> {
        // SAFETY: the domain is alive (caller).
        let domain = unsafe { find(pd.as_ptr()) };
        // SAFETY: the caller gives the memory to the device until the region has ended.
        let memory = unsafe { Registration::new(addr, len, None, access) };
        memory_verbs::register(Verb::RegMr, &domain, memory)
    }

    unsafe fn reg_mr_iova(
        &self,
        pd: NonNull<ibv_pd>,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: ibv_access_flags,
    ) -> Result<NonNull<ibv_mr>, VerbError> {
        // SAFETY: the domain is alive (caller).
        let domain = unsafe { find(pd.as_ptr()) };
        // SAFETY: the caller gives the memory to the device until the region has ended.
        let memory = unsafe { Registration::new(addr, len, Some(iova), access) };
        memory_verbs::register(Verb::RegMrIova, &domain, memory)
    }

    /// Always refused, because this device cannot access the memory of another device.
    unsafe fn reg_dmabuf_mr(
        &self,
        pd: NonNull<ibv_pd>,
        _: u64,
        _: usize,
        _: u64,
        _: RawFd,
        _: ibv_access_flags,
    ) -> Result<NonNull<ibv_mr>, VerbError> {
        // SAFETY: the domain is alive (caller).
        let domain = unsafe { find(pd.as_ptr()) };
        domain.control(Verb::RegDmabufMr, |_, _| Err(libc::EOPNOTSUPP))
    }

    unsafe fn dereg_mr(&self, mr: NonNull<ibv_mr>) -> Result<(), VerbError> {
        // SAFETY: the region is alive, and the caller does not use it after a success.
        unsafe { destroy(mr, Verb::DeregMr, State::dereg_mr) }
    }

    unsafe fn finish_copies(&self, pd: NonNull<ibv_pd>) -> Result<(), VerbError> {
        // SAFETY: the domain is alive (caller).
        let domain = unsafe { find(pd.as_ptr()) };
        domain.control(Verb::Membarrier, |state, _| {
            state.regions.finish_copies();
            Ok(())
        })
    }

    unsafe fn alloc_mw(&self, pd: NonNull<ibv_pd>, kind: ibv_mw_type) -> Result<NonNull<ibv_mw>, VerbError> {
        // SAFETY: the domain is alive (caller).
        memory_verbs::alloc_window(&unsafe { find(pd.as_ptr()) }, kind)
    }

    unsafe fn dealloc_mw(&self, mw: NonNull<ibv_mw>) -> Result<(), VerbError> {
        // SAFETY: the window is alive, and the caller does not use it after a success.
        unsafe { destroy(mw, Verb::DeallocMw, State::dealloc_mw) }
    }

    unsafe fn create_ah(
        &self,
        pd: NonNull<ibv_pd>,
        attributes: &mut ibv_ah_attr,
    ) -> Result<NonNull<ibv_ah>, VerbError> {
        // SAFETY: the domain is alive (caller).
        memory_verbs::create_address(&unsafe { find(pd.as_ptr()) }, attributes)
    }

    unsafe fn destroy_ah(&self, ah: NonNull<ibv_ah>) -> Result<(), VerbError> {
        // SAFETY: the address handle is alive, and the caller does not use it after a success.
        unsafe { destroy(ah, Verb::DestroyAh, State::destroy_ah) }
    }

    unsafe fn create_comp_channel(
        &self,
        context: NonNull<ibv_context>,
    ) -> Result<NonNull<ibv_comp_channel>, VerbError> {
        // SAFETY: the context is open (caller).
        queue_verbs::create_channel(unsafe { open_context(context.as_ptr()) }).map(NonNull::cast)
    }

    unsafe fn destroy_comp_channel(&self, channel: NonNull<ibv_comp_channel>) -> Result<(), VerbError> {
        // SAFETY: the channel is alive, and `create_channel` made it with `give`, as a `SoftChannel`. The caller does
        // not use it after a success.
        unsafe { destroy(channel.cast::<SoftChannel>(), Verb::DestroyCompChannel, State::destroy_channel) }
    }

    unsafe fn take_cq_event_of(
        &self,
        channel: NonNull<ibv_comp_channel>,
    ) -> Result<Option<NonNull<ibv_cq>>, VerbError> {
        // SAFETY: the channel is alive (caller). Each channel of this provider is a `SoftChannel`.
        let channel = unsafe { find(channel.cast::<SoftChannel>().as_ptr()) };
        Ok(channel.control(Verb::GetCqEvent, State::take_event)?.and_then(NonNull::new))
    }

    unsafe fn create_cq(
        &self,
        context: NonNull<ibv_context>,
        cqe: u32,
        channel: NonNull<ibv_comp_channel>,
        vector: u32,
    ) -> Result<NonNull<ibv_cq>, VerbError> {
        let (channel, comp_vector) = (channel.as_ptr(), vector);
        let attributes = ibv_cq_init_attr_ex { cqe, channel, comp_vector, ..Default::default() };
        // SAFETY: the context is open, and the channel in the attributes is alive (caller).
        unsafe { create_queue(context, &attributes, None) }.map(NonNull::cast)
    }

    unsafe fn create_cq_ex(
        &self,
        context: NonNull<ibv_context>,
        attributes: &mut ibv_cq_init_attr_ex,
    ) -> Result<NonNull<ibv_cq_ex>, VerbError> {
        let refused = |errno| VerbError::new("ibv_create_cq_ex", errno);
        if attributes.comp_mask != 0 {
            return Err(refused(libc::EOPNOTSUPP));
        }
        // SAFETY: the context is open, and the channel in the attributes is alive or null (caller).
        let queue = unsafe { create_queue(context, attributes, Some(attributes.wc_flags)) };
        queue.map(NonNull::cast).map_err(|error| refused(error.errno()))
    }

    unsafe fn resize_cq(&self, cq: NonNull<ibv_cq>, cqe: u32) -> Result<(), VerbError> {
        // SAFETY: the queue is alive (caller).
        let queue = unsafe { find(cq.as_ptr()) };
        let granted = queue_verbs::resize_cq(&queue, cqe)?;
        // SAFETY: the queue is alive, and nobody else uses its `cqe` during this call (caller).
        unsafe { (*cq.as_ptr()).cqe = granted };
        Ok(())
    }

    unsafe fn destroy_cq(&self, cq: NonNull<ibv_cq>) -> Result<(), VerbError> {
        // SAFETY: the queue is alive, and `create_cq` made it with `give`, as a `SoftQueue`. The caller does not use it
        // after a success.
        unsafe { destroy(cq.cast::<SoftQueue>(), Verb::DestroyCq, State::destroy_cq) }
    }

    unsafe fn create_srq(
        &self,
        pd: NonNull<ibv_pd>,
        attributes: &mut ibv_srq_init_attr,
    ) -> Result<NonNull<ibv_srq>, VerbError> {
        // SAFETY: the domain is alive (caller).
        queue_verbs::create_srq(&unsafe { find(pd.as_ptr()) }, attributes)
    }

    unsafe fn modify_srq(
        &self,
        srq: NonNull<ibv_srq>,
        attributes: &mut ibv_srq_attr,
        mask: ibv_srq_attr_mask,
    ) -> Result<(), VerbError> {
        // SAFETY: the shared queue is alive (caller).
        let srq = unsafe { find(srq.as_ptr()) };
        srq.control(Verb::ModifySrq, |state, index| {
            state.modify_srq(index, attributes, mask)?;
            *attributes = state.query_srq(index)?;
            Ok(())
        })
    }

    unsafe fn query_srq(&self, srq: NonNull<ibv_srq>) -> Result<ibv_srq_attr, VerbError> {
        // SAFETY: the shared queue is alive (caller).
        let srq = unsafe { find(srq.as_ptr()) };
        srq.control(Verb::QuerySrq, |state, index| state.query_srq(index))
    }

    unsafe fn destroy_srq(&self, srq: NonNull<ibv_srq>) -> Result<(), VerbError> {
        // SAFETY: the queue is alive, and the caller does not use it after a success.
        unsafe { destroy(srq, Verb::DestroySrq, State::destroy_srq) }
    }

    unsafe fn create_qp(
        &self,
        pd: NonNull<ibv_pd>,
        attributes: &mut ibv_qp_init_attr,
    ) -> Result<NonNull<ibv_qp>, VerbError> {
        // SAFETY: the domain is alive, and so are the queues in the attributes (caller).
        unsafe { create_pair(pd, attributes, None) }.map(NonNull::cast)
    }

    unsafe fn create_qp_ex(
        &self,
        _: NonNull<ibv_context>,
        attributes: &mut ibv_qp_init_attr_ex,
    ) -> Result<(NonNull<ibv_qp>, Option<NonNull<ibv_qp_ex>>), VerbError> {
        let asked = attributes.send_ops_flags;
        let ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, pd, .. } = *attributes;
        let mut plain = ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
        let pd = NonNull::new(pd).ok_or(VerbError::new("ibv_create_qp_ex", libc::EINVAL))?;
        // SAFETY: the domain is alive, and so are the queues in the attributes (caller).
        let pair = unsafe { create_pair(pd, &mut plain, Some(asked)) }?;
        attributes.cap = plain.cap;
        Ok((pair.cast(), Some(pair.cast())))
    }

    unsafe fn modify_qp(
        &self,
        qp: NonNull<ibv_qp>,
        attributes: &mut ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<(), VerbError> {
        // SAFETY: the pair is alive (caller).
        let pair = unsafe { find(qp.as_ptr()) };
        pair.control(Verb::ModifyQp, |state, index| {
            let new = state.modify_pair(index, attributes, mask)?;
            // As libibverbs does, store the new state in the C struct too.
            // SAFETY: the pair is alive (caller). Two threads can modify the pair at the same time, but every write of
            // `state` is under the lock of the fabric, and this crate never reads `state`.
            unsafe { (*qp.as_ptr()).state = new };
            Ok(())
        })
    }

    unsafe fn query_qp(&self, qp: NonNull<ibv_qp>, mask: ibv_qp_attr_mask) -> Result<ibv_qp_attr, VerbError> {
        // SAFETY: the pair is alive (caller).
        let pair = unsafe { find(qp.as_ptr()) };
        pair.control(Verb::QueryQp, |state, index| state.query_pair(index, mask))
    }

    unsafe fn destroy_qp(&self, qp: NonNull<ibv_qp>) -> Result<(), VerbError> {
        // SAFETY: the pair is alive, and `create_qp` made it with `give`, as a `SoftPair`. The caller does not use it
        // after a success.
        unsafe { destroy(qp.cast::<SoftPair>(), Verb::DestroyQp, State::destroy_pair) }
    }

    unsafe fn attach_mcast(&self, qp: NonNull<ibv_qp>, gid: &ibv_gid, _: u16) -> Result<(), VerbError> {
        // SAFETY: the pair is alive (caller).
        let pair = unsafe { find(qp.as_ptr()) };
        pair.control(Verb::AttachMcast, |state, index| state.attach(index, gid))
    }

    unsafe fn detach_mcast(&self, qp: NonNull<ibv_qp>, gid: &ibv_gid, _: u16) -> Result<(), VerbError> {
        // SAFETY: the pair is alive (caller).
        let pair = unsafe { find(qp.as_ptr()) };
        pair.control(Verb::DetachMcast, |state, index| state.detach(index, gid))
    }

    #[cfg(feature = "cm")]
    unsafe fn open_cm(
        &self,
        context: NonNull<ibv_context>,
    ) -> Result<std::sync::Arc<dyn crate::provider::cm::RawChannel>, crate::provider::cm::OpenFailure> {
        // SAFETY: the context is open (caller).
        Ok(super::cm::open(unsafe { open_context(context.as_ptr()) }.fabric)?)
    }

    unsafe fn next_timer(&self, context: NonNull<ibv_context>) -> Option<Duration> {
        // SAFETY: the context is open (caller).
        unsafe { open_context(context.as_ptr()) }.fabric.lock().next_wakeup()
    }
}

/// `ibv_create_cq`; or `ibv_create_cq_ex`, if `fields` of `ibv_wc_read_*` are asked for.
///
/// # Safety
///
/// The context is open; the channel in the attributes is alive, or null.
unsafe fn create_queue(
    context: NonNull<ibv_context>,
    attributes: &ibv_cq_init_attr_ex,
    fields: Option<u64>,
) -> Result<NonNull<SoftQueue>, VerbError> {
    // SAFETY: the context is open (caller).
    let context = unsafe { open_context(context.as_ptr()) };
    // SAFETY: the channel is alive, or null (caller). Each channel of this provider is a `SoftChannel`.
    let channel = unsafe { find_unless_null(attributes.channel.cast::<SoftChannel>()) };
    queue_verbs::create_cq(context, channel, attributes, fields)
}

/// `ibv_create_qp`; or `ibv_create_qp_ex`, if `operations` of `ibv_wr_*` are asked for.
///
/// # Safety
///
/// The protection domain is alive; each queue in the attributes is alive, or null.
unsafe fn create_pair(
    pd: NonNull<ibv_pd>,
    attributes: &mut ibv_qp_init_attr,
    operations: Option<u64>,
) -> Result<NonNull<SoftPair>, VerbError> {
    // SAFETY: the domain is alive (caller).
    let domain = unsafe { find(pd.as_ptr()) };
    let queues = queue_verbs::Queues {
        // SAFETY: the queue is alive, or null (caller).
        send: unsafe { find_unless_null(attributes.send_cq) },
        // SAFETY: the queue is alive, or null (caller).
        receive: unsafe { find_unless_null(attributes.recv_cq) },
        // SAFETY: the queue is alive, or null (caller).
        shared: unsafe { find_unless_null(attributes.srq) },
    };
    queue_verbs::create_qp(&domain, &queues, attributes, operations)
}
