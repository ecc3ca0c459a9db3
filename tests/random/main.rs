//! Long random programs of calls, legal and illegal, each checked against a small model of the correct results. There
//! is a file for each model.
//!
//! `INTERLOCK_SEED=<number>` repeats one program. A program that fails is reduced, and printed with its seed. The soft
//! device is stepped by hand, so that a seed gives the same program with the same outcome each time. Other devices
//! complete requests at any time, and the models accept completions in the order in which they come.

mod grants;
mod links;
mod lists;
mod pools;
mod shared;
mod unreliable;

use interlock::attributes::ConnectAttributes;
use interlock::completion::Polling;
use interlock::domain::Named;
use interlock::error::{NamedDomainError, TransitionFailure};
use interlock::soft::{Fabric, Fault, Verb};
use interlock::state::DeviceState;
use interlock::transport::{Reliable, Transport};
use interlock::{
    AnyQueuePair, Brand, Buffer, CompletionQueue, Context, Errored, Init, Limits, Port, PostError, ProtectionDomain,
    QueuePair, ReadyToSend, Reset, WorkId,
};
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt::Debug;
use std::time::{Duration, Instant};
use support::steps::{self, Program, programs};
use support::{PATIENCE, POLLING, Random, connect_to_each_other};

/// The device under test: a soft one that is stepped, or the one that `INTERLOCK_DEVICE` names.
struct Device {
    context: Context,
    stepped: Option<Fabric>,
    /// Whether the device has failed. A failed device only gives back the requests in flight.
    fatal: Cell<bool>,
}

/// The name of the stepped device.
const NAME: &str = "random";

impl Device {
    fn open() -> Self {
        let (context, fatal) = (support::context(), Cell::new(false));
        if !context.is_soft() {
            return Self { context, stepped: None, fatal };
        }
        let fabric = Fabric::manual();
        Self { context: Context::open_on(&fabric, NAME).unwrap(), stepped: Some(fabric), fatal }
    }

    /// Lets a stepped device take up to seven steps; waits a moment for another device.
    fn step(&self, random: &mut Random) {
        match &self.stepped {
            Some(fabric) => {
                for _ in 0..random.below(8) {
                    fabric.step();
                }
            }
            None => std::thread::sleep(Duration::from_micros(random.below(300) as u64)),
        }
    }

    /// Injects a fault if the device is a stepped one. Returns whether it is.
    fn inject(&self, fault: Fault) -> bool {
        self.stepped.as_ref().map(|fabric| fabric.inject(fault)).is_some()
    }

    /// Makes the network lose one request or one answer. A reliable pair sends it again, and the request is executed
    /// once.
    fn lose(&self, random: &mut Random) {
        let one = random.one_in(2);
        self.inject(if one { Fault::RequestsLost { count: 1 } } else { Fault::AnswersLost { count: 1 } });
    }

    /// The result that the next post must have, for a queue that is `broken` or `full` or neither. A stepped device
    /// refuses some of the posts, and all of them after it has failed.
    fn expect(&self, random: &mut Random, verb: Verb, broken: bool, full: bool) -> Expected {
        let reaches = !broken && !full;
        let fault = Fault::VerbFails { verb, after: 0, count: 1, errno: libc::ENOMEM };
        let refused = reaches && (self.fatal.get() || random.one_in(12) && self.inject(fault));
        Expected { broken, full, refused }
    }

    /// Makes the device fail if it is a stepped one.
    fn fail(&self) {
        self.fatal.set(self.inject(Fault::DeviceFatal { device: NAME.to_owned() }));
    }

    /// Removes the injected faults that have not happened yet.
    fn heal(&self) {
        if let Some(fabric) = &self.stepped {
            fabric.heal();
        }
    }

    /// Lets the device do all that it can. If there is nothing to do, moves its clock to the next timer.
    fn run(&self) {
        let Some(fabric) = &self.stepped else { return std::thread::sleep(Duration::from_micros(200)) };
        if fabric.run() == 0
            && let Some(timer) = fabric.next_timer()
        {
            fabric.advance(timer);
        }
    }
}

/// The time limit of the search for a small program that fails.
const SEARCH: Duration = Duration::from_secs(60);

/// How many programs a test runs, and how many steps each has at most: on the soft device, and on other devices, which
/// are slower.
struct Effort {
    programs: [u64; 2],
    most_steps: [usize; 2],
}

/// Tests random programs of these calls with `places` places, one program for each seed. `INTERLOCK_SEED` chooses one
/// seed.
fn for_programs<C: Copy + Debug + 'static>(
    name: &str,
    effort: &Effort,
    places: usize,
    calls: &[(u32, C)],
    test: impl Fn(&Program<C>),
) {
    let on = usize::from(support::on_hardware());
    // The soft device runs all programs. With each of its profiles, and under the address sanitizer, it runs a third.
    let apart = if support::promises_everything() && !cfg!(asan) || support::on_hardware() { 1 } else { 3 };
    let seeds = match std::env::var("INTERLOCK_SEED") {
        Ok(seed) => seed.parse().map(|seed| seed..seed + 1).expect("a number"),
        Err(_) => 0..effort.programs[on],
    };
    let strategy = programs(calls, places, effort.most_steps[on]);
    // A program that fails is not reduced on hardware. Hardware completes requests at any time, so the reduced program
    // could fail for another reason.
    let time = if support::on_hardware() { Duration::ZERO } else { SEARCH };
    for seed in seeds.step_by(apart) {
        // Every second program polls extended queues. An iWARP device has none.
        let is_extended = seed % 2 != 0 && !support::context().is_iwarp();
        POLLING.set(if is_extended { Polling::Extended } else { Polling::Array });
        steps::check(&format!("{name}: INTERLOCK_SEED={seed}"), seed, &strategy, time, &test);
    }
}

/// Opens the domain of this name. Gives the program up if the name is taken, since an earlier program that failed may
/// have left it taken.
fn domain_named<N: Named + Brand>(context: &Context, name: N) -> ProtectionDomain<N> {
    match context.named_domain(name) {
        Err(NamedDomainError::Taken { .. }) => steps::give_up(),
        domain => domain.unwrap(),
    }
}

/// The device, a domain of this name on it, and a port of it.
fn set_up<N: Named + Brand>(name: N) -> (Device, ProtectionDomain<N>, Port) {
    let device = Device::open();
    let domain = domain_named(&device.context, name);
    let port = device.context.active_port().unwrap();
    (device, domain, port)
}

/// Two pairs in Init, to be connected to each other.
fn two_pairs<B: Brand>(
    domain: &ProtectionDomain<B>,
    queue: &CompletionQueue<B>,
    limits: &Limits,
    port: &Port,
) -> [QueuePair<B, Init>; 2] {
    [(), ()].map(|()| domain.reliable(queue, limits).unwrap().into_init(port).unwrap())
}

/// Connects two pairs, with a timeout that does not expire on a busy machine.
fn connect<B: Brand, L: Reliable, R: Reliable>(
    domain: &ProtectionDomain<B>,
    left: QueuePair<B, Init, L>,
    right: QueuePair<B, Init, R>,
) -> (QueuePair<B, ReadyToSend, L>, QueuePair<B, ReadyToSend, R>) {
    let patient = ConnectAttributes { timeout: 18.try_into().unwrap(), ..ConnectAttributes::default() };
    connect_to_each_other(domain, left, right, &patient)
}

/// Shows what the other tests print when they fail: the steps that matter and no others.
#[test]
fn a_program_that_fails_is_made_small() {
    let strategy = programs(&[(20, 'a'), (1, 'b'), (1, 'c')], 3, 400);
    let test = |program: &Program<char>| {
        let mut steps = program.steps().skip_while(|step| step.call != 'c');
        assert!(!steps.any(|step| step.call == 'b' && step.place > 0), "b after c");
    };
    let failed = (0..20).filter_map(|seed| {
        let checked = std::panic::catch_unwind(|| steps::check("a test of tests", seed, &strategy, SEARCH, test));
        checked.err().map(|panic| *panic.downcast::<String>().unwrap())
    });
    let small = "a test of tests: a small program that fails:
     0: 'c', place 0, chance 0
     1: 'b', place 1, chance 0
   end: chance 0
It fails with: b after c";
    let failed: Vec<String> = failed.collect();
    assert!(failed.len() > 10 && failed.iter().all(|message| message == small), "{failed:#?}");
}

/// The result that a post must have.
#[derive(Clone, Copy, Debug)]
struct Expected {
    broken: bool,
    full: bool,
    /// Whether the verb fails if the library calls it.
    refused: bool,
}

impl Expected {
    /// Checks what a post returned. Returns the id of the request, or the memory that came back.
    fn check<M>(self, what: &dyn Debug, answer: Result<WorkId, PostError<M>>) -> Result<WorkId, M> {
        match answer {
            Ok(id) if !self.broken && !self.full && !self.refused => Ok(id),
            Ok(_) => panic!("{what:?} was posted, where {self:?} was to be expected"),
            Err(PostError::Broken { request, .. }) if self.broken => Err(request),
            Err(PostError::QueueFull(request)) if self.full && !self.broken => Err(request),
            Err(PostError::Refused { request, .. }) if self.refused && !self.full && !self.broken => Err(request),
            Err(error) => panic!("{what:?}: {error}, where {self:?} was to be expected"),
        }
    }
}

/// A stock of buffers that knows which of them are posted, so that none is lost and none comes back twice.
struct Stock<B> {
    here: Vec<Buffer<B>>,
    away: HashSet<usize>,
}

impl<B: Brand> Stock<B> {
    fn new(domain: &ProtectionDomain<B>, count: usize, len_bytes: usize) -> Self {
        Self { here: domain.buffers(count, len_bytes).unwrap(), away: HashSet::new() }
    }

    fn take(&mut self) -> Buffer<B> {
        let buffer = self.here.pop().expect("buffers were lost");
        assert!(self.away.insert(buffer.as_ptr().addr()), "there are two of {buffer:?}");
        buffer
    }

    fn give(&mut self, buffer: Buffer<B>) {
        assert!(self.away.remove(&buffer.as_ptr().addr()), "{buffer:?} comes back twice");
        self.here.push(buffer);
    }
}

/// Fills a buffer with message `number`: at least 8 bytes, all computed from the number.
fn compose<B>(buffer: &mut Buffer<B>, number: u64, len_bytes: usize) {
    buffer.set_len(len_bytes).unwrap();
    for (place, byte) in buffer.iter_mut().enumerate() {
        *byte = byte_of(number, place);
    }
}

/// The number of the message in `bytes`. Panics if they are parts of several messages.
fn read(bytes: &[u8]) -> u64 {
    let number = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
    let torn = bytes.iter().enumerate().find(|&(place, &byte)| byte != byte_of(number, place));
    assert!(torn.is_none(), "message {number:#x} is torn at {torn:?}: {bytes:?}");
    number
}

fn byte_of(number: u64, place: usize) -> u8 {
    match number.to_ne_bytes().get(place) {
        Some(&byte) => byte,
        None => (number as u8).wrapping_mul(31).wrapping_add(place as u8),
    }
}

/// The actions that all models share: waiting, and taking pairs down.
trait Stage<B: Brand> {
    fn device(&self) -> &Device;
    fn port(&self) -> &Port;
    /// Polls up to `most` completions, and returns whether the queue was seen empty.
    fn poll(&mut self, most: usize) -> bool;

    /// Polls, and lets the device continue, until `done`. Panics if that takes too long.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let empty = self.poll(usize::MAX);
            if empty && done(self) {
                return;
            }
            assert!(Instant::now() < deadline, "{what} does not come");
            self.device().run();
        }
    }

    /// Takes a pair down in a random way. Returns it in Reset; or destroys it, waits until `over`, and returns `None`.
    /// If the way goes through Error, may call `flush` there, which may wait for the flushed requests.
    fn take_down<T: Transport>(
        &mut self,
        random: &mut Random,
        pair: AnyQueuePair<B, T>,
        over: impl Fn(&Self) -> bool,
        flush: impl FnOnce(&mut Self, &QueuePair<B, Errored, T>),
    ) -> Option<QueuePair<B, Reset, T>> {
        let mut pair = pair;
        if let AnyQueuePair::SendQueueDrain(draining) = pair {
            pair = draining.into_error().unwrap().into();
        }
        let fatal = self.device().fatal.get();
        if !fatal && random.one_in(2) {
            let errored = match pair {
                AnyQueuePair::ReadyToSend(pair) => pair.into_error().unwrap(),
                AnyQueuePair::SendQueueError(pair) => pair.into_error().unwrap(),
                AnyQueuePair::Errored(pair) => pair,
                other => panic!("{other:?}"),
            };
            assert_eq!(errored.query_state().unwrap(), DeviceState::Error);
            if random.one_in(2) {
                flush(self, &errored);
            }
            pair = errored.into();
        }
        let may_reset = self.device().context.promises().pairs_can_be_reset();
        if fatal || !may_reset || random.one_in(3) {
            match pair {
                AnyQueuePair::ReadyToSend(pair) => pair.destroy().unwrap(),
                AnyQueuePair::SendQueueError(pair) => pair.destroy().unwrap(),
                AnyQueuePair::Errored(pair) => drop(pair),
                other => panic!("{other:?}"),
            }
            self.until("what was destroyed", |stage| over(stage));
            return None;
        }
        let reset = match pair {
            AnyQueuePair::ReadyToSend(pair) => pair.into_reset().unwrap(),
            AnyQueuePair::SendQueueError(pair) => pair.into_reset().unwrap(),
            AnyQueuePair::Errored(pair) => pair.into_reset().unwrap(),
            other => panic!("{other:?}"),
        };
        Some(reset)
    }

    /// Moves a pair from Reset to Init. If requests were in flight, checks that the library first refuses that until
    /// they are out.
    fn init<T: Transport>(
        &mut self,
        reset: QueuePair<B, Reset, T>,
        over: impl Fn(&Self) -> bool,
    ) -> QueuePair<B, Init, T>
    where
        for<'p> &'p Port: Into<T::InitAttributes>,
    {
        // A pair on a shared receive queue has no receives of its own, but it has perhaps taken shared receives. The
        // library cannot tell whether it has taken any, so it must refuse the first `into_init`.
        let in_flight = !over(self) || reset.limits().receives == 0;
        let port = self.port().clone();
        match reset.into_init(&port) {
            Ok(pair) => {
                assert!(!in_flight, "its completions may still be in the queue");
                pair
            }
            Err(error) => {
                assert!(in_flight && matches!(error.source, TransitionFailure::Unsettled), "{error}");
                self.until("what was reset", |stage| over(stage));
                error.queue_pair.into_init(&port).unwrap()
            }
        }
    }

    /// Takes a pair down, and returns a pair in Init: the same one, or one that `anew` makes.
    fn renew<T: Transport>(
        &mut self,
        random: &mut Random,
        pair: AnyQueuePair<B, T>,
        over: impl Fn(&Self) -> bool,
        flush: impl FnOnce(&mut Self, &QueuePair<B, Errored, T>),
        anew: impl FnOnce(&Self) -> QueuePair<B, Reset, T>,
    ) -> QueuePair<B, Init, T>
    where
        for<'p> &'p Port: Into<T::InitAttributes>,
    {
        match self.take_down(random, pair, &over, flush) {
            Some(reset) => self.init(reset, over),
            None => anew(self).into_init(self.port()).unwrap(),
        }
    }
}
