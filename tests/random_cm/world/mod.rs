//! A history: the values that its programs hold, and the steps that they take.

mod client;
mod connection;
mod endings;
mod server;

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
    /// The time is that of the start. The last member says whether a poll has found the address, so that the next poll
    /// finds the route.
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
    /// How many identifiers were forgotten.
    forgotten: usize,
    start: Instant,
    now: Duration,
    is_settled: bool,
    is_removed: bool,
    /// A connection may have an event that does not end the connection. A poll that finds this event does not fail,
    /// even if a fault was injected.
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
            forgotten: 0,
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
            // After this time, rdma_cm sends an unanswered message again.
            2 => Duration::from_secs(5),
            _ => Duration::from_secs(80),
        };
        self.pass(time);
    }

    /// Moves the clock of a stepped device.
    fn pass(&mut self, time: Duration) {
        let Some(fabric) = &self.fabric else { return };
        // Move the clock from timer to timer, so that each timer runs at its own time.
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

    /// Advances a value of the lane, or begins a new one.
    fn go_on(&mut self, random: &mut Random, place: usize, waits: bool) {
        match self.pick(place, |_| true) {
            Some(value) => self.go(random, value, waits),
            None => self.new_idle(random),
        }
    }

    /// Advances a value. If `waits` is true and the device is not stepped, waits for an event that must come according
    /// to the model.
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

/// Random private data that begin with the number of the attempt. Returns the bytes that are sent, and the value that
/// contains them.
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
