//! The C interface: bindgen's output for `<infiniband/verbs.h>`, and the `static inline` functions of that header,
//! written by hand.
//!
//! With the feature `bindgen`, the bindings are made from the installed headers at build time. Without it, the bindings
//! that are checked in for the architecture are used. The feature `rdma-core` links libibverbs. Without it nothing is
//! linked, and the soft device uses only the structs. No name of this module appears in a public signature of the
//! library.
//!
//! # Headers and library of different releases
//!
//! ASSUMPTION: the libibverbs and the librdmacm that are loaded have the structs of the bindings, or have let them grow
//! only where that is safe, as follows.
//!
//! A program may run with another release of libibverbs than the one whose headers the bindings were made from. How a
//! struct may grow depends on who allocates it:
//!
//! - The program allocates it, and does not pass its size (such as `ibv_wc`, `ibv_device_attr`, `ibv_qp_attr`). Such a
//!   struct may not grow at all, because a newer library would write behind its end. rdma-core keeps these structs as
//!   they are.
//! - The program allocates it, and passes its size or a mask of members (`ibv_port_attr`, `ibv_device_attr_ex`,
//!   `ibv_gid_entry`; `ibv_qp_init_attr_ex`, `ibv_cq_init_attr_ex`). Such a struct may grow at the end. The library
//!   fills as many bytes as it was told, and reads only the members of the mask. The C macro `ibv_query_port` calls the
//!   member `query_port` of `verbs_context` with a size, and so does [`inline`]. If that size is less than what
//!   libibverbs knows, its `__lib_query_port` fills a copy and copies back only as many bytes.
//! - The library allocates it (`ibv_qp_ex`). Such a struct may grow at the end. We read only members that we know,
//!   through a pointer.
//! - The library allocates `verbs_context`, which grows at the *start* and holds its size. [`inline`] counts from the
//!   end, and compares with the size before it reads a member.
//!
//! `tests/bindings.rs` checks that the installed headers keep to this.
#![allow(unsafe_code, reason = "foreign functions and the structs they take")]

pub(crate) mod inline;
pub(crate) use inline::ObjectPtr;

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

/// The bindings of librdmacm, if it is linked.
#[cfg(librdmacm)]
#[allow(
    dead_code,
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
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
pub(crate) mod rdmacm {
    #[cfg(feature = "bindgen")]
    include!(concat!(env!("OUT_DIR"), "/rdmacm.rs"));
    #[cfg(not(feature = "bindgen"))]
    include!("bindings/rdmacm.rs");
}

/// An empty list of elements points here, because some providers read the first element of an empty list too.
pub(crate) static NO_ELEMENT: ibv_sge = ibv_sge { addr: 0, length: 0, lkey: 0 };

/// A flag in `device_cap_flags_ex`, from `<rdma/ib_user_verbs.h>`: the device has atomic writes.
pub(crate) const HAS_ATOMIC_WRITE: u64 = 1 << 40;
