//! The `static inline` functions of `<infiniband/verbs.h>` that the library calls, written by hand.
//!
//! The four of the data path go through the function table of the context, as the C ones do; so they serve every
//! device, the soft one included.

use super::{ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wc};
use core::ffi::c_int;
#[cfg(feature = "rdma-core")]
pub(crate) use query::ibv_query_port;

/// The type of `ibv_context_ops::post_send`.
pub(crate) type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
/// The type of `ibv_context_ops::post_recv`.
pub(crate) type PostReceive = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
/// The type of `ibv_context_ops::poll_cq`.
pub(crate) type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
/// The type of `ibv_context_ops::req_notify_cq`.
pub(crate) type RequestNotify = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;

#[cfg(feature = "rdma-core")]
mod query {
    use super::super::{self as sys, ibv_context, ibv_port_attr, verbs_context};
    use core::ffi::{c_int, c_void};
    use core::mem::{offset_of, size_of};

    /// The extended part of `context`, if it has one that reaches back to `offset`.
    ///
    /// # Safety
    ///
    /// `context` came from `ibv_open_device` and is open.
    unsafe fn extended(context: *mut ibv_context, offset: usize) -> Option<*mut verbs_context> {
        // `__VERBS_ABI_IS_EXTENDED` is `((void *) UINTPTR_MAX)`.
        const EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);
        // SAFETY: the context is open (caller).
        if unsafe { (*context).abi_compat } != EXTENDED {
            return None;
        }
        let whole = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
        // SAFETY: the mark says that this context is the last member of a `verbs_context`, whose end every version shares.
        let present = unsafe { (*whole).sz };
        (present >= size_of::<verbs_context>() - offset).then_some(whole)
    }

    /// `ibv_query_port`: a macro over the extended table; the symbol of that name fills an older, shorter struct.
    ///
    /// # Safety
    ///
    /// `context` came from `ibv_open_device` and is open; `attributes` is zeroed and may be written.
    pub(crate) unsafe fn ibv_query_port(context: *mut ibv_context, port: u8, attributes: *mut ibv_port_attr) -> c_int {
        // SAFETY: the caller's promise.
        let whole = unsafe { extended(context, offset_of!(verbs_context, query_port)) };
        // SAFETY: `extended` saw that the table is long enough to have this member.
        let query = whole.and_then(|whole| unsafe { (*whole).query_port });
        match query {
            // SAFETY: the provider's own function, with the size of the struct that it may fill.
            Some(query) => unsafe { query(context, port, attributes, size_of::<ibv_port_attr>()) },
            // SAFETY: the old struct is a prefix of the new one, which the caller zeroed.
            None => unsafe { sys::ibv_query_port(context, port, attributes.cast()) },
        }
    }
}
