//! The control path: one table of verbs with two implementations, rdma-core and the soft device.
//!
//! The data path does not come through here: it calls the function table of the `ibv_context` that both
//! implementations fill (see `sys::inline`). Public types know neither implementation.
//!
//! ASSUMPTION: `ibv_dereg_mr`, `ibv_destroy_qp` and a move to Reset that return 0 have ended every access of the device
//! through the region or the pair.
//!
//! Each verb of C reports failure in its own way (NULL and `errno`, a positive number, -1 and `errno`); here all say
//! [`VerbError`].

#[cfg(feature = "rdma-core")]
pub(crate) mod rdma_core;
pub mod soft;

use crate::error::VerbError;
use crate::sys;
use std::{fmt, ptr::NonNull, time::Duration};

/// What a device list says of one device.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) name: String,
    /// Network byte order, as `ibv_get_device_guid` has it.
    pub(crate) guid_be: u64,
}

/// The verbs that create, change and destroy objects.
///
/// # Safety
///
/// Of each method: the objects passed in came from the same implementation and are alive, and nobody else destroys
/// them meanwhile. A destroying verb that returns `Ok` ends the object (and, for a queue pair or memory region, every
/// access of the device through it); on `Err` it lives on.
#[allow(unsafe_code, reason = "verbs on raw objects")]
pub(crate) trait Provider: fmt::Debug + Send + Sync {
    /// `ibv_close_device`.
    unsafe fn close_device(&self, context: NonNull<sys::ibv_context>) -> Result<(), VerbError>;
    /// `ibv_query_device`.
    unsafe fn query_device(&self, context: NonNull<sys::ibv_context>) -> Result<sys::ibv_device_attr, VerbError>;
    /// `ibv_query_port`. Ports count from 1.
    unsafe fn query_port(&self, context: NonNull<sys::ibv_context>, port: u8) -> Result<sys::ibv_port_attr, VerbError>;
    /// `ibv_query_gid_table`: the filled rows of all ports.
    unsafe fn query_gid_table(&self, context: NonNull<sys::ibv_context>) -> Result<Vec<sys::ibv_gid_entry>, VerbError>;

    /// `ibv_alloc_pd`.
    unsafe fn alloc_pd(&self, context: NonNull<sys::ibv_context>) -> Result<NonNull<sys::ibv_pd>, VerbError>;
    /// `ibv_dealloc_pd`.
    unsafe fn dealloc_pd(&self, pd: NonNull<sys::ibv_pd>) -> Result<(), VerbError>;

    /// `ibv_reg_mr`, with `access` of `ibv_access_flags`. From here on the device may touch `len` bytes at `addr`.
    unsafe fn reg_mr(
        &self,
        pd: NonNull<sys::ibv_pd>,
        addr: *mut u8,
        len: usize,
        access: sys::ibv_access_flags,
    ) -> Result<NonNull<sys::ibv_mr>, VerbError>;
    /// `ibv_dereg_mr`.
    unsafe fn dereg_mr(&self, mr: NonNull<sys::ibv_mr>) -> Result<(), VerbError>;

    /// `ibv_create_comp_channel`; its `fd` does not block.
    unsafe fn create_comp_channel(
        &self,
        context: NonNull<sys::ibv_context>,
    ) -> Result<NonNull<sys::ibv_comp_channel>, VerbError>;
    /// `ibv_destroy_comp_channel`.
    unsafe fn destroy_comp_channel(&self, channel: NonNull<sys::ibv_comp_channel>) -> Result<(), VerbError>;
    /// `ibv_get_cq_event` and `ibv_ack_cq_events`: takes and acknowledges one event, if there is one.
    unsafe fn take_cq_event(&self, channel: NonNull<sys::ibv_comp_channel>) -> Result<bool, VerbError>;

    /// `ibv_create_cq` for at least `cqe` entries, on `channel`.
    unsafe fn create_cq(
        &self,
        context: NonNull<sys::ibv_context>,
        cqe: u32,
        channel: NonNull<sys::ibv_comp_channel>,
    ) -> Result<NonNull<sys::ibv_cq>, VerbError>;
    /// `ibv_destroy_cq`.
    unsafe fn destroy_cq(&self, cq: NonNull<sys::ibv_cq>) -> Result<(), VerbError>;

    /// `ibv_create_qp`; writes what was granted into `attributes.cap`.
    unsafe fn create_qp(
        &self,
        pd: NonNull<sys::ibv_pd>,
        attributes: &mut sys::ibv_qp_init_attr,
    ) -> Result<NonNull<sys::ibv_qp>, VerbError>;
    /// `ibv_modify_qp`. On `Err` neither state nor attributes changed.
    unsafe fn modify_qp(
        &self,
        qp: NonNull<sys::ibv_qp>,
        attributes: &mut sys::ibv_qp_attr,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<(), VerbError>;
    /// `ibv_query_qp`.
    unsafe fn query_qp(
        &self,
        qp: NonNull<sys::ibv_qp>,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<sys::ibv_qp_attr, VerbError>;
    /// `ibv_destroy_qp`.
    unsafe fn destroy_qp(&self, qp: NonNull<sys::ibv_qp>) -> Result<(), VerbError>;

    /// How long until the device wants to be polled although nothing has happened; `None` if it runs by itself.
    fn next_timer(&self, context: NonNull<sys::ibv_context>) -> Option<Duration>;
}
