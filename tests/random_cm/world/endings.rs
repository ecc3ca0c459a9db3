//! How values and histories end.

use super::*;

impl World {
    /// Waits with a timeout of zero. If the wait fails, the value ends, and its pair comes back.
    pub(super) fn give_up(&mut self, value: Value) {
        match value {
            Value::Connecting(connecting, number) => {
                let at = self.moment(None);
                let attempt = &self.attempts[number];
                match connecting.wait(NOW) {
                    Ok(connection) => {
                        let found = Found::Connected(&connection.data);
                        assert!(attempt.client_may_find(&found, &at), "{attempt:#?} at {at:#?}");
                        let attempt = &mut self.attempts[number];
                        attempt.client = Client::Connected;
                        attempt.is_established = true;
                        self.keep(Value::Connection(connection, number, 0, false));
                    }
                    Err(failed) => {
                        let is_timeout = matches!(failed.cause, Cause::TimedOut(_));
                        let found = if is_timeout { Found::Nothing } else { Found::Failed(&failed.cause) };
                        assert!(attempt.client_may_find(&found, &at), "{attempt:#?}\n{found:#?} at {at:#?}");
                        self.seen.insert(format!("client: {}", name(&failed.cause)));
                        if is_timeout {
                            self.client_gives_up(number);
                        } else {
                            self.attempts[number].client = Client::Dead;
                        }
                        self.stock.take_back(failed.value, self.is_removed);
                    }
                }
            }
            Value::Accepting(accepting, number) => {
                let at = self.moment(None);
                let attempt = &mut self.attempts[number];
                match accepting.wait(NOW) {
                    Ok(connection) => {
                        let found = Found::Connected(&connection.data);
                        assert!(attempt.server_may_find(&found, &at), "{attempt:#?} at {at:#?}");
                        attempt.server = Server::Connected;
                        self.keep(Value::Connection(connection, number, 1, false));
                    }
                    Err(failed) => {
                        let is_timeout = matches!(failed.cause, Cause::TimedOut(_));
                        let found = if is_timeout { Found::Nothing } else { Found::Failed(&failed.cause) };
                        assert!(attempt.server_may_find(&found, &at), "{attempt:#?}\n{found:#?} at {at:#?}");
                        if is_timeout {
                            self.server_gives_up(number);
                        } else {
                            attempt.server = Server::Dead;
                        }
                        self.stock.take_back(failed.value, self.is_removed);
                    }
                }
            }
            Value::Resolving(resolving, goal, ..) => match resolving.wait(NOW) {
                Ok(resolved) => self.keep(Value::Resolved(resolved, goal)),
                Err(failed) => match (failed.cause, failed.value) {
                    (Cause::TimedOut(_), None) => {}
                    (Cause::Address(_), Some(idle)) => self.keep(Value::Idle(idle, true)),
                    (cause, value) => assert!(self.is_removed, "{cause:?}, {value:?}"),
                },
            },
            other => self.keep(other),
        }
        self.is_settled = false;
    }

    /// Notes that the identifier of a server ends after its accept and before it is connected.
    pub(super) fn server_gives_up(&mut self, number: usize) {
        let now = self.moment(None).now;
        let attempt = &mut self.attempts[number];
        if attempt.server == Server::Vanished {
            return;
        }
        let is_alive = attempt.yes.as_ref().is_some_and(|yes| now < yes.at + Duration::from_secs(70));
        // If the client has connected or ended, or `message_arrived` was called, the server's identifier can have
        // changed its state before a poll of the server shows that. Then the model does not know what the client is
        // told.
        let is_alone = attempt.client == Client::Asking && !attempt.is_told;
        attempt.server = if is_alive && is_alone && !self.is_removed { Server::Gone } else { Server::Unsure };
        self.is_settled = false;
    }

    pub(super) fn drop_value(&mut self, value: Value) {
        self.stock.lost += usize::from(self.is_removed && value.has_pair());
        match &value {
            Value::Connecting(_, number) => self.client_gives_up(*number),
            Value::Accepting(_, number) => self.server_gives_up(*number),
            Value::Request(_, number) => self.attempts[*number].server = Server::Refused(Vec::new()),
            Value::Connection(_, number, side, _) => self.leave(*number, *side),
            Value::Listener(_, number) => {
                self.listeners[*number].1 = false;
                for attempt in &mut self.attempts {
                    if attempt.listener == Some(*number) && attempt.server == Server::Unasked {
                        attempt.may_find_nobody = !attempt.is_delivered;
                        attempt.server = Server::Refused(Vec::new());
                    }
                }
            }
            _ => {}
        }
        drop(value);
        self.is_settled = false;
    }

    pub(super) fn forget(&mut self, value: Value) {
        self.stock.lost += usize::from(value.has_pair());
        self.forgotten += 1;
        match &value {
            Value::Connecting(_, number) if self.attempts[*number].client != Client::Vanished => {
                self.attempts[*number].client = Client::Forgotten;
            }
            Value::Accepting(_, number) if self.attempts[*number].server != Server::Vanished => {
                self.attempts[*number].server = Server::Forgotten;
            }
            Value::Request(_, number) => self.attempts[*number].server = Server::Forgotten,
            Value::Connection(_, number, 0, _) => self.attempts[*number].client = Client::Forgotten,
            Value::Connection(_, number, _, _) => self.attempts[*number].server = Server::Forgotten,
            _ => {}
        }
        mem::forget(value);
    }

    /// Ends everything, in a random order. Returns the outcomes that were seen.
    pub(crate) fn end(mut self, random: &mut Random) -> BTreeSet<String> {
        let is_removed = mem::take(&mut self.is_removed);
        if is_removed {
            self.heal();
        }
        while !self.values.is_empty() {
            let index = random.below(self.values.len());
            let (_, value) = self.values.remove(index);
            self.drop_value(value);
            if random.one_in(2) {
                self.settle();
            }
        }
        let Self { fabric, context, channels, stock, forgotten, attempts, seen, .. } = self;
        let device = fabric.clone();
        stock.end(move || {
            if let Some(fabric) = &device {
                fabric.run();
            }
        });
        drop(channels);
        if let Some(fabric) = fabric {
            while fabric.run() > 0 {}
            assert_eq!(fabric.violations(), Vec::<String>::new());
            let left = format!("{fabric:?}");
            let count = |name: &str| {
                let (_, after) = left.split_once(&format!("{name}: ")).expect(name);
                after.split_once(',').expect(name).0.parse::<usize>().unwrap()
            };
            // A forgotten listener keeps the identifiers of the requests that nobody has taken from it.
            let identifiers = count("cm_identifiers");
            let most = if forgotten == 0 { 0 } else { forgotten + attempts.len() };
            assert!((forgotten..=most).contains(&identifiers), "{forgotten} were forgotten, and {left} is left");
            assert!(forgotten > 0 || count("cm_events") == 0, "{left}");
            assert!(forgotten > 0 || is_removed || count("queue_pairs") == 0, "{left}");
        }
        drop(context);
        seen
    }
}
