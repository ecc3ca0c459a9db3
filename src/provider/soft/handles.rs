//! The C objects of this provider, and how to find the object behind a pointer.
//!
//! A C struct holds the address of its context and the number of its object; everything else is in tables under the
//! fabric's lock. [`find`] reads these two fields once and returns an [`Object`], which safe code can use.
#![allow(unsafe_code, reason = "raw objects of the C interface")]

use super::{
    data_path, device,
    fabric::{Fabric, State},
    fault::Verb,
    polling::SoftQueue,
    session::SoftPair,
};
use crate::{
    error::VerbError,
    sys::{
        ibv_ah, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_mw, ibv_node_type, ibv_pd, ibv_qp,
        ibv_srq, ibv_transport_type,
    },
};
use libc::{c_char, c_int};
use std::{marker::PhantomData, mem::offset_of, os::fd::RawFd, ptr::NonNull};

/// A context as C knows it, followed by fields of this provider.
#[repr(C)]
pub(super) struct SoftContext {
    base: ibv_context,
    fabric: Fabric,
    index: usize,
    device: ibv_device,
}

/// A completion channel as C knows it, followed by its number.
#[repr(C)]
pub(super) struct SoftChannel {
    pub(super) base: ibv_comp_channel,
    pub(super) handle: u32,
}

/// A C struct that holds the address of its context, and the number of its object.
///
/// # Safety
///
/// At the offset `CONTEXT` there is a member of type `*mut ibv_context`, at the offset `HANDLE` one of type `u32`.
pub(super) unsafe trait Handle {
    const CONTEXT: usize;
    const HANDLE: usize;
}

macro_rules! handles {
    ($($name:ident: $($context:ident).+, $($handle:ident).+;)*) => {$(
        const _: fn(&$name) -> (&*mut ibv_context, &u32) = |object| (&object.$($context).+, &object.$($handle).+);
        // SAFETY: the `const` check above compiles only if both members have these types.
        unsafe impl Handle for $name {
            const CONTEXT: usize = offset_of!($name, $($context).+);
            const HANDLE: usize = offset_of!($name, $($handle).+);
        }
    )*};
}
handles! {
    ibv_pd: context, handle;
    ibv_mr: context, handle;
    ibv_mw: context, handle;
    ibv_ah: context, handle;
    ibv_cq: context, handle;
    ibv_srq: context, handle;
    ibv_qp: context, handle;
    SoftChannel: base.context, handle;
    SoftQueue: base.context, base.handle;
    SoftPair: base.qp_base.context, base.qp_base.handle;
}

/// An open context.
#[derive(Clone, Copy)]
pub(super) struct OpenContext<'a> {
    /// The address of the C struct, which the C structs of its objects hold.
    pub(super) raw: *mut ibv_context,
    pub(super) fabric: &'a Fabric,
    index: usize,
}

/// A live object of an open context.
pub(super) struct Object<'a, T> {
    /// The address of the C struct, which the C structs of other objects hold.
    pub(super) raw: *mut T,
    pub(super) context: OpenContext<'a>,
    /// The object's index in the table of its kind.
    pub(super) index: usize,
    marker: PhantomData<&'a T>,
}

/// Creates the C struct of an open context. `index` is the context's place in the fabric's table.
pub(super) fn new_context(
    fabric: Fabric,
    index: usize,
    name: &str,
    transport_type: ibv_transport_type,
    async_fd: RawFd,
) -> NonNull<ibv_context> {
    let mut device = ibv_device { node_type: ibv_node_type::IBV_NODE_CA, transport_type, ..ibv_device::default() };
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
    let context = give(SoftContext { base, fabric, index, device });
    let device = context.as_ptr().wrapping_byte_add(offset_of!(SoftContext, device)).cast();
    // SAFETY: the context was allocated above, so nobody else knows it.
    unsafe { (*context.as_ptr()).base.device = device };
    context.cast()
}

/// Finds the context behind its C struct.
///
/// # Safety
///
/// `raw` came from [`Fabric::open`] and stays open for as long as the result is used.
pub(super) unsafe fn open_context<'a>(raw: *mut ibv_context) -> OpenContext<'a> {
    let context = raw.cast::<SoftContext>();
    // SAFETY: `raw` is open (caller), and every context of this provider is the beginning of a `SoftContext`.
    let fabric = unsafe { &(*context).fabric };
    // SAFETY: `context` points to an open `SoftContext`, for the same reasons.
    let index = unsafe { (*context).index };
    OpenContext { raw, fabric, index }
}

/// Finds the object behind its C struct.
///
/// # Safety
///
/// `raw` is an object of this provider, and alive for as long as the result is used.
pub(super) unsafe fn find<'a, T: Handle>(raw: *mut T) -> Object<'a, T> {
    // SAFETY: the object is alive (caller), and has a member of this type at this offset (`Handle`).
    let context = unsafe { raw.wrapping_byte_add(T::CONTEXT).cast::<*mut ibv_context>().read() };
    // SAFETY: the object is alive (caller), and has a member of this type at this offset (`Handle`).
    let handle = unsafe { raw.wrapping_byte_add(T::HANDLE).cast::<u32>().read() };
    // SAFETY: the object is alive (caller), so its context is open.
    let context = unsafe { open_context(context) };
    Object { raw, context, index: handle as usize, marker: PhantomData }
}

/// Like [`find`], but for a pointer that C allows to be null.
///
/// # Safety
///
/// `raw` is null, or as in [`find`].
pub(super) unsafe fn find_unless_null<'a, T: Handle>(raw: *mut T) -> Option<Object<'a, T>> {
    // SAFETY: `raw` is not null, so the object is alive (caller).
    (!raw.is_null()).then(|| unsafe { find(raw) })
}

impl OpenContext<'_> {
    /// Runs `f`, the work of a verb, under the lock, with the number of the context. If a fault makes the verb fail, or
    /// the device is gone, `f` does not run. Afterwards an automatic fabric does all work that can be done.
    pub(super) fn control<R>(
        self,
        verb: Verb,
        f: impl FnOnce(&mut State, usize) -> Result<R, c_int>,
    ) -> Result<R, VerbError> {
        let mut state = self.fabric.lock();
        let result = match state.faults.verb(verb) {
            Some(errno) => Err(errno),
            None if state.device_of(self.index).is_ok_and(|device| device.refuses(verb)) => Err(libc::EIO),
            None => f(&mut state, self.index),
        };
        state.settle();
        result.map_err(|errno| VerbError::new(verb.name(), errno))
    }
}

impl<T> Object<'_, T> {
    /// Like [`OpenContext::control`], but `f` gets the number of the object.
    pub(super) fn control<R>(
        &self,
        verb: Verb,
        f: impl FnOnce(&mut State, usize) -> Result<R, c_int>,
    ) -> Result<R, VerbError> {
        self.context.control(verb, |state, _| f(state, self.index))
    }
}

/// The number of an object as its C struct holds it.
pub(super) fn handle(index: usize) -> Result<u32, c_int> {
    u32::try_from(index).map_err(|_| libc::ENOMEM)
}

/// Moves `object` to the heap, and hands its address to C.
pub(super) fn give<T>(object: T) -> NonNull<T> {
    NonNull::from(Box::leak(Box::new(object)))
}

/// Frees an object that [`give`] put on the heap.
///
/// # Safety
///
/// Nobody uses the object any more.
pub(super) unsafe fn free<T>(object: NonNull<T>) {
    // SAFETY: `give` allocated the object, and nobody uses it any more (caller).
    drop(unsafe { Box::from_raw(object.as_ptr()) });
}

/// Destroys an object: `f` removes it from its table. If that succeeds, frees the C struct.
///
/// # Safety
///
/// The same as for [`find`]. `T` is the type that was passed to [`give`]. After a success the caller does not use the
/// object any more.
pub(super) unsafe fn destroy<T: Handle>(
    raw: NonNull<T>,
    verb: Verb,
    f: impl FnOnce(&mut State, usize) -> Result<(), c_int>,
) -> Result<(), VerbError> {
    // SAFETY: the object is alive (caller).
    let object = unsafe { find(raw.as_ptr()) };
    let destroyed = object.control(verb, f);
    match destroyed {
        // SAFETY: `T` is the type that was passed to `give`. After a success the caller does not use the object.
        Ok(()) => unsafe { free(raw) },
        Err(_) => object.context.fabric.lock().half_destroy(verb, object.index),
    }
    destroyed
}
