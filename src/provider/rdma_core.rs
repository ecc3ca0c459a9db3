//! The control path through libibverbs.
#![allow(unsafe_code, reason = "calls libibverbs")]

use super::{Listed, Provider};
use crate::sys::{
    self, ibv_close_device, ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_ah, ibv_destroy_comp_channel, ibv_destroy_cq,
    ibv_destroy_qp, ibv_destroy_srq, inline::ibv_dealloc_mw,
};
use crate::verb_error::VerbError;
use std::{ffi::CStr, io, mem, os::fd::RawFd, ptr::NonNull, time::Duration};

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

/// The result of a verb that returns NULL and sets `errno` on failure.
fn non_null<T>(verb: &'static str, pointer: *mut T) -> Result<NonNull<T>, VerbError> {
    NonNull::new(pointer).ok_or_else(|| last_errno(verb))
}

fn last_errno(verb: &'static str) -> VerbError {
    // A failure without an errno is still a failure.
    let errno = io::Error::last_os_error().raw_os_error().filter(|&errno| errno > 0);
    VerbError::new(verb, errno.unwrap_or(libc::EIO))
}

/// Calls `f` with each device of `ibv_get_device_list` until it returns something.
fn find<R>(mut f: impl FnMut(*mut sys::ibv_device) -> Option<R>) -> Result<Option<R>, VerbError> {
    let mut count = 0;
    // SAFETY: `count` may be written.
    let list = match non_null("ibv_get_device_list", unsafe { sys::ibv_get_device_list(&mut count) }) {
        // This kernel has no RDMA subsystem.
        Err(error) if error.errno() == libc::ENOSYS => return Ok(None),
        list => list?,
    };
    let mut found = None;
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries.
        let device = unsafe { list.as_ptr().wrapping_add(index).read() };
        found = f(device);
        if found.is_some() {
            break;
        }
    }
    // SAFETY: the list came from `ibv_get_device_list`; an opened device outlives it (`ibv_get_device_list(3)`, NOTES).
    unsafe { sys::ibv_free_device_list(list.as_ptr()) };
    Ok(found)
}

fn name(device: *mut sys::ibv_device) -> String {
    // SAFETY: a device of the list.
    let name = unsafe { sys::ibv_get_device_name(device) };
    // SAFETY: a C string that lives as long as the device.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// `ibv_is_fork_initialized`.
pub(crate) fn fork_status() -> sys::ibv_fork_status {
    // SAFETY: the function takes no arguments.
    unsafe { sys::ibv_is_fork_initialized() }
}

/// `ibv_fork_init`.
pub(crate) fn fork_init() -> Result<(), VerbError> {
    // SAFETY: the function takes no arguments. If it is called too late, it only returns an error.
    zero_or_errno("ibv_fork_init", unsafe { sys::ibv_fork_init() })
}

/// All devices that libibverbs finds; none where there is no RDMA subsystem.
pub(crate) fn devices() -> Result<Vec<Listed>, VerbError> {
    let mut all = Vec::new();
    find::<()>(|device| {
        // SAFETY: a device of the list.
        all.push(Listed { name: name(device), guid_be: unsafe { sys::ibv_get_device_guid(device) } });
        None
    })?;
    Ok(all)
}

/// Opens the device of that name; `None` if there is none. Its descriptor for asynchronous events is non-blocking.
pub(crate) fn open(wanted: &str) -> Result<Option<NonNull<sys::ibv_context>>, VerbError> {
    let context = find(|device| {
        // SAFETY: a device of the list, which is freed only after this.
        (name(device) == wanted).then(|| non_null("ibv_open_device", unsafe { sys::ibv_open_device(device) }))
    })?
    .transpose()?;
    if let Some(context) = context {
        // SAFETY: opened just now.
        let fd = unsafe { (*context.as_ptr()).async_fd };
        if let Err(error) = unblock(fd, "ioctl on the asynchronous events") {
            // SAFETY: opened just now and not used.
            unsafe { RdmaCore.close_device(context) }.ok();
            return Err(error);
        }
    }
    Ok(context)
}

/// Makes reads of `fd` return at once.
fn unblock(fd: RawFd, what: &'static str) -> Result<(), VerbError> {
    let mut on = 1_i32;
    // SAFETY: sets O_NONBLOCK of a descriptor that is ours; reads one `int`.
    match unsafe { libc::ioctl(fd, libc::FIONBIO, &mut on) } {
        0 => Ok(()),
        _ => Err(last_errno(what)),
    }
}

/// Verbs that end an object and answer 0 or an errno.
macro_rules! ending_verbs {
    ($(fn $method:ident(sys::$object:ident) = $verb:ident;)*) => {$(
        unsafe fn $method(&self, object: NonNull<sys::$object>) -> Result<(), VerbError> {
            // SAFETY: alive, and not used any more if this succeeds (caller).
            zero_or_errno(stringify!($verb), unsafe { $verb(object.as_ptr()) })
        }
    )*};
}

/// An answer of a verb that some devices do not have.
fn supported<T>(verb: &'static str, answer: Option<T>) -> Result<T, VerbError> {
    answer.ok_or(VerbError::unsupported(verb))
}

impl Provider for RdmaCore {
    ending_verbs! {
        fn close_device(sys::ibv_context) = ibv_close_device;
        fn dealloc_pd(sys::ibv_pd) = ibv_dealloc_pd;
        fn dereg_mr(sys::ibv_mr) = ibv_dereg_mr;
        fn dealloc_mw(sys::ibv_mw) = ibv_dealloc_mw;
        fn destroy_ah(sys::ibv_ah) = ibv_destroy_ah;
        fn destroy_comp_channel(sys::ibv_comp_channel) = ibv_destroy_comp_channel;
        fn destroy_cq(sys::ibv_cq) = ibv_destroy_cq;
        fn destroy_srq(sys::ibv_srq) = ibv_destroy_srq;
        fn destroy_qp(sys::ibv_qp) = ibv_destroy_qp;
    }

    unsafe fn query_device(&self, context: NonNull<sys::ibv_context>) -> Result<sys::ibv_device_attr, VerbError> {
        let mut attributes = sys::ibv_device_attr::default();
        // SAFETY: open (caller); the struct may be written.
        zero_or_errno("ibv_query_device", unsafe { sys::ibv_query_device(context.as_ptr(), &mut attributes) })?;
        Ok(attributes)
    }

    unsafe fn query_device_ex(&self, context: NonNull<sys::ibv_context>) -> Result<sys::ibv_device_attr_ex, VerbError> {
        let mut attributes = sys::ibv_device_attr_ex::default();
        // SAFETY: open (caller).
        let result = unsafe { sys::inline::ibv_query_device_ex(context.as_ptr(), &mut attributes) };
        zero_or_errno("ibv_query_device_ex", result)?;
        Ok(attributes)
    }

    unsafe fn query_port(&self, context: NonNull<sys::ibv_context>, port: u8) -> Result<sys::ibv_port_attr, VerbError> {
        let mut attributes = sys::ibv_port_attr::default();
        // SAFETY: open (caller).
        let result = unsafe { sys::inline::ibv_query_port(context.as_ptr(), port, &mut attributes) };
        zero_or_errno("ibv_query_port", result)?;
        Ok(attributes)
    }

    unsafe fn query_gid_table(&self, context: NonNull<sys::ibv_context>) -> Result<Vec<sys::ibv_gid_entry>, VerbError> {
        // SAFETY: open (caller).
        let ports = unsafe { self.query_device(context) }?.phys_port_cnt;
        let mut rows = 0_usize;
        for port in 1..=ports {
            // SAFETY: open (caller).
            let attributes = unsafe { self.query_port(context, port) }?;
            rows += usize::try_from(attributes.gid_tbl_len).unwrap_or(0);
        }
        let mut table = vec![sys::ibv_gid_entry::default(); rows];
        // SAFETY: open (caller); the table has `rows` entries of the size that is named.
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
            // A negative errno.
            Err(_) => Err(VerbError::new("ibv_query_gid_table", i32::try_from(-filled).unwrap_or(libc::EIO))),
        }
    }

    unsafe fn query_pkey(&self, context: NonNull<sys::ibv_context>, port: u8, index: u16) -> Result<u16, VerbError> {
        let mut key_be = 0;
        // SAFETY: open (caller); the key may be written.
        let result = unsafe { sys::ibv_query_pkey(context.as_ptr(), port, i32::from(index), &mut key_be) };
        zero_or_errno("ibv_query_pkey", result)?;
        Ok(u16::from_be(key_be))
    }

    unsafe fn take_async_event(
        &self,
        context: NonNull<sys::ibv_context>,
    ) -> Result<Option<sys::ibv_async_event>, VerbError> {
        let mut event = sys::ibv_async_event::default();
        // SAFETY: open (caller); the event may be written.
        if unsafe { sys::ibv_get_async_event(context.as_ptr(), &mut event) } != 0 {
            let error = last_errno("ibv_get_async_event");
            return if error.errno() == libc::EAGAIN { Ok(None) } else { Err(error) };
        }
        // Acknowledged at once, so that destroying the object never waits for it.
        // SAFETY: taken just now; its object is alive until the event is acknowledged.
        unsafe { sys::ibv_ack_async_event(&mut event) };
        Ok(Some(event))
    }

    unsafe fn alloc_pd(&self, context: NonNull<sys::ibv_context>) -> Result<NonNull<sys::ibv_pd>, VerbError> {
        // SAFETY: open (caller).
        non_null("ibv_alloc_pd", unsafe { sys::ibv_alloc_pd(context.as_ptr()) })
    }

    /// The macros `ibv_reg_mr` and `ibv_reg_mr_iova` call this function when the rights are not a constant.
    unsafe fn reg_mr(
        &self,
        pd: NonNull<sys::ibv_pd>,
        addr: *mut u8,
        len: usize,
        access: sys::ibv_access_flags,
    ) -> Result<NonNull<sys::ibv_mr>, VerbError> {
        let iova = addr.expose_provenance() as u64;
        // SAFETY: the protection domain is alive, and the caller gives the device the memory.
        non_null("ibv_reg_mr", unsafe { sys::ibv_reg_mr_iova2(pd.as_ptr(), addr.cast(), len, iova, access.0) })
    }

    unsafe fn reg_mr_iova(
        &self,
        pd: NonNull<sys::ibv_pd>,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: sys::ibv_access_flags,
    ) -> Result<NonNull<sys::ibv_mr>, VerbError> {
        _ = addr.expose_provenance();
        // SAFETY: the protection domain is alive, and the caller gives the device the memory.
        non_null("ibv_reg_mr_iova", unsafe { sys::ibv_reg_mr_iova2(pd.as_ptr(), addr.cast(), len, iova, access.0) })
    }

    unsafe fn reg_dmabuf_mr(
        &self,
        pd: NonNull<sys::ibv_pd>,
        offset: u64,
        len: usize,
        iova: u64,
        fd: RawFd,
        access: sys::ibv_access_flags,
    ) -> Result<NonNull<sys::ibv_mr>, VerbError> {
        // SAFETY: the protection domain is alive, and the caller gives the device the memory.
        let region = unsafe { sys::ibv_reg_dmabuf_mr(pd.as_ptr(), offset, len, iova, fd, access.0.cast_signed()) };
        non_null("ibv_reg_dmabuf_mr", region)
    }

    unsafe fn alloc_mw(
        &self,
        pd: NonNull<sys::ibv_pd>,
        kind: sys::ibv_mw_type,
    ) -> Result<NonNull<sys::ibv_mw>, VerbError> {
        // SAFETY: alive (caller).
        let window = unsafe { sys::inline::ibv_alloc_mw(pd.as_ptr(), kind) };
        non_null("ibv_alloc_mw", supported("ibv_alloc_mw", window)?)
    }

    unsafe fn create_ah(
        &self,
        pd: NonNull<sys::ibv_pd>,
        attributes: &mut sys::ibv_ah_attr,
    ) -> Result<NonNull<sys::ibv_ah>, VerbError> {
        // SAFETY: alive (caller).
        non_null("ibv_create_ah", unsafe { sys::ibv_create_ah(pd.as_ptr(), attributes) })
    }

    unsafe fn create_comp_channel(
        &self,
        context: NonNull<sys::ibv_context>,
    ) -> Result<NonNull<sys::ibv_comp_channel>, VerbError> {
        // SAFETY: open (caller).
        let channel = non_null("ibv_create_comp_channel", unsafe { sys::ibv_create_comp_channel(context.as_ptr()) })?;
        // SAFETY: created just now.
        let fd = unsafe { (*channel.as_ptr()).fd };
        if let Err(error) = unblock(fd, "ioctl on a completion channel") {
            // SAFETY: created just now and not used.
            unsafe { self.destroy_comp_channel(channel) }.ok();
            return Err(error);
        }
        Ok(channel)
    }

    unsafe fn take_cq_event_of(
        &self,
        channel: NonNull<sys::ibv_comp_channel>,
    ) -> Result<Option<NonNull<sys::ibv_cq>>, VerbError> {
        let (mut cq, mut cookie) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: alive (caller); both may be written.
        if unsafe { sys::ibv_get_cq_event(channel.as_ptr(), &mut cq, &mut cookie) } != 0 {
            let error = last_errno("ibv_get_cq_event");
            return if error.errno() == libc::EAGAIN { Ok(None) } else { Err(error) };
        }
        // Acknowledged at once, so that destroying the queue never waits for it.
        // SAFETY: the event names a completion queue of this channel, alive until its events are acknowledged.
        unsafe { sys::ibv_ack_cq_events(cq, 1) };
        Ok(NonNull::new(cq))
    }

    unsafe fn create_cq(
        &self,
        context: NonNull<sys::ibv_context>,
        cqe: u32,
        channel: NonNull<sys::ibv_comp_channel>,
        vector: u32,
    ) -> Result<NonNull<sys::ibv_cq>, VerbError> {
        let (Ok(cqe), Ok(vector)) = (i32::try_from(cqe), i32::try_from(vector)) else {
            return Err(VerbError::new("ibv_create_cq", libc::EINVAL));
        };
        // SAFETY: open, and the channel is of this context (caller).
        let cq = unsafe { sys::ibv_create_cq(context.as_ptr(), cqe, std::ptr::null_mut(), channel.as_ptr(), vector) };
        non_null("ibv_create_cq", cq)
    }

    unsafe fn create_cq_ex(
        &self,
        context: NonNull<sys::ibv_context>,
        attributes: &mut sys::ibv_cq_init_attr_ex,
    ) -> Result<NonNull<sys::ibv_cq_ex>, VerbError> {
        // Other structs have these numbers as `int`.
        if i32::try_from(attributes.cqe.max(attributes.comp_vector)).is_err() {
            return Err(VerbError::new("ibv_create_cq_ex", libc::EINVAL));
        }
        // SAFETY: open, and the channel is of this context (caller).
        let cq = unsafe { sys::inline::ibv_create_cq_ex(context.as_ptr(), attributes) };
        non_null("ibv_create_cq_ex", supported("ibv_create_cq_ex", cq)?)
    }

    unsafe fn resize_cq(&self, cq: NonNull<sys::ibv_cq>, cqe: u32) -> Result<(), VerbError> {
        let Ok(cqe) = i32::try_from(cqe) else { return Err(VerbError::new("ibv_resize_cq", libc::EINVAL)) };
        // SAFETY: alive (caller).
        zero_or_errno("ibv_resize_cq", unsafe { sys::ibv_resize_cq(cq.as_ptr(), cqe) })
    }

    unsafe fn create_srq(
        &self,
        pd: NonNull<sys::ibv_pd>,
        attributes: &mut sys::ibv_srq_init_attr,
    ) -> Result<NonNull<sys::ibv_srq>, VerbError> {
        // SAFETY: alive (caller).
        non_null("ibv_create_srq", unsafe { sys::ibv_create_srq(pd.as_ptr(), attributes) })
    }

    unsafe fn modify_srq(
        &self,
        srq: NonNull<sys::ibv_srq>,
        attributes: &mut sys::ibv_srq_attr,
        mask: sys::ibv_srq_attr_mask,
    ) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        let result = unsafe { sys::ibv_modify_srq(srq.as_ptr(), attributes, mask.0.cast_signed()) };
        zero_or_errno("ibv_modify_srq", result)
    }

    unsafe fn query_srq(&self, srq: NonNull<sys::ibv_srq>) -> Result<sys::ibv_srq_attr, VerbError> {
        let mut attributes = sys::ibv_srq_attr::default();
        // SAFETY: alive (caller); the struct may be written.
        zero_or_errno("ibv_query_srq", unsafe { sys::ibv_query_srq(srq.as_ptr(), &mut attributes) })?;
        Ok(attributes)
    }

    unsafe fn create_qp(
        &self,
        pd: NonNull<sys::ibv_pd>,
        attributes: &mut sys::ibv_qp_init_attr,
    ) -> Result<NonNull<sys::ibv_qp>, VerbError> {
        // SAFETY: alive, and so are the queues in the attributes (caller).
        non_null("ibv_create_qp", unsafe { sys::ibv_create_qp(pd.as_ptr(), attributes) })
    }

    unsafe fn create_qp_ex(
        &self,
        context: NonNull<sys::ibv_context>,
        attributes: &mut sys::ibv_qp_init_attr_ex,
    ) -> Result<(NonNull<sys::ibv_qp>, Option<NonNull<sys::ibv_qp_ex>>), VerbError> {
        // SAFETY: open; domain and queues in the attributes are alive, and they ask for operations (caller).
        let raw = unsafe { sys::inline::ibv_create_qp_ex(context.as_ptr(), attributes) };
        let raw = non_null("ibv_create_qp_ex", supported("ibv_create_qp_ex", raw)?)?;
        // SAFETY: created just now.
        let extended = unsafe { sys::ibv_qp_to_qp_ex(raw.as_ptr()) };
        Ok((raw, NonNull::new(extended)))
    }

    unsafe fn modify_qp(
        &self,
        qp: NonNull<sys::ibv_qp>,
        attributes: &mut sys::ibv_qp_attr,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        zero_or_errno("ibv_modify_qp", unsafe { sys::ibv_modify_qp(qp.as_ptr(), attributes, mask.0 as i32) })
    }

    unsafe fn query_qp(
        &self,
        qp: NonNull<sys::ibv_qp>,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<sys::ibv_qp_attr, VerbError> {
        let mut attributes = sys::ibv_qp_attr::default();
        let mut creation = sys::ibv_qp_init_attr::default();
        // SAFETY: alive (caller); both structs may be written.
        let result = unsafe { sys::ibv_query_qp(qp.as_ptr(), &mut attributes, mask.0 as i32, &mut creation) };
        zero_or_errno("ibv_query_qp", result)?;
        Ok(attributes)
    }

    unsafe fn attach_mcast(&self, qp: NonNull<sys::ibv_qp>, gid: &sys::ibv_gid, lid: u16) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        zero_or_errno("ibv_attach_mcast", unsafe { sys::ibv_attach_mcast(qp.as_ptr(), gid, lid) })
    }

    unsafe fn detach_mcast(&self, qp: NonNull<sys::ibv_qp>, gid: &sys::ibv_gid, lid: u16) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        zero_or_errno("ibv_detach_mcast", unsafe { sys::ibv_detach_mcast(qp.as_ptr(), gid, lid) })
    }

    fn next_timer(&self, _: NonNull<sys::ibv_context>) -> Option<Duration> {
        None
    }
}
