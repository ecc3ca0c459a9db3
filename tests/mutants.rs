//! Shows that each type-level mechanism is the reason why its illegal programs do not compile: without it, they
//! compile.
//!
//! A mutant is a copy of the library without one mechanism. The cases of `ui-tests` that rest on the mechanism must
//! compile against the mutant. A case that still fails is refused for another reason than the one that it names.
//!
//! The run-time brand compares domains instead. Without one of its comparisons, the tests that rest on that comparison
//! must fail, and no others.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, os::unix};

struct Mutant {
    without: &'static str,
    /// File, text and replacement. Every occurrence in the file is replaced.
    changes: &'static [(&'static str, &'static str, &'static str)],
    /// The cases that compile against the mutant.
    cases: &'static [&'static str],
}

const MUTANTS: &[Mutant] = &[
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
        without: "which transport ends windows",
        changes: &[
            (
                "queue/transport.rs",
                "pub trait Carries<K>: Transport + sealed::Carries<K>",
                "pub trait Carries<K>: Transport",
            ),
            (
                "queue/transport.rs",
                "impl Carries<Revoke<Type1>> for UnreliableConnection {}",
                "impl<K: WindowType> Carries<Revoke<K>> for UnreliableConnection {} \
                 impl Carries<SendInvalidating> for UnreliableConnection {} \
                 impl Carries<BindWindow> for UnreliableDatagram {}",
            ),
        ],
        cases: &[
            "queue/a_datagram_pair_has_no_windows",
            "queue/a_datagram_pair_binds_no_window",
            "queue/an_unreliable_connection_invalidates_no_window",
            "queue/an_unreliable_connection_invalidates_nothing_of_its_peer",
        ],
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
        without: "the brand in what can be sent",
        changes: &[
            ("queue/request.rs", "impl<B> SendMemory<B> for Buffer<B>", "impl<A, B> SendMemory<B> for Buffer<A>"),
            ("queue/request.rs", "impl<B> Postable<B> for Buffer<B>", "impl<A, B> Postable<B> for Buffer<A>"),
            // Without this change, the compiler could not tell which brand is meant.
            ("queue/pair_post.rs", "self.inner.send.post(", "self.inner.send.post::<B, _, _, _>("),
        ],
        cases: &[
            "domain/a_send_takes_memory_of_its_own_domain",
            "domain/a_batch_takes_memory_of_its_own_domain",
            "domain/a_scoped_send_takes_memory_of_its_own_domain",
            "domain/a_scoped_and_a_named_domain_do_not_mix",
            "domain/the_run_time_brand_does_not_mix_with_a_named_one",
            "completion/a_completed_buffer_keeps_its_domain",
            "peer_holes/r_3_memory_of_another_domain",
        ],
    },
    Mutant {
        without: "the seal of brands",
        changes: &[("domain/brand.rs", "pub trait Brand: Sized + sealed::Sealed", "pub trait Brand: Sized")],
        cases: &["domain/a_brand_is_sealed"],
    },
    Mutant {
        without: "the state that sends",
        changes: &[("queue/pair_post.rs", "        S: PostSend,\n", "        S: State,\n")],
        cases: &[
            "queue/a_send_is_not_posted_in_reset",
            "queue/a_send_is_not_posted_in_init",
            "queue/a_send_is_not_posted_in_ready_to_receive",
            "queue/a_send_is_not_posted_in_send_queue_drain",
            "queue/a_send_is_not_posted_in_error",
            "queue/a_write_is_not_posted_before_ready_to_send",
            "queue/a_read_is_not_posted_before_ready_to_send",
            "queue/an_atomic_is_not_posted_before_ready_to_send",
            "queue/a_request_is_not_posted_before_ready_to_send",
            "queue/a_batch_is_not_begun_before_ready_to_send",
            "queue/a_state_bound_alone_does_not_send",
            "peer_holes/s_6_a_post_in_reset",
        ],
    },
    Mutant {
        without: "the states that receive",
        changes: &[("queue/pair_post.rs", "        S: PostReceive,\n", "        S: State,\n")],
        cases: &["queue/a_receive_is_not_posted_in_reset", "queue/a_receive_is_not_posted_in_error"],
    },
    Mutant {
        without: "the transports that have receives",
        changes: &[
            ("queue/pair.rs", "        T: OwnReceives,\n", "        T: Transport,\n"),
            ("queue/pair_post.rs", "        T: OwnReceives,\n", "        T: Transport,\n"),
        ],
        cases: &[
            "queue/a_pair_on_a_shared_queue_posts_no_receives",
            "queue/a_pair_on_a_shared_queue_counts_no_receives",
            "queue/a_pair_on_a_shared_queue_is_not_split",
            "queue/an_unreliable_pair_on_a_shared_queue_posts_no_receives",
            "queue/a_datagram_pair_on_a_shared_queue_posts_no_receives",
        ],
    },
    Mutant {
        without: "the room for headers in what serves datagrams",
        changes: &[
            ("queue/shared.rs", "pub trait Serves<T>: Arrivals + sealed::Serves<T>", "pub trait Serves<T>: Arrivals"),
            (
                "queue/shared.rs",
                "\nimpl Serves<UnreliableConnection> for Messages {}",
                "impl<A: Arrivals> Serves<UnreliableConnection> for A {}",
            ),
            (
                "queue/shared.rs",
                "\nimpl Serves<UnreliableDatagram> for Datagrams {}",
                "impl<A: Arrivals> Serves<UnreliableDatagram> for A {}",
            ),
        ],
        cases: &[
            "queue/a_datagram_pair_takes_no_receives_of_messages",
            "queue/a_connection_takes_no_receives_of_datagrams",
        ],
    },
    Mutant {
        without: "the states that go to Error",
        changes: &[("queue/pair.rs", "        S: GoesTo<Errored>,\n", "        S: State,\n")],
        cases: &[
            "queue/reset_does_not_go_to_error",
            "queue/error_does_not_go_to_itself",
            "queue/a_state_bound_alone_makes_no_transition",
        ],
    },
    Mutant {
        without: "the state that goes to Init",
        changes: &[("queue/pair.rs", "        S: GoesTo<Init>,\n", "        S: State,\n")],
        cases: &[
            "queue/init_does_not_go_to_itself",
            "queue/ready_to_receive_does_not_go_to_init",
            "queue/ready_to_send_does_not_go_to_init",
            "queue/send_queue_drain_does_not_go_to_init",
            "queue/error_does_not_go_to_init",
        ],
    },
    Mutant {
        without: "the state that goes to Ready To Receive",
        changes: &[("queue/pair.rs", "        S: GoesTo<ReadyToReceive>,\n", "        S: State,\n")],
        cases: &[
            "queue/a_pair_in_reset_does_not_connect",
            "queue/error_does_not_go_to_ready_to_receive",
            "queue/ready_to_send_does_not_go_to_ready_to_receive",
            "queue/reset_does_not_go_to_ready_to_receive",
            "queue/send_queue_drain_does_not_go_to_ready_to_receive",
            "queue/ready_to_receive_does_not_go_to_itself",
        ],
    },
    Mutant {
        without: "the state that goes to Ready To Send",
        changes: &[("queue/pair.rs", "        S: GoesTo<ReadyToSend>,\n", "        S: State,\n")],
        cases: &[
            "queue/error_does_not_go_to_ready_to_send",
            "queue/init_does_not_go_to_ready_to_send",
            "queue/reset_does_not_go_to_ready_to_send",
            "queue/ready_to_send_does_not_go_to_itself",
            "queue/a_pair_in_send_queue_drain_needs_no_attributes_to_resume",
            "peer_holes/s_7_reset_to_ready_to_send",
        ],
    },
    Mutant {
        without: "the state that goes to Send Queue Drain",
        changes: &[("queue/pair.rs", "        S: GoesTo<SendQueueDrain>,\n", "        S: State,\n")],
        cases: &[
            "queue/error_does_not_go_to_send_queue_drain",
            "queue/init_does_not_go_to_send_queue_drain",
            "queue/ready_to_receive_does_not_go_to_send_queue_drain",
            "queue/reset_does_not_go_to_send_queue_drain",
            "queue/send_queue_drain_does_not_go_to_itself",
        ],
    },
    Mutant {
        without: "the states with an endpoint",
        changes: &[("queue/pair.rs", "        S: OnPort,\n", "        S: State,\n")],
        cases: &["queue/a_pair_has_no_endpoint_before_init"],
    },
    Mutant {
        without: "the states whose attributes change",
        changes: &[("queue/alter.rs", "        S: Alterable,\n", "        S: State,\n")],
        cases: &["queue/a_pair_in_ready_to_receive_changes_no_attribute"],
    },
    Mutant {
        without: "the transports with a peer",
        changes: &[
            ("queue/alter.rs", "        T: Connected,\n", "        T: Transport,\n"),
            ("queue/pair.rs", "        T: Connected,\n", "        T: Transport,\n"),
        ],
        cases: &["queue/datagrams_have_no_peer_with_rights", "queue/datagrams_do_not_connect"],
    },
    Mutant {
        without: "the seal of states",
        changes: &[(
            "queue/state.rs",
            "pub trait State: sealed::Sealed + Sized + 'static",
            "pub trait State: Sized + 'static",
        )],
        cases: &["queue/a_state_is_not_added"],
    },
    Mutant {
        without: "the new lifetime of each batch",
        changes: &[
            (
                "queue/pair_post.rs",
                "batch<'env, R>(\n        &mut self,\n        f: impl for<'batch> FnOnce(",
                "batch<'env, 'batch, R>(\n        &'batch mut self,\n        f: impl FnOnce(",
            ),
            (
                "queue/batch.rs",
                "batch<'env, B, T, R>(\n    queue: &mut SendQueue,\n    f: impl for<'batch> FnOnce(",
                "batch<'env, 'batch, B, T, R>(\n    queue: &'batch mut SendQueue,\n    f: impl FnOnce(",
            ),
            (
                "inflight/raw_batch.rs",
                "batch<'env, B, R>(\n    queue: &mut SendQueue,\n    f: impl for<'batch> FnOnce(",
                "batch<'env, 'batch, B, R>(\n    queue: &'batch mut SendQueue,\n    f: impl FnOnce(",
            ),
            (
                "inflight/stage.rs",
                "with_stage<R>(f: impl FnOnce(&[Slot]) -> R)",
                "with_stage<R>(f: impl FnOnce(&'static [Slot]) -> R)",
            ),
            ("inflight/stage.rs", "    f(&stage.0)\n", "    let _ = stage;\n    f(&[])\n"),
        ],
        cases: &["queue/batches_of_two_pairs_are_not_swapped"],
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
            ("memory/whole.rs", "        A: PeerCannotWrite,\n", "        A: Access,\n"),
            ("memory/whole.rs", "        A: Unexposed,\n", "        A: Access,\n"),
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
            ("memory/whole.rs", "        A: DeviceMayWrite + Unexposed,\n", "        A: Access,\n"),
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
            ("memory/backing.rs", "FromBytes + IntoBytes + Immutable + Send", "Send"),
            // The bounds that views need stay.
            ("memory/buffer.rs", "T: Plain", "T: Viewable + zerocopy::IntoBytes"),
        ],
        cases: &[
            "memory/a_bool_is_not_registered",
            "memory/a_char_is_not_registered",
            "memory/a_reference_is_not_registered",
            "memory/a_type_with_padding_is_not_registered",
            "peer_holes/j_3_references_do_not_live_in_registered_memory",
        ],
    },
    Mutant {
        without: "keys and ids that only the library makes",
        changes: &[
            ("types.rs", "pub struct Lkey(pub(crate) u32)", "pub struct Lkey(pub u32)"),
            ("types.rs", "pub struct Rkey(pub(crate) u32)", "pub struct Rkey(pub u32)"),
            ("inflight/work_id.rs", "pub struct WorkId(u64)", "pub struct WorkId(pub u64)"),
            ("seal.rs", "pub struct Key(pub(crate) ())", "pub struct Key(pub ())"),
            ("lib.rs", "mod seal;", "pub mod seal;"),
        ],
        cases: &[
            "memory/a_local_key_is_not_forged",
            "memory/a_remote_key_is_not_forged",
            "memory/the_key_to_sealed_methods_is_private",
            "queue/a_work_id_is_not_forged",
        ],
    },
    // The mutant borrows the value of a step instead of taking it. The real body goes on under another name.
    Mutant {
        without: "requests that are used up",
        changes: &[
            (
                "cm/server.rs",
                "    pub fn accept<B: Brand, T: Reliable>(\n        self,",
                "    pub fn accept<B: Brand, T: Reliable>(
                    &self,
                    _: QueuePair<B, Init, T>,
                    _: &Parameters,
                    _: &AcceptData,
                ) -> Result<Accepting<B, T>, Failed<AnyQueuePair<B, T>>> {
                    unimplemented!()
                }
                fn accept_by_value<B: Brand, T: Reliable>(
                    self,",
            ),
            (
                "cm/server.rs",
                "    pub fn reject(mut self, data: &RejectData)",
                "    pub fn reject(&self, _: &RejectData) -> Result<(), VerbError> {
                    unimplemented!()
                }
                fn reject_by_value(mut self, data: &RejectData)",
            ),
        ],
        cases: &[
            "cm/a_request_is_not_accepted_twice",
            "cm/a_request_is_not_rejected_twice",
            "cm/a_rejected_request_is_not_accepted",
        ],
    },
    Mutant {
        without: "identifiers that are used up",
        changes: &[
            (
                "cm/client.rs",
                "    pub fn bind(mut self, address: SocketAddr)",
                "    pub fn bind(&self, _: SocketAddr) -> Result<Bound<K>, Failed<Self>> {
                    unimplemented!()
                }
                fn bind_by_value(mut self, address: SocketAddr)",
            ),
            (
                "cm/client.rs",
                "    pub fn resolve(self, to: SocketAddr, timeout: Duration)",
                "    pub fn resolve(&self, _: SocketAddr, _: Duration) -> Result<Resolving<K>, Failed<Self>> {
                    unimplemented!()
                }
                fn resolve_by_value(self, to: SocketAddr, timeout: Duration)",
            ),
            (
                "cm/client.rs",
                "    pub fn connect<B: Brand, T: Reliable>(\n        mut self,",
                "    pub fn connect<B: Brand, T: Reliable>(
                    &self,
                    _: QueuePair<B, Init, T>,
                    _: &Parameters,
                    _: &ConnectData,
                ) -> Result<Connecting<B, T>, Failed<(Self, QueuePair<B, Init, T>)>> {
                    unimplemented!()
                }
                fn connect_by_value<B: Brand, T: Reliable>(
                    mut self,",
            ),
        ],
        cases: &[
            "cm/an_identifier_is_not_bound_twice",
            "cm/an_identifier_is_not_resolved_twice",
            "cm/an_identifier_connects_once",
        ],
    },
    Mutant {
        without: "an answer that is waited for once",
        changes: &[(
            "cm/client.rs",
            "    pub fn wait(self, timeout: Duration) -> Result<Connection<B, T>, Failed<AnyQueuePair<B, T>>> {",
            "    pub fn wait(&self, _: Duration) -> Result<Connection<B, T>, Failed<AnyQueuePair<B, T>>> {
                unimplemented!()
            }
            fn wait_by_value(self, timeout: Duration) -> Result<Connection<B, T>, Failed<AnyQueuePair<B, T>>> {",
        )],
        cases: &["cm/an_answer_is_not_waited_for_twice"],
    },
    Mutant {
        without: "a connection that ends once",
        changes: &[(
            "cm/connection.rs",
            "    pub fn disconnect(self)",
            "    pub fn disconnect(&self) -> Result<Disconnected<B, T>, Failed<Self>> {
                unimplemented!()
            }
            fn disconnect_by_value(self)",
        )],
        cases: &["cm/a_connection_is_not_disconnected_twice"],
    },
    Mutant {
        without: "the state of a pair that connects",
        changes: &[
            (
                "cm/client.rs",
                "    pub fn connect<B: Brand, T: Reliable>(\n        mut self,",
                "    pub fn connect<B: Brand, S: crate::queue::state::State, T: Reliable>(
                self,
                _: QueuePair<B, S, T>,
                _: &Parameters,
                _: &ConnectData,
            ) -> Result<Connecting<B, T>, Failed<(Self, QueuePair<B, S, T>)>> {
                unimplemented!()
            }
            pub(super) fn connect_from_init<B: Brand, T: Reliable>(
                mut self,",
            ),
            (
                "cm/mod.rs",
                "        .connect(pair, &Parameters::default(), data)",
                "        .connect_from_init(pair, &Parameters::default(), data)",
            ),
        ],
        cases: &["cm/a_pair_connects_from_init", "cm/a_pair_in_use_is_not_connected"],
    },
    Mutant {
        without: "a pair that is out of reach while it connects",
        changes: &[
            (
                "cm/client.rs",
                "    id: Identifier,\n    pair: QueuePair<B, Init, T>,",
                "    id: Identifier,\n    /// The pair.\n    pub pair: QueuePair<B, Init, T>,",
            ),
            ("queue/pair_post.rs", "        S: PostSend,\n", "        S: State,\n"),
        ],
        cases: &["cm/nothing_is_sent_before_the_answer", "cm/nothing_is_sent_after_the_end"],
    },
    Mutant {
        without: "the limits of private data",
        changes: &[
            (
                "cm/private_data.rs",
                "pub type ConnectData = PrivateData<56>;",
                "pub type ConnectData = PrivateData<196>;",
            ),
            (
                "cm/private_data.rs",
                "pub type RejectData = PrivateData<148>;",
                "pub type RejectData = PrivateData<196>;",
            ),
        ],
        cases: &["cm/data_of_an_accept_do_not_fit_a_connect", "cm/data_of_an_accept_do_not_fit_a_reject"],
    },
    Mutant {
        without: "the two kinds of identifiers",
        changes: &[
            ("cm/client.rs", "impl Resolved {", "impl<K> Resolved<K> {"),
            ("cm/group.rs", "impl Bound<Datagrams> {", "impl<K> Bound<K> {"),
        ],
        cases: &["cm/a_lookup_takes_no_queue_pair", "cm/a_listener_joins_no_group"],
    },
    Mutant {
        without: "the transports that connect by address",
        changes: &[
            (
                "cm/client.rs",
                "    pub fn connect<B: Brand, T: Reliable>(\n        mut self,",
                "    pub fn connect<B: Brand, T: crate::queue::transport::Transport>(
                    self,
                    _: QueuePair<B, Init, T>,
                    _: &Parameters,
                    _: &ConnectData,
                ) -> Result<Connecting<B, T>, Failed<(Self, QueuePair<B, Init, T>)>> {
                    unimplemented!()
                }
                pub(super) fn connect_reliable<B: Brand, T: Reliable>(
                    mut self,",
            ),
            (
                "cm/mod.rs",
                "        .connect(pair, &Parameters::default(), data)",
                "        .connect_reliable(pair, &Parameters::default(), data)",
            ),
        ],
        cases: &["cm/unreliable_connections_are_not_made_by_address", "cm/datagrams_are_not_connected"],
    },
];

/// A mutant without one comparison of domains, and the tests of `tests/checked.rs` that must fail.
struct Unchecked {
    without: &'static str,
    changes: &'static [(&'static str, &'static str, &'static str)],
    tests: &'static [&'static str],
}

const UNCHECKED: &[Unchecked] = &[
    Unchecked {
        without: "any comparison of domains",
        changes: &[("domain/brand.rs", "const CHECKED: bool = true;", "const CHECKED: bool = false;")],
        // Tests of functions that also compare other things are not in the list.
        tests: &[
            "a_batch_of_all_items_takes_memory_of_its_own_domain",
            "a_batch_takes_memory_of_its_own_domain",
            "a_buffer_is_not_of_a_domain_that_came_later",
            "a_completed_buffer_keeps_its_domain",
            "a_datagram_is_answered_in_the_domain_to_which_it_came",
            "a_drain_polls_a_queue_of_its_own_domain",
            "a_list_is_of_one_domain_whenever_it_is_posted",
            "a_mix_up_does_not_reach_the_device",
            "a_pair_and_a_poller_of_different_domains_are_not_exclusive",
            "a_pair_on_a_shared_queue_completes_in_its_own_domain",
            "a_queue_pair_completes_on_a_queue_of_its_own_domain",
            "a_receive_takes_memory_of_its_own_domain",
            "a_send_takes_memory_of_its_own_domain",
            "a_shared_buffer_is_sent_in_its_own_domain",
            "a_shared_receive_takes_memory_of_its_own_domain",
            "a_window_is_bound_over_memory_and_on_a_pair_of_its_own_domain",
            "an_address_handle_of_another_domain_is_no_way",
            "an_atomic_takes_memory_of_its_own_domain",
            "any_number_of_domains_work_side_by_side",
            "halves_take_memory_of_their_own_domain",
            "receives_complete_on_a_queue_of_the_same_domain_as_sends",
        ],
    },
    Unchecked {
        without: "the buffers of a list after the first",
        changes: &[("memory/list.rs", ".all(|part| part.is_of(domain))", ".take(1).all(|part| part.is_of(domain))")],
        tests: &["a_list_is_of_one_domain_whenever_it_is_posted", "a_receive_takes_memory_of_its_own_domain"],
    },
    Unchecked {
        without: "the recipient of a datagram",
        changes: &[("queue/datagram.rs", " && self.recipient.handle.inner.domain() == domain", "")],
        tests: &["an_address_handle_of_another_domain_is_no_way"],
    },
    Unchecked {
        without: "the queue of the receives",
        changes: &[("queue/create.rs", "for queue in [sends, receives] {", "for queue in [sends] {")],
        tests: &[
            "a_pair_on_a_shared_queue_completes_in_its_own_domain",
            "a_queue_pair_completes_on_a_queue_of_its_own_domain",
            "receives_complete_on_a_queue_of_the_same_domain_as_sends",
        ],
    },
    Unchecked {
        without: "the domain of a window",
        changes: &[("inflight/windows.rs", "if B::CHECKED && window.domain() != self.domain() {", "if false {")],
        tests: &["a_window_is_bound_over_memory_and_on_a_pair_of_its_own_domain"],
    },
    Unchecked {
        without: "the domain of what a window is bound over",
        changes: &[("inflight/windows.rs", "if B::CHECKED && !memory.is_of(domain) {", "if false {")],
        tests: &["a_window_is_bound_over_memory_and_on_a_pair_of_its_own_domain"],
    },
];

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

/// Copies the package to `library` and applies `changes`.
fn write(root: &Path, library: &Path, without: &str, changes: &[(&str, &str, &str)]) {
    let _ = fs::remove_dir_all(library);
    copy(&root.join("src"), &library.join("src"));
    // The rest of the package is unchanged, and its manifest names some of the files.
    for entry in fs::read_dir(root).unwrap().map(Result::unwrap) {
        if !["src", "target", ".git"].map(Into::into).contains(&entry.file_name()) {
            unix::fs::symlink(entry.path(), library.join(entry.file_name())).unwrap();
        }
    }
    for change in changes {
        fs::write(library.join("src").join(change.0), changed(library, without, change)).unwrap();
    }
}

/// Returns the text of the file with the change applied.
fn changed(package: &Path, without: &str, (file, from, to): &(&str, &str, &str)) -> String {
    let text = fs::read_to_string(package.join("src").join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    assert!(text.contains(from), "no mutant without {without}: {file} has no `{from}`");
    text.replace(from, to)
}

impl Mutant {
    /// Writes the mutant to `folder/library`, and a package of its cases to `folder/cases`.
    fn write(&self, root: &Path, folder: &Path) {
        let cases = folder.join("cases");
        write(root, &folder.join("library"), self.without, self.changes);
        fs::create_dir_all(&cases).unwrap();
        let mut manifest = String::from(
            "[package]\nname = 'cases'\nedition = '2024'\n\n[dependencies]\n\
             zerocopy = { version = '0.8', features = ['derive'] }\n\
             rdma-interlock = { path = '../library', default-features = false, features = ['soft'] }\n\n[workspace]\n",
        );
        for case in self.cases {
            let (name, path) = (case.replace('/', "_"), root.join("ui-tests").join(case).with_extension("rs"));
            manifest += &format!("\n[[bin]]\nname = '{name}'\npath = '{}'\n", path.display());
        }
        fs::write(cases.join("Cargo.toml"), manifest).unwrap();
        fs::copy(root.join("Cargo.lock"), cases.join("Cargo.lock")).unwrap();
    }
}

/// Fails as soon as a change to the library breaks a mutant, without building the mutants.
#[test]
fn what_a_mutant_changes_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of_types = MUTANTS.iter().map(|mutant| (mutant.without, mutant.changes));
    let of_comparisons = UNCHECKED.iter().map(|mutant| (mutant.without, mutant.changes));
    for (without, changes) in of_types.chain(of_comparisons) {
        changes.iter().for_each(|change| drop(changed(root, without, change)));
    }
}

#[test]
#[ignore = "builds the library once per mutant, a minute or two in all: cargo test --test mutants -- --ignored"]
fn without_its_mechanism_each_case_compiles() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutants");
    let mut survivors = Vec::new();
    for mutant in MUTANTS {
        mutant.write(&root, &folder);
        let output = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["check", "--offline", "--keep-going", "--message-format=short", "--quiet"])
            .current_dir(folder.join("cases"))
            .env("CARGO_TARGET_DIR", folder.join("target"))
            .output()
            .unwrap();
        println!("without {}: {}", mutant.without, if output.status.success() { "compiles" } else { "still refused" });
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let errors = text.lines().filter(|line| line.contains("error")).collect::<Vec<_>>().join("\n");
            survivors.push(format!("without {}:\n{errors}", mutant.without));
        }
    }
    assert!(survivors.is_empty(), "cases that are refused for another reason:\n{}", survivors.join("\n"));
}

#[test]
#[ignore = "builds the library once per mutant, some minutes in all: cargo test --test mutants -- --ignored"]
fn without_its_comparison_each_mix_up_passes() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unchecked");
    let library = folder.join("library");
    for Unchecked { without, changes, tests } in UNCHECKED {
        write(&root, &library, without, changes);
        let output = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["test", "--offline", "--quiet", "--no-default-features", "--features", "soft", "--test", "checked"])
            .args(["--", "--format=pretty", "--test-threads=1"])
            .current_dir(&library)
            .env("CARGO_TARGET_DIR", folder.join("target"))
            .env("INTERLOCK_DEVICE", "soft0")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let ended = |how: &str| {
            let names = text.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(how));
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(!ended(" ... ok").is_empty(), "without {without}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(ended(" ... FAILED"), *tests, "without {without}");
        println!("without {without}: {} tests fail", tests.len());
    }
}
