//! The side that listens and accepts.

use super::*;

impl World {
    pub(super) fn new_listener(&mut self, random: &mut Random) {
        if self.is_removed {
            return;
        }
        let idle = Idle::new(self.channel(random)).unwrap();
        let bound = idle.bind(SocketAddr::new(self.own, 0)).unwrap();
        self.listen(random, bound);
    }

    pub(super) fn listen(&mut self, random: &mut Random, bound: Bound) {
        let fails = self.fail_one(random, &[Verb::RdmaListen]);
        let result = bound.listen(0);
        self.heal();
        match result {
            Ok(listener) if fails.is_none() => {
                let at = listener.local_address().unwrap();
                self.keep(Value::Listener(listener, self.listeners.len()));
                self.listeners.push((at, true));
            }
            Err(failed) if fails.is_some() || self.is_removed => {
                assert!(is_out_of_memory(&failed.cause) || self.is_removed, "{failed:?}");
                self.keep(Value::Bound(failed.value));
            }
            other => panic!("{other:?}, and {fails:?} failed"),
        }
        self.is_settled = false;
    }

    pub(super) fn next_request(&mut self, random: &mut Random, mut listener: Listener, number: usize, waits: bool) {
        let fails = self.fail_one(random, &[Verb::RdmaGetCmEvent]);
        let at = self.moment(fails);
        let is_owed = |attempt: &Attempt| attempt.listener == Some(number) && attempt.server == Server::Unasked;
        let must_wait = waits && self.fabric.is_none() && self.attempts.iter().any(is_owed);
        let result = if must_wait { listener.next(PATIENCE).map(Some) } else { listener.poll() };
        self.heal();
        match result {
            Ok(None) => {
                let owed = self.attempts.iter().find(|attempt| is_owed(attempt) && attempt.is_delivered);
                assert!(owed.is_none() && fails.is_none() && !at.is_removed, "no request, but {owed:#?}");
            }
            Ok(Some(request)) => {
                let is_iwarp = at.is_iwarp;
                let is_of = |attempt: &Attempt| {
                    attempt.listener == Some(number) && arrived(&attempt.data, request.data(), 56, is_iwarp)
                };
                let found = self.attempts.iter().position(is_of).expect("a request of a client of this listener");
                let attempt = &mut self.attempts[found];
                self.seen.insert("listener: a request".into());
                assert!(attempt.server == Server::Unasked && !attempt.is_given_up, "a request of {attempt:#?}");
                attempt.server = Server::Asked;
                attempt.is_lost = false;
                attempt.is_delivered = true;
                self.keep(Value::Request(request, found));
            }
            Err(CmError::DeviceRemoved) => assert!(at.is_removed),
            Err(CmError::Call(error)) => assert!(fails.is_some() && error.errno() == libc::ENOMEM, "{error}"),
            Err(error) => panic!("{error}"),
        }
        if at.is_removed {
            // The device was removed: drop the listener, with any requests that have not been taken.
            return self.drop_value(Value::Listener(listener, number));
        }
        self.keep(Value::Listener(listener, number));
    }

    pub(super) fn accept(&mut self, random: &mut Random, request: Request, number: usize) {
        let Some(pair) = self.stock.pair(self.is_removed) else {
            return self.keep(Value::Request(request, number));
        };
        let (bytes, data) = said(random, number, AcceptData::raw, AcceptData::framed, 196);
        let (depths, parameters) = parameters(random);
        let verbs = [Verb::RdmaAccept, Verb::RdmaInitQpAttr];
        let fails = self.fail_one(random, &verbs);
        let vanishes = fails.is_none() && self.spoil(random, Fault::ServersGone { count: 1 });
        let result = request.accept(pair, &parameters, &data);
        self.heal();
        let at = self.moment(fails);
        let attempt = &mut self.attempts[number];
        let cause = result.as_ref().err().map(|failed| &failed.cause);
        let may_end = attempt.answer_may_end(cause, &verbs, &at);
        assert!(may_end, "the accept of\n{attempt:#?}\nends with {cause:#?} at\n{at:#?}");
        match result {
            Ok(accepting) => {
                attempt.yes = Some(Yes { at: at.now, data: bytes, depths });
                attempt.server = if vanishes { Server::Vanished } else { Server::Accepted };
                self.keep(Value::Accepting(accepting, number));
            }
            Err(failed) => {
                self.seen.insert(format!("accept: {}", name(&failed.cause)));
                attempt.server = Server::Refused(Vec::new());
                self.stock.take_back(failed.value, self.is_removed);
            }
        }
        self.is_settled = false;
    }

    pub(super) fn reject(&mut self, random: &mut Random, request: Request, number: usize) {
        let (bytes, data) = said(random, number, RejectData::raw, RejectData::framed, 148);
        let verbs = [Verb::RdmaReject];
        let fails = self.fail_one(random, &verbs);
        let result = request.reject(&data);
        self.heal();
        let at = self.moment(fails);
        let attempt = &mut self.attempts[number];
        self.seen.insert(format!("reject: {}", if result.is_ok() { "done" } else { "failed" }));
        let is_right = match &result {
            Ok(()) => attempt.answer_may_end(None, &verbs, &at),
            Err(error) if error.errno() == libc::ENOMEM => fails.is_some(),
            Err(error) => {
                let has_gone = matches!(attempt.client, Client::Gone | Client::Vanished | Client::Unsure);
                let has_given_up = at.has_siw_given_up(attempt.at)
                    && [libc::EINVAL, libc::ECONNRESET, libc::EPIPE].contains(&error.errno());
                error.errno() == libc::EINVAL && (has_gone || at.is_removed) || has_given_up
            }
        };
        assert!(is_right, "the reject of\n{attempt:#?}\nends with {result:?} at\n{at:#?}");
        // If `reject` failed, it has dropped the request, and that drop has rejected the client without data.
        attempt.server = Server::Refused(if result.is_ok() { bytes } else { Vec::new() });
        self.is_settled = false;
    }

    pub(super) fn poll_accepting(
        &mut self,
        random: &mut Random,
        accepting: Accepting<Checked>,
        number: usize,
        waits: bool,
    ) {
        let fails = self.fail_one(random, &[Verb::RdmaGetCmEvent]);
        let at = self.moment(fails);
        let attempt = &mut self.attempts[number];
        let result = if waits && self.fabric.is_none() && attempt.owes_server() {
            accepting.wait(PATIENCE).map(Progress::Done)
        } else {
            accepting.poll()
        };
        if let Some(fabric) = self.fabric.as_ref().filter(|_| !self.is_removed) {
            fabric.heal();
        }
        let check = |attempt: &Attempt, found: Found<'_>| {
            assert!(attempt.server_may_find(&found, &at), "the server of\n{attempt:#?}\nfinds {found:#?} at\n{at:#?}");
        };
        match result {
            Ok(Progress::Pending(accepting)) => {
                check(attempt, Found::Nothing);
                self.keep(Value::Accepting(accepting, number));
            }
            Ok(Progress::Done(connection)) => {
                check(attempt, Found::Connected(&connection.data));
                attempt.server = Server::Connected;
                self.seen.insert("server: connected".into());
                self.keep(Value::Connection(connection, number, 1, false));
            }
            Err(failed) => {
                check(attempt, Found::Failed(&failed.cause));
                self.seen.insert(format!("server: {}", name(&failed.cause)));
                attempt.server = if fails.is_some() { Server::Unsure } else { Server::Dead };
                let is_in_error = matches!(failed.value, interlock::AnyQueuePair::Errored(_));
                assert!(is_in_error || at.is_removed, "{:?}", failed.value);
                self.stock.take_back(failed.value, self.is_removed);
            }
        }
        self.is_settled = false;
    }
}
