//! The control path: one table of verbs with two implementations, rdma-core and the soft device.
//!
//! The data path does not use this table. It calls the function table of the `ibv_context`, which both implementations
//! fill (see `sys::inline`). Public types know neither implementation.
//!
//! ASSUMPTION: when `ibv_destroy_qp` or (where the provider's row says so) a move to Reset returns 0, every access of
//! the device through the pair has ended, and no later poll writes to memory of its requests. When `ibv_dereg_mr`
//! returns 0, the access of peers through the region has ended. (Soft iWARP is the exception: `Quirks` says what the
//! library does there.)
//!
//! The verbs of C report failure in several ways (NULL and `errno`, a positive number, -1 and `errno`). Here all of
//! them return [`VerbError`].

#[cfg(feature = "cm")]
pub(crate) mod cm;
pub(crate) mod environment;
pub(crate) mod handles;
#[cfg(feature = "rdma-core")]
pub(crate) mod rdma_core;
pub(crate) mod reviewed;
#[cfg(feature = "soft")]
pub mod soft;
pub(crate) mod window_handles;

use crate::sys;
use crate::verb_error::VerbError;
use reviewed::Promises;
use std::{fmt, os::fd::RawFd, ptr::NonNull, time::Duration};

/// An entry of a device list.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) name: String,
    /// In network byte order, as `ibv_get_device_guid` gives it.
    pub(crate) guid_be: u64,
}

/// A context, and the implementation that it belongs to.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The context is open, and its descriptor for asynchronous events does not block. Nobody else has this context.
    pub(crate) context: NonNull<sys::ibv_context>,
    pub(crate) provider: &'static dyn Provider,
    /// The address of the fabric that a soft device belongs to.
    pub(crate) fabric: Option<usize>,
}

impl Opened {
    #[cfg(feature = "soft")]
    pub(crate) fn on(fabric: &soft::Fabric, name: &str) -> Result<Self, VerbError> {
        Ok(Self { context: fabric.open(name)?, provider: &soft::Soft, fabric: Some(fabric.address()) })
    }
}

/// Opens the device of that name; `None` if there is none. A real device comes before a soft one of the same name.
#[cfg_attr(not(feature = "rdma-core"), allow(clippy::unnecessary_wraps, reason = "libibverbs can fail"))]
pub(crate) fn open(name: &str) -> Result<Option<Opened>, VerbError> {
    #[cfg(feature = "rdma-core")]
    if let Some(context) = rdma_core::open(name)? {
        return Ok(Some(Opened { context, provider: &rdma_core::RdmaCore, fabric: None }));
    }
    #[cfg(feature = "soft")]
    if simulated().iter().any(|device| device.name == name) {
        return Opened::on(soft::Fabric::process(), name).map(Some);
    }
    Ok(None)
}

/// The devices of the machine.
pub(crate) fn hardware() -> Result<Vec<Listed>, VerbError> {
    #[cfg(feature = "rdma-core")]
    return rdma_core::devices();
    #[cfg(not(feature = "rdma-core"))]
    Ok(Vec::new())
}

/// The soft devices that every process has.
pub(crate) fn simulated() -> Vec<Listed> {
    #[cfg(feature = "soft")]
    return soft::devices();
    #[cfg(not(feature = "soft"))]
    Vec::new()
}

/// The verbs that create, change and destroy objects.
///
/// # Safety
///
/// For each method: the objects passed in came from the same implementation and are alive, and nobody else destroys
/// them meanwhile. After a destroying verb that returns `Ok`, the object is gone, and the device no longer uses memory
/// through it. After `Err`, the object is still alive.
#[allow(unsafe_code, reason = "verbs on raw objects")]
#[allow(dead_code, reason = "one table for all builds; some use fewer verbs")]
pub(crate) trait Provider: fmt::Debug + Send + Sync {
    /// `ibv_close_device`.
    unsafe fn close_device(&self, context: NonNull<sys::ibv_context>) -> Result<(), VerbError>;
    /// `ibv_query_device`.
    unsafe fn query_device(&self, context: NonNull<sys::ibv_context>) -> Result<sys::ibv_device_attr, VerbError>;
    /// The promises of the device, if its provider reports them itself, as the soft device does. Other devices are
    /// looked up in the reviewed table, by the result of `query_device`.
    unsafe fn promises(&self, context: NonNull<sys::ibv_context>) -> Option<&'static Promises> {
        let _ = context;
        None
    }
    /// `ibv_query_device_ex`: more attributes than `query_device`, such as the transports that support on-demand
    /// paging. Members that the device does not fill are zero.
    unsafe fn query_device_ex(&self, context: NonNull<sys::ibv_context>) -> Result<sys::ibv_device_attr_ex, VerbError>;
    /// `ibv_query_port`. Ports count from 1.
    unsafe fn query_port(&self, context: NonNull<sys::ibv_context>, port: u8) -> Result<sys::ibv_port_attr, VerbError>;
    /// `ibv_query_gid_table`: the filled entries of all ports.
    unsafe fn query_gid_table(&self, context: NonNull<sys::ibv_context>) -> Result<Vec<sys::ibv_gid_entry>, VerbError>;
    /// `ibv_query_pkey`: the entry at `index` of the table of partition keys, in host byte order.
    unsafe fn query_pkey(&self, context: NonNull<sys::ibv_context>, port: u8, index: u16) -> Result<u16, VerbError>;

    /// `ibv_get_async_event` and `ibv_ack_async_event`: takes and acknowledges one event, if there is one.
    ///
    /// The object of the event may be gone. A caller that does not know that the object is alive uses only the address.
    unsafe fn take_async_event(
        &self,
        context: NonNull<sys::ibv_context>,
    ) -> Result<Option<sys::ibv_async_event>, VerbError>;

    /// `ibv_alloc_pd`.
    unsafe fn alloc_pd(&self, context: NonNull<sys::ibv_context>) -> Result<NonNull<sys::ibv_pd>, VerbError>;
    /// `ibv_dealloc_pd`.
    unsafe fn dealloc_pd(&self, pd: NonNull<sys::ibv_pd>) -> Result<(), VerbError>;

    /// `ibv_reg_mr`. From now on the device may access `len` bytes at `addr`.
    unsafe fn reg_mr(
        &self,
        pd: NonNull<sys::ibv_pd>,
        addr: *mut u8,
        len: usize,
        access: sys::ibv_access_flags,
    ) -> Result<NonNull<sys::ibv_mr>, VerbError>;
    /// `ibv_reg_mr_iova`: as `reg_mr`, but both keys name the first byte by the address `iova`.
    unsafe fn reg_mr_iova(
        &self,
        pd: NonNull<sys::ibv_pd>,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: sys::ibv_access_flags,
    ) -> Result<NonNull<sys::ibv_mr>, VerbError>;
    /// `ibv_reg_dmabuf_mr`: `len` bytes from `offset` of the dma-buf `fd`.
    unsafe fn reg_dmabuf_mr(
        &self,
        pd: NonNull<sys::ibv_pd>,
        offset: u64,
        len: usize,
        iova: u64,
        fd: RawFd,
        access: sys::ibv_access_flags,
    ) -> Result<NonNull<sys::ibv_mr>, VerbError>;
    /// `ibv_dereg_mr`. Fails while a window is bound to the region.
    unsafe fn dereg_mr(&self, mr: NonNull<sys::ibv_mr>) -> Result<(), VerbError>;
    /// Waits until the device has stopped copying writes of peers into regions of the domain that have ended. Only
    /// providers whose `ibv_dereg_mr` does not wait for these writes need this (`Quirks::deregisters_early`).
    unsafe fn finish_copies(&self, pd: NonNull<sys::ibv_pd>) -> Result<(), VerbError>;

    /// `ibv_alloc_mw`: a window that is bound to nothing.
    unsafe fn alloc_mw(
        &self,
        pd: NonNull<sys::ibv_pd>,
        kind: sys::ibv_mw_type,
    ) -> Result<NonNull<sys::ibv_mw>, VerbError>;
    /// `ibv_dealloc_mw`. A window that is bound is unbound.
    unsafe fn dealloc_mw(&self, mw: NonNull<sys::ibv_mw>) -> Result<(), VerbError>;

    /// `ibv_create_ah`.
    unsafe fn create_ah(
        &self,
        pd: NonNull<sys::ibv_pd>,
        attributes: &mut sys::ibv_ah_attr,
    ) -> Result<NonNull<sys::ibv_ah>, VerbError>;
    /// `ibv_destroy_ah`. No request in flight may name it.
    unsafe fn destroy_ah(&self, ah: NonNull<sys::ibv_ah>) -> Result<(), VerbError>;

    /// `ibv_create_comp_channel`. Its `fd` is non-blocking.
    unsafe fn create_comp_channel(
        &self,
        context: NonNull<sys::ibv_context>,
    ) -> Result<NonNull<sys::ibv_comp_channel>, VerbError>;
    /// `ibv_destroy_comp_channel`.
    unsafe fn destroy_comp_channel(&self, channel: NonNull<sys::ibv_comp_channel>) -> Result<(), VerbError>;
    /// `ibv_get_cq_event` and `ibv_ack_cq_events`: takes and acknowledges one event, if there is one, and returns its
    /// queue.
    ///
    /// The queue may be gone. A caller that does not know that the queue is alive uses only the address.
    unsafe fn take_cq_event_of(
        &self,
        channel: NonNull<sys::ibv_comp_channel>,
    ) -> Result<Option<NonNull<sys::ibv_cq>>, VerbError>;

    /// `ibv_create_cq` for at least `cqe` entries, on `channel`, with events on completion vector `vector`.
    unsafe fn create_cq(
        &self,
        context: NonNull<sys::ibv_context>,
        cqe: u32,
        channel: NonNull<sys::ibv_comp_channel>,
        vector: u32,
    ) -> Result<NonNull<sys::ibv_cq>, VerbError>;
    /// `ibv_create_cq_ex`. `EOPNOTSUPP`: the device has no such queues.
    ///
    /// # Safety
    ///
    /// The context is open; the channel in the attributes is alive, and of this context.
    unsafe fn create_cq_ex(
        &self,
        context: NonNull<sys::ibv_context>,
        attributes: &mut sys::ibv_cq_init_attr_ex,
    ) -> Result<NonNull<sys::ibv_cq_ex>, VerbError>;
    /// `ibv_resize_cq` to at least `cqe` entries. The verb writes the granted size to the `cqe` of the queue, which
    /// nobody else may read meanwhile.
    unsafe fn resize_cq(&self, cq: NonNull<sys::ibv_cq>, cqe: u32) -> Result<(), VerbError>;
    /// `ibv_destroy_cq`.
    unsafe fn destroy_cq(&self, cq: NonNull<sys::ibv_cq>) -> Result<(), VerbError>;

    /// `ibv_create_srq`. Writes the granted sizes to `attributes.attr`. It does not set the limit.
    unsafe fn create_srq(
        &self,
        pd: NonNull<sys::ibv_pd>,
        attributes: &mut sys::ibv_srq_init_attr,
    ) -> Result<NonNull<sys::ibv_srq>, VerbError>;
    /// `ibv_modify_srq`: the size, the limit, or both.
    unsafe fn modify_srq(
        &self,
        srq: NonNull<sys::ibv_srq>,
        attributes: &mut sys::ibv_srq_attr,
        mask: sys::ibv_srq_attr_mask,
    ) -> Result<(), VerbError>;
    /// `ibv_query_srq`. A limit of 0 means that no limit is armed, or that its event was raised.
    unsafe fn query_srq(&self, srq: NonNull<sys::ibv_srq>) -> Result<sys::ibv_srq_attr, VerbError>;
    /// `ibv_destroy_srq`. The device no longer writes memory through its receives.
    unsafe fn destroy_srq(&self, srq: NonNull<sys::ibv_srq>) -> Result<(), VerbError>;

    /// `ibv_create_qp`. Writes the granted sizes to `attributes.cap`.
    unsafe fn create_qp(
        &self,
        pd: NonNull<sys::ibv_pd>,
        attributes: &mut sys::ibv_qp_init_attr,
    ) -> Result<NonNull<sys::ibv_qp>, VerbError>;
    /// `ibv_create_qp_ex`, and `ibv_qp_to_qp_ex` of the result: `None` if the provider ignored the request for
    /// `ibv_wr_*`. `EOPNOTSUPP`: the device has no such pairs.
    ///
    /// # Safety
    ///
    /// The same as for [`create_qp`](Self::create_qp). The attributes also name operations of `ibv_wr_*`.
    unsafe fn create_qp_ex(
        &self,
        context: NonNull<sys::ibv_context>,
        attributes: &mut sys::ibv_qp_init_attr_ex,
    ) -> Result<(NonNull<sys::ibv_qp>, Option<NonNull<sys::ibv_qp_ex>>), VerbError>;
    /// `ibv_modify_qp`. After `Err`, neither state nor attributes have changed.
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
    /// `ibv_attach_mcast`: a datagram pair joins the group `gid`. `lid` is 0 on Ethernet.
    unsafe fn attach_mcast(&self, qp: NonNull<sys::ibv_qp>, gid: &sys::ibv_gid, lid: u16) -> Result<(), VerbError>;
    /// `ibv_detach_mcast`.
    unsafe fn detach_mcast(&self, qp: NonNull<sys::ibv_qp>, gid: &sys::ibv_gid, lid: u16) -> Result<(), VerbError>;

    /// Opens a channel of rdma_cm for the device of the context.
    #[cfg(feature = "cm")]
    unsafe fn open_cm(
        &self,
        context: NonNull<sys::ibv_context>,
    ) -> Result<std::sync::Arc<dyn cm::RawChannel>, cm::OpenFailure>;

    /// The time until the device must be polled even if nothing has happened; `None` if it runs by itself.
    unsafe fn next_timer(&self, context: NonNull<sys::ibv_context>) -> Option<Duration>;
}
