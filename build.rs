//! Refuses targets and features that cannot work, links libibverbs (feature `rdma-core`), and links librdmacm if it is
//! installed (feature `cm`). Generates the bindings of their headers with the feature `bindgen`; otherwise those in
//! `src/sys/bindings` are used.

use std::{env, process::exit};

/// Architectures whose bindings are checked in.
const CHECKED_IN: [&str; 2] = ["aarch64", "x86_64"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let of_target = |name: &str| env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    let (os, arch, width) = (of_target("OS"), of_target("ARCH"), of_target("POINTER_WIDTH"));
    if os != "linux" {
        refuse(&format!("it needs Linux, and the target's system is {os}"));
    }
    if width != "64" {
        refuse(&format!("it needs a 64-bit target, and {arch} as chosen has pointers of {width} bits"));
    }
    if !cfg!(any(feature = "rdma-core", feature = "soft")) {
        refuse(
            "there would be no device: enable the feature `rdma-core` (real devices), `soft` (a simulated one), or both",
        );
    }
    if !cfg!(feature = "bindgen") && !CHECKED_IN.contains(&arch.as_str()) {
        let list = CHECKED_IN.join(" and ");
        refuse(&format!("bindings are checked in for {list} only: for {arch}, enable the feature `bindgen`"));
    }
    #[cfg(feature = "rdma-core")]
    let _library = rdma_core::link();
    #[cfg(feature = "bindgen")]
    generate::bindings(&_library);
    println!("cargo:rustc-check-cfg=cfg(librdmacm)");
    #[cfg(all(feature = "rdma-core", feature = "cm"))]
    if let Some(_library) = rdma_core::link_cm() {
        println!("cargo:rustc-cfg=librdmacm");
        println!("cargo:rustc-env=LIBRDMACM_VERSION={}", _library.version);
        #[cfg(feature = "bindgen")]
        generate::cm_bindings(&_library);
    }
}

/// Ends the build with one message; cargo shows each of its lines.
fn refuse(message: &str) -> ! {
    let mut before = "rdma-interlock cannot be built: ";
    for line in message.lines() {
        println!("cargo::error={before}{line}");
        before = "";
    }
    exit(0) // The message makes cargo fail; with another status, cargo would also show all output of this program.
}

#[cfg(feature = "rdma-core")]
mod rdma_core {
    use pkg_config::{Config, Library};

    /// The oldest libibverbs whose headers declare everything that the bindings need: that of rdma-core 44, which
    /// Debian 12 has. The headers of rdma-core 43 lack atomic writes.
    const OLDEST: &str = "1.14.44";

    /// The librdmacm of the same release.
    #[cfg(feature = "cm")]
    const OLDEST_CM: &str = "1.3.44";

    /// Lets cargo link libibverbs.
    pub(crate) fn link() -> Library {
        let error = match Config::new().atleast_version(OLDEST).probe("libibverbs") {
            Ok(library) => return library,
            Err(error) => error,
        };
        match Config::new().cargo_metadata(false).probe("libibverbs") {
            Ok(Library { version, .. }) => super::refuse(&format!(
                "libibverbs {version} is too old: it needs {OLDEST} or later, which is that of rdma-core 44 (Debian 12, \
                 Ubuntu 24.04); without RDMA hardware, build with \
                 `default-features = false, features = [\"soft\", \"aio\"]`"
            )),
            Err(_) => stop("libibverbs with its development files", "libibverbs-dev", "rdma-core-devel", &error),
        }
    }

    /// Lets cargo link librdmacm, if it is installed. A program builds without it: then opening a channel of rdma_cm
    /// fails, with an error that names the package to install.
    #[cfg(feature = "cm")]
    pub(crate) fn link_cm() -> Option<Library> {
        Config::new().atleast_version(OLDEST_CM).probe("librdmacm").ok()
    }

    /// Ends the build, and says what to install, or which features to build without.
    pub(crate) fn stop(what: &str, debian: &str, fedora: &str, cause: &dyn std::fmt::Display) -> ! {
        super::refuse(&format!(
            "it needs {what}\n\
             Debian, Ubuntu: apt-get install pkg-config {debian}\n\
             Fedora, RHEL: dnf install pkgconf {fedora}\n\
             without libclang: `default-features = false, features = [\"rdma-core\", \"soft\", \"aio\"]`\n\
             without RDMA hardware: `default-features = false, features = [\"soft\", \"aio\"]`\n\
             cause: {cause}"
        ))
    }
}

#[cfg(feature = "bindgen")]
mod generate {
    use super::{rdma_core::stop, refuse};
    use pkg_config::Library;
    use std::{env, path::PathBuf};

    const FUNCTIONS: &[&str] = &[
        "_ibv_query_gid_table",
        "ibv_ack_async_event",
        "ibv_ack_cq_events",
        "ibv_alloc_pd",
        "ibv_attach_mcast",
        "ibv_close_device",
        "ibv_create_ah",
        "ibv_create_comp_channel",
        "ibv_create_cq",
        "ibv_create_qp",
        "ibv_create_srq",
        "ibv_dealloc_pd",
        "ibv_dereg_mr",
        "ibv_destroy_ah",
        "ibv_destroy_comp_channel",
        "ibv_destroy_cq",
        "ibv_destroy_qp",
        "ibv_destroy_srq",
        "ibv_detach_mcast",
        "ibv_fork_init",
        "ibv_free_device_list",
        "ibv_get_async_event",
        "ibv_get_cq_event",
        "ibv_get_device_guid",
        "ibv_get_device_list",
        "ibv_get_device_name",
        "ibv_is_fork_initialized",
        "ibv_modify_qp",
        "ibv_modify_srq",
        "ibv_open_device",
        "ibv_qp_to_qp_ex",
        "ibv_query_device",
        "ibv_query_pkey",
        "ibv_query_port",
        "ibv_query_qp",
        "ibv_query_srq",
        "ibv_reg_dmabuf_mr",
        "ibv_reg_mr_iova2",
        "ibv_resize_cq",
    ];

    const TYPES: &[&str] = &[
        "ibv_access_flags",
        "ibv_ah_attr",
        "ibv_async_event",
        "ibv_atomic_cap",
        "ibv_cq_ex",
        "ibv_cq_init_attr_ex",
        "ibv_create_cq_wc_flags",
        "ibv_device_attr",
        "ibv_device_cap_flags",
        "ibv_event_type",
        "ibv_gid_entry",
        "ibv_gid_type",
        "ibv_grh",
        "ibv_mtu",
        "ibv_mw_bind",
        "ibv_mw_type",
        "ibv_port_attr",
        "ibv_port_state",
        "ibv_qp_attr",
        "ibv_qp_attr_mask",
        "ibv_qp_create_send_ops_flags",
        "ibv_qp_ex",
        "ibv_qp_init_attr",
        "ibv_qp_init_attr_ex",
        "ibv_qp_init_attr_mask",
        "ibv_qp_state",
        "ibv_qp_type",
        "ibv_recv_wr",
        "ibv_send_flags",
        "ibv_send_wr",
        "ibv_sge",
        "ibv_srq_attr",
        "ibv_srq_attr_mask",
        "ibv_srq_init_attr",
        "ibv_wc",
        "ibv_wc_flags",
        "ibv_wc_opcode",
        "ibv_wc_status",
        "ibv_wr_opcode",
        "verbs_context",
    ];

    #[cfg(feature = "cm")]
    const CM_FUNCTIONS: &[&str] = &[
        "rdma_accept",
        "rdma_ack_cm_event",
        "rdma_bind_addr",
        "rdma_connect",
        "rdma_create_event_channel",
        "rdma_create_id",
        "rdma_destroy_event_channel",
        "rdma_destroy_id",
        "rdma_disconnect",
        "rdma_establish",
        "rdma_get_cm_event",
        "rdma_init_qp_attr",
        "rdma_join_multicast",
        "rdma_leave_multicast",
        "rdma_listen",
        "rdma_notify",
        "rdma_reject",
        "rdma_resolve_addr",
        "rdma_resolve_route",
        "rdma_set_option",
    ];

    #[cfg(feature = "cm")]
    const CM_TYPES: &[&str] = &[
        "rdma_addr",
        "rdma_addr__bindgen.*",
        "rdma_cm_event",
        "rdma_cm_event__bindgen.*",
        "rdma_cm_event_type",
        "rdma_cm_id",
        "rdma_conn_param",
        "rdma_event_channel",
        "rdma_ib_addr",
        "rdma_port_space",
        "rdma_route",
        "rdma_ud_param",
    ];

    /// Tells bindgen that the types of other modules are `Copy`, so that it makes a Rust union of a C union that
    /// contains them.
    #[cfg(feature = "cm")]
    #[derive(Debug)]
    struct PlainTypes;

    #[cfg(feature = "cm")]
    impl bindgen::callbacks::ParseCallbacks for PlainTypes {
        fn blocklisted_type_implements_trait(
            &self,
            _: &str,
            wanted: bindgen::callbacks::DeriveTrait,
        ) -> Option<bindgen::callbacks::ImplementsTrait> {
            use bindgen::callbacks::{DeriveTrait, ImplementsTrait};
            (wanted == DeriveTrait::Copy).then_some(ImplementsTrait::Yes)
        }
    }

    /// The options that both bindings share.
    fn builder(header: &str, library: &Library) -> bindgen::Builder {
        println!("cargo:rerun-if-changed={header}");
        println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
        bindgen::Builder::default()
            .header(header)
            .clang_args(library.include_paths.iter().map(|path| format!("-I{}", path.display())))
            .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
            .rust_target(bindgen::RustTarget::stable(85, 0).unwrap_or_else(|_| unreachable!("a past release")))
            .rust_edition(bindgen::RustEdition::Edition2024)
            // What a device writes is never a Rust enum: an unknown value would be undefined behaviour.
            .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
            .derive_default(true)
            .generate_comments(false)
            .layout_tests(true)
            .sort_semantically(true)
            .merge_extern_blocks(true)
            .formatter(bindgen::Formatter::Rustfmt)
    }

    /// The bindings of `<infiniband/verbs.h>`.
    pub(crate) fn bindings(library: &Library) {
        let mut builder = builder("src/sys/wrapper.h", library)
            .bitfield_enum("ibv_(access_flags|device_cap_flags|qp_(init_)?attr_mask|send_flags|srq_attr_mask|wc_flags)")
            .bitfield_enum("ibv_(create_cq_wc|qp_create_send_ops)_flags")
            // libc has the pthread types and `timespec`; a second copy would be another type. The other names are
            // aliases of integers, which the bindings do not use.
            .blocklist_type("pthread_.*|__pthread.*|timespec|__u?int.*_t|u_int.*")
            .raw_line("use libc::{pthread_cond_t, pthread_mutex_t, timespec};")
            .raw_line(format!("// libibverbs {}", library.version));
        for name in FUNCTIONS {
            builder = builder.allowlist_function(name);
        }
        for name in TYPES {
            builder = builder.allowlist_type(name);
        }
        write(builder, "bindings.rs");
    }

    /// The bindings of `<rdma/rdma_cma.h>`, which use those of verbs.
    #[cfg(feature = "cm")]
    pub(crate) fn cm_bindings(library: &Library) {
        let mut builder = builder("src/sys/rdmacm.h", library)
            // Types outside `CM_TYPES` come from the verbs bindings or from libc; a second copy would be another type.
            .allowlist_recursively(false)
            .parse_callbacks(Box::new(PlainTypes))
            .raw_line("use super::bindings::*;")
            .raw_line("use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};")
            // `rdma_route` points to path records, but this library never reads them. So an opaque type is enough.
            .raw_line("pub type ibv_sa_path_rec = libc::c_void;")
            .raw_line(format!("// librdmacm {}", library.version));
        for name in CM_FUNCTIONS {
            builder = builder.allowlist_function(name);
        }
        for name in CM_TYPES {
            builder = builder.allowlist_type(name);
        }
        write(builder, "rdmacm.rs");
    }

    /// Generates the bindings in the output folder of the build.
    fn write(builder: bindgen::Builder, name: &str) {
        // bindgen panics when it cannot load libclang. Catch the panic, to say which package contains libclang.
        let bindings = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate())) {
            Ok(Ok(bindings)) => bindings,
            Ok(Err(error)) => stop(
                "headers that libclang can parse",
                "libibverbs-dev libclang-dev",
                "rdma-core-devel clang-devel",
                &error,
            ),
            Err(panic) => {
                let said = panic.downcast_ref::<String>().map_or("it panicked", String::as_str);
                stop("libclang", "libclang-dev", "clang-devel", &said)
            }
        };
        let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join(name);
        if let Err(error) = bindings.write_to_file(&out) {
            refuse(&format!("cannot write {}: {error}", out.display()));
        }
    }
}
