//! The C interface: bindgen's output over `<infiniband/verbs.h>`, and by hand the `static inline` functions of that header.
//!
//! With the feature `rdma-core` the bindings are made from the installed headers at build time; without it the
//! checked-in output serves, and nothing is linked. Nothing here is safe to call, and no name of it appears in a
//! public signature of the library.
#![allow(unsafe_code, reason = "foreign functions and the structs they take")]

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
    #[cfg(feature = "rdma-core")]
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
    #[cfg(not(feature = "rdma-core"))]
    include!("bindings.rs");
}
pub(crate) use bindings::*;
