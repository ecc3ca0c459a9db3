//! What stands behind the pointers of the C interface.
//!
//! The structs of the C interface hold numbers; everything else is in tables under the fabric's lock. Only contexts and
//! channels are longer than their C structs.
#![allow(unsafe_code, reason = "raw objects")]

use super::{
    data_path, device,
    device::Device,
    fabric::{Fabric, State},
    fault::Verb,
};
use crate::{
    error::VerbError,
    sys::{ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_node_type, ibv_qp, ibv_srq, ibv_transport_type},
};
use libc::{c_char, c_int};
use std::{os::fd::RawFd, ptr::NonNull};

/// A context, and what the C struct has no room for.
#[repr(C)]
pub(super) struct SoftContext {
    base: ibv_context,
    fabric: Fabric,
    index: usize,
    device: ibv_device,
}

/// A channel, and its number.
#[repr(C)]
pub(super) struct SoftChannel {
    pub(super) base: ibv_comp_channel,
    pub(super) index: usize,
}

/// Makes an open context, entry `index` of the fabric's table.
pub(super) fn new_context(fabric: Fabric, index: usize, name: &str, async_fd: RawFd) -> NonNull<ibv_context> {
    let mut device = ibv_device {
        node_type: ibv_node_type::IBV_NODE_CA,
        transport_type: ibv_transport_type::IBV_TRANSPORT_IB,
        ..ibv_device::default()
    };
    let room = device.name.len() - 1;
    for ((to, also), from) in device.name.iter_mut().zip(&mut device.dev_name).zip(name.bytes()).take(room) {
        *to = c_char::from_ne_bytes([from]);
        *also = *to;
    }
    let mut base = ibv_context::default();
    data_path::fill(&mut base.ops);
    base.cmd_fd = -1;
    base.async_fd = async_fd;
    base.num_comp_vectors = device::COMPLETION_VECTORS as c_int;
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

pub(super) fn handle(index: usize) -> Result<u32, c_int> {
    u32::try_from(index).map_err(|_| libc::ENOMEM)
}

/// Does `f` under the lock, unless the verb is to fail or the device is gone; then the fabric settles.
///
/// # Safety
///
/// As [`fabric_of`].
pub(super) unsafe fn control<R>(
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
        None if state.device_of(index).is_ok_and(|device| device.refuses(verb)) => Err(libc::EIO),
        None => f(&mut state, index),
    };
    state.settle();
    result.map_err(|errno| VerbError::new(verb.name(), errno))
}

/// Moves `object` to the heap, for the C interface.
pub(super) fn give<T>(object: T) -> NonNull<T> {
    NonNull::from(Box::leak(Box::new(object)))
}

/// As [`give`], but `f`, which may note the address, has to make something of the object first.
pub(super) fn give_if<T>(
    object: T,
    f: impl FnOnce(NonNull<T>) -> Result<(), VerbError>,
) -> Result<NonNull<T>, VerbError> {
    let object = give(object);
    let result = f(object);
    if result.is_err() {
        // SAFETY: from `give`; whoever refused an object has not kept its address.
        drop(unsafe { Box::from_raw(object.as_ptr()) });
    }
    result.map(|()| object)
}

/// Ends an object that `give` gave.
///
/// # Safety
///
/// Nobody uses it any more.
pub(super) unsafe fn take_back<T>(object: NonNull<T>) {
    // SAFETY: given by `give` (caller).
    drop(unsafe { Box::from_raw(object.as_ptr()) });
}

impl State {
    pub(super) fn device_of(&self, context: usize) -> Result<&Device, c_int> {
        let device = self.contexts.get(context).and_then(|context| self.devices.get(context.device));
        device.ok_or(libc::EINVAL)
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
pub(super) unsafe fn cq_in(cq: *mut ibv_cq, context: *mut ibv_context) -> Option<usize> {
    if cq.is_null() {
        return None;
    }
    // SAFETY: not null, so alive (caller).
    let (owner, index) = unsafe { cq_parts(cq) };
    (owner == context).then_some(index)
}

/// Context and number of a shared receive queue.
///
/// # Safety
///
/// A live queue of this provider.
pub(super) unsafe fn srq_parts(srq: *mut ibv_srq) -> (*mut ibv_context, usize) {
    // SAFETY: alive (caller).
    let context = unsafe { (*srq).context };
    // SAFETY: alive (caller).
    let handle = unsafe { (*srq).handle };
    (context, handle as usize)
}
