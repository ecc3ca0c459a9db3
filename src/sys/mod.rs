//! The C interface: bindgen's output over `<infiniband/verbs.h>`, and by hand the `static inline` functions of that header.
//!
//! With the feature `bindgen` the bindings are made from the installed headers at build time; without it the output
//! that is checked in for the architecture serves. The feature `rdma-core` links libibverbs; without it nothing is
//! linked, and the soft device uses the structs alone. Nothing here is safe to call, and no name of it appears in a public
//! signature of the library.
//!
//! # Headers and library of different releases
//!
//! The library that a program runs with may be another release than the headers that the bindings were made from. Whose
//! memory a struct is decides how it may grow:
//!
//! - The program's, without its size (such as `ibv_wc`, `ibv_device_attr`, `ibv_qp_attr`): it may not grow at all,
//!   because a newer library would write behind the end of ours. Upstream keeps these as they are.
//! - The program's, with its size or with a mask of the members that count (`ibv_port_attr`, `ibv_device_attr_ex`,
//!   `ibv_gid_entry`; `ibv_qp_init_attr_ex`, `ibv_cq_init_attr_ex`): it may grow at the end. The library fills the size
//!   that it was told, and looks at the members of the mask only. `ibv_query_port` belongs here as the C macro of that name:
//!   it calls the member `query_port` of the `verbs_context` with a size, and so does [`inline`]; `__lib_query_port` fills
//!   a copy of its own where ours is shorter, and copies our size of it.
//! - The library's (`ibv_qp_ex`): it may grow at the end. We read members through a pointer, only those that we know.
//! - `verbs_context`, also the library's, grows at the *start*, and has its size in it: [`inline`] counts from the end and
//!   compares before it reads a member.
//!
//! `tests/bindings.rs` holds the installed headers to this.
#![allow(unsafe_code, reason = "foreign functions and the structs they take")]

#[cfg(feature = "soft")]
use std::os::fd::{FromRawFd, OwnedFd};

pub(crate) mod inline;

#[allow(
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unnameable_types,
    unreachable_pub,
    unused_imports,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "generated"
)]
mod bindings {
    #[cfg(feature = "bindgen")]
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
    #[cfg(all(not(feature = "bindgen"), target_arch = "aarch64"))]
    include!("bindings/aarch64.rs");
    #[cfg(all(not(feature = "bindgen"), target_arch = "x86_64"))]
    include!("bindings/x86_64.rs");
}
pub(crate) use bindings::*;

/// What a list of no elements points to: some providers read the first one all the same.
pub(crate) static NO_ELEMENT: ibv_sge = ibv_sge { addr: 0, length: 0, lkey: 0 };

impl ibv_gid {
    /// The bytes, in network order.
    pub(crate) fn bytes(&self) -> [u8; 16] {
        // SAFETY: every bit pattern is a value of each member.
        unsafe { self.raw }
    }
}

/// An `eventfd(2)` that does not block.
#[cfg(feature = "soft")]
pub(crate) fn eventfd() -> std::io::Result<OwnedFd> {
    // SAFETY: takes two numbers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: created just now, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// In `device_cap_flags_ex`: the device has atomic writes. Of `<rdma/ib_user_verbs.h>`.
pub(crate) const HAS_ATOMIC_WRITE: u64 = 1 << 40;
