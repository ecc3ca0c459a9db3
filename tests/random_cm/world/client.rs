//! The side that connects.

use super::*;

impl World {
    pub(super) fn new_idle(&mut self, random: &mut Random) {
        let fails = self.fail_one(random, &[Verb::RdmaCreateId]);
        let new = Idle::new(self.channel(random));
        self.heal();
        match new {
            Ok(idle) if fails.is_none() => self.keep(Value::Idle(idle, false)),
            Err(CmError::Call(error)) if fails.is_some() && error.errno() == libc::ENOMEM => {}
            other => panic!("{other:?}, and {fails:?} failed"),
        }
    }

    pub(super) fn set_options(&mut self, random: &mut Random, value: Value) {
        let Value::Idle(mut idle, has_port) = value else { return };
        let fails = self.fail_one(random, &[Verb::RdmaSetOption]);
        let result = match random.below(3) {
            0 => idle.set_type_of_service(random.below(256) as u8),
            1 => idle.set_ack_timeout(AckTimeout::new(18).unwrap()),
            _ => idle.set_reuse_address(true),
        };
        self.heal();
        assert_eq!(result.err().map(|error| error.errno()), fails.map(|_| libc::ENOMEM));
        self.keep(Value::Idle(idle, has_port));
    }

    pub(super) fn bind(&mut self, random: &mut Random, idle: Idle, has_port: bool) {
        let own = SocketAddr::new(self.own, 0);
        let taken = self.listeners.iter().find(|(_, is_there)| *is_there).map(|(at, _)| *at);
        let (to, expected) = match random.below(3) {
            0 => ("192.0.2.1:0".parse().unwrap(), Some(libc::EADDRNOTAVAIL)),
            1 if taken.is_some() => (taken.unwrap(), Some(libc::EADDRINUSE)),
            _ => (own, None),
        };
        let expected = if has_port { Some(libc::EINVAL) } else { expected };
        match idle.bind(to) {
            Ok(bound) => {
                assert!(expected.is_none() && !self.is_removed, "bound to {to}");
                self.keep(Value::Bound(bound));
            }
            Err(failed) => {
                let Cause::Call(error) = &failed.cause else { panic!("{failed:?}") };
                assert!(Some(error.errno()) == expected || self.is_removed, "{failed:?}, and not {expected:?}");
                self.keep(Value::Idle(failed.value, has_port));
            }
        }
    }

    pub(super) fn resolve(&mut self, random: &mut Random, idle: Idle, has_port: bool) {
        if random.one_in(12) {
            let failed = idle.resolve("224.0.0.1:7".parse().unwrap(), TIMEOUT).unwrap_err();
            assert!(matches!(&failed.cause, Cause::Call(error) if error.errno() == libc::ENETUNREACH), "{failed:?}");
            return self.keep(Value::Idle(failed.value, true));
        }
        if self.listeners.iter().all(|(_, is_there)| !is_there) {
            self.new_listener(&mut Random::new(1));
        }
        let goal = self.goal(random);
        let fails = self.fail_one(random, &[Verb::RdmaResolveAddr]);
        let result = idle.resolve(goal.address(), TIMEOUT);
        self.heal();
        self.is_settled = false;
        match result {
            Ok(resolving) if fails.is_none() => {
                self.keep(Value::Resolving(resolving, goal, self.moment(None).now, false));
            }
            Err(failed) if fails.is_some() || self.is_removed => {
                assert!(is_out_of_memory(&failed.cause) || self.is_removed, "{failed:?}");
                self.keep(Value::Idle(failed.value, has_port));
            }
            other => panic!("{other:?}, and {fails:?} failed"),
        }
    }

    pub(super) fn poll_resolving(&mut self, random: &mut Random, value: Value, waits: bool) {
        let Value::Resolving(resolving, goal, since, has_address) = value else { return };
        let verbs = [Verb::RdmaGetCmEvent, Verb::RdmaResolveRoute];
        let fails = self.fail_one(random, &verbs);
        let at = self.moment(fails);
        // Another poll of the channel can already have read the address event of this identifier. Then this poll finds
        // that event, and does not report a failure of `rdma_get_cm_event`. The failure is certain to be reported only
        // if no such event can be waiting.
        let is_bare = has_address || matches!(goal, Goal::Nowhere(_));
        let must = fails == Some(Verb::RdmaGetCmEvent) && is_bare;
        let result = if waits && self.fabric.is_none() {
            resolving.wait(PATIENCE).map(Progress::Done)
        } else {
            resolving.poll()
        };
        self.heal();
        // A real device goes on while this thread works, so this is the time after the call.
        let is_late = self.moment(None).now.saturating_sub(since) >= TIMEOUT;
        match result {
            Ok(Progress::Pending(resolving)) => {
                let is_owed = if matches!(goal, Goal::Nowhere(_)) { is_late } else { has_address };
                assert!(!(must || at.is_settled && is_owed), "{goal:?} is not resolved");
                // If this poll has found the address, rdma_cm now resolves the route, and the event of the route has
                // not arrived yet.
                self.is_settled = false;
                self.keep(Value::Resolving(resolving, goal, since, has_address || at.is_settled));
            }
            Ok(Progress::Done(resolved)) => {
                assert!(!matches!(goal, Goal::Nowhere(_)), "{goal:?} is resolved");
                assert_eq!(resolved.device(), self.context.name());
                self.keep(Value::Resolved(resolved, goal));
            }
            Err(failed) => match (&failed.cause, failed.value) {
                (cause @ Cause::Address(error), Some(idle)) => {
                    self.seen.insert(format!("resolving: {}", name(cause)));
                    let is_nobody = matches!(goal, Goal::Nowhere(_)) && error.errno() == libc::ETIMEDOUT && is_late;
                    assert!(is_nobody || self.is_removed, "{goal:?}: {:?}", failed.cause);
                    self.keep(Value::Idle(idle, true));
                }
                (cause, None) => {
                    let is_failed_call = fails.is_some() && is_out_of_memory(cause);
                    let is_removal = at.is_removed && matches!(cause, Cause::DeviceRemoved | Cause::Call(_));
                    assert!(is_failed_call || is_removal, "{goal:?}: {cause:?}");
                }
                (cause, Some(_)) => panic!("{cause:?} gives the identifier back"),
            },
        }
    }

    pub(super) fn connect(&mut self, random: &mut Random, resolved: Resolved, goal: Goal) {
        let Some(pair) = self.stock.pair(self.is_removed) else {
            return self.keep(Value::Resolved(resolved, goal));
        };
        let number = self.attempts.len();
        let (bytes, data) = said(random, number, ConnectData::raw, ConnectData::framed, 56);
        let (depths, parameters) = parameters(random);
        let fails = self.fail_one(random, &[Verb::RdmaConnect]);
        let is_hit = fails.is_none() && random.one_in(8) && self.fabric.is_some() && !self.is_removed;
        if is_hit {
            // The fault must hit only the request of this attempt, so all earlier messages must arrive first.
            self.settle();
        }
        let is_lost = is_hit && random.one_in(2);
        let is_given_up = is_lost && random.one_in(2);
        let listener = match goal {
            Goal::Listener { number, .. } if self.listeners[number].1 => Some(number),
            _ => None,
        };
        if let Some(fabric) = self.fabric.as_ref().filter(|_| is_hit) {
            fabric.inject(if is_lost {
                Fault::ConnectRequestsLost { count: if is_given_up { u32::MAX } else { 1 } }
            } else {
                Fault::ClientsGone { count: 1 }
            });
        }
        let result = resolved.connect(pair, &parameters, &data);
        self.is_settled = false;
        match result {
            Ok(connecting) => {
                assert!(fails.is_none() && !self.is_removed, "connects although {fails:?} fails");
                self.lanes.push(self.lane);
                self.attempts.push(Attempt {
                    at: self.moment(None).now,
                    data: bytes,
                    depths,
                    listener,
                    is_lost,
                    is_given_up,
                    is_delivered: false,
                    may_find_nobody: listener.is_none(),
                    client: Client::Asking,
                    server: Server::Unasked,
                    yes: None,
                    is_established: false,
                    is_told: false,
                    owed_end: [false; 2],
                    has_free_number: [false; 2],
                });
                self.keep(Value::Connecting(connecting, number));
            }
            Err(failed) => {
                let (resolved, pair) = failed.value;
                let cause = &failed.cause;
                let is_nobody = self.context.is_iwarp()
                    && listener.is_none_or(|number| !self.listeners[number].1)
                    && matches!(cause, Cause::Rejected { reason, .. } if reason.0 < 0);
                let is_failed_call = fails.is_some() && is_out_of_memory(cause);
                let is_removed = self.is_removed && matches!(cause, Cause::DeviceRemoved);
                assert!(is_failed_call || is_nobody || is_removed, "{cause:?}, and {fails:?} failed");
                self.stock.take_back(pair.into(), self.is_removed);
                if !is_nobody {
                    self.keep(Value::Resolved(resolved, goal));
                }
                return self.heal();
            }
        }
        if is_hit {
            self.settle();
            if is_given_up {
                self.pass(Duration::from_secs(80));
                self.settle();
            } else if !is_lost && listener.is_some() {
                self.attempts[number].client = Client::Vanished;
            }
        }
        self.heal();
    }

    pub(super) fn poll_connecting(
        &mut self,
        random: &mut Random,
        connecting: Connecting<Checked>,
        number: usize,
        waits: bool,
    ) {
        let verbs = [Verb::RdmaGetCmEvent, Verb::RdmaEstablish, Verb::RdmaInitQpAttr];
        let fails = self.fail_one(random, &verbs);
        let attempt = &self.attempts[number];
        let result = if waits && self.fabric.is_none() && attempt.owes_client() {
            connecting.wait(PATIENCE).map(Progress::Done)
        } else {
            connecting.poll()
        };
        self.heal();
        let at = self.moment(fails);
        let check = |attempt: &Attempt, found: Found<'_>| {
            assert!(attempt.client_may_find(&found, &at), "the client of\n{attempt:#?}\nfinds {found:#?} at\n{at:#?}");
        };
        match result {
            Ok(Progress::Pending(connecting)) => {
                check(attempt, Found::Nothing);
                self.keep(Value::Connecting(connecting, number));
            }
            Ok(Progress::Done(connection)) => {
                check(attempt, Found::Connected(&connection.data));
                let attempt = &mut self.attempts[number];
                attempt.client = Client::Connected;
                attempt.is_established = true;
                self.keep(Value::Connection(connection, number, 0, false));
                self.note("client", "connected");
            }
            Err(failed) => {
                check(attempt, Found::Failed(&failed.cause));
                let has_done_nothing = attempt.client_has_done_nothing() && !at.is_removed && !at.is_iwarp;
                self.note("client", name(&failed.cause));
                let is_in_init = matches!(failed.value, interlock::AnyQueuePair::Init(_));
                assert!(is_in_init || !has_done_nothing, "nothing was done to {:?}", failed.value);
                self.stock.take_back(failed.value, self.is_removed);
                let has_told = fails.is_some() && is_out_of_memory(&failed.cause);
                let is_stale = matches!(failed.cause, Cause::Rejected { reason: RejectReason::STALE_CONNECTION, .. });
                if is_stale {
                    // The server's kernel has refused the client, and the server's program gets no event.
                    self.attempts[number].server = Server::Refused(Vec::new());
                }
                self.attempts[number].client = if has_told { Client::Unsure } else { Client::Dead };
                if has_told {
                    self.client_gives_up(number);
                }
            }
        }
        self.is_settled = false;
    }

    /// Notes that the identifier of a client ends before it is connected.
    pub(super) fn client_gives_up(&mut self, number: usize) {
        let now = self.moment(None).now;
        let attempt = &mut self.attempts[number];
        if attempt.client == Client::Vanished {
            return;
        }
        // An event that nobody has taken yet can already have ended the client: a timeout, or the answer of a server
        // that has refused or ended. The client is known to be alive only if there can be no such event.
        let is_known_alive = now < attempt.at + Duration::from_secs(70)
            && matches!(attempt.server, Server::Unasked | Server::Asked | Server::Accepted | Server::Connected);
        let is_nobody = attempt.may_find_nobody;
        attempt.client = if is_known_alive && !is_nobody && !self.is_removed { Client::Gone } else { Client::Unsure };
        self.is_settled = false;
    }
}
