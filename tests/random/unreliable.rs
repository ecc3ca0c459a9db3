//! Unreliable connections and datagrams, with receives of their own and with shared ones. A message may be lost, but it
//! never arrives twice or out of order.

use crate::{Device, Effort, Random, Stage, Stock, compose, domain_named, for_programs, read};
use interlock::datagram::Recipient;
use interlock::error::TransitionFailure;
use interlock::number::{Qkey, Qpn};
use interlock::request::Operation;
use interlock::shared::{Datagrams, Messages, SharedLimits, SharedReceiveQueue};
use interlock::soft::{Fault, Verb};
use interlock::transport::{Carries, Connected, Connectionless, OnShared, Transport, Unreliable};
use interlock::{
    AnyQueuePair, Brand, Buffer, Completion, CompletionQueue, Context, Init, Limits, Poller, Port, PostError,
    ProtectionDomain, QueuePair, ReadyToSend, Reset, Status, UnreliableConnection, UnreliableDatagram, Work, WorkId,
    WorkRequest, request,
};
use std::collections::HashMap;
use support::steps::Step;
use support::{Need, Queues, lacks_need};

const LIMITS: Limits =
    Limits { sends: 4, receives: 3, inline_bytes: 0, elements: 1, posting: interlock::queue::Posting::List };
/// Two connections, or four pairs that send datagrams to each other and to themselves.
const ENDS: usize = 4;
const SHARED: SharedLimits = SharedLimits { receives: 6, grows_to: 0 };
const MESSAGE_BYTES: usize = 64;
/// A message and the header of a datagram.
const RECEIVE_BYTES: usize = 40 + MESSAGE_BYTES;
/// Too long for a receive, with a header or without one.
const TOO_LONG_BYTES: usize = RECEIVE_BYTES + 8;
const RECEIVES: usize = ENDS * LIMITS.receives as usize + SHARED.receives as usize + 1;

type Pair<K> = QueuePair<<K as Kind>::Brand, ReadyToSend, <K as Kind>::Transport>;
type Posted<K> = Result<WorkId, PostError<Buffer<<K as Kind>::Brand>>>;

/// The differences between the transports, and between own and shared receives.
trait Kind: Sized {
    type Brand: Brand;
    type Transport: Transport + Unreliable;
    /// The shared receive queue, if there is one.
    type Shared;
    const SHARES: bool;
    const CONNECTS: bool;
    fn domain(context: &Context) -> ProtectionDomain<Self::Brand>;
    fn shared(domain: &ProtectionDomain<Self::Brand>) -> Self::Shared;
    fn pair(world: &World<Self>) -> QueuePair<Self::Brand, Reset, Self::Transport>;
    /// Brings both pairs to Ready To Send. They are connected to each other if the transport has connections.
    fn up(pairs: [QueuePair<Self::Brand, Init, Self::Transport>; 2]) -> [Pair<Self>; 2];
    fn receive(shared: &mut Self::Shared, pair: &mut Pair<Self>, buffer: Buffer<Self::Brand>) -> Posted<Self>;
    fn send(
        pair: &mut Pair<Self>,
        buffer: Buffer<Self::Brand>,
        with: Option<u32>,
        to: &Recipient<Self::Brand>,
    ) -> Posted<Self>;
    /// The buffers that come back only after all pairs are gone.
    fn end(shared: Self::Shared) -> Vec<Buffer<Self::Brand>>;
}

macro_rules! kind {
    ($name:ident, $transport:ty, $make:ident, $send:ident, $connects:literal, $up:ident) => {
        kind!($name, $transport, (), false, $connects, $send, $up,
            |_domain| (), |world| world.domain.$make(&world.queue, &LIMITS),
            |_shared, pair, buffer| pair.post_receive(buffer), |_shared| Vec::new());
    };
    ($name:ident, $transport:ty, $make:ident, $send:ident, $connects:literal, $up:ident,
        $arrivals:ty, $queue:ident) => {
        kind!($name, OnShared<$transport>, SharedReceiveQueue<Self::Brand, $arrivals>, true, $connects, $send,
            $up,
            |domain| domain.$queue(&SHARED).unwrap(), |world| world.shared.$make(&world.queue, &LIMITS),
            |shared, _pair, buffer| shared.post_receive(buffer), |shared| shared.destroy().unwrap());
    };
    ($name:ident, $transport:ty, $shared:ty, $shares:literal, $connects:literal, $send:ident, $up:ident,
        |$domain:ident| $made:expr, |$world:ident| $pair:expr,
        |$queue:ident, $own:ident, $buffer:ident| $receive:expr, |$left:ident| $end:expr) => {
        #[derive(Debug)]
        enum $name {}
        impl Kind for $name {
            type Brand = brands::$name;
            type Transport = $transport;
            type Shared = $shared;
            const SHARES: bool = $shares;
            const CONNECTS: bool = $connects;
            fn domain(context: &Context) -> ProtectionDomain<Self::Brand> {
                domain_named(context, brands::$name)
            }
            fn shared($domain: &ProtectionDomain<Self::Brand>) -> Self::Shared {
                $made
            }
            fn pair($world: &World<Self>) -> QueuePair<Self::Brand, Reset, Self::Transport> {
                $pair.unwrap()
            }
            fn up(pairs: [QueuePair<Self::Brand, Init, Self::Transport>; 2]) -> [Pair<Self>; 2] {
                $up(pairs)
            }
            fn receive(
                $queue: &mut Self::Shared,
                $own: &mut Pair<Self>,
                $buffer: Buffer<Self::Brand>,
            ) -> Posted<Self> {
                $receive
            }
            fn send(
                pair: &mut Pair<Self>,
                buffer: Buffer<Self::Brand>,
                with: Option<u32>,
                to: &Recipient<Self::Brand>,
            ) -> Posted<Self> {
                $send(pair, buffer, with, to)
            }
            fn end($left: Self::Shared) -> Vec<Buffer<Self::Brand>> {
                $end
            }
        }
    };
}

mod brands {
    interlock::domain! {
        pub(super) struct Connections;
        pub(super) struct SharingConnections;
        pub(super) struct Mailboxes;
        pub(super) struct SharingMailboxes;
    }
}

kind!(Connections, UnreliableConnection, unreliable, to_peer, true, each_other);
kind!(SharingConnections, UnreliableConnection, unreliable, to_peer, true, each_other, Messages, shared_receive_queue);
kind!(Mailboxes, UnreliableDatagram, datagram, to_recipient, false, everybody);
kind!(SharingMailboxes, UnreliableDatagram, datagram, to_recipient, false, everybody, Datagrams, shared_datagram_queue);

fn each_other<B: Brand, T: Transport + Connected>(
    [left, right]: [QueuePair<B, Init, T>; 2],
) -> [QueuePair<B, ReadyToSend, T>; 2] {
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    [left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap()]
}

fn everybody<B: Brand, T: Transport + Connectionless>(
    pairs: [QueuePair<B, Init, T>; 2],
) -> [QueuePair<B, ReadyToSend, T>; 2] {
    pairs.map(|pair| pair.open().unwrap())
}

fn to_peer<B: Brand, T: Carries<request::Send>>(
    pair: &mut QueuePair<B, ReadyToSend, T>,
    buffer: Buffer<B>,
    with: Option<u32>,
    _to: &Recipient<B>,
) -> Result<WorkId, PostError<Buffer<B>>> {
    match with {
        Some(immediate) => pair.post_send_with_immediate(buffer, immediate),
        None => pair.post_send(buffer),
    }
}

fn to_recipient<B: Brand, T: Carries<request::SendTo>>(
    pair: &mut QueuePair<B, ReadyToSend, T>,
    buffer: Buffer<B>,
    with: Option<u32>,
    to: &Recipient<B>,
) -> Result<WorkId, PostError<Buffer<B>>> {
    let request: WorkRequest<_, request::SendTo> = WorkRequest::send_to(buffer, to);
    let posted = match with {
        Some(immediate) => pair.post(request.with_immediate(immediate)),
        None => pair.post(request),
    };
    posted.map_err(|error| error.map(|request| request.into_memory().memory))
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum What {
    Receive,
    Message,
    /// Longer than any receive.
    TooLong,
    /// A datagram with a Q_Key that no pair has.
    Stray,
}

/// A request in flight. A shared receive belongs to no life.
#[derive(Debug)]
struct InFlight {
    life: Option<usize>,
    number: u64,
    address: usize,
    what: What,
}

/// The state that the model has of a pair between two resets, here called a life.
#[derive(Debug, Default)]
struct Life {
    number: Option<Qpn>,
    /// How many were posted, for sends and for receives of the pair's own.
    posted: [u64; 2],
    out: [u64; 2],
    failed: [bool; 2],
    /// The messages that were sent: each with the target's number, the immediate and the length.
    log: Vec<(What, Option<Qpn>, Option<u32>, usize)>,
    /// The index of the last message that arrived, for each life that sends.
    last: HashMap<usize, usize>,
    received: usize,
    /// In this order: the pair was taken down; no completion can come any more; it was sent a message that is too long;
    /// a send failed at this side.
    closing: bool,
    gone: bool,
    hit: bool,
    stopped: bool,
}

impl Life {
    fn over(&self) -> bool {
        self.posted == self.out
    }
}

struct End<K: Kind> {
    pair: AnyQueuePair<K::Brand, K::Transport>,
    life: usize,
    /// Two recipients that name this pair: one with its Q_Key, and one with a wrong Q_Key.
    to: [Recipient<K::Brand>; 2],
}

/// The call that a step of a program makes. The `place` of a step chooses an end.
#[derive(Clone, Copy, Debug)]
enum Call {
    Poll,
    Step,
    Receive,
    Message,
    Stray,
    Lose,
    Fail,
    Resume,
    Settle,
    TooLong,
    Revive,
}

/// Each call, with its relative frequency. When a failing program is reduced, later calls are replaced by earlier ones.
const CALLS: [(u32, Call); 11] = [
    (100, Call::Poll),
    (70, Call::Step),
    (80, Call::Receive),
    (90, Call::Message),
    (10, Call::Stray),
    (10, Call::Lose),
    (4, Call::Fail),
    (20, Call::Resume),
    (4, Call::Settle),
    (3, Call::TooLong),
    (9, Call::Revive),
];

struct World<K: Kind> {
    device: Device,
    domain: ProtectionDomain<K::Brand>,
    port: Port,
    queue: CompletionQueue<K::Brand>,
    poller: Poller<K::Brand>,
    shared: K::Shared,
    senders: Stock<K::Brand>,
    receivers: Stock<K::Brand>,
    ends: Vec<End<K>>,
    lives: Vec<Life>,
    in_flight: HashMap<WorkId, InFlight>,
    /// How many requests may still fail at their sender because of an injected fault.
    failing: usize,
}

impl<K: Kind> World<K>
where
    for<'p> &'p Port: Into<<K::Transport as Transport>::InitAttributes>,
{
    fn new() -> Self {
        let device = Device::open();
        let domain = K::domain(&device.context);
        let port = device.context.active_port().unwrap();
        let (queue, poller) = domain.queue(ENDS as u32 * LIMITS.completions() + SHARED.completions()).unwrap();
        let senders = Stock::new(&domain, ENDS * LIMITS.sends as usize + 1, TOO_LONG_BYTES);
        let receivers = Stock::new(&domain, RECEIVES, RECEIVE_BYTES);
        let (shared, in_flight) = (K::shared(&domain), HashMap::new());
        let (ends, lives, failing) = (Vec::new(), Vec::new(), 0);
        let mut world =
            Self { device, domain, port, queue, poller, shared, senders, receivers, ends, lives, in_flight, failing };
        for _ in 0..ENDS / 2 {
            let pairs = [(), ()].map(|()| K::pair(&world).into_init(&world.port).unwrap());
            let ends = world.begin(pairs);
            world.ends.extend(ends);
        }
        world
    }

    /// Brings two pairs up, and begins a new life of each.
    fn begin(&mut self, pairs: [QueuePair<K::Brand, Init, K::Transport>; 2]) -> [End<K>; 2] {
        let recipient =
            |pair: &QueuePair<_, _, _>, qkey| self.domain.recipient(&self.port, &pair.endpoint(), qkey).unwrap();
        let to = pairs.each_ref().map(|pair| [Qkey::USUAL, Qkey(0x2222_2222)].map(|qkey| recipient(pair, qkey)));
        let life = self.lives.len();
        self.lives.extend(pairs.each_ref().map(|pair| Life { number: Some(pair.number()), ..Life::default() }));
        let ([left, right], [to_left, to_right]) = (K::up(pairs), to);
        [End { pair: left.into(), life, to: to_left }, End { pair: right.into(), life: life + 1, to: to_right }]
    }

    /// Whether requests of a life may fail, on both queues.
    fn may_fail(&self, life: usize) -> bool {
        self.lives[life].closing || self.is_hit(life) || self.device.fatal.get()
    }

    /// Whether a message that is too long was sent to this life, or to an earlier pair with the same number, since a
    /// datagram may arrive late.
    fn is_hit(&self, life: usize) -> bool {
        let number = self.lives[life].number;
        self.lives[life].hit || !K::CONNECTS && self.lives.iter().any(|life| life.number == number && life.hit)
    }

    fn post(&mut self, random: &mut Random, end: usize, what: What) {
        let target = if K::CONNECTS { end ^ 1 } else { random.below(ENDS) };
        self.post_to(random, end, target, what);
    }

    fn post_to(&mut self, random: &mut Random, end: usize, target: usize, what: What) {
        let (life, other) = (self.ends[end].life, self.ends[target].life);
        let may_fail = self.may_fail(life);
        let queue = usize::from(what == What::Receive);
        let shared = what == What::Receive && K::SHARES;
        let to = self.ends[target].to[usize::from(what == What::Stray)].clone();
        let model = &self.lives[life];
        let (full, verb) = match what {
            What::Receive if K::SHARES => (self.shared_in_flight() == SHARED.receives as usize, Verb::PostSrqRecv),
            What::Receive => (model.posted[1] - model.out[1] == u64::from(LIMITS.receives), Verb::PostRecv),
            _ => (model.posted[0] - model.out[0] == u64::from(LIMITS.sends), Verb::PostSend),
        };
        let Some(pair) = self.ends[end].pair.ready() else { return };
        assert_eq!(pair.is_broken(), model.failed.contains(&true), "{model:?}");
        assert!(!pair.is_broken() || may_fail || model.stopped, "broken for no reason: {model:?}");
        // A failed receive stops the sends and the receives of a pair, and a failed send only the sends. A shared
        // receive is posted to no pair, so no broken pair refuses it.
        let broken = !shared && (model.failed[1] || queue == 0 && model.failed[0]);
        let expected = self.device.expect(random, verb, broken, full);
        let mut buffer = if what == What::Receive { self.receivers.take() } else { self.senders.take() };
        let (address, place) = (buffer.as_ptr().addr(), model.log.len());
        let len = if what == What::TooLong { TOO_LONG_BYTES } else { 8 + random.below(MESSAGE_BYTES - 7) };
        let immediate = random.one_in(3).then(|| random.next() as u32);
        let posted = if what == What::Receive {
            K::receive(&mut self.shared, pair, buffer)
        } else {
            compose(&mut buffer, (life << 32 | place) as u64, len);
            K::send(pair, buffer, immediate, &to)
        };
        match expected.check(&what, posted) {
            Ok(id) => {
                let number = self.lives[life].posted[queue];
                let posted = InFlight { life: (!shared).then_some(life), number, address, what };
                assert!(self.in_flight.insert(id, posted).is_none(), "{id:?} is in flight twice");
                if !shared {
                    self.lives[life].posted[queue] += 1;
                }
                if what != What::Receive {
                    let to = self.lives[other].number.filter(|_| what != What::Stray);
                    self.lives[life].log.push((what, to, immediate, len));
                }
                self.lives[other].hit |= what == What::TooLong;
            }
            Err(back) => {
                assert_eq!(back.as_ptr().addr(), address, "another buffer came back");
                self.give(what, back);
            }
        }
    }

    fn shared_in_flight(&self) -> usize {
        self.in_flight.values().filter(|posted| posted.life.is_none()).count()
    }

    fn give(&mut self, what: What, buffer: Buffer<K::Brand>) {
        if what == What::Receive { self.receivers.give(buffer) } else { self.senders.give(buffer) }
    }

    /// Checks a completion against the model.
    fn complete(&mut self, completion: Completion<K::Brand>) {
        let id = completion.id();
        let Some(posted) = self.in_flight.remove(&id) else { panic!("{id:?} came, which is not in flight") };
        let queue = usize::from(posted.what == What::Receive);
        if let Some(life) = posted.life {
            let model = &mut self.lives[life];
            assert_eq!(model.out[queue], posted.number, "{:?} out of order", posted.what);
            model.out[queue] += 1;
        }
        let buffer = match completion.check() {
            Ok(success) => {
                let failed = posted.life.is_some_and(|life| self.lives[life].failed[queue]);
                assert!(!failed, "{:?} succeeds after a failure", posted.what);
                if posted.what == What::Receive {
                    self.received(success.queue_pair(), success.into_work(), posted.life)
                } else {
                    assert_eq!(success.operation(), Operation::Send);
                    success.into_buffer().unwrap()
                }
            }
            Err(failure) => {
                let of = |life: &Life| life.number == Some(failure.queue_pair) && !life.gone;
                let life = posted.life.or_else(|| self.lives.iter().position(of)).expect("whose failure is it?");
                let (may_fail, is_hit) = (self.may_fail(life), self.is_hit(life));
                let model = &mut self.lives[life];
                let may = match failure.status {
                    Status::Flushed => may_fail || queue == 0 && model.stopped,
                    Status::Destroyed => model.closing,
                    Status::LocalLength | Status::LocalQueuePairOperation => queue == 1 && is_hit,
                    // Soft-RoCE can report this status for a message that is too long for a shared receive.
                    Status::RemoteInvalidRequest => K::SHARES && queue == 1 && is_hit,
                    Status::LocalProtection => queue == 0 && self.failing > 0,
                    _ => false,
                };
                assert!(may, "{posted:?} ends with {}: {model:?}", failure.status);
                self.failing -= usize::from(failure.status == Status::LocalProtection);
                model.stopped |= failure.status == Status::LocalProtection;
                model.failed[queue] = true;
                failure.into_buffer().unwrap()
            }
        };
        assert_eq!(buffer.as_ptr().addr(), posted.address, "{:?} gives another buffer back", posted.what);
        self.give(posted.what, buffer);
    }

    /// Checks a message. The message itself names its sender, and its index in that life.
    fn received(&mut self, pair: Qpn, work: Work<K::Brand>, posted: Option<usize>) -> Buffer<K::Brand> {
        let (number, sender, immediate, len, buffer) = match work {
            Work::Received(received) => {
                (read(&received.buffer), None, received.immediate, received.buffer.len(), received.buffer)
            }
            Work::Datagram(datagram) => {
                let (number, len) = (read(datagram.message()), datagram.message().len());
                assert_eq!(datagram.sender_gid(), self.port.gid().map(|row| row.gid));
                (number, Some(datagram.sender), datagram.immediate, len, datagram.into_buffer())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(sender.is_some(), !K::CONNECTS);
        let (from, place) = ((number >> 32) as usize, (number & 0xffff_ffff) as usize);
        assert!(sender.is_none() || sender == self.lives[from].number, "{sender:?} did not send {number:#x}");
        assert_eq!(self.lives[from].log[place], (What::Message, Some(pair), immediate, len));
        let of = |life: &Life| life.number == Some(pair) && !life.gone;
        let life = posted.or_else(|| self.lives.iter().position(of)).expect("a message to nobody");
        let model = &mut self.lives[life];
        assert!(model.number == Some(pair) && !model.gone, "it came to {pair:?}: {model:?}");
        model.received += 1;
        let last = model.last.insert(from, place);
        assert!(last.is_none_or(|last| last < place), "{place} of {from} came after {last:?}");
        buffer
    }

    /// Takes both ends of a link down, and brings them or new ones up.
    fn revive(&mut self, random: &mut Random, link: usize) {
        let pairs = [2 * link, 2 * link + 1].map(|end| {
            let life = self.ends[end].life;
            self.lives[life].closing = true;
            let pair = std::mem::take(&mut self.ends[end].pair);
            let over = |world: &Self| world.lives[life].over();
            let flush = |world: &mut Self| world.until("the flush", |world| world.lives[life].over());
            let pair = self.renew(random, pair, over, |world, _| flush(world), |world| K::pair(world));
            // Once a poll has found the completion queue empty, no later poll returns a message to this life of the
            // pair.
            self.until("an empty queue", |_| true);
            self.lives[life].gone = true;
            pair
        });
        let ends = self.begin(pairs);
        self.ends.splice(2 * link..2 * link + 2, ends);
    }

    /// Resumes a pair after a send failed at its sender. That works only after all sends have completed.
    fn resume(&mut self, end: usize) {
        let life = self.ends[end].life;
        let (may_fail, sends) = (self.may_fail(life), self.lives[life].posted[0] - self.lives[life].out[0]);
        let pair = match std::mem::take(&mut self.ends[end].pair) {
            AnyQueuePair::ReadyToSend(pair) => match pair.into_sqe() {
                Ok(pair) => {
                    assert!(self.lives[life].stopped || self.failing > 0, "no send has failed");
                    pair
                }
                Err(error) => {
                    assert!(!self.lives[life].stopped || may_fail, "{error}");
                    return self.ends[end].pair = error.queue_pair.into();
                }
            },
            AnyQueuePair::SendQueueError(pair) => pair,
            other => return self.ends[end].pair = other,
        };
        self.ends[end].pair = match pair.resume() {
            Ok(pair) => {
                assert_eq!(sends, 0, "it goes on before all is known");
                let model = &mut self.lives[life];
                (model.stopped, model.failed[0]) = (false, false);
                pair.into()
            }
            Err(error) => {
                let undrained = matches!(error.source, TransitionFailure::Undrained { .. });
                assert!(undrained == (sends != 0) && (undrained || may_fail), "{error}");
                error.queue_pair.into()
            }
        };
    }

    /// Checks that a message arrives if there is a receive and no fault.
    fn settle(&mut self, random: &mut Random) {
        self.device.heal();
        self.until("the end of all sends", |world| world.lives.iter().all(|life| life.posted[0] == life.out[0]));
        self.failing = 0;
        for end in 0..ENDS {
            let target = if K::CONNECTS { end ^ 1 } else { end };
            let lives = [end, target].map(|end| self.ends[end].life);
            let ready =
                |end: usize, world: &mut Self| world.ends[end].pair.ready().is_some_and(|pair| !pair.is_broken());
            if lives.iter().any(|&life| self.may_fail(life)) || !ready(end, self) || !ready(target, self) {
                continue;
            }
            self.post(random, target, What::Receive);
            let model = &self.lives[lives[1]];
            let receives = if K::SHARES { self.shared_in_flight() as u64 } else { model.posted[1] - model.out[1] };
            // There is no receive if the device has refused the post.
            if receives == 0 {
                continue;
            }
            let (before, sent) = (model.last.get(&lives[0]).copied(), self.lives[lives[0]].log.len());
            self.post_to(random, end, target, What::Message);
            if self.lives[lives[0]].log.len() == sent {
                continue;
            }
            self.until("a message", |world| {
                let model = &world.lives[lives[1]];
                let arrived = model.last.get(&lives[0]).copied() > before;
                let receives = if K::SHARES { world.shared_in_flight() as u64 } else { model.posted[1] - model.out[1] };
                // On a device that is not stepped, a send completes when its message has left the device. So perhaps an
                // earlier message was still under way, and has taken the receive. Then post a receive and a message
                // again.
                if !arrived && receives == 0 && world.device.stepped.is_none() {
                    world.post(random, target, What::Receive);
                    world.post_to(random, end, target, What::Message);
                }
                arrived
            });
        }
    }

    /// Executes a step.
    fn act(&mut self, step: &Step<Call>) {
        let (random, end) = (&mut step.random(), step.place);
        match step.call {
            Call::Poll => drop(self.poll(1 + random.below(6))),
            Call::Step => self.device.step(random),
            Call::Receive => self.post(random, end, What::Receive),
            Call::Message => self.post(random, end, What::Message),
            Call::Stray => self.post(random, end, if K::CONNECTS { What::Message } else { What::Stray }),
            Call::Lose => self.device.lose(random),
            Call::Fail => self.failing += usize::from(self.device.inject(Fault::RequestsFail { count: 1 })),
            Call::Resume => self.resume(end),
            Call::Settle => self.settle(random),
            Call::TooLong => self.post(random, end, What::TooLong),
            Call::Revive => self.revive(random, end / 2),
        }
    }

    /// Takes everything down, and checks that all buffers come back.
    fn end(mut self, random: &mut Random) {
        for end in 0..ENDS {
            let life = self.ends[end].life;
            self.lives[life].closing = true;
            let pair = std::mem::take(&mut self.ends[end].pair);
            drop(self.take_down(random, pair, |world| world.lives[life].over(), |_, _| ()));
            self.until("the end", |world| world.lives[life].over());
        }
        assert_eq!(self.poller.unknown_completions(), 0);
        let Self { shared, in_flight, mut receivers, senders, poller, queue, .. } = self;
        drop((poller, queue));
        let back = K::end(shared);
        assert_eq!(back.len(), in_flight.len(), "receives that were in flight are lost, or there twice");
        back.into_iter().for_each(|buffer| receivers.give(buffer));
        assert!(receivers.away.is_empty() && senders.away.is_empty(), "something did not come back");
    }
}

impl<K: Kind> Stage<K::Brand> for World<K>
where
    for<'p> &'p Port: Into<<K::Transport as Transport>::InitAttributes>,
{
    fn device(&self) -> &Device {
        &self.device
    }

    fn port(&self) -> &Port {
        &self.port
    }

    fn poll(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(completion) = self.poller.poll().unwrap() else { return true };
            self.complete(completion);
        }
        false
    }
}

fn messages_come_once_in_order_or_not_at_all<K: Kind>()
where
    for<'p> &'p Port: Into<<K::Transport as Transport>::InitAttributes>,
{
    let effort = Effort { programs: [150, 4], most_steps: [1500, 400] };
    for_programs(std::any::type_name::<K>(), &effort, ENDS, &CALLS, |program| {
        let mut world = World::<K>::new();
        program.steps().for_each(|step| world.act(step));
        let mut random = program.random_after();
        if random.one_in(3) {
            world.device.fail();
            for _ in 0..random.below(100) {
                let (end, what) = (random.below(ENDS), [What::Receive, What::Message][random.below(2)]);
                world.post(&mut random, end, what);
                world.poll(random.below(3));
                world.device.step(&mut random);
            }
        }
        world.end(&mut random);
    });
}

#[test]
fn messages_of_unreliable_connections_come_once_in_order_or_not_at_all() {
    if lacks_need(Need::UnreliableTransports) {
        return;
    }
    messages_come_once_in_order_or_not_at_all::<Connections>();
}

#[test]
fn messages_to_shared_receives_come_once_in_order_or_not_at_all() {
    if lacks_need(Need::UnreliableTransports) {
        return;
    }
    messages_come_once_in_order_or_not_at_all::<SharingConnections>();
}

#[test]
fn datagrams_come_once_in_order_or_not_at_all() {
    if lacks_need(Need::UnreliableTransports) {
        return;
    }
    messages_come_once_in_order_or_not_at_all::<Mailboxes>();
}

#[test]
fn datagrams_to_shared_receives_come_once_in_order_or_not_at_all() {
    if lacks_need(Need::UnreliableTransports) {
        return;
    }
    messages_come_once_in_order_or_not_at_all::<SharingMailboxes>();
}
