//! Makes the bindings of the installed rdma-core headers and links libibverbs.
//!
//! Without the feature `rdma-core` this does nothing: the checked-in bindings serve, and nothing is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "rdma-core")]
    rdma_core::generate();
}

#[cfg(feature = "rdma-core")]
mod rdma_core {
    use std::{env, path::PathBuf, process::exit};

    /// The oldest libibverbs whose headers have all that is bound (rdma-core 44, Debian 12).
    const OLDEST: &str = "1.14";

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

    pub(crate) fn generate() {
        println!("cargo:rerun-if-changed=src/sys/wrapper.h");
        println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
        // `links` in Cargo.toml: one copy of the library in a program.
        let library = pkg_config::Config::new().atleast_version(OLDEST).probe("libibverbs").unwrap_or_else(|error| {
            stop("the rdma-core headers (libibverbs)", "libibverbs-dev", "rdma-core-devel", &error)
        });
        let mut builder = bindgen::Builder::default()
            .header("src/sys/wrapper.h")
            .clang_args(library.include_paths.iter().map(|path| format!("-I{}", path.display())))
            .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
            .rust_target(bindgen::RustTarget::stable(85, 0).unwrap_or_else(|_| unreachable!("a past release")))
            .rust_edition(bindgen::RustEdition::Edition2024)
            // What a device writes is never a Rust enum: an unknown value would be undefined behaviour.
            .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
            .bitfield_enum("ibv_(access_flags|device_cap_flags|qp_(init_)?attr_mask|send_flags|srq_attr_mask|wc_flags)")
            .bitfield_enum("ibv_(create_cq_wc|qp_create_send_ops)_flags")
            // libc has these; a second copy would be another type.
            .blocklist_type("pthread_.*|__pthread.*|timespec|__u?int.*_t|u_int.*")
            .raw_line("use libc::{pthread_cond_t, pthread_mutex_t, timespec};")
            .raw_line(format!("// libibverbs {}", library.version))
            .derive_default(true)
            .generate_comments(false)
            .layout_tests(true)
            .sort_semantically(true)
            .merge_extern_blocks(true)
            .formatter(bindgen::Formatter::Rustfmt);
        for name in FUNCTIONS {
            builder = builder.allowlist_function(name);
        }
        for name in TYPES {
            builder = builder.allowlist_type(name);
        }
        // bindgen panics when it cannot load libclang; say which package has it instead.
        let bindings = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate())) {
            Ok(Ok(bindings)) => bindings,
            Ok(Err(error)) => stop(
                "headers that libclang can parse",
                "libibverbs-dev libclang-dev",
                "rdma-core-devel clang-devel",
                &error,
            ),
            Err(_) => stop("libclang", "libclang-dev", "clang-devel", &"see the message above"),
        };
        let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("bindings.rs");
        if let Err(error) = bindings.write_to_file(&out) {
            eprintln!("rdma-interlock: cannot write {}: {error}", out.display());
            exit(1);
        }
    }

    /// Ends the build with one message that says what to install, or how to do without.
    fn stop(what: &str, debian: &str, fedora: &str, cause: &dyn std::fmt::Display) -> ! {
        eprintln!(
            "cause: {cause}\n\
             \nrdma-interlock needs {what}.\n\
             \n    Debian, Ubuntu:  apt-get install pkg-config {debian}\
             \n    Fedora, RHEL:    dnf install pkgconf {fedora}\n\
             \nWithout RDMA hardware, build with `default-features = false`: the soft device needs no package."
        );
        exit(1)
    }
}
