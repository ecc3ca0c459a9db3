//! The control path through libibverbs.
#![allow(unsafe_code, reason = "calls libibverbs")]

use super::{Listed, Provider};
use crate::sync::lock;
use crate::sys::{self, inline};
use crate::verb_error::VerbError;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::sync::Mutex;
use std::{io, mem, os::fd::RawFd, ptr, ptr::NonNull, time::Duration};

#[cfg(test)]
mod tests;

/// libibverbs and the kernel behind it.
#[derive(Debug)]
pub(crate) struct RdmaCore;

/// The result of a verb that returns 0 or an errno. Some old providers return -1 and set `errno` instead.
fn zero_or_errno(verb: &'static str, result: i32) -> Result<(), VerbError> {
    match result {
        0 => Ok(()),
        errno if errno > 0 => Err(VerbError::new(verb, errno)),
        _ => Err(last_errno(verb)),
    }
}

/// The result of a verb that returns NULL and sets `errno` on failure. `pointer` is `None` if the device has no such
/// verb.
fn non_null<T>(verb: &'static str, pointer: impl Into<Option<*mut T>>) -> Result<NonNull<T>, VerbError> {
    let pointer = pointer.into().ok_or(VerbError::unsupported(verb))?;
    NonNull::new(pointer).ok_or_else(|| last_errno(verb))
}

/// Converts a number to the `int` that the verb takes.
fn int(verb: &'static str, number: u32) -> Result<i32, VerbError> {
    i32::try_from(number).map_err(|_| VerbError::new(verb, libc::EINVAL))
}

/// Checks that the numbers in `attributes` fit an `int`, which is their type in other structs.
fn in_range(attributes: &mut sys::ibv_cq_init_attr_ex) -> Result<&mut sys::ibv_cq_init_attr_ex, VerbError> {
    int("ibv_create_cq_ex", attributes.cqe.max(attributes.comp_vector))?;
    Ok(attributes)
}

/// Exposes the provenance of memory that the device may access from now on.
fn exposed(addr: *mut u8) -> *mut c_void {
    _ = addr.expose_provenance();
    addr.cast()
}

fn last_errno(verb: &'static str) -> VerbError {
    // If the failed verb has left `errno` at 0, report `EIO`.
    let errno = io::Error::last_os_error().raw_os_error().filter(|&errno| errno > 0);
    VerbError::new(verb, errno.unwrap_or(libc::EIO))
}

/// A device of libibverbs.
#[derive(Clone, Copy)]
pub(super) struct Device<'list> {
    /// # Invariants
    ///
    /// 0. The device is alive for `'list`: it is in a list that is not freed, or a context of it is open.
    raw: NonNull<sys::ibv_device>,
    list: PhantomData<&'list ()>,
}

impl Device<'_> {
    /// The device of a context. (A context always has one.)
    ///
    /// # Safety
    ///
    /// The context is open for as long as the result is used.
    #[cfg(librdmacm)]
    pub(super) unsafe fn of_context(context: NonNull<sys::ibv_context>) -> Option<Self> {
        // SAFETY: the context is open (caller), and nobody writes this member of an open context.
        let raw = NonNull::new(unsafe { context.as_ref() }.device)?;
        Some(Self { raw, list: PhantomData })
    }

    pub(super) fn name(self) -> String {
        // SAFETY: the device is alive (0).
        let name = unsafe { sys::ibv_get_device_name(self.raw.as_ptr()) };
        // SAFETY: the name is a C string that lives as long as the device.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    pub(super) fn guid_be(self) -> u64 {
        // SAFETY: the device is alive (0).
        unsafe { sys::ibv_get_device_guid(self.raw.as_ptr()) }
    }

    #[cfg(librdmacm)]
    pub(super) fn is_iwarp(self) -> bool {
        // SAFETY: the device is alive (0), and nobody writes this member.
        unsafe { self.raw.as_ref() }.transport_type == sys::ibv_transport_type::IBV_TRANSPORT_IWARP
    }

    fn open(self) -> Result<NonNull<sys::ibv_context>, VerbError> {
        forbid_fork_init();
        // SAFETY: the device is alive (0).
        non_null("ibv_open_device", unsafe { sys::ibv_open_device(self.raw.as_ptr()) })
    }
}

/// Calls `f` with each device of `ibv_get_device_list`, until `f` returns `Some`.
fn find<R>(mut f: impl FnMut(Device<'_>) -> Option<R>) -> Result<Option<R>, VerbError> {
    let mut count = 0;
    let list = {
        // The first `ibv_get_device_list` calls `ibv_fork_init` if `RDMAV_FORK_SAFE` or `IBV_FORK_SAFE` is set. So hold
        // the lock under which `ibv_fork_init` must run.
        let _held = lock(&IS_FORK_INIT_FORBIDDEN);
        // SAFETY: `count` is writable.
        non_null("ibv_get_device_list", unsafe { sys::ibv_get_device_list(&mut count) })
    };
    let list = match list {
        // `ENOSYS`: this kernel has no RDMA subsystem, so there are no devices.
        Err(error) if error.errno() == libc::ENOSYS => return Ok(None),
        list => list?,
    };
    let mut found = None;
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries, and `index` is less than `count`.
        let device = unsafe { list.as_ptr().wrapping_add(index).read() };
        // The device is alive (0 of `Device`): its list is freed only after this loop.
        found = NonNull::new(device).and_then(|raw| f(Device { raw, list: PhantomData }));
        if found.is_some() {
            break;
        }
    }
    // SAFETY: the list came from `ibv_get_device_list`, and only this call frees it. `f` cannot keep a `Device`. A
    // device that `f` has opened outlives the list (`ibv_get_device_list(3)`, NOTES).
    unsafe { sys::ibv_free_device_list(list.as_ptr()) };
    Ok(found)
}

/// `ibv_is_fork_initialized`.
pub(crate) fn fork_status() -> sys::ibv_fork_status {
    // SAFETY: the function takes no arguments.
    unsafe { sys::ibv_is_fork_initialized() }
}

/// Whether a device may be open. `ibv_fork_init` makes a tree of memory ranges, and each registration then changes the
/// tree. libibverbs has no lock between the two: a registration at the same time would use a tree that is not complete.
/// So `ibv_fork_init` runs only before the first device is opened, and under this lock.
static IS_FORK_INIT_FORBIDDEN: Mutex<bool> = Mutex::new(false);

/// To be called before a device is opened.
pub(super) fn forbid_fork_init() {
    *lock(&IS_FORK_INIT_FORBIDDEN) = true;
}

/// `ibv_fork_init`. `EINVAL` if it has an effect and a device may be open already.
pub(crate) fn fork_init() -> Result<(), VerbError> {
    let is_forbidden = lock(&IS_FORK_INIT_FORBIDDEN);
    if fork_status() != sys::ibv_fork_status::IBV_FORK_DISABLED {
        return Ok(());
    }
    if *is_forbidden {
        return Err(VerbError::new("ibv_fork_init", libc::EINVAL));
    }
    // SAFETY: the function takes no arguments. No device is open, and as long as the lock is held none can be opened,
    // so no other thread registers memory.
    zero_or_errno("ibv_fork_init", unsafe { sys::ibv_fork_init() })
}

/// All devices that libibverbs finds; none if the kernel has no RDMA subsystem.
pub(crate) fn devices() -> Result<Vec<Listed>, VerbError> {
    let mut all = Vec::new();
    find::<()>(|device| {
        all.push(Listed { name: device.name(), guid_be: device.guid_be() });
        None
    })?;
    Ok(all)
}

/// Opens the device of that name; `None` if there is none. Its descriptor for asynchronous events is non-blocking.
pub(crate) fn open(wanted: &str) -> Result<Option<NonNull<sys::ibv_context>>, VerbError> {
    let context = find(|device| (device.name() == wanted).then(|| device.open()))?.transpose()?;
    if let Some(context) = context {
        // SAFETY: the context was opened just now.
        let fd = unsafe { (*context.as_ptr()).async_fd };
        if let Err(error) = unblock(fd, "ioctl on the asynchronous events") {
            // SAFETY: the context was opened just now, and nothing else uses it.
            unsafe { RdmaCore.close_device(context) }.ok();
            return Err(error);
        }
    }
    Ok(context)
}

/// Makes `fd` non-blocking.
pub(super) fn unblock(fd: RawFd, what: &'static str) -> Result<(), VerbError> {
    let mut on = 1_i32;
    // SAFETY: the call sets O_NONBLOCK of a descriptor that we own, and reads one `int`.
    match unsafe { libc::ioctl(fd, libc::FIONBIO, &mut on) } {
        0 => Ok(()),
        _ => Err(last_errno(what)),
    }
}

/// Verbs that change or end an object, and return 0 or an errno. In the call, `_` is the object.
macro_rules! verbs_that_change {
    ($(fn $method:ident($object:ident $(, $argument:ident: $type:ty)*)
        = $($verb:ident)::+(_ $(, $passed:expr)*);)*) => {$(
        unsafe fn $method(&self, object: NonNull<sys::$object>, $($argument: $type),*) -> Result<(), VerbError> {
            // SAFETY: the object is alive, and not used any more if this verb ends it (caller). The references among
            // the arguments are valid.
            let result = unsafe { $($verb)::+(object.as_ptr(), $($passed),*) };
            zero_or_errno(concat!("ibv_", stringify!($method)), result)
        }
    )*};
}

/// Verbs that fill a struct, and return 0 or an errno. In the call, `_` is the object; the struct comes last.
macro_rules! verbs_that_fill {
    ($(fn $method:ident($object:ident $(, $argument:ident: $type:ty)*) -> $answer:ident
        = $($verb:ident)::+(_ $(, $passed:expr)*);)*) => {$(
        unsafe fn $method(
            &self,
            object: NonNull<sys::$object>,
            $($argument: $type),*
        ) -> Result<sys::$answer, VerbError> {
            let mut answer = sys::$answer::default();
            // SAFETY: the object is alive (caller); `answer` is writable.
            let result = unsafe { $($verb)::+(object.as_ptr(), $($passed,)* &mut answer) };
            zero_or_errno(concat!("ibv_", stringify!($method)), result)?;
            Ok(answer)
        }
    )*};
}

/// Verbs that make an object from another one, and return NULL on failure. In the call, `_` is the other object.
macro_rules! verbs_that_make {
    ($($(#[$doc:meta])* fn $method:ident($object:ident $(, $argument:ident: $type:ty)*) -> $made:ident
        = $($verb:ident)::+(_ $(, $passed:expr)*);)*) => {$(
        $(#[$doc])*
        unsafe fn $method(
            &self,
            object: NonNull<sys::$object>,
            $($argument: $type),*
        ) -> Result<NonNull<sys::$made>, VerbError> {
            // SAFETY: the object and all objects that the attributes name are alive. If the verb registers memory, the
            // device is allowed to access that memory from now on (caller).
            let made = unsafe { $($verb)::+(object.as_ptr(), $($passed),*) };
            non_null(concat!("ibv_", stringify!($method)), made)
        }
    )*};
}

impl Provider for RdmaCore {
    /// Only soft iWARP needs this.
    ///
    /// ASSUMPTION: soft iWARP looks at the registration of the target and copies the bytes in one read-side critical
    /// section of RCU (`siw_qp_llp_data_ready` holds `sk_callback_lock` meanwhile), and `membarrier` waits until all
    /// such sections have ended.
    unsafe fn finish_copies(&self, _: NonNull<sys::ibv_pd>) -> Result<(), VerbError> {
        crate::os::wait_for_critical_sections()
            .map_err(|error| VerbError::new("membarrier", error.raw_os_error().unwrap_or(libc::EIO)))
    }

    verbs_that_change! {
        fn close_device(ibv_context) = sys::ibv_close_device(_);
        fn dealloc_pd(ibv_pd) = sys::ibv_dealloc_pd(_);
        fn dereg_mr(ibv_mr) = sys::ibv_dereg_mr(_);
        fn dealloc_mw(ibv_mw) = inline::ibv_dealloc_mw(_);
        fn destroy_ah(ibv_ah) = sys::ibv_destroy_ah(_);
        fn destroy_comp_channel(ibv_comp_channel) = sys::ibv_destroy_comp_channel(_);
        fn resize_cq(ibv_cq, cqe: u32) = sys::ibv_resize_cq(_, int("ibv_resize_cq", cqe)?);
        fn destroy_cq(ibv_cq) = sys::ibv_destroy_cq(_);
        fn modify_srq(ibv_srq, attributes: &mut sys::ibv_srq_attr, mask: sys::ibv_srq_attr_mask)
            = sys::ibv_modify_srq(_, attributes, mask.0.cast_signed());
        fn destroy_srq(ibv_srq) = sys::ibv_destroy_srq(_);
        fn modify_qp(ibv_qp, attributes: &mut sys::ibv_qp_attr, mask: sys::ibv_qp_attr_mask)
            = sys::ibv_modify_qp(_, attributes, mask.0 as i32);
        fn attach_mcast(ibv_qp, gid: &sys::ibv_gid, lid: u16) = sys::ibv_attach_mcast(_, gid, lid);
        fn detach_mcast(ibv_qp, gid: &sys::ibv_gid, lid: u16) = sys::ibv_detach_mcast(_, gid, lid);
        fn destroy_qp(ibv_qp) = sys::ibv_destroy_qp(_);
    }

    verbs_that_fill! {
        fn query_device(ibv_context) -> ibv_device_attr = sys::ibv_query_device(_);
        fn query_device_ex(ibv_context) -> ibv_device_attr_ex = inline::ibv_query_device_ex(_);
        fn query_port(ibv_context, port: u8) -> ibv_port_attr = inline::ibv_query_port(_, port);
        fn query_srq(ibv_srq) -> ibv_srq_attr = sys::ibv_query_srq(_);
    }

    verbs_that_make! {
        fn alloc_pd(ibv_context) -> ibv_pd = sys::ibv_alloc_pd(_);
        /// The macros `ibv_reg_mr` and `ibv_reg_mr_iova` call this function when the rights are not a constant.
        fn reg_mr(ibv_pd, addr: *mut u8, len: usize, access: sys::ibv_access_flags) -> ibv_mr
            = sys::ibv_reg_mr_iova2(_, exposed(addr), len, addr.addr() as u64, access.0);
        fn reg_mr_iova(ibv_pd, addr: *mut u8, len: usize, iova: u64, access: sys::ibv_access_flags) -> ibv_mr
            = sys::ibv_reg_mr_iova2(_, exposed(addr), len, iova, access.0);
        fn reg_dmabuf_mr(ibv_pd, offset: u64, len: usize, iova: u64, fd: RawFd, access: sys::ibv_access_flags) -> ibv_mr
            = sys::ibv_reg_dmabuf_mr(_, offset, len, iova, fd, access.0.cast_signed());
        fn alloc_mw(ibv_pd, kind: sys::ibv_mw_type) -> ibv_mw = inline::ibv_alloc_mw(_, kind);
        fn create_ah(ibv_pd, attributes: &mut sys::ibv_ah_attr) -> ibv_ah = sys::ibv_create_ah(_, attributes);
        fn create_cq(ibv_context, cqe: u32, channel: NonNull<sys::ibv_comp_channel>, vector: u32) -> ibv_cq
            = sys::ibv_create_cq(
                _,
                int("ibv_create_cq", cqe)?,
                ptr::null_mut(),
                channel.as_ptr(),
                int("ibv_create_cq", vector)?
            );
        fn create_cq_ex(ibv_context, attributes: &mut sys::ibv_cq_init_attr_ex) -> ibv_cq_ex
            = inline::ibv_create_cq_ex(_, in_range(attributes)?);
        fn create_srq(ibv_pd, attributes: &mut sys::ibv_srq_init_attr) -> ibv_srq = sys::ibv_create_srq(_, attributes);
        fn create_qp(ibv_pd, attributes: &mut sys::ibv_qp_init_attr) -> ibv_qp = sys::ibv_create_qp(_, attributes);
    }

    unsafe fn query_gid_table(&self, context: NonNull<sys::ibv_context>) -> Result<Vec<sys::ibv_gid_entry>, VerbError> {
        // SAFETY: the context is open (caller).
        let ports = unsafe { self.query_device(context) }?.phys_port_cnt;
        let mut rows = 0_usize;
        for port in 1..=ports {
            // SAFETY: the context is open (caller).
            let attributes = unsafe { self.query_port(context, port) }?;
            rows += usize::try_from(attributes.gid_tbl_len).unwrap_or(0);
        }
        let mut table = vec![sys::ibv_gid_entry::default(); rows];
        // SAFETY: the context is open (caller); `table` has `table.len()` entries of this size.
        let filled = unsafe {
            sys::_ibv_query_gid_table(
                context.as_ptr(),
                table.as_mut_ptr(),
                table.len(),
                0,
                mem::size_of::<sys::ibv_gid_entry>(),
            )
        };
        match usize::try_from(filled) {
            Ok(filled) => {
                table.truncate(filled);
                Ok(table)
            }
            // A negative `filled` is a negated errno.
            Err(_) => Err(VerbError::new("ibv_query_gid_table", i32::try_from(-filled).unwrap_or(libc::EIO))),
        }
    }

    unsafe fn query_pkey(&self, context: NonNull<sys::ibv_context>, port: u8, index: u16) -> Result<u16, VerbError> {
        let mut key_be = 0;
        // SAFETY: the context is open (caller); `key_be` is writable.
        let result = unsafe { sys::ibv_query_pkey(context.as_ptr(), port, i32::from(index), &mut key_be) };
        zero_or_errno("ibv_query_pkey", result)?;
        Ok(u16::from_be(key_be))
    }

    unsafe fn take_async_event(
        &self,
        context: NonNull<sys::ibv_context>,
    ) -> Result<Option<sys::ibv_async_event>, VerbError> {
        let mut event = sys::ibv_async_event::default();
        // SAFETY: the context is open (caller); `event` is writable.
        if unsafe { sys::ibv_get_async_event(context.as_ptr(), &mut event) } != 0 {
            let error = last_errno("ibv_get_async_event");
            return if error.errno() == libc::EAGAIN { Ok(None) } else { Err(error) };
        }
        // Acknowledge the event now: the verb that destroys an object waits until all events of the object are
        // acknowledged.
        // SAFETY: the event was taken just now. Its object, if it has one, is alive until the event is acknowledged.
        unsafe { sys::ibv_ack_async_event(&mut event) };
        Ok(Some(event))
    }

    unsafe fn create_comp_channel(
        &self,
        context: NonNull<sys::ibv_context>,
    ) -> Result<NonNull<sys::ibv_comp_channel>, VerbError> {
        // SAFETY: the context is open (caller).
        let channel = non_null("ibv_create_comp_channel", unsafe { sys::ibv_create_comp_channel(context.as_ptr()) })?;
        // SAFETY: the channel was created just now.
        let fd = unsafe { (*channel.as_ptr()).fd };
        if let Err(error) = unblock(fd, "ioctl on a completion channel") {
            // SAFETY: the channel was created just now, and nothing else uses it.
            unsafe { self.destroy_comp_channel(channel) }.ok();
            return Err(error);
        }
        Ok(channel)
    }

    unsafe fn take_cq_event_of(
        &self,
        channel: NonNull<sys::ibv_comp_channel>,
    ) -> Result<Option<NonNull<sys::ibv_cq>>, VerbError> {
        let (mut cq, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive (caller); `cq` and `cookie` are writable.
        if unsafe { sys::ibv_get_cq_event(channel.as_ptr(), &mut cq, &mut cookie) } != 0 {
            let error = last_errno("ibv_get_cq_event");
            return if error.errno() == libc::EAGAIN { Ok(None) } else { Err(error) };
        }
        // Acknowledge the event now: `ibv_destroy_cq` waits until all events of the queue are acknowledged.
        // SAFETY: the event names a completion queue of this channel. The queue is alive until the event is
        // acknowledged.
        unsafe { sys::ibv_ack_cq_events(cq, 1) };
        Ok(NonNull::new(cq))
    }

    unsafe fn create_qp_ex(
        &self,
        context: NonNull<sys::ibv_context>,
        attributes: &mut sys::ibv_qp_init_attr_ex,
    ) -> Result<(NonNull<sys::ibv_qp>, Option<NonNull<sys::ibv_qp_ex>>), VerbError> {
        // SAFETY: the context is open, the domain and the queues in the attributes are alive, and the attributes ask
        // for operations of `ibv_wr_*` (caller).
        let raw = unsafe { inline::ibv_create_qp_ex(context.as_ptr(), attributes) };
        let raw = non_null("ibv_create_qp_ex", raw)?;
        // SAFETY: `ibv_create_qp_ex` created the pair just now.
        let extended = unsafe { sys::ibv_qp_to_qp_ex(raw.as_ptr()) };
        Ok((raw, NonNull::new(extended)))
    }

    unsafe fn query_qp(
        &self,
        qp: NonNull<sys::ibv_qp>,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<sys::ibv_qp_attr, VerbError> {
        let mut attributes = sys::ibv_qp_attr::default();
        let mut creation = sys::ibv_qp_init_attr::default();
        // SAFETY: the pair is alive (caller); `attributes` and `creation` are writable.
        let result = unsafe { sys::ibv_query_qp(qp.as_ptr(), &mut attributes, mask.0 as i32, &mut creation) };
        zero_or_errno("ibv_query_qp", result)?;
        Ok(attributes)
    }

    #[cfg(feature = "cm")]
    unsafe fn open_cm(
        &self,
        _: NonNull<sys::ibv_context>,
    ) -> Result<std::sync::Arc<dyn super::cm::RawChannel>, super::cm::OpenFailure> {
        super::cm::open()
    }

    unsafe fn next_timer(&self, _: NonNull<sys::ibv_context>) -> Option<Duration> {
        None
    }
}
