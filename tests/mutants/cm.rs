//! Mechanisms of connections by rdma_cm.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    // Some of these mutants add a function that only borrows `self`, under the name of a real function. The real
    // function, which consumes `self`, is renamed to `..._by_value`.
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
                "    pub fn connect<B: Brand, T: Reliable>(\n        self,",
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
                "    pub fn connect<B: Brand, T: Reliable>(\n        self,",
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
                "    pub(super) asked: Asked<B, T>,\n",
                "    pub(super) asked: Asked<B, T>,\n    /// The pair.\n    pub pair: QueuePair<B, Init, T>,\n",
            ),
            (
                "cm/client.rs",
                "Ok(Connecting { asked, parameters: *parameters, depths, is_iwarp })",
                "Ok(Connecting { asked, pair: unimplemented!(), parameters: *parameters, depths, is_iwarp })",
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
                "    pub fn connect<B: Brand, T: Reliable>(\n        self,",
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
