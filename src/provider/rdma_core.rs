//! The control path through libibverbs.
#![allow(unsafe_code, reason = "calls libibverbs")]

use super::{Listed, Provider};
use crate::error::VerbError;
use crate::sys;
use std::{ffi::CStr, io, mem, ptr::NonNull, time::Duration};

/// libibverbs and the kernel behind it.
#[derive(Debug)]
pub(crate) struct RdmaCore;

/// A verb that returns 0 or an errno. (Some old providers return -1 and set `errno`.)
fn zero_or_errno(verb: &'static str, result: i32) -> Result<(), VerbError> {
    match result {
        0 => Ok(()),
        errno if errno > 0 => Err(VerbError::new(verb, errno)),
        _ => Err(last_errno(verb)),
    }
}

/// A verb that returns NULL and sets `errno`.
fn non_null<T>(verb: &'static str, pointer: *mut T) -> Result<NonNull<T>, VerbError> {
    NonNull::new(pointer).ok_or_else(|| last_errno(verb))
}

fn last_errno(verb: &'static str) -> VerbError {
    // Never 0: a failure without a reason is still a failure.
    let errno = io::Error::last_os_error().raw_os_error().filter(|&errno| errno > 0);
    VerbError::new(verb, errno.unwrap_or(libc::EIO))
}

/// Calls `f` with each device of `ibv_get_device_list` until it returns something.
fn find<R>(mut f: impl FnMut(*mut sys::ibv_device) -> Option<R>) -> Result<Option<R>, VerbError> {
    let mut count = 0;
    // SAFETY: `count` may be written.
    let list = match non_null("ibv_get_device_list", unsafe { sys::ibv_get_device_list(&mut count) }) {
        // This kernel has no RDMA at all.
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

/// Opens the device of that name; `None` if there is none.
pub(crate) fn open(wanted: &str) -> Result<Option<NonNull<sys::ibv_context>>, VerbError> {
    find(|device| {
        // SAFETY: a device of the list, which is freed only after this.
        (name(device) == wanted).then(|| non_null("ibv_open_device", unsafe { sys::ibv_open_device(device) }))
    })?
    .transpose()
}

impl Provider for RdmaCore {
    unsafe fn close_device(&self, context: NonNull<sys::ibv_context>) -> Result<(), VerbError> {
        // SAFETY: open (caller).
        zero_or_errno("ibv_close_device", unsafe { sys::ibv_close_device(context.as_ptr()) })
    }

    unsafe fn query_device(&self, context: NonNull<sys::ibv_context>) -> Result<sys::ibv_device_attr, VerbError> {
        let mut attributes = sys::ibv_device_attr::default();
        // SAFETY: open (caller); the struct may be written.
        zero_or_errno("ibv_query_device", unsafe { sys::ibv_query_device(context.as_ptr(), &mut attributes) })?;
        Ok(attributes)
    }

    unsafe fn query_port(&self, context: NonNull<sys::ibv_context>, port: u8) -> Result<sys::ibv_port_attr, VerbError> {
        // SAFETY: a C struct of integers, for which zero is a value.
        let mut attributes: sys::ibv_port_attr = unsafe { mem::zeroed() };
        // SAFETY: open (caller); zeroed and writable.
        let result = unsafe { sys::inline::ibv_query_port(context.as_ptr(), port, &mut attributes) };
        zero_or_errno("ibv_query_port", result)?;
        Ok(attributes)
    }

    unsafe fn query_gid_table(&self, context: NonNull<sys::ibv_context>) -> Result<Vec<sys::ibv_gid_entry>, VerbError> {
        // SAFETY: the caller's promise.
        let ports = unsafe { self.query_device(context) }?.phys_port_cnt;
        let mut rows = 0_usize;
        for port in 1..=ports {
            // SAFETY: the caller's promise.
            let attributes = unsafe { self.query_port(context, port) }?;
            rows += usize::try_from(attributes.gid_tbl_len).unwrap_or(0);
        }
        // SAFETY: a C struct of integers and bytes, for which zero is a value.
        let mut table = vec![unsafe { mem::zeroed::<sys::ibv_gid_entry>() }; rows];
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
            // The errno itself, negative.
            Err(_) => Err(VerbError::new("ibv_query_gid_table", i32::try_from(-filled).unwrap_or(libc::EIO))),
        }
    }

    unsafe fn alloc_pd(&self, context: NonNull<sys::ibv_context>) -> Result<NonNull<sys::ibv_pd>, VerbError> {
        // SAFETY: open (caller).
        non_null("ibv_alloc_pd", unsafe { sys::ibv_alloc_pd(context.as_ptr()) })
    }

    unsafe fn dealloc_pd(&self, pd: NonNull<sys::ibv_pd>) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        zero_or_errno("ibv_dealloc_pd", unsafe { sys::ibv_dealloc_pd(pd.as_ptr()) })
    }

    unsafe fn reg_mr(
        &self,
        pd: NonNull<sys::ibv_pd>,
        addr: *mut u8,
        len: usize,
        access: sys::ibv_access_flags,
    ) -> Result<NonNull<sys::ibv_mr>, VerbError> {
        // What the macro `ibv_reg_mr` calls when the rights are not a constant.
        // SAFETY: the protection domain is alive, and the caller gives the device the memory.
        let region =
            unsafe { sys::ibv_reg_mr_iova2(pd.as_ptr(), addr.cast(), len, addr.expose_provenance() as u64, access.0) };
        non_null("ibv_reg_mr", region)
    }

    unsafe fn dereg_mr(&self, mr: NonNull<sys::ibv_mr>) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        zero_or_errno("ibv_dereg_mr", unsafe { sys::ibv_dereg_mr(mr.as_ptr()) })
    }

    unsafe fn create_comp_channel(
        &self,
        context: NonNull<sys::ibv_context>,
    ) -> Result<NonNull<sys::ibv_comp_channel>, VerbError> {
        // SAFETY: open (caller).
        let channel = non_null("ibv_create_comp_channel", unsafe { sys::ibv_create_comp_channel(context.as_ptr()) })?;
        // SAFETY: created just now.
        let fd = unsafe { (*channel.as_ptr()).fd };
        // SAFETY: a file descriptor that we own.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        // SAFETY: as above.
        if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
            let error = last_errno("fcntl on a completion channel");
            // SAFETY: created just now and not used.
            unsafe { self.destroy_comp_channel(channel) }.ok();
            return Err(error);
        }
        Ok(channel)
    }

    unsafe fn destroy_comp_channel(&self, channel: NonNull<sys::ibv_comp_channel>) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        zero_or_errno("ibv_destroy_comp_channel", unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) })
    }

    unsafe fn take_cq_event(&self, channel: NonNull<sys::ibv_comp_channel>) -> Result<bool, VerbError> {
        let (mut cq, mut cookie) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: alive (caller); both may be written.
        if unsafe { sys::ibv_get_cq_event(channel.as_ptr(), &mut cq, &mut cookie) } != 0 {
            let error = last_errno("ibv_get_cq_event");
            return if error.errno() == libc::EAGAIN { Ok(false) } else { Err(error) };
        }
        // At once, so that destroying the queue never waits for it.
        // SAFETY: the event names a completion queue of this channel, alive until its events are acknowledged.
        unsafe { sys::ibv_ack_cq_events(cq, 1) };
        Ok(true)
    }

    unsafe fn create_cq(
        &self,
        context: NonNull<sys::ibv_context>,
        cqe: u32,
        channel: NonNull<sys::ibv_comp_channel>,
    ) -> Result<NonNull<sys::ibv_cq>, VerbError> {
        let Ok(cqe) = i32::try_from(cqe) else { return Err(VerbError::new("ibv_create_cq", libc::EINVAL)) };
        // SAFETY: open, and the channel is of this context (caller).
        let cq = unsafe { sys::ibv_create_cq(context.as_ptr(), cqe, std::ptr::null_mut(), channel.as_ptr(), 0) };
        non_null("ibv_create_cq", cq)
    }

    unsafe fn destroy_cq(&self, cq: NonNull<sys::ibv_cq>) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        zero_or_errno("ibv_destroy_cq", unsafe { sys::ibv_destroy_cq(cq.as_ptr()) })
    }

    unsafe fn create_qp(
        &self,
        pd: NonNull<sys::ibv_pd>,
        attributes: &mut sys::ibv_qp_init_attr,
    ) -> Result<NonNull<sys::ibv_qp>, VerbError> {
        // SAFETY: alive, and so are the queues in the attributes (caller).
        non_null("ibv_create_qp", unsafe { sys::ibv_create_qp(pd.as_ptr(), attributes) })
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

    unsafe fn destroy_qp(&self, qp: NonNull<sys::ibv_qp>) -> Result<(), VerbError> {
        // SAFETY: alive (caller).
        zero_or_errno("ibv_destroy_qp", unsafe { sys::ibv_destroy_qp(qp.as_ptr()) })
    }

    fn next_timer(&self, _: NonNull<sys::ibv_context>) -> Option<Duration> {
        None
    }
}
