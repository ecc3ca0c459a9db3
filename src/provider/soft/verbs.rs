//! The verbs of the control path.
#![allow(unsafe_code, reason = "verbs on raw objects")]

use super::{
    device::{Device, PORT},
    fabric::State,
    fault::Verb,
    handles::{SoftChannel, SoftContext, control, cq_parts, fabric_of, give, handle, qp_parts, srq_parts, take_back},
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

/// The soft device. Its objects know their fabric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Soft;

impl Provider for Soft {
    /// Unlike libibverbs, refuses while objects of the context are alive.
    unsafe fn close_device(&self, context: NonNull<ibv_context>) -> Result<(), VerbError> {
        let close = |state: &mut State, index| {
            if state.contexts.get(index).is_none_or(|context| context.children > 0) {
                return Err(libc::EBUSY);
            }
            state.contexts.remove(index);
            Ok(())
        };
        // SAFETY: open (caller).
        unsafe { control(context.as_ptr(), Verb::CloseDevice, close) }?;
        // SAFETY: a context of this provider, which the caller does not use any more.
        unsafe { take_back(context.cast::<SoftContext>()) };
        Ok(())
    }

    unsafe fn promises(&self, context: NonNull<ibv_context>) -> Option<&'static Promises> {
        // SAFETY: open (caller).
        Some(unsafe { fabric_of(context.as_ptr()) }.lock().latitudes.row)
    }

    unsafe fn query_device(&self, context: NonNull<ibv_context>) -> Result<ibv_device_attr, VerbError> {
        let query = |state: &mut State, index| Ok(state.device_of(index)?.attributes());
        // SAFETY: open (caller).
        unsafe { control(context.as_ptr(), Verb::QueryDevice, query) }
    }

    /// It pins nothing, and so has nothing to page in.
    unsafe fn query_device_ex(&self, context: NonNull<ibv_context>) -> Result<ibv_device_attr_ex, VerbError> {
        let query = |state: &mut State, index| {
            let orig_attr = state.device_of(index)?.attributes();
            Ok(ibv_device_attr_ex { orig_attr, device_cap_flags_ex: HAS_ATOMIC_WRITE, ..Default::default() })
        };
        // SAFETY: open (caller).
        unsafe { control(context.as_ptr(), Verb::QueryDevice, query) }
    }

    unsafe fn query_port(&self, context: NonNull<ibv_context>, port: u8) -> Result<ibv_port_attr, VerbError> {
        let query = |state: &mut State, index| {
            let device = state.device_of(index)?;
            if port == PORT { Ok(device.port()) } else { Err(libc::EINVAL) }
        };
        // SAFETY: open (caller).
        unsafe { control(context.as_ptr(), Verb::QueryPort, query) }
    }

    unsafe fn query_gid_table(&self, context: NonNull<ibv_context>) -> Result<Vec<ibv_gid_entry>, VerbError> {
        let query = |state: &mut State, index| Ok(state.device_of(index)?.gid_table());
        // SAFETY: open (caller).
        unsafe { control(context.as_ptr(), Verb::QueryGidTable, query) }
    }

    unsafe fn query_pkey(&self, context: NonNull<ibv_context>, port: u8, index: u16) -> Result<u16, VerbError> {
        let query = |_: &mut State, _| Device::pkey(port, index).ok_or(libc::EINVAL);
        // SAFETY: open (caller).
        unsafe { control(context.as_ptr(), Verb::QueryPkey, query) }
    }

    unsafe fn take_async_event(&self, context: NonNull<ibv_context>) -> Result<Option<ibv_async_event>, VerbError> {
        let take = |state: &mut State, index| state.take_async(index);
        // SAFETY: open (caller).
        unsafe { control(context.as_ptr(), Verb::GetAsyncEvent, take) }
    }

    unsafe fn alloc_pd(&self, context: NonNull<ibv_context>) -> Result<NonNull<ibv_pd>, VerbError> {
        let alloc = |state: &mut State, index| handle(state.alloc_pd(index)?);
        // SAFETY: open (caller).
        let handle = unsafe { control(context.as_ptr(), Verb::AllocPd, alloc) }?;
        Ok(give(ibv_pd { context: context.as_ptr(), handle }))
    }

    unsafe fn dealloc_pd(&self, pd: NonNull<ibv_pd>) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        let ibv_pd { context, handle, .. } = unsafe { pd.read() };
        // SAFETY: its context is open.
        unsafe { control(context, Verb::DeallocPd, |state, _| state.dealloc_pd(handle as usize)) }?;
        // SAFETY: the caller does not use it any more.
        unsafe { take_back(pd) };
        Ok(())
    }

    unsafe fn reg_mr(
        &self,
        pd: NonNull<ibv_pd>,
        addr: *mut u8,
        len: usize,
        access: ibv_access_flags,
    ) -> Result<NonNull<ibv_mr>, VerbError> {
        // SAFETY: the caller's promise.
        unsafe { memory_verbs::register(Verb::RegMr, pd, addr, len, None, access) }
    }

    unsafe fn reg_mr_iova(
        &self,
        pd: NonNull<ibv_pd>,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: ibv_access_flags,
    ) -> Result<NonNull<ibv_mr>, VerbError> {
        // SAFETY: the caller's promise.
        unsafe { memory_verbs::register(Verb::RegMrIova, pd, addr, len, Some(iova), access) }
    }

    /// There is no device memory that this device could reach.
    unsafe fn reg_dmabuf_mr(
        &self,
        pd: NonNull<ibv_pd>,
        _: u64,
        _: usize,
        _: u64,
        _: RawFd,
        _: ibv_access_flags,
    ) -> Result<NonNull<ibv_mr>, VerbError> {
        // SAFETY: alive (caller).
        let context = unsafe { pd.read() }.context;
        // SAFETY: its context is open.
        unsafe { control(context, Verb::RegDmabufMr, |_, _| Err(libc::EOPNOTSUPP)) }
    }

    unsafe fn dereg_mr(&self, mr: NonNull<ibv_mr>) -> Result<(), VerbError> {
        // SAFETY: the caller's promise.
        unsafe { memory_verbs::deregister(mr) }
    }

    unsafe fn alloc_mw(&self, pd: NonNull<ibv_pd>, kind: ibv_mw_type) -> Result<NonNull<ibv_mw>, VerbError> {
        // SAFETY: the caller's promise.
        unsafe { memory_verbs::alloc_window(pd, kind) }
    }

    unsafe fn dealloc_mw(&self, mw: NonNull<ibv_mw>) -> Result<(), VerbError> {
        // SAFETY: the caller's promise.
        unsafe { memory_verbs::dealloc_window(mw) }
    }

    unsafe fn create_ah(
        &self,
        pd: NonNull<ibv_pd>,
        attributes: &mut ibv_ah_attr,
    ) -> Result<NonNull<ibv_ah>, VerbError> {
        // SAFETY: the caller's promise.
        unsafe { memory_verbs::create_address(pd, attributes) }
    }

    unsafe fn destroy_ah(&self, ah: NonNull<ibv_ah>) -> Result<(), VerbError> {
        // SAFETY: the caller's promise.
        unsafe { memory_verbs::destroy_address(ah) }
    }

    unsafe fn create_comp_channel(
        &self,
        context: NonNull<ibv_context>,
    ) -> Result<NonNull<ibv_comp_channel>, VerbError> {
        let create = |state: &mut State, index| state.create_channel(index);
        // SAFETY: open (caller).
        let (index, fd) = unsafe { control(context.as_ptr(), Verb::CreateCompChannel, create) }?;
        let base = ibv_comp_channel { context: context.as_ptr(), fd, refcnt: 0 };
        Ok(give(SoftChannel { base, index }).cast())
    }

    unsafe fn destroy_comp_channel(&self, channel: NonNull<ibv_comp_channel>) -> Result<(), VerbError> {
        let channel = channel.cast::<SoftChannel>();
        // SAFETY: alive (caller).
        let SoftChannel { base, index } = unsafe { channel.read() };
        // SAFETY: its context is open.
        unsafe { control(base.context, Verb::DestroyCompChannel, |state, _| state.destroy_channel(index)) }?;
        // SAFETY: the caller does not use it any more.
        unsafe { take_back(channel) };
        Ok(())
    }

    unsafe fn take_cq_event_of(
        &self,
        channel: NonNull<ibv_comp_channel>,
    ) -> Result<Option<NonNull<ibv_cq>>, VerbError> {
        // SAFETY: alive (caller).
        let SoftChannel { base, index } = unsafe { channel.cast::<SoftChannel>().read() };
        // SAFETY: its context is open.
        let taken = unsafe { control(base.context, Verb::GetCqEvent, |state, _| state.take_event(index)) }?;
        Ok(taken.and_then(NonNull::new))
    }

    unsafe fn create_cq(
        &self,
        context: NonNull<ibv_context>,
        cqe: u32,
        channel: NonNull<ibv_comp_channel>,
        vector: u32,
    ) -> Result<NonNull<ibv_cq>, VerbError> {
        // SAFETY: the caller's promise.
        unsafe { queue_verbs::create_cq(context, cqe, channel, vector, None) }.map(NonNull::cast)
    }

    unsafe fn create_cq_ex(
        &self,
        context: NonNull<ibv_context>,
        attributes: &mut ibv_cq_init_attr_ex,
    ) -> Result<NonNull<ibv_cq_ex>, VerbError> {
        let refused = |errno| VerbError::new("ibv_create_cq_ex", errno);
        let ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, .. } = *attributes;
        if comp_mask != 0 {
            return Err(refused(libc::EOPNOTSUPP));
        }
        let channel = NonNull::new(channel).ok_or(refused(libc::EINVAL))?;
        // SAFETY: the caller's promise.
        let cq = unsafe { queue_verbs::create_cq(context, cqe, channel, comp_vector, Some(wc_flags)) };
        let cq = cq.map_err(|error| refused(error.errno()))?.cast::<ibv_cq_ex>();
        // SAFETY: made just now, and nobody else's yet.
        unsafe { (*cq.as_ptr()).cq_context = cq_context };
        Ok(cq)
    }

    unsafe fn resize_cq(&self, cq: NonNull<ibv_cq>, cqe: u32) -> Result<(), VerbError> {
        // SAFETY: the caller's promise.
        unsafe { queue_verbs::resize_cq(cq, cqe) }
    }

    unsafe fn destroy_cq(&self, cq: NonNull<ibv_cq>) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        let (context, handle) = unsafe { cq_parts(cq.as_ptr()) };
        // SAFETY: its context is open.
        unsafe { control(context, Verb::DestroyCq, |state, _| state.destroy_cq(handle)) }?;
        // SAFETY: the caller does not use it any more.
        unsafe { take_back(cq.cast::<SoftQueue>()) };
        Ok(())
    }

    unsafe fn create_srq(
        &self,
        pd: NonNull<ibv_pd>,
        attributes: &mut ibv_srq_init_attr,
    ) -> Result<NonNull<ibv_srq>, VerbError> {
        // SAFETY: the caller's promise.
        unsafe { queue_verbs::create_srq(pd, attributes) }
    }

    unsafe fn modify_srq(
        &self,
        srq: NonNull<ibv_srq>,
        attributes: &mut ibv_srq_attr,
        mask: ibv_srq_attr_mask,
    ) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        let (context, index) = unsafe { srq_parts(srq.as_ptr()) };
        let modify = |state: &mut State, _| {
            state.modify_srq(index, attributes, mask)?;
            *attributes = state.query_srq(index)?;
            Ok(())
        };
        // SAFETY: its context is open.
        unsafe { control(context, Verb::ModifySrq, modify) }
    }

    unsafe fn query_srq(&self, srq: NonNull<ibv_srq>) -> Result<ibv_srq_attr, VerbError> {
        // SAFETY: alive (caller).
        let (context, index) = unsafe { srq_parts(srq.as_ptr()) };
        // SAFETY: its context is open.
        unsafe { control(context, Verb::QuerySrq, |state, _| state.query_srq(index)) }
    }

    unsafe fn destroy_srq(&self, srq: NonNull<ibv_srq>) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        let (context, index) = unsafe { srq_parts(srq.as_ptr()) };
        // SAFETY: its context is open.
        let destroyed = unsafe { control(context, Verb::DestroySrq, |state, _| state.destroy_srq(index)) };
        if destroyed.is_err() {
            // SAFETY: its context is open.
            unsafe { fabric_of(context) }.lock().half_kill_srq(index);
        }
        destroyed?;
        // SAFETY: the caller does not use it any more.
        unsafe { take_back(srq) };
        Ok(())
    }

    unsafe fn create_qp(
        &self,
        pd: NonNull<ibv_pd>,
        attributes: &mut ibv_qp_init_attr,
    ) -> Result<NonNull<ibv_qp>, VerbError> {
        // SAFETY: the caller's promise.
        unsafe { queue_verbs::create_qp(pd, attributes, None) }.map(NonNull::cast)
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
        // SAFETY: the caller's promise.
        let pair = unsafe { queue_verbs::create_qp(pd, &mut plain, Some(asked)) }?;
        attributes.cap = plain.cap;
        Ok((pair.cast(), Some(pair.cast())))
    }

    unsafe fn modify_qp(
        &self,
        qp: NonNull<ibv_qp>,
        attributes: &mut ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        let (context, index) = unsafe { qp_parts(qp.as_ptr()) };
        let modify = |state: &mut State, _| {
            let new = state.modify_pair(index, attributes, mask)?;
            // As libibverbs does; under the lock, so that two threads may do it.
            // SAFETY: alive (caller); nobody reads this member without owning the queue pair.
            unsafe { (*qp.as_ptr()).state = new };
            Ok(())
        };
        // SAFETY: its context is open.
        unsafe { control(context, Verb::ModifyQp, modify) }
    }

    unsafe fn query_qp(&self, qp: NonNull<ibv_qp>, mask: ibv_qp_attr_mask) -> Result<ibv_qp_attr, VerbError> {
        // SAFETY: alive (caller).
        let (context, index) = unsafe { qp_parts(qp.as_ptr()) };
        // SAFETY: its context is open.
        unsafe { control(context, Verb::QueryQp, |state, _| state.query_pair(index, mask)) }
    }

    unsafe fn destroy_qp(&self, qp: NonNull<ibv_qp>) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        let (context, index) = unsafe { qp_parts(qp.as_ptr()) };
        // SAFETY: its context is open.
        let destroyed = unsafe { control(context, Verb::DestroyQp, |state, _| state.destroy_pair(index)) };
        if destroyed.is_err() {
            // SAFETY: its context is open.
            unsafe { fabric_of(context) }.lock().half_kill_pair(index);
        }
        destroyed?;
        // SAFETY: the caller does not use it any more.
        unsafe { take_back(qp.cast::<SoftPair>()) };
        Ok(())
    }

    unsafe fn attach_mcast(&self, qp: NonNull<ibv_qp>, gid: &ibv_gid, _: u16) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        let (context, index) = unsafe { qp_parts(qp.as_ptr()) };
        // SAFETY: its context is open.
        unsafe { control(context, Verb::AttachMcast, |state, _| state.attach(index, gid)) }
    }

    unsafe fn detach_mcast(&self, qp: NonNull<ibv_qp>, gid: &ibv_gid, _: u16) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        let (context, index) = unsafe { qp_parts(qp.as_ptr()) };
        // SAFETY: its context is open.
        unsafe { control(context, Verb::DetachMcast, |state, _| state.detach(index, gid)) }
    }

    fn next_timer(&self, context: NonNull<ibv_context>) -> Option<Duration> {
        // SAFETY: a context of this provider, open (the trait's promise).
        unsafe { fabric_of(context.as_ptr()) }.lock().next_wakeup()
    }
}
