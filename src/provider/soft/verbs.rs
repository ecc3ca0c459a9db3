//! The verbs of the control path.
//!
//! The structs of the C interface hold numbers; everything else is in tables under the fabric's lock. Only contexts and
//! channels are longer than their C structs.
#![allow(unsafe_code, reason = "verbs on raw objects")]

use super::{
    data_path,
    device::{Device, PORT},
    fabric::{Fabric, State},
    fault::Verb,
    pair::Creation,
};
use crate::{
    error::VerbError,
    provider::Provider,
    sys::{
        ibv_access_flags, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_mr,
        ibv_node_type, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state,
        ibv_qp_type, ibv_transport_type,
    },
};
use libc::c_int;
use std::{ptr::NonNull, time::Duration};

/// The soft device. Its objects know their fabric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Soft;

/// A context, and what the C struct has no room for.
#[repr(C)]
struct SoftContext {
    base: ibv_context,
    fabric: Fabric,
    index: usize,
    device: ibv_device,
}

/// A channel, and its number.
#[repr(C)]
struct SoftChannel {
    base: ibv_comp_channel,
    index: usize,
}

/// Makes an open context, entry `index` of the fabric's table.
pub(super) fn new_context(fabric: Fabric, index: usize, name: &str) -> NonNull<ibv_context> {
    let mut device = ibv_device {
        node_type: ibv_node_type::IBV_NODE_CA,
        transport_type: ibv_transport_type::IBV_TRANSPORT_IB,
        ..ibv_device::default()
    };
    let room = device.name.len() - 1;
    for ((to, also), from) in device.name.iter_mut().zip(&mut device.dev_name).zip(name.bytes()).take(room) {
        *to = from.cast_signed();
        *also = *to;
    }
    let mut base = ibv_context::default();
    data_path::fill(&mut base.ops);
    base.cmd_fd = -1;
    base.async_fd = -1;
    base.num_comp_vectors = 1;
    let context = Box::into_raw(Box::new(SoftContext { base, fabric, index, device }));
    // SAFETY: allocated just now; the address of a member.
    let device = unsafe { &raw mut (*context).device };
    // SAFETY: allocated just now, known to nobody else.
    unsafe { (*context).base.device = device };
    // SAFETY: a box is never null.
    unsafe { NonNull::new_unchecked(context) }.cast()
}

/// The fabric of a context.
///
/// # Safety
///
/// `context` came from [`Fabric::open`] and is open for as long as the result is used.
pub(super) unsafe fn fabric_of<'a>(context: *mut ibv_context) -> &'a Fabric {
    // SAFETY: every context of this provider is the beginning of a `SoftContext` (caller).
    unsafe { &(*context.cast::<SoftContext>()).fabric }
}

/// The number of a context.
///
/// # Safety
///
/// As [`fabric_of`].
unsafe fn index_of(context: *mut ibv_context) -> usize {
    // SAFETY: as in `fabric_of`.
    unsafe { (*context.cast::<SoftContext>()).index }
}

fn handle(index: usize) -> Result<u32, c_int> {
    u32::try_from(index).map_err(|_| libc::ENOMEM)
}

/// Does `f` under the lock, unless the verb is to fail or the device is gone; then the fabric settles.
///
/// # Safety
///
/// As [`fabric_of`].
unsafe fn control<R>(
    context: *mut ibv_context,
    verb: Verb,
    f: impl FnOnce(&mut State, usize) -> Result<R, c_int>,
) -> Result<R, VerbError> {
    // SAFETY: the caller's promise.
    let fabric = unsafe { fabric_of(context) };
    // SAFETY: the caller's promise.
    let index = unsafe { index_of(context) };
    let mut state = fabric.lock();
    let result = match state.faults.verb(verb) {
        Some(errno) => Err(errno),
        None if verb != Verb::CloseDevice && state.device_of(index).is_ok_and(|device| device.removed) => {
            Err(libc::EIO)
        }
        None => f(&mut state, index),
    };
    state.settle();
    result.map_err(|errno| VerbError::new(verb.name(), errno))
}

/// Moves `object` to the heap, for the C interface.
fn give<T>(object: T) -> NonNull<T> {
    NonNull::from(Box::leak(Box::new(object)))
}

impl State {
    fn device_of(&self, context: usize) -> Result<&Device, c_int> {
        let device = self.contexts.get(context).and_then(|context| self.devices.get(context.device));
        device.ok_or(libc::EINVAL)
    }
}

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
        // SAFETY: came from a box of this type, and the caller does not use it any more.
        drop(unsafe { Box::from_raw(context.as_ptr().cast::<SoftContext>()) });
        Ok(())
    }

    unsafe fn query_device(&self, context: NonNull<ibv_context>) -> Result<ibv_device_attr, VerbError> {
        let query = |state: &mut State, index| Ok(state.device_of(index)?.attributes());
        // SAFETY: open (caller).
        unsafe { control(context.as_ptr(), Verb::QueryDevice, query) }
    }

    unsafe fn query_port(&self, context: NonNull<ibv_context>, port: u8) -> Result<ibv_port_attr, VerbError> {
        let query = |state: &mut State, index| {
            state.device_of(index)?;
            if port == PORT { Ok(Device::port()) } else { Err(libc::EINVAL) }
        };
        // SAFETY: open (caller).
        unsafe { control(context.as_ptr(), Verb::QueryPort, query) }
    }

    unsafe fn query_gid_table(&self, context: NonNull<ibv_context>) -> Result<Vec<ibv_gid_entry>, VerbError> {
        let query = |state: &mut State, index| Ok(state.device_of(index)?.gid_table());
        // SAFETY: open (caller).
        unsafe { control(context.as_ptr(), Verb::QueryGidTable, query) }
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
        // SAFETY: given by `give`, and the caller does not use it any more.
        drop(unsafe { Box::from_raw(pd.as_ptr()) });
        Ok(())
    }

    unsafe fn reg_mr(
        &self,
        pd: NonNull<ibv_pd>,
        addr: *mut u8,
        len: usize,
        access: ibv_access_flags,
    ) -> Result<NonNull<ibv_mr>, VerbError> {
        // SAFETY: alive (caller).
        let ibv_pd { context, handle: domain, .. } = unsafe { pd.read() };
        // The device goes by the number alone.
        let number = addr.expose_provenance();
        let register = |state: &mut State, _| {
            let index = state.reg_mr(domain as usize, number, len, access.0)?;
            let region = state.regions.get(index).ok_or(libc::EINVAL)?;
            Ok((handle(index)?, region.lkey, region.rkey))
        };
        // SAFETY: its context is open.
        let (handle, lkey, rkey) = unsafe { control(context, Verb::RegMr, register) }?;
        Ok(give(ibv_mr { context, pd: pd.as_ptr(), addr: addr.cast(), length: len, handle, lkey, rkey }))
    }

    unsafe fn dereg_mr(&self, mr: NonNull<ibv_mr>) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        let ibv_mr { context, handle, .. } = unsafe { mr.read() };
        // SAFETY: its context is open.
        unsafe { control(context, Verb::DeregMr, |state, _| state.dereg_mr(handle as usize)) }?;
        // SAFETY: given by `give`, and the caller does not use it any more.
        drop(unsafe { Box::from_raw(mr.as_ptr()) });
        Ok(())
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
        // SAFETY: given by `give`, and the caller does not use it any more.
        drop(unsafe { Box::from_raw(channel.as_ptr()) });
        Ok(())
    }

    unsafe fn take_cq_event(&self, channel: NonNull<ibv_comp_channel>) -> Result<bool, VerbError> {
        // SAFETY: alive (caller).
        let SoftChannel { base, index } = unsafe { channel.cast::<SoftChannel>().read() };
        // SAFETY: its context is open.
        unsafe { control(base.context, Verb::GetCqEvent, |state, _| state.take_event(index)) }
    }

    unsafe fn create_cq(
        &self,
        context: NonNull<ibv_context>,
        cqe: u32,
        channel: NonNull<ibv_comp_channel>,
    ) -> Result<NonNull<ibv_cq>, VerbError> {
        // SAFETY: alive (caller).
        let owner = unsafe { channel.cast::<SoftChannel>().read() }.index;
        let create = |state: &mut State, index| handle(state.create_cq(index, cqe, owner)?);
        // SAFETY: open (caller).
        let handle = unsafe { control(context.as_ptr(), Verb::CreateCq, create) }?;
        let cqe = c_int::try_from(cqe).unwrap_or(c_int::MAX);
        Ok(give(ibv_cq { context: context.as_ptr(), channel: channel.as_ptr(), handle, cqe, ..ibv_cq::default() }))
    }

    unsafe fn destroy_cq(&self, cq: NonNull<ibv_cq>) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        let (context, handle) = unsafe { cq_parts(cq.as_ptr()) };
        // SAFETY: its context is open.
        unsafe { control(context, Verb::DestroyCq, |state, _| state.destroy_cq(handle)) }?;
        // SAFETY: given by `give`, and the caller does not use it any more.
        drop(unsafe { Box::from_raw(cq.as_ptr()) });
        Ok(())
    }

    unsafe fn create_qp(
        &self,
        pd: NonNull<ibv_pd>,
        attributes: &mut ibv_qp_init_attr,
    ) -> Result<NonNull<ibv_qp>, VerbError> {
        // SAFETY: alive (caller).
        let ibv_pd { context, handle: domain, .. } = unsafe { pd.read() };
        let ibv_qp_init_attr { send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, qp_context } = *attributes;
        // SAFETY: alive, or null (caller).
        let send = unsafe { cq_in(send_cq, context) };
        // SAFETY: as above.
        let receive = unsafe { cq_in(recv_cq, context) };
        let create = |state: &mut State, _| {
            if qp_type != ibv_qp_type::IBV_QPT_RC || !srq.is_null() {
                return Err(libc::EOPNOTSUPP);
            }
            let (Some(send_cq), Some(receive_cq)) = (send, receive) else { return Err(libc::EINVAL) };
            let pd = domain as usize;
            let creation = Creation { pd, send_cq, receive_cq, cap, signal_all: sq_sig_all != 0 };
            let (index, qpn) = state.create_pair(creation)?;
            Ok((handle(index)?, qpn))
        };
        // SAFETY: its context is open.
        let (handle, qp_num) = unsafe { control(context, Verb::CreateQp, create) }?;
        Ok(give(ibv_qp {
            context,
            qp_context,
            pd: pd.as_ptr(),
            send_cq,
            recv_cq,
            srq,
            handle,
            qp_num,
            state: ibv_qp_state::IBV_QPS_RESET,
            qp_type,
            ..ibv_qp::default()
        }))
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
        unsafe { control(context, Verb::DestroyQp, |state, _| state.destroy_pair(index)) }?;
        // SAFETY: given by `give`, and the caller does not use it any more.
        drop(unsafe { Box::from_raw(qp.as_ptr()) });
        Ok(())
    }

    fn next_timer(&self, context: NonNull<ibv_context>) -> Option<Duration> {
        // SAFETY: a context of this provider, open (the trait's promise).
        unsafe { fabric_of(context.as_ptr()) }.lock().next_wakeup()
    }
}

/// Context and number of a queue pair.
///
/// # Safety
///
/// A live queue pair of this provider.
pub(super) unsafe fn qp_parts(qp: *mut ibv_qp) -> (*mut ibv_context, usize) {
    // SAFETY: alive (caller).
    let context = unsafe { (*qp).context };
    // SAFETY: alive (caller).
    let handle = unsafe { (*qp).handle };
    (context, handle as usize)
}

/// Context and number of a completion queue.
///
/// # Safety
///
/// A live completion queue of this provider.
pub(super) unsafe fn cq_parts(cq: *mut ibv_cq) -> (*mut ibv_context, usize) {
    // SAFETY: alive (caller).
    let context = unsafe { (*cq).context };
    // SAFETY: alive (caller).
    let handle = unsafe { (*cq).handle };
    (context, handle as usize)
}

/// The number of a completion queue, if it is one of `context`.
///
/// # Safety
///
/// Null, or a live completion queue of this provider.
unsafe fn cq_in(cq: *mut ibv_cq, context: *mut ibv_context) -> Option<usize> {
    if cq.is_null() {
        return None;
    }
    // SAFETY: not null, so alive (caller).
    let (owner, index) = unsafe { cq_parts(cq) };
    (owner == context).then_some(index)
}
