//! What bindgen cannot make of `<infiniband/verbs.h>`, written by hand: the `static inline` functions that the library
//! calls, safe reads of unions, and a pointer type for the objects of providers.
//!
//! The functions of the data path call the function table of the context, as the C functions do, so they also work on
//! the soft device.

#[cfg(feature = "rdma-core")]
use super::ibv_pd;
#[cfg(librdmacm)]
use super::rdmacm;
use super::{
    ibv_ah, ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_cq_ex, ibv_event_type, ibv_gid, ibv_poll_cq_attr,
    ibv_qp_ex, ibv_sge, ibv_wc__bindgen_ty_1, ibv_wc_opcode,
};
use super::{ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc};
#[cfg(feature = "rdma-core")]
use super::{ibv_mw, ibv_mw_type};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::NonNull;
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

/// A pointer to a provider's object, or to memory that no Rust type describes. Only `unsafe` code can use it, and that
/// code must know that the object is alive.
#[derive(Debug)]
pub(crate) struct ObjectPtr<T>(pub(crate) NonNull<T>);

// SAFETY: the type is only an address, and only `unsafe` code can use it.
unsafe impl<T> Send for ObjectPtr<T> {}
// SAFETY: a shared reference gives access to the address only.
unsafe impl<T> Sync for ObjectPtr<T> {}

impl<T> Clone for ObjectPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for ObjectPtr<T> {}

/// Safe reads of members of unions. These members consist of numbers and addresses, for which any bytes are valid. The
/// bytes are initialised: whoever allocates such a union fills it with zeros first, or writes that member.
macro_rules! members_of_unions {
    ($($(#[$attribute:meta])* $visible:vis fn $name:ident(&$union:ty) = $member:ident -> $type:ty;)*) => {$(
        impl $union {
            $(#[$attribute])*
            #[inline(always)]
            $visible fn $name(&self) -> $type {
                // SAFETY: the macro is used only for members that are initialised and whose type allows any bytes.
                unsafe { self.$member }
            }
        }
    )*};
}
members_of_unions! {
    /// The bytes, in network byte order.
    pub(crate) fn bytes(&ibv_gid) = raw -> [u8; 16];
    /// The address of the object. For events about an object.
    fn object(&ibv_async_event__bindgen_ty_1) = qp -> *mut ibv_qp;
    /// The number of the port. For events about a port.
    fn port(&ibv_async_event__bindgen_ty_1) = port_num -> i32;
    /// The immediate of a receive, or the key that it invalidated: both are in the same 4 bytes.
    pub(crate) fn immediate_or_key(&ibv_wc__bindgen_ty_1) = imm_data -> u32;
}
#[cfg(librdmacm)]
members_of_unions! {
    /// The peer's data, in an event of a datagram identifier.
    pub(crate) fn of_datagrams(&rdmacm::rdma_cm_event__bindgen_ty_1) = ud -> rdmacm::rdma_ud_param;
    /// The peer's data, in an event of a connection.
    pub(crate) fn of_connection(&rdmacm::rdma_cm_event__bindgen_ty_1) = conn -> rdmacm::rdma_conn_param;
    /// The address of this side, of either family.
    pub(crate) fn source(&rdmacm::rdma_addr__bindgen_ty_1) = src_sin6 -> libc::sockaddr_in6;
    /// The peer's address, of either family.
    pub(crate) fn destination(&rdmacm::rdma_addr__bindgen_ty_2) = dst_sin6 -> libc::sockaddr_in6;
}

impl ibv_async_event {
    /// The subject of the event: the member of the union that an event of this kind has (`ibv_get_async_event(3)`).
    pub(crate) fn about(&self) -> About {
        use ibv_event_type as Kind;
        match self.event_type {
            Kind::IBV_EVENT_CQ_ERR
            | Kind::IBV_EVENT_QP_FATAL
            | Kind::IBV_EVENT_QP_REQ_ERR
            | Kind::IBV_EVENT_QP_ACCESS_ERR
            | Kind::IBV_EVENT_QP_LAST_WQE_REACHED
            | Kind::IBV_EVENT_COMM_EST
            | Kind::IBV_EVENT_SQ_DRAINED
            | Kind::IBV_EVENT_PATH_MIG
            | Kind::IBV_EVENT_PATH_MIG_ERR
            | Kind::IBV_EVENT_SRQ_ERR
            | Kind::IBV_EVENT_SRQ_LIMIT_REACHED => About::Object(self.element.object().addr()),
            Kind::IBV_EVENT_PORT_ACTIVE
            | Kind::IBV_EVENT_PORT_ERR
            | Kind::IBV_EVENT_LID_CHANGE
            | Kind::IBV_EVENT_PKEY_CHANGE
            | Kind::IBV_EVENT_SM_CHANGE
            | Kind::IBV_EVENT_CLIENT_REREGISTER
            | Kind::IBV_EVENT_GID_CHANGE => About::Port(self.element.port()),
            _ => About::Device,
        }
    }
}

/// The subject of an asynchronous event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum About {
    /// The object that was at this address when the event was made. It may be gone by now.
    Object(usize),
    /// A port, by its unchecked number.
    Port(i32),
    /// The whole device, or a kind of event that this library does not know.
    Device,
}

/// `ibv_inc_rkey`: the key with the next tag, for the next bind of a window of type 2.
pub(crate) fn ibv_inc_rkey(rkey: u32) -> u32 {
    const TAG: u32 = 0xff;
    rkey & !TAG | rkey.wrapping_add(1) & TAG
}

/// Verbs that call the function table of the object's context. They return `None` if the provider has no such function.
macro_rules! functions_of_context {
    ($($(#[$doc:meta])* fn $name:ident = $member:ident($object:ident: *mut $kind:ty $(, $argument:ident: $type:ty)*)
        -> $result:ty;)*) => {$(
        $(#[$doc])*
        #[doc = "\n# Safety\n\nAs the manual page of the verb demands; the object is alive."]
        #[inline]
        pub(crate) unsafe fn $name($object: *mut $kind $(, $argument: $type)*) -> Option<$result> {
            // SAFETY: the object is alive (caller).
            let context = unsafe { (*$object).context };
            // SAFETY: the object is alive (caller), so its context is open.
            let function = unsafe { (*context).ops.$member }?;
            // SAFETY: `function` is the provider's own, and is called as its manual page requires (caller).
            Some(unsafe { function($object $(, $argument)*) })
        }
    )*};
}
functions_of_context! {
    /// `ibv_poll_cq`: how many completions were written, or a negative number.
    fn ibv_poll_cq = poll_cq(cq: *mut ibv_cq, count: c_int, completions: *mut ibv_wc) -> c_int;
}
#[cfg(feature = "rdma-core")]
functions_of_context! {
    /// `ibv_alloc_mw`: null and `errno` on failure.
    fn ibv_alloc_mw = alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw;
    /// `ibv_dealloc_mw`: 0, or an error number.
    fn dealloc_mw = dealloc_mw(mw: *mut ibv_mw) -> c_int;
}

/// `ibv_dealloc_mw`.
///
/// # Safety
///
/// `mw` is alive, and is not used after this call.
#[cfg(feature = "rdma-core")]
pub(crate) unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the window is alive and not used any more (caller).
    unsafe { dealloc_mw(mw) }.unwrap_or(libc::EOPNOTSUPP)
}

/// The verbs that go through `verbs_context`, the extended function table of a device.
#[cfg(feature = "rdma-core")]
mod extended {
    use crate::sys::{
        self, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device_attr_ex, ibv_port_attr, ibv_qp,
        ibv_qp_init_attr_ex, ibv_query_device_ex_input, verbs_context,
    };
    use core::ffi::{c_int, c_void};
    use core::mem::{offset_of, size_of};

    /// Copies the extended table of `context`. Members that the provider's table does not have are `None`.
    ///
    /// The table grows at its start, and older libraries have shorter tables: so the copy has the length that we know.
    ///
    /// # Safety
    ///
    /// `context` came from `ibv_open_device` and is open.
    unsafe fn table(context: *mut ibv_context) -> verbs_context {
        // `__VERBS_ABI_IS_EXTENDED` is `((void *) UINTPTR_MAX)`.
        const EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);
        /// The offset at which the functions end. The size and the context itself follow.
        const END: usize = offset_of!(verbs_context, _ABI_placeholder3);
        let mut copy = verbs_context::default();
        // SAFETY: the context is open (caller).
        if unsafe { (*context).abi_compat } != EXTENDED {
            return copy;
        }
        let whole = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
        // SAFETY: `abi_compat` is `EXTENDED`, so this context is the last member of a `verbs_context`. In all versions
        // of libibverbs the last members of this struct are the same, and `sz` is one of them.
        let present = unsafe { (*whole).sz };
        // The provider's table has only the members at the offset `first` and after it.
        let first = size_of::<verbs_context>().saturating_sub(present).min(END);
        let (from, to) = (whole.wrapping_byte_add(first), (&raw mut copy).wrapping_byte_add(first));
        // SAFETY: the provider's table has all members from `first` on, and providers change no member while the
        // context is open. Each member is one word, and `first` is a multiple of the word size, so no member is copied
        // in part.
        unsafe { core::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), END - first) };
        copy
    }

    /// Verbs that call the extended table. They return `None` if the device has no such function.
    macro_rules! functions_of_table {
        ($($(#[$doc:meta])* fn $name:ident = $member:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
            $(#[$doc])*
            #[doc = "\n# Safety\n\nAs the manual page of the verb demands. `context` came from `ibv_open_device` and is open."]
            pub(crate) unsafe fn $name(context: *mut ibv_context $(, $argument: $type)*) -> Option<$result> {
                // SAFETY: the context is open (caller).
                let function = unsafe { table(context) }.$member?;
                // SAFETY: `function` is the provider's own, or the one of libibverbs that wraps it, and is called as
                // the manual page requires (caller).
                Some(unsafe { function(context $(, $argument)*) })
            }
        )*};
    }
    functions_of_table! {
        /// `ibv_create_qp_ex`, for attributes with more than a protection domain: null and `errno` on failure.
        fn ibv_create_qp_ex = create_qp_ex(attributes: &mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
        /// `ibv_create_cq_ex`: null and `errno` on failure.
        fn ibv_create_cq_ex = create_cq_ex(attributes: &mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
        /// `ibv_query_device_ex`, with an input and the size of the struct to fill.
        fn query_device_ex = query_device_ex(
            input: *const ibv_query_device_ex_input, attributes: &mut ibv_device_attr_ex, len_bytes: usize
        ) -> c_int;
        /// `ibv_query_port`, with the size of the struct to fill.
        fn query_port = query_port(port: u8, attributes: &mut ibv_port_attr, len_bytes: usize) -> c_int;
    }

    /// `ibv_query_device_ex` without an input. If the device has no such function, only `orig_attr` is filled.
    ///
    /// # Safety
    ///
    /// `context` came from `ibv_open_device` and is open.
    pub(crate) unsafe fn ibv_query_device_ex(context: *mut ibv_context, attributes: &mut ibv_device_attr_ex) -> c_int {
        // SAFETY: the context is open (caller); the size is that of the struct, and no input is needed.
        let result =
            unsafe { query_device_ex(context, core::ptr::null(), attributes, size_of::<ibv_device_attr_ex>()) };
        if let Some(result) = result.filter(|&result| result != libc::EOPNOTSUPP && result != libc::ENOSYS) {
            return result;
        }
        *attributes = ibv_device_attr_ex::default();
        // SAFETY: the context is open (caller); `orig_attr` is writable.
        unsafe { sys::ibv_query_device(context, &mut attributes.orig_attr) }
    }

    /// `ibv_query_port`. In C it is a macro over the extended table; the symbol of that name fills an older, shorter
    /// struct.
    ///
    /// # Safety
    ///
    /// `context` came from `ibv_open_device` and is open.
    pub(crate) unsafe fn ibv_query_port(context: *mut ibv_context, port: u8, attributes: &mut ibv_port_attr) -> c_int {
        // SAFETY: the context is open (caller); the size is that of the struct.
        let result = unsafe { query_port(context, port, attributes, size_of::<ibv_port_attr>()) };
        // SAFETY: the context is open (caller). `sys::ibv_query_port` fills an older struct, which is a prefix of
        // `ibv_port_attr`.
        result.unwrap_or_else(|| unsafe { sys::ibv_query_port(context, port, core::ptr::from_mut(attributes).cast()) })
    }
}

/// Calls of the functions that a provider puts into an object when it creates the object. `ibv_wr_post(3)` describes
/// those of an `ibv_qp_ex`, `ibv_create_cq_ex(3)` those of an `ibv_cq_ex`.
macro_rules! functions_of {
    ($object:ident: $(fn $name:ident = $member:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        ///
        /// The caller does as the manual page of the function requires. The object is alive, and the provider has put
        /// this function into it.
        #[inline(always)]
        pub(crate) unsafe fn $name(object: *mut $object, $($argument: $type),*) $(-> $result)? {
            // SAFETY: the object is alive (caller).
            let function = unsafe { (*object).$member };
            // SAFETY: the provider has put this function into the object (caller).
            let function = unsafe { function.unwrap_unchecked() };
            // SAFETY: `function` is the provider's own, and is called as its manual page requires (caller).
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
