//! A history: the values that its programs hold, and the steps that they take.

use crate::model::{Attempt, Client, Found, Moment, REST, Server, Yes, arrived};
use crate::stock::Stock;
use interlock::cm::{
    AcceptData, Accepting, Bound, Cause, Channel, CmError, ConnectData, Connecting, Connection, Disconnected, Idle,
    Listener, Parameters, Progress, RejectData, RejectReason, Request, Resolved, Resolving,
};
use interlock::number::{AckTimeout, ReadDepth};
use interlock::soft::{Fabric, Fault, Verb};
use interlock::{Checked, Context};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use support::steps::Step;
use support::{PATIENCE, Random, address};

/// What a step does. A step that finds no value of the kind that it needs does nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    /// Advances a value by a step on its way to a connection.
    Go,
    /// Lets every message arrive.
    Settle,
    /// Lets up to three messages arrive.
    Step,
    /// As `Go`, after all messages have arrived.
    Await,
    New,
    /// Takes a request from a listener, or makes one.
    Serve,
    /// Drops or forgets a listener.
    EndListener,
    /// Sends a message over a connection.
    Talk,
    PollEnd,
    Disconnect,
    WaitForNumber,
    Reject,
    MessageArrived,
    /// Waits with a timeout of zero.
    GiveUp,
    SetOptions,
    Bind,
    Drop,
    Forget,
    CloneChannel,
    DropChannel,
    /// Moves the clock.
    Advance,
    ChangeNeighbour,
    RemoveDevice,
}

/// Each call, with its relative frequency. When a history is reduced, later calls are replaced by earlier ones.
pub(crate) const CALLS: [(u32, Call); 23] = [
    (110, Call::Go),
    (20, Call::Settle),
    (30, Call::Step),
    (40, Call::Await),
    (12, Call::New),
    (50, Call::Serve),
    (4, Call::EndListener),
    (12, Call::Talk),
    (12, Call::PollEnd),
    (8, Call::Disconnect),
    (6, Call::WaitForNumber),
    (6, Call::Reject),
    (6, Call::MessageArrived),
    (5, Call::GiveUp),
    (4, Call::SetOptions),
    (3, Call::Bind),
    (10, Call::Drop),
    (2, Call::Forget),
    (3, Call::CloneChannel),
    (3, Call::DropChannel),
    (6, Call::Advance),
    (2, Call::ChangeNeighbour),
    (1, Call::RemoveDevice),
];

/// Where a client wants to go.
#[derive(Clone, Copy, Debug)]
enum Goal {
    Listener {
        number: usize,
        at: SocketAddr,
    },
    /// The port of a listener that has ended.
    Nobody(SocketAddr),
    /// An address of the network that nobody has.
    Nowhere(SocketAddr),
}

impl Goal {
    fn address(self) -> SocketAddr {
        match self {
            Self::Listener { at, .. } | Self::Nobody(at) | Self::Nowhere(at) => at,
        }
    }
}

/// A value that a program of a history holds. The model knows listeners and attempts by their numbers.
#[derive(Debug)]
enum Value {
    /// The last member says that the identifier may already have a port.
    Idle(Idle, bool),
    Bound(Bound),
    Listener(Listener, usize),
    /// With the time when it began. The last member says that a poll has found the address, so that the next one finds
    /// the route.
    Resolving(Resolving, Goal, Duration, bool),
    Resolved(Resolved, Goal),
    Connecting(Connecting<Checked>, usize),
    Request(Request, usize),
    Accepting(Accepting<Checked>, usize),
    /// The side is 0 for the client. The last member says whether the end of the connection was seen.
    Connection(Connection<Checked>, usize, usize, bool),
    Disconnected(Disconnected<Checked>, usize, usize, Duration),
}

pub(crate) struct World {
    context: Context,
    /// The address of the device.
    own: IpAddr,
    fabric: Option<Fabric>,
    channels: Vec<Channel>,
    /// The values, each with its lane. A step changes only its own lane, so that a lane's history stays the same if the
    /// steps of other lanes are removed.
    values: Vec<(usize, Value)>,
    /// The lane of the current step.
    lane: usize,
    /// The lane of each attempt.
    lanes: Vec<usize>,
    stock: Stock,
    attempts: Vec<Attempt>,
    /// The addresses of the listeners, and whether each still listens. A listener that was forgotten listens for ever.
    listeners: Vec<(SocketAddr, bool)>,
    /// How many identifiers were forgotten, and how many more may have come to them with requests.
    forgotten: [usize; 2],
    start: Instant,
    now: Duration,
    is_settled: bool,
    is_removed: bool,
    /// A connection may have an event that does not end it. A poll that finds this event does not fail.
    has_advice: bool,
    /// The outcomes that were seen.
    seen: BTreeSet<String>,
}

/// How many lanes a history has.
pub(crate) const LANES: usize = 5;

/// The lane of a listener. There are two such lanes.
fn of_listener(number: usize) -> usize {
    LANES + number % 2
}

const NAME: &str = "random";
const NOW: Duration = Duration::ZERO;
const TIMEOUT: Duration = Duration::from_millis(200);

impl World {
    pub(crate) fn open() -> Self {
        let (mut context, mut fabric) = (support::context(), None);
        if context.is_soft() {
            let own = Fabric::manual();
            context = Context::open_on(&own, NAME).unwrap();
            fabric = Some(own);
        }
        Self {
            channels: vec![Channel::open(&context).unwrap()],
            values: Vec::new(),
            lane: 0,
            lanes: Vec::new(),
            stock: Stock::new(&context),
            attempts: Vec::new(),
            listeners: Vec::new(),
            forgotten: [0; 2],
            start: Instant::now(),
            now: Duration::ZERO,
            is_settled: false,
            is_removed: false,
            has_advice: false,
            seen: BTreeSet::new(),
            own: address(&context),
            context,
            fabric,
        }
    }

    fn moment(&self, fails: Option<Verb>) -> Moment {
        Moment {
            now: if self.fabric.is_some() { self.now } else { self.start.elapsed() },
            is_settled: self.is_settled,
            is_removed: self.is_removed,
            is_iwarp: self.context.is_iwarp(),
            is_stepped: self.fabric.is_some(),
            fails,
        }
    }

    /// On a stepped device, sometimes makes the next call of one of these verbs fail. Call [`heal`](Self::heal)
    /// afterwards.
    fn fail_one(&self, random: &mut Random, verbs: &[Verb]) -> Option<Verb> {
        let fabric = self.fabric.as_ref().filter(|_| !self.is_removed && random.one_in(14))?;
        let verb = verbs[random.below(verbs.len())];
        fabric.inject(Fault::VerbFails { verb, after: 0, count: 1, errno: libc::ENOMEM });
        Some(verb)
    }

    /// On a stepped device, sometimes injects a fault into the next call. Call [`heal`](Self::heal) afterwards.
    fn spoil(&self, random: &mut Random, fault: Fault) -> bool {
        let Some(fabric) = self.fabric.as_ref().filter(|_| !self.is_removed && random.one_in(10)) else { return false };
        fabric.inject(fault);
        true
    }

    /// Withdraws the faults that have not happened.
    fn heal(&self) {
        if let Some(fabric) = self.fabric.as_ref().filter(|_| !self.is_removed) {
            fabric.heal();
        }
    }

    /// Lets every message arrive.
    fn settle(&mut self) {
        let Some(fabric) = &self.fabric else { return std::thread::sleep(Duration::from_millis(2)) };
        while fabric.run() > 0 {}
        self.is_settled = true;
        for attempt in &mut self.attempts {
            let is_there = attempt.listener.is_some_and(|number| self.listeners[number].1);
            if attempt.server == Server::Unasked && is_there && !attempt.is_lost {
                attempt.is_delivered = true;
            }
        }
    }

    /// Notes the outcome of a poll or a call of `who`.
    fn note(&mut self, who: &str, outcome: &str) {
        self.seen.insert(format!("{who}: {outcome}"));
    }

    fn channel(&self, random: &mut Random) -> &Channel {
        &self.channels[random.below(self.channels.len())]
    }

    /// Puts a value into its lane: that of its listener, of its attempt, or of the current step.
    fn keep(&mut self, value: Value) {
        let lane = match &value {
            Value::Listener(_, number) => of_listener(*number),
            Value::Request(_, number) => self.lanes[*number],
            _ => self.lane,
        };
        self.values.push((lane, value));
    }

    /// Removes one of the lane's values that fit, and returns it.
    fn pick(&mut self, place: usize, fits: impl Fn(&Value) -> bool) -> Option<Value> {
        let is_it = |index: &usize| self.values[*index].0 == self.lane && fits(&self.values[*index].1);
        let fitting: Vec<usize> = (0..self.values.len()).filter(is_it).collect();
        let index = *fitting.get((place / LANES).checked_rem(fitting.len())?)?;
        Some(self.values.remove(index).1)
    }

    pub(crate) fn take(&mut self, step: &Step<Call>) {
        let (random, place) = (&mut step.random(), step.place);
        self.lane = place % LANES;
        match step.call {
            Call::Go => self.go_on(random, place, false),
            Call::Await => {
                self.settle();
                self.go_on(random, place, true);
            }
            Call::Serve => {
                let waits = random.one_in(2);
                if waits {
                    self.settle();
                }
                self.lane = of_listener(place);
                match self.pick(place, |_| true) {
                    Some(value) => self.go(random, value, waits),
                    None => self.new_listener(random),
                }
            }
            Call::EndListener => {
                self.lane = of_listener(place);
                match self.pick(place, |_| true) {
                    Some(value) if random.one_in(6) => self.forget(value),
                    Some(value) => self.drop_value(value),
                    None => {}
                }
            }
            Call::Settle => self.settle(),
            Call::Step => {
                let Some(fabric) = &self.fabric else { return std::thread::sleep(Duration::from_micros(300)) };
                for _ in 0..=random.below(3) {
                    fabric.step();
                }
            }
            Call::New => self.new_idle(random),
            Call::Talk => {
                if let Some(value) = self.pick(place, |value| matches!(value, Value::Connection(..))) {
                    self.talk(random, value);
                }
            }
            Call::PollEnd => {
                if let Some(value) = self.pick(place, |value| matches!(value, Value::Connection(..))) {
                    self.poll_end(random, value);
                }
            }
            Call::Disconnect => {
                if let Some(Value::Connection(connection, attempt, side, has_ended)) =
                    self.pick(place, |value| matches!(value, Value::Connection(..)))
                {
                    self.disconnect(connection, attempt, side, has_ended);
                }
            }
            Call::WaitForNumber => {
                if let Some(value) = self.pick(place, |value| matches!(value, Value::Disconnected(..))) {
                    self.wait_for_number(value);
                }
            }
            Call::Reject => {
                if let Some(Value::Request(request, attempt)) =
                    self.pick(place, |value| matches!(value, Value::Request(..)))
                {
                    self.reject(random, request, attempt);
                }
            }
            Call::MessageArrived => {
                if let Some(Value::Accepting(mut accepting, attempt)) =
                    self.pick(place, |value| matches!(value, Value::Accepting(..)))
                {
                    accepting.message_arrived();
                    self.attempts[attempt].is_told = true;
                    self.keep(Value::Accepting(accepting, attempt));
                }
            }
            Call::GiveUp => {
                if let Some(value) = self.pick(place, |_| true) {
                    self.give_up(value);
                }
            }
            Call::SetOptions => {
                if let Some(value) = self.pick(place, |value| matches!(value, Value::Idle(..))) {
                    self.set_options(random, value);
                }
            }
            Call::Bind => {
                if let Some(Value::Idle(idle, has_port)) = self.pick(place, |value| matches!(value, Value::Idle(..))) {
                    self.bind(random, idle, has_port);
                }
            }
            Call::Drop => {
                if let Some(value) = self.pick(place, |_| true) {
                    self.drop_value(value);
                }
            }
            Call::Forget => {
                if let Some(value) = self.pick(place, |_| true) {
                    self.forget(value);
                }
            }
            Call::CloneChannel => {
                let clone = self.channel(random).clone();
                self.channels.push(clone);
                if random.one_in(2) {
                    let other = Channel::open(&self.context);
                    self.channels.push(other.unwrap());
                }
            }
            Call::DropChannel => {
                let index = random.below(self.channels.len());
                self.channels.swap_remove(index);
                if self.channels.is_empty() {
                    self.channels.push(Channel::open(&self.context).unwrap());
                }
            }
            Call::Advance => self.advance(random),
            Call::ChangeNeighbour => {
                if let Some(fabric) = &self.fabric {
                    fabric.inject(Fault::NeighbourChanged { device: NAME.into() });
                    self.has_advice = true;
                }
            }
            Call::RemoveDevice => {
                // Most histories keep their device.
                if random.one_in(6)
                    && let Some(fabric) = &self.fabric
                {
                    fabric.inject(Fault::DeviceRemoved { device: NAME.into() });
                    self.is_removed = true;
                }
            }
        }
        // After a removal, each poll of the device's poller fails.
        if !self.is_removed {
            self.stock.poll();
        }
    }

    fn advance(&mut self, random: &mut Random) {
        let time = match random.below(4) {
            0 => TIMEOUT,
            1 => REST,
            // A message that is not answered is sent again.
            2 => Duration::from_secs(5),
            _ => Duration::from_secs(80),
        };
        self.pass(time);
    }

    /// Moves the clock of a stepped device.
    fn pass(&mut self, time: Duration) {
        let Some(fabric) = &self.fabric else { return };
        // The clock stops at each timer, so that nothing is late.
        let mut left = time;
        while let Some(next) = fabric.next_timer().filter(|next| *next <= left) {
            fabric.advance(next);
            left -= next;
            while fabric.step() {}
        }
        fabric.advance(left);
        self.now += time;
        self.is_settled = false;
    }

    fn new_idle(&mut self, random: &mut Random) {
        let fails = self.fail_one(random, &[Verb::RdmaCreateId]);
        let new = Idle::new(self.channel(random));
        self.heal();
        match new {
            Ok(idle) if fails.is_none() => self.keep(Value::Idle(idle, false)),
            Err(CmError::Call(error)) if fails.is_some() && error.errno() == libc::ENOMEM => {}
            other => panic!("{other:?}, and {fails:?} failed"),
        }
    }

    fn new_listener(&mut self, random: &mut Random) {
        if self.is_removed {
            return;
        }
        let idle = Idle::new(self.channel(random)).unwrap();
        let bound = idle.bind(SocketAddr::new(self.own, 0)).unwrap();
        self.listen(random, bound);
    }

    fn listen(&mut self, random: &mut Random, bound: Bound) {
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

    fn set_options(&mut self, random: &mut Random, value: Value) {
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

    fn bind(&mut self, random: &mut Random, idle: Idle, has_port: bool) {
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

    /// Advances a value of the lane, or begins a new one.
    fn go_on(&mut self, random: &mut Random, place: usize, waits: bool) {
        match self.pick(place, |_| true) {
            Some(value) => self.go(random, value, waits),
            None => self.new_idle(random),
        }
    }

    /// Advances a value. If `waits`, and the device is not stepped, waits for an event that must come according to the
    /// model.
    fn go(&mut self, random: &mut Random, value: Value, waits: bool) {
        match value {
            Value::Idle(idle, has_port) => self.resolve(random, idle, has_port),
            Value::Bound(bound) => self.listen(random, bound),
            Value::Resolving(..) => self.poll_resolving(random, value, waits),
            Value::Resolved(resolved, goal) => self.connect(random, resolved, goal),
            Value::Connecting(connecting, attempt) => self.poll_connecting(random, connecting, attempt, waits),
            Value::Listener(listener, number) => self.next_request(random, listener, number, waits),
            Value::Request(request, attempt) => self.accept(random, request, attempt),
            Value::Accepting(accepting, attempt) => self.poll_accepting(random, accepting, attempt, waits),
            Value::Connection(..) if random.one_in(2) => self.talk(random, value),
            Value::Connection(..) => self.poll_end(random, value),
            Value::Disconnected(..) => self.wait_for_number(value),
        }
    }

    fn goal(&self, random: &mut Random) -> Goal {
        let own = self.own;
        let there: Vec<usize> = (0..self.listeners.len()).filter(|&number| self.listeners[number].1).collect();
        match random.below(12) {
            0 => {
                let IpAddr::V4(ip) = own else { panic!("not an address of IPv4") };
                let [a, b, c, _] = ip.octets();
                Goal::Nowhere(SocketAddr::from(([a, b, c, 77], 7)))
            }
            1 => Goal::Nobody(self.listeners.iter().find(|(_, is_there)| !is_there).map_or((own, 9).into(), |it| it.0)),
            _ => match there.get(random.below(there.len())) {
                Some(&number) => Goal::Listener { number, at: self.listeners[number].0 },
                None => Goal::Nobody((own, 9).into()),
            },
        }
    }

    fn resolve(&mut self, random: &mut Random, idle: Idle, has_port: bool) {
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

    fn poll_resolving(&mut self, random: &mut Random, value: Value, waits: bool) {
        let Value::Resolving(resolving, goal, since, has_address) = value else { return };
        let verbs = [Verb::RdmaGetCmEvent, Verb::RdmaResolveRoute];
        let fails = self.fail_one(random, &verbs);
        let at = self.moment(fails);
        // If another poll has already taken the event of the address from the channel, this poll finds it and does not
        // fail.
        let is_bare = has_address || matches!(goal, Goal::Nowhere(_));
        let must = fails == Some(Verb::RdmaGetCmEvent) && is_bare;
        let is_late = at.now.saturating_sub(since) >= TIMEOUT;
        let result = if waits && self.fabric.is_none() {
            resolving.wait(PATIENCE).map(Progress::Done)
        } else {
            resolving.poll()
        };
        self.heal();
        match result {
            Ok(Progress::Pending(resolving)) => {
                let is_owed = if matches!(goal, Goal::Nowhere(_)) { is_late } else { has_address };
                assert!(!(must || at.is_settled && is_owed), "{goal:?} is not resolved");
                // The route is being resolved now.
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

    fn connect(&mut self, random: &mut Random, resolved: Resolved, goal: Goal) {
        let Some(pair) = self.stock.pair(self.is_removed) else {
            return self.keep(Value::Resolved(resolved, goal));
        };
        let number = self.attempts.len();
        let (bytes, data) = said(random, number, ConnectData::raw, ConnectData::framed, 56);
        let (depths, parameters) = parameters(random);
        let fails = self.fail_one(random, &[Verb::RdmaConnect]);
        // The fault must hit only the request of this attempt, so all earlier messages arrive first.
        let is_hit = fails.is_none() && random.one_in(8) && self.fabric.is_some() && !self.is_removed;
        if is_hit {
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
                assert!(is_failed_call || is_nobody || self.is_removed, "{cause:?}, and {fails:?} failed");
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

    fn poll_connecting(&mut self, random: &mut Random, connecting: Connecting<Checked>, number: usize, waits: bool) {
        let verbs = [Verb::RdmaGetCmEvent, Verb::RdmaEstablish, Verb::RdmaInitQpAttr];
        let fails = self.fail_one(random, &verbs);
        let at = self.moment(fails);
        let attempt = &self.attempts[number];
        let result = if waits && self.fabric.is_none() && attempt.owes_client() {
            connecting.wait(PATIENCE).map(Progress::Done)
        } else {
            connecting.poll()
        };
        self.heal();
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
                self.attempts[number].client = if has_told { Client::Unsure } else { Client::Dead };
                if has_told {
                    self.client_gives_up(number);
                }
            }
        }
        self.is_settled = false;
    }

    /// The identifier of a client ends before it is connected.
    fn client_gives_up(&mut self, number: usize) {
        let now = self.moment(None).now;
        let attempt = &mut self.attempts[number];
        if attempt.client == Client::Vanished {
            return;
        }
        // The client may have ended already, by an event that nobody took.
        let is_known_alive = now < attempt.at + Duration::from_secs(70)
            && matches!(attempt.server, Server::Unasked | Server::Asked | Server::Accepted | Server::Connected);
        let is_nobody = attempt.may_find_nobody;
        attempt.client = if is_known_alive && !is_nobody && !self.is_removed { Client::Gone } else { Client::Unsure };
        self.is_settled = false;
    }

    fn next_request(&mut self, random: &mut Random, mut listener: Listener, number: usize, waits: bool) {
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

    fn accept(&mut self, random: &mut Random, request: Request, number: usize) {
        let Some(pair) = self.stock.pair(self.is_removed) else {
            return self.keep(Value::Request(request, number));
        };
        let (bytes, data) = said(random, number, AcceptData::raw, AcceptData::framed, 196);
        let (depths, parameters) = parameters(random);
        let verbs = [Verb::RdmaAccept, Verb::RdmaInitQpAttr];
        let fails = self.fail_one(random, &verbs);
        let vanishes = fails.is_none() && self.spoil(random, Fault::ServersGone { count: 1 });
        let at = self.moment(fails);
        let result = request.accept(pair, &parameters, &data);
        self.heal();
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

    fn reject(&mut self, random: &mut Random, request: Request, number: usize) {
        let (bytes, data) = said(random, number, RejectData::raw, RejectData::framed, 148);
        let verbs = [Verb::RdmaReject];
        let fails = self.fail_one(random, &verbs);
        let at = self.moment(fails);
        let result = request.reject(&data);
        self.heal();
        let attempt = &mut self.attempts[number];
        self.seen.insert(format!("reject: {}", if result.is_ok() { "done" } else { "failed" }));
        let is_right = match &result {
            Ok(()) => attempt.answer_may_end(None, &verbs, &at),
            Err(error) if error.errno() == libc::ENOMEM => fails.is_some(),
            Err(error) => {
                let has_gone = matches!(attempt.client, Client::Gone | Client::Vanished | Client::Unsure);
                error.errno() == libc::EINVAL && (has_gone || at.is_removed)
            }
        };
        assert!(is_right, "the reject of\n{attempt:#?}\nends with {result:?} at\n{at:#?}");
        // If the reject failed, the drop of the request rejects it without data.
        attempt.server = Server::Refused(if result.is_ok() { bytes } else { Vec::new() });
        self.is_settled = false;
    }

    fn poll_accepting(&mut self, random: &mut Random, accepting: Accepting<Checked>, number: usize, waits: bool) {
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

    fn poll_end(&mut self, random: &mut Random, value: Value) {
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

    /// One side of a connection leaves it. Notes whether the other side is certain to learn of that.
    fn leave(&mut self, number: usize, side: usize) {
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

    fn disconnect(&mut self, connection: Connection<Checked>, number: usize, side: usize, has_ended: bool) {
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

    fn wait_for_number(&mut self, value: Value) {
        let Value::Disconnected(mut disconnected, number, side, since) = value else { return };
        let at = self.moment(None);
        let is_free = disconnected.wait_for_number(NOW).unwrap();
        if is_free {
            self.note("connection", "a free number");
        }
        let attempt = &self.attempts[number];
        let is_right = !is_free || at.is_iwarp || at.now - since >= REST && !at.is_removed;
        assert!(is_right, "the number of side {side} of\n{attempt:#?}\nis free at\n{at:#?}");
        self.is_settled = false;
        self.keep(Value::Disconnected(disconnected, number, side, since));
    }

    /// Sends a message to the other end, if the history holds that end and neither end has ended.
    fn talk(&mut self, random: &mut Random, value: Value) {
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

    /// Checks that the pair has the smaller depths. Soft iWARP reports other ones.
    fn check_depths(&self, number: usize, side: usize, connection: &Connection<Checked>) {
        if !self.context.is_iwarp() {
            let found = connection.pair.query().unwrap();
            let depths = [found.responder_depth.value(), found.initiator_depth.value()];
            let attempt = &self.attempts[number];
            assert_eq!(depths, attempt.agreed_depths()[side], "the depths of side {side} of {attempt:#?}");
        }
    }

    /// Waits with a timeout of zero: the value ends, and its pair comes back.
    fn give_up(&mut self, value: Value) {
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

    /// The identifier of a server ends after its accept.
    fn server_gives_up(&mut self, number: usize) {
        let now = self.moment(None).now;
        let attempt = &mut self.attempts[number];
        if attempt.server == Server::Vanished {
            return;
        }
        let is_alive = attempt.yes.as_ref().is_some_and(|yes| now < yes.at + Duration::from_secs(70));
        // The client may have connected or ended without the server knowing it.
        let is_alone = attempt.client == Client::Asking && !attempt.is_told;
        attempt.server = if is_alive && is_alone && !self.is_removed { Server::Gone } else { Server::Unsure };
        self.is_settled = false;
    }

    fn drop_value(&mut self, value: Value) {
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

    fn forget(&mut self, value: Value) {
        self.stock.lost += usize::from(value.has_pair());
        self.forgotten[0] += 1;
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

    /// Ends everything, in a random order.
    /// Returns the outcomes that were seen.
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
            // A listener that was forgotten keeps the requests that nobody took.
            let identifiers = count("cm_identifiers");
            let most = if forgotten[0] == 0 { 0 } else { forgotten[0] + attempts.len() };
            assert!((forgotten[0]..=most).contains(&identifiers), "{forgotten:?} were forgotten, and {left} is left");
            assert!(forgotten[0] > 0 || count("cm_events") == 0, "{left}");
            assert!(forgotten[0] > 0 || is_removed || count("queue_pairs") == 0, "{left}");
        }
        drop(context);
        seen
    }
}

impl Value {
    fn has_pair(&self) -> bool {
        matches!(self, Self::Connecting(..) | Self::Accepting(..) | Self::Connection(..) | Self::Disconnected(..))
    }
}

fn name(cause: &Cause) -> &'static str {
    match cause {
        Cause::Call(_) => "a call failed",
        Cause::Address(_) => "no such address",
        Cause::Rejected { reason: RejectReason::NO_SUCH_SERVICE, .. } => "nobody listens",
        Cause::Rejected { .. } => "rejected",
        Cause::Unreachable { .. } => "unreachable",
        Cause::PeerGone(_) => "the peer has gone",
        Cause::Disconnected => "disconnected",
        Cause::DeviceRemoved => "removed",
        Cause::TimedOut(_) => "timed out",
        _ => "another cause",
    }
}

fn is_out_of_memory(cause: &Cause) -> bool {
    matches!(cause, Cause::Call(error) if error.errno() == libc::ENOMEM)
}

/// Random private data that begin with the number of their attempt: their bytes as they are sent, and the value.
fn said<D, E: Debug>(
    random: &mut Random,
    number: usize,
    raw: impl Fn(&[u8]) -> Result<D, E>,
    framed: impl Fn(&[u8]) -> Result<D, E>,
    limit: usize,
) -> (Vec<u8>, D) {
    let is_framed = random.one_in(2);
    let most = if is_framed { limit - 3 } else { limit };
    let mut bytes = u32::try_from(number + 1).unwrap().to_be_bytes().to_vec();
    bytes.extend((0..random.below(most - 3)).map(|_| random.next() as u8));
    if is_framed {
        let data = framed(&bytes).unwrap();
        let head = [b'I', b'P', bytes.len() as u8];
        (head.into_iter().chain(bytes).collect(), data)
    } else {
        let data = raw(&bytes).unwrap();
        (bytes, data)
    }
}

/// Random depths: how many reads this side serves and starts.
fn parameters(random: &mut Random) -> ([u8; 2], Parameters) {
    let depths = [1 + random.below(8) as u8, 1 + random.below(8) as u8];
    let [responder_depth, initiator_depth] = depths.map(|depth| ReadDepth::new(depth).unwrap());
    (depths, Parameters { responder_depth, initiator_depth, ..Parameters::default() })
}
