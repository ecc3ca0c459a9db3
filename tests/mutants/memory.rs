//! Mechanisms of domains, regions, buffers and windows.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        without: "invariance: brands may shrink",
        changes: &[
            ("domain/brand.rs", "PhantomData<fn(B) -> B>", "PhantomData<fn() -> B>"),
            ("domain/brand.rs", "PhantomData<fn(&'pd ()) -> &'pd ()>", "PhantomData<fn() -> &'pd ()>"),
        ],
        cases: &[
            "domain/a_buffer_is_invariant_in_its_brand",
            "domain/a_queue_pair_is_invariant_in_its_brand",
            "domain/all_other_objects_are_invariant_in_their_brand",
            "domain/a_brand_of_a_longer_life_is_no_subtype",
        ],
    },
    Mutant {
        without: "invariance: brands may grow",
        changes: &[
            ("domain/brand.rs", "PhantomData<fn(B) -> B>", "PhantomData<fn(B)>"),
            ("domain/brand.rs", "PhantomData<fn(&'pd ()) -> &'pd ()>", "PhantomData<fn() -> &'pd ()>"),
        ],
        cases: &["domain/a_buffer_is_not_contravariant_in_its_brand"],
    },
    Mutant {
        without: "a new brand for each closure",
        changes: &[(
            "domain/mod.rs",
            "with_domain<R>(&self, f: impl for<'pd> FnOnce(",
            "with_domain<'pd, R>(&self, f: impl FnOnce(",
        )],
        cases: &[
            "domain/scoped_brands_do_not_unify_before_a_loop",
            "domain/scoped_brands_do_not_unify_before_a_panic",
            "domain/scoped_brands_do_not_unify_before_a_return",
            "domain/code_that_never_runs_does_not_unify_scoped_brands",
            "domain/a_scoped_receive_takes_memory_of_its_own_domain",
            "domain/a_scoped_domain_is_not_returned",
            "domain/a_scoped_buffer_is_not_kept_outside",
            "domain/a_scoped_domain_does_not_go_to_a_free_thread",
            "domain/a_scoped_domain_is_not_of_static_life",
        ],
    },
    Mutant {
        without: "the seal of brands",
        changes: &[("domain/brand.rs", "pub trait Brand: Sized + sealed::Sealed", "pub trait Brand: Sized")],
        cases: &["domain/a_brand_is_sealed"],
    },
    Mutant {
        without: "rights of peers for a lease",
        changes: &[("memory/lease.rs", "lease<A: Exposed, M: Memory>", "lease<A: super::Access, M: Memory>")],
        cases: &["memory/a_lease_has_rights_of_peers"],
    },
    Mutant {
        without: "a right for windows",
        changes: &[(
            "memory/options.rs",
            "impl<A: Unexposed + DeviceMayWrite + KeepsOrder> MayBind for Windowed<A> {}",
            "impl<A: Unexposed + DeviceMayWrite> MayBind for A {}",
        )],
        cases: &[
            "memory/memory_without_the_right_is_not_bindable",
            "memory/memory_with_relaxed_ordering_is_not_bindable",
        ],
    },
    Mutant {
        without: "the rights that a window gives",
        changes: &[(
            "memory/options.rs",
            "impl WindowRights for RemoteAll {}",
            "impl WindowRights for RemoteAll {} impl<A: Exposed> WindowRights for OnDemand<A> {}",
        )],
        cases: &["memory/a_window_has_no_way_of_registration"],
    },
    Mutant {
        without: "one holder of a window",
        changes: &[
            ("memory/window.rs", "static_assertions::assert_not_impl_any!(BoundWindow<()>: Clone, Copy);", ""),
            (
                "memory/window.rs",
                "impl<B> UnsettledWindow<B> {",
                "impl<B, K> Clone for BoundWindow<B, K> { fn clone(&self) -> Self { loop {} } } \
                 impl<B> UnsettledWindow<B> {",
            ),
        ],
        cases: &["memory/a_bound_window_is_not_cloned"],
    },
    Mutant {
        without: "the one handle of a buffer's bytes",
        changes: &[
            ("memory/buffer.rs", "static_assertions::assert_not_impl_any!(Buffer<()>: Clone, Copy);\n", ""),
            (
                "memory/buffer.rs",
                "impl<B> Deref for Buffer<B> {",
                "impl<B> Clone for Buffer<B> {
                    fn clone(&self) -> Self {
                        unimplemented!()
                    }
                }
                impl<B> Deref for Buffer<B> {",
            ),
        ],
        cases: &["memory/a_buffer_is_not_cloned"],
    },
    Mutant {
        without: "read-only shares",
        changes: &[(
            "memory/buffer.rs",
            "impl<B> Deref for SharedBuffer<B> {",
            "impl<B> DerefMut for SharedBuffer<B> {
                fn deref_mut(&mut self) -> &mut [u8] {
                    unimplemented!()
                }
            }
            impl<B> Deref for SharedBuffer<B> {",
        )],
        cases: &["memory/a_shared_buffer_is_read_only"],
    },
    Mutant {
        without: "the rights that a slice needs",
        changes: &[
            ("memory/region.rs", "        A: PeerCannotWrite,\n", "        A: Access,\n"),
            ("memory/region.rs", "        A: Unexposed,\n", "        A: Access,\n"),
            ("memory/part.rs", "        A: PeerCannotWrite,\n", "        A: Access,\n"),
            ("memory/part.rs", "        A: Unexposed,\n", "        A: Access,\n"),
        ],
        cases: &[
            "memory/remote_write_memory_is_no_slice",
            "memory/remote_read_write_memory_is_no_slice",
            "memory/remote_atomic_memory_is_no_slice",
            "memory/remote_all_memory_is_no_slice",
            "memory/peer_writable_memory_is_no_mutable_slice",
            "memory/peer_readable_memory_is_no_mutable_slice",
            "memory/peer_writable_memory_is_not_shared_out",
            "peer_holes/a_1_granted_memory_is_no_slice",
        ],
    },
    Mutant {
        without: "the rights that a buffer needs",
        changes: &[
            ("memory/region.rs", "        A: DeviceMayWrite + Unexposed,\n", "        A: Access,\n"),
            ("memory/region.rs", "A: DeviceMayWrite + Unexposed, M", "A: Access, M"),
            ("memory/part.rs", "        A: DeviceMayWrite + Unexposed,\n", "        A: Access,\n"),
        ],
        cases: &[
            "memory/peer_writable_memory_is_not_split_into_buffers",
            "memory/peer_readable_memory_is_not_split_into_buffers",
            "memory/read_only_memory_is_not_split_into_buffers",
        ],
    },
    Mutant {
        without: "the order that a flag needs",
        changes: &[("memory/word.rs", "        A: KeepsOrder,\n", "        A: PeerMayChange,\n")],
        cases: &[
            "memory/a_flag_in_memory_with_relaxed_ordering_is_not_trusted",
            "memory/relaxed_ordering_is_not_lost_in_on_demand_paging",
        ],
    },
    Mutant {
        without: "the rights that words for many need",
        changes: &[("memory/word.rs", "A: PeerMayChange", "A: Access")],
        cases: &["memory/peer_readable_memory_has_no_shared_words"],
    },
    Mutant {
        without: "memory that only peers' rights grant",
        changes: &[
            ("memory/opaque.rs", "A: Exposed", "A: super::Access"),
            ("memory/registration.rs", "fn remote<A: Exposed>", "fn remote<A: Access>"),
            ("memory/remote.rs", "impl<A: Exposed> RemoteRegion<A>", "impl<A: Access> RemoteRegion<A>"),
        ],
        cases: &["memory/an_opaque_region_has_rights_of_peers"],
    },
    Mutant {
        without: "the rights that an operation needs",
        changes: &[
            (
                "memory/access.rs",
                "pub trait PeerMayRead: Exposed {}",
                "pub trait PeerMayRead {} impl<A: Exposed> PeerMayRead for A {}",
            ),
            (
                "memory/access.rs",
                "pub trait PeerMayWrite: Exposed {}",
                "pub trait PeerMayWrite {} impl<A: Exposed> PeerMayWrite for A {}",
            ),
            (
                "memory/access.rs",
                "pub trait PeerMayAtomic: Exposed {}",
                "pub trait PeerMayAtomic {} impl<A: Exposed> PeerMayAtomic for A {}",
            ),
            ("memory/access.rs", "impl PeerMayRead for ", "// "),
            ("memory/access.rs", "impl PeerMayWrite for ", "// "),
            ("memory/access.rs", "impl PeerMayAtomic for ", "// "),
            ("memory/options.rs", "impl<A: PeerMayRead> PeerMayRead for ", "// "),
            ("memory/options.rs", "impl<A: PeerMayWrite> PeerMayWrite for ", "// "),
            ("memory/options.rs", "impl<A: PeerMayAtomic> PeerMayAtomic for ", "// "),
        ],
        cases: &[
            "queue/a_write_needs_the_right_to_write",
            "queue/a_read_needs_the_right_to_read",
            "queue/an_atomic_needs_the_right_to_atomics",
            "queue/a_request_needs_the_right_too",
        ],
    },
    Mutant {
        without: "what registered types must be",
        changes: &[
            ("memory/owners.rs", "FromBytes + IntoBytes + Immutable + Send", "Send"),
            // The change above removes bounds from `Plain`. Functions that view bytes as `T` still need these bounds.
            ("memory/buffer.rs", "T: Plain", "T: Viewable + zerocopy::IntoBytes"),
            ("memory/opaque.rs", "T: Plain", "T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable"),
            ("memory/window.rs", "T: Plain", "T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable"),
            ("memory/word.rs", "T: Plain", "T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable"),
            ("scope/lent.rs", "T: Plain", "T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable"),
        ],
        cases: &[
            "memory/a_bool_is_not_registered",
            "memory/a_char_is_not_registered",
            "memory/a_reference_is_not_registered",
            "memory/a_type_with_padding_is_not_registered",
            "peer_holes/j_3_references_do_not_live_in_registered_memory",
        ],
    },
];
