//! The `static inline` functions of `<infiniband/verbs.h>` that the library calls, written by hand.
//!
//! Those of the data path call the function table of the context, as the C ones do, so they serve the soft device too.

#[cfg(feature = "rdma-core")]
use super::ibv_pd;
use super::{ibv_ah, ibv_cq_ex, ibv_poll_cq_attr, ibv_qp_ex, ibv_sge, ibv_wc_opcode};
use super::{ibv_cq, ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc};
use core::ffi::{c_int, c_uint, c_void};
#[cfg(feature = "rdma-core")]
pub(crate) use extended::{ibv_create_cq_ex, ibv_create_qp_ex, ibv_query_device_ex, ibv_query_port};

/// The type of `ibv_context_ops::post_send`.
pub(crate) type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
/// The type of `ibv_context_ops::post_recv`.
pub(crate) type PostReceive = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
/// The type of `ibv_context_ops::post_srq_recv`.
pub(crate) type PostShared = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
/// The type of `ibv_context_ops::poll_cq`.
pub(crate) type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
/// The type of `ibv_context_ops::req_notify_cq`.
pub(crate) type RequestNotify = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;

/// `ibv_bind_mw`: posts a bind of a window of type 1; its new key is in `mw` afterwards.
///
/// # Safety
///
/// `ibv_bind_mw(3)`; the region, if there is one, is alive.
pub(crate) unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: alive (caller).
    let ibv_mw { context, pd, type_, .. } = unsafe { mw.read() };
    // SAFETY: may be read (caller).
    let info = unsafe { (*bind).bind_info };
    if type_ != ibv_mw_type::IBV_MW_TYPE_1 || info.mr.is_null() && (info.addr != 0 || info.length != 0) {
        return libc::EINVAL;
    }
    // SAFETY: not null, so alive (caller).
    if !info.mr.is_null() && pd != unsafe { (*info.mr).pd } {
        return libc::EPERM;
    }
    // SAFETY: the context of a live object is open.
    match unsafe { (*context).ops.bind_mw } {
        // SAFETY: the provider's own function, called as its manual page requires (caller).
        Some(post) => unsafe { post(qp, mw, bind) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_inc_rkey`: the key with the next tag, for the next bind of a window of type 2.
pub(crate) fn ibv_inc_rkey(rkey: u32) -> u32 {
    const TAG: u32 = 0xff;
    rkey & !TAG | rkey.wrapping_add(1) & TAG
}

/// `ibv_alloc_mw`: null and `errno` on failure. `None` where the device has no such function.
///
/// # Safety
///
/// `pd` is alive.
#[cfg(feature = "rdma-core")]
pub(crate) unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> Option<*mut ibv_mw> {
    // SAFETY: alive (caller).
    let context = unsafe { (*pd).context };
    // SAFETY: the context of a live object is open.
    let alloc = unsafe { (*context).ops.alloc_mw }?;
    // SAFETY: the provider's own function.
    Some(unsafe { alloc(pd, kind) })
}

/// `ibv_dealloc_mw`.
///
/// # Safety
///
/// `mw` is alive and not used any more.
#[cfg(feature = "rdma-core")]
pub(crate) unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: alive (caller).
    let context = unsafe { (*mw).context };
    // SAFETY: the context of a live object is open.
    match unsafe { (*context).ops.dealloc_mw } {
        // SAFETY: the provider's own function, called as its manual page requires (caller).
        Some(dealloc) => unsafe { dealloc(mw) },
        None => libc::EOPNOTSUPP,
    }
}

/// The verbs that go through `verbs_context`, the extended table of a device.
#[cfg(feature = "rdma-core")]
mod extended {
    use crate::sys::{
        self, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device_attr_ex, ibv_port_attr, ibv_qp,
        ibv_qp_init_attr_ex, verbs_context,
    };
    use core::ffi::{c_int, c_void};
    use core::mem::{offset_of, size_of};

    /// A function of the extended table, if `context` has such a table, and if it is long enough.
    ///
    /// # Safety
    ///
    /// `context` came from `ibv_open_device` and is open; `member` gives the member at `offset`.
    unsafe fn function<F: Copy>(
        context: *mut ibv_context,
        offset: usize,
        member: fn(&verbs_context) -> &Option<F>,
    ) -> Option<F> {
        // `__VERBS_ABI_IS_EXTENDED` is `((void *) UINTPTR_MAX)`.
        const EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);
        // Only its type is of use: a reference to the whole table would claim memory before the start of a short one.
        _ = member;
        // SAFETY: the context is open (caller).
        if unsafe { (*context).abi_compat } != EXTENDED {
            return None;
        }
        let whole = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
        // SAFETY: the mark says that this context is the last member of a `verbs_context`, whose end every version
        // shares.
        let present = unsafe { (*whole).sz };
        if present < size_of::<verbs_context>() - offset {
            return None;
        }
        // SAFETY: the table is long enough to have this member, which is of this type (caller).
        unsafe { whole.wrapping_byte_add(offset).cast::<Option<F>>().read() }
    }

    /// `ibv_query_device_ex` without an input. Where the device has no such function, only `orig_attr` is filled.
    ///
    /// # Safety
    ///
    /// `context` came from `ibv_open_device` and is open.
    pub(crate) unsafe fn ibv_query_device_ex(context: *mut ibv_context, attributes: &mut ibv_device_attr_ex) -> c_int {
        let offset = offset_of!(verbs_context, query_device_ex);
        // SAFETY: open (caller), and the member at its offset.
        if let Some(query) = unsafe { function(context, offset, |table| &table.query_device_ex) } {
            // SAFETY: the provider's own function, with the size of the struct that it may fill; it needs no input.
            let result = unsafe { query(context, core::ptr::null(), attributes, size_of::<ibv_device_attr_ex>()) };
            if result != libc::EOPNOTSUPP && result != libc::ENOSYS {
                return result;
            }
            *attributes = ibv_device_attr_ex::default();
        }
        // SAFETY: open (caller); the struct may be written.
        unsafe { sys::ibv_query_device(context, &mut attributes.orig_attr) }
    }

    /// `ibv_query_port`: a macro over the extended table; the symbol of that name fills an older, shorter struct.
    ///
    /// # Safety
    ///
    /// `context` came from `ibv_open_device` and is open.
    pub(crate) unsafe fn ibv_query_port(context: *mut ibv_context, port: u8, attributes: &mut ibv_port_attr) -> c_int {
        // SAFETY: open (caller), and the member at its offset.
        match unsafe { function(context, offset_of!(verbs_context, query_port), |table| &table.query_port) } {
            // SAFETY: the provider's own function, with the size of the struct that it may fill.
            Some(query) => unsafe { query(context, port, attributes, size_of::<ibv_port_attr>()) },
            // SAFETY: the old struct is a prefix of the new one.
            None => unsafe { sys::ibv_query_port(context, port, core::ptr::from_mut(attributes).cast()) },
        }
    }

    /// `ibv_create_qp_ex`: null and `errno` on failure. `None` where the device has no such function.
    ///
    /// # Safety
    ///
    /// `ibv_create_qp_ex(3)`; the attributes have more than a protection domain.
    pub(crate) unsafe fn ibv_create_qp_ex(
        context: *mut ibv_context,
        attributes: &mut ibv_qp_init_attr_ex,
    ) -> Option<*mut ibv_qp> {
        // SAFETY: open (caller), and the member at its offset.
        let create =
            unsafe { function(context, offset_of!(verbs_context, create_qp_ex), |table| &table.create_qp_ex) }?;
        // SAFETY: the provider's own function, called as its manual page requires (caller).
        Some(unsafe { create(context, attributes) })
    }

    /// `ibv_create_cq_ex`: null and `errno` on failure. `None` where the device has no such function.
    ///
    /// # Safety
    ///
    /// `ibv_create_cq_ex(3)`.
    pub(crate) unsafe fn ibv_create_cq_ex(
        context: *mut ibv_context,
        attributes: &mut ibv_cq_init_attr_ex,
    ) -> Option<*mut ibv_cq_ex> {
        // SAFETY: open (caller), and the member at its offset.
        let create =
            unsafe { function(context, offset_of!(verbs_context, create_cq_ex), |table| &table.create_cq_ex) }?;
        // SAFETY: libibverbs put its own function here, which calls the provider's. The call is as the manual page
        // requires (caller).
        Some(unsafe { create(context, attributes) })
    }
}

/// Calls of the functions that a provider put into an object when it made the object: `ibv_wr_post(3)` has those of an
/// `ibv_qp_ex`, `ibv_create_cq_ex(3)` those of an `ibv_cq_ex`.
macro_rules! functions_of {
    ($object:ident: $(fn $name:ident = $member:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        ///
        /// That manual page. The object was made with this function.
        #[inline(always)]
        pub(crate) unsafe fn $name(object: *mut $object, $($argument: $type),*) $(-> $result)? {
            // SAFETY: alive (caller).
            let function = unsafe { (*object).$member };
            // SAFETY: the object was made with this function (caller).
            let function = unsafe { function.unwrap_unchecked() };
            // SAFETY: the provider's own function, called as its manual page requires (caller).
            unsafe { function(object, $($argument),*) }
        }
    )*};
}
functions_of! { ibv_qp_ex:
    fn ibv_wr_start = wr_start();
    fn ibv_wr_complete = wr_complete() -> c_int;
    fn ibv_wr_abort = wr_abort();
    fn ibv_wr_send = wr_send();
    fn ibv_wr_send_imm = wr_send_imm(imm_data: u32);
    fn ibv_wr_rdma_write = wr_rdma_write(rkey: u32, remote_addr: u64);
    fn ibv_wr_rdma_write_imm = wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: u32);
    fn ibv_wr_rdma_read = wr_rdma_read(rkey: u32, remote_addr: u64);
    fn ibv_wr_atomic_cmp_swp = wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64);
    fn ibv_wr_atomic_write = wr_atomic_write(rkey: u32, remote_addr: u64, atomic_wr: *const c_void);
    fn ibv_wr_atomic_fetch_add = wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);
    fn ibv_wr_set_sge = wr_set_sge(lkey: u32, addr: u64, length: u32);
    fn ibv_wr_set_sge_list = wr_set_sge_list(num_sge: usize, sg_list: *const ibv_sge);
    fn ibv_wr_set_ud_addr = wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32);
    fn ibv_wr_set_inline_data = wr_set_inline_data(addr: *mut c_void, length: usize);
}
functions_of! { ibv_cq_ex:
    fn ibv_start_poll = start_poll(attributes: *mut ibv_poll_cq_attr) -> c_int;
    fn ibv_next_poll = next_poll() -> c_int;
    fn ibv_end_poll = end_poll();
    fn ibv_wc_read_opcode = read_opcode() -> ibv_wc_opcode;
    fn ibv_wc_read_vendor_err = read_vendor_err() -> u32;
    fn ibv_wc_read_byte_len = read_byte_len() -> u32;
    fn ibv_wc_read_imm_data = read_imm_data() -> u32;
    fn ibv_wc_read_qp_num = read_qp_num() -> u32;
    fn ibv_wc_read_src_qp = read_src_qp() -> u32;
    fn ibv_wc_read_wc_flags = read_wc_flags() -> c_uint;
    fn ibv_wc_read_slid = read_slid() -> u32;
    fn ibv_wc_read_sl = read_sl() -> u8;
}
