//! Connections: their messages and their ends.

use super::*;

impl World {
    pub(super) fn poll_end(&mut self, random: &mut Random, value: Value) {
        let Value::Connection(mut connection, number, side, has_ended) = value else { return };
        let fails = if has_ended { None } else { self.fail_one(random, &[Verb::RdmaGetCmEvent]) };
        let at = self.moment(fails);
        let found = connection.poll_end();
        self.heal();
        let attempt = &self.attempts[number];
        let mut has_ended = has_ended;
        match found {
            Ok(end) => {
                let is_quiet = end.is_none() && !self.has_advice;
                let is_right = attempt.connection_may_find(side, end.as_ref(), &at) && !(is_quiet && fails.is_some());
                assert!(is_right, "side {side} of\n{attempt:#?}\nfinds {end:?} at\n{at:#?}");
                assert!(end.is_some() || !has_ended, "the end is forgotten");
                if let Some(end) = &end {
                    self.seen.insert(format!("connection: {}", name(end)));
                }
                has_ended = end.is_some();
            }
            Err(error) => assert!(fails.is_some() && error.errno() == libc::ENOMEM, "{error}"),
        }
        self.keep(Value::Connection(connection, number, side, has_ended));
    }

    /// Notes that one side ends a connection, and whether the other side is certain to learn of that.
    pub(super) fn leave(&mut self, number: usize, side: usize) {
        let attempt = &mut self.attempts[number];
        let both = attempt.is_established && matches!(attempt.server, Server::Connected | Server::Accepted);
        if side == 0 {
            let is_there = matches!(attempt.server, Server::Connected | Server::Accepted);
            attempt.owed_end[1] |= is_there;
            attempt.client = Client::Left;
        } else {
            attempt.owed_end[0] |= both && attempt.client == Client::Connected;
            attempt.server = Server::Left;
        }
        self.is_settled = false;
    }

    pub(super) fn disconnect(&mut self, connection: Connection<Checked>, number: usize, side: usize, has_ended: bool) {
        let was_removed = self.is_removed;
        match connection.disconnect() {
            Ok(disconnected) => {
                self.leave(number, side);
                let now = self.moment(None).now;
                self.keep(Value::Disconnected(disconnected, number, side, now));
            }
            Err(failed) => {
                assert!(was_removed && matches!(failed.cause, Cause::Pair(_)), "{failed:?}");
                self.keep(Value::Connection(failed.value, number, side, has_ended));
            }
        }
    }

    pub(super) fn wait_for_number(&mut self, value: Value) {
        let Value::Disconnected(mut disconnected, number, side, since) = value else { return };
        let is_free = disconnected.wait_for_number(NOW).unwrap();
        let at = self.moment(None);
        if is_free {
            self.note("connection", "a free number");
        }
        let attempt = &mut self.attempts[number];
        // A kernel rounds timewait down to a power of two in milliseconds, so it can end a little earlier than `REST`.
        let rest = if at.is_stepped { REST } else { Duration::from_secs(1) };
        // If the peer ended before it knew of the connection, it rejects this side. Then timewait of this side begins
        // with the rejection, and not with the disconnect.
        let was_rejected = match side {
            0 => matches!(attempt.server, Server::Gone | Server::Unsure),
            _ => matches!(attempt.client, Client::Gone | Client::Unsure),
        };
        let may_be_free = at.is_iwarp || (was_rejected || at.now - since >= rest) && !at.is_removed;
        let is_right = match attempt.has_free_number[side] {
            true => is_free || at.is_removed,
            false => !is_free || may_be_free,
        };
        attempt.has_free_number[side] |= is_free;
        assert!(is_right, "the number of side {side} of\n{attempt:#?}\nis free at\n{at:#?}");
        self.is_settled = false;
        self.keep(Value::Disconnected(disconnected, number, side, since));
    }

    /// Sends a message to the other end, if the history holds that end and neither end has ended.
    pub(super) fn talk(&mut self, random: &mut Random, value: Value) {
        let Value::Connection(mut one, number, side, has_ended) = value else { return };
        let is_other = |value: &Value| matches!(value, Value::Connection(_, of, at, _) if *of == number && *at != side);
        let other = self.values.iter().position(|(_, value)| is_other(value)).map(|index| self.values.remove(index).1);
        let Some(Value::Connection(mut other, _, other_side, other_ended)) = other else {
            return self.keep(Value::Connection(one, number, side, has_ended));
        };
        if !has_ended && !other_ended && !self.is_removed {
            self.check_depths(number, side, &one);
            self.check_depths(number, other_side, &other);
            let bytes: Vec<u8> = (0..1 + random.below(60)).map(|_| random.next() as u8).collect();
            let sent = self.stock.sent;
            self.stock.arrived.clear();
            one.pair.post_send(self.stock.message(&bytes)).unwrap();
            let deadline = Instant::now() + PATIENCE;
            while self.stock.sent == sent || self.stock.arrived.is_empty() {
                assert!(Instant::now() < deadline, "no message in {:#?}", self.attempts[number]);
                self.settle();
                self.stock.poll();
            }
            assert_eq!(self.stock.arrived, [bytes]);
            self.note("connection", "a message");
            other.pair.post_receive(self.stock.receive()).unwrap();
        }
        self.keep(Value::Connection(one, number, side, has_ended));
        self.keep(Value::Connection(other, number, other_side, other_ended));
    }

    /// Checks that the pair has the smaller of the two sides' depths. Not on iWARP, where the device reports other
    /// depths.
    pub(super) fn check_depths(&self, number: usize, side: usize, connection: &Connection<Checked>) {
        if !self.context.is_iwarp() {
            let found = connection.pair.query().unwrap();
            let depths = [found.responder_depth.value(), found.initiator_depth.value()];
            let attempt = &self.attempts[number];
            assert_eq!(depths, attempt.agreed_depths()[side], "the depths of side {side} of {attempt:#?}");
        }
    }
}
