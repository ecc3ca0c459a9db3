//! Mechanisms of queue pairs, requests and batches.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
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
        without: "the brand in what can be sent",
        changes: &[
            ("queue/request_kinds.rs", "impl<B> SendMemory<B> for Buffer<B>", "impl<A, B> SendMemory<B> for Buffer<A>"),
            ("inflight/entry.rs", "impl<B> Postable<B> for Buffer<B>", "impl<A, B> Postable<B> for Buffer<A>"),
            // With the two changes above, the compiler cannot infer the brand here.
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
        changes: &[("queue/transitions.rs", "        S: GoesTo<Errored>,\n", "        S: State,\n")],
        cases: &[
            "queue/reset_does_not_go_to_error",
            "queue/error_does_not_go_to_itself",
            "queue/a_state_bound_alone_makes_no_transition",
        ],
    },
    Mutant {
        without: "the state that goes to Init",
        changes: &[("queue/transitions.rs", "        S: GoesTo<Init>,\n", "        S: State,\n")],
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
        changes: &[("queue/transitions.rs", "        S: GoesTo<ReadyToReceive>,\n", "        S: State,\n")],
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
        changes: &[("queue/transitions.rs", "        S: GoesTo<ReadyToSend>,\n", "        S: State,\n")],
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
        changes: &[("queue/transitions.rs", "        S: GoesTo<SendQueueDrain>,\n", "        S: State,\n")],
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
            ("queue/transitions.rs", "        T: Connected,\n", "        T: Transport,\n"),
        ],
        cases: &["queue/datagrams_have_no_peer_with_rights", "queue/datagrams_do_not_connect"],
    },
    Mutant {
        without: "the seal of states",
        changes: &[
            ("queue/state.rs", "pub trait State: sealed::Sealed + Sized + 'static", "pub trait State: Sized + 'static"),
            ("queue/state.rs", "<S as sealed::Sealed>::KIND", "Kind::Reset"),
        ],
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
                "inflight/work_queue/stage.rs",
                "with_stage<R>(f: impl FnOnce(&[Slot]) -> R)",
                "with_stage<R>(f: impl FnOnce(&'static [Slot]) -> R)",
            ),
            ("inflight/work_queue/stage.rs", "    f(&stage.0)\n", "    let _ = stage;\n    f(&[])\n"),
        ],
        cases: &["queue/batches_of_two_pairs_are_not_swapped"],
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
];
