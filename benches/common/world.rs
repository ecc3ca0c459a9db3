//! A soak that one thread runs on a manual fabric. It injects faults, and keeps accounts of every request. The same
//! seed gives the same soak.
//!
//! It checks all the time that
//! - each queue returns its requests in posting order, each one once and with the memory that it was posted with;
//! - each request that succeeded did its work: messages arrive once and in order, words and windows hold what was
//!   written, and each atomic was executed once;
//! - no request succeeds after a failure, and no request fails as destroyed unless its pair was reset or destroyed;
//! - at each checkpoint, when all pairs are gone, all buffers and all room on the completion queues are back.
//!
//! If the device refuses a destroy during a drop, the object leaks by design, so the soak does not provoke that. A
//! violation panics.

mod books;
mod life;
mod settle;
mod source;
mod traffic;

use super::random::Random;
use super::shape::{Ended, Outcome, Post, limits, poll_each, poll_retired};
use books::{Books, Model, Posted, Want, byte_of, check, which, word_of};
use interlock::attributes::ConnectAttributes;
use interlock::error::{CreateError, PollError, TransitionFailure};
use interlock::number::{Qpn, RetryCount, RnrRetry};
use interlock::queue::{Halted, Posting};
use interlock::request::{Operation, PostedMemory};
use interlock::soft::{Fabric, Fault, Verb};
use interlock::transport::Carries;
use interlock::{
    AnyQueuePair, Brand, Buffer, Completion, CompletionQueue, Context, Inline, Limits, MemoryRegion, Poller, Port,
    PostError, ProtectionDomain, ReliableConnection, RemoteAll, RemoteRegion, SharedBuffer, Status, WorkId,
    WorkRequest,
};
use life::window_of;
use source::{Answer, Source};
use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// The length of most buffers, and of the few short ones, in bytes.
const LEN: usize = 64;
const SHORT: usize = 16;
/// The number of words of the peer's memory that each end of a link works on. The first is for atomics; the others are
/// written and read together.
const WINDOW: usize = 8;
const MOST_SENDS: usize = 48;
/// Stands in for the message number in a message that is sent inline or from shared memory.
const SHARED: u32 = u32::MAX;
static SHARED_BYTES: [u8; 4] = SHARED.to_ne_bytes();

const SEND: usize = 0;
const RECEIVE: usize = 1;

/// Counts of what happened.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) posted: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    pub(crate) destroyed: u64,
    pub(crate) refused: u64,
    pub(crate) uncertain: u64,
    pub(crate) faults: u64,
    /// Lives of pairs: each time a pair comes up, first or after a reset.
    pub(crate) lives: u64,
    pub(crate) made: u64,
}

impl Tally {
    fn each(&mut self) -> [&mut u64; 9] {
        let Self { posted, succeeded, failed, destroyed, refused, uncertain, faults, lives, made } = self;
        [posted, succeeded, failed, destroyed, refused, uncertain, faults, lives, made]
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, mut other: Self) {
        for (to, from) in self.each().into_iter().zip(other.each()) {
            *to += *from;
        }
    }
}

impl std::ops::Sub for Tally {
    type Output = Self;
    fn sub(mut self, mut other: Self) -> Self {
        for (to, from) in self.each().into_iter().zip(other.each()) {
            *to -= *from;
        }
        self
    }
}

struct End<B> {
    pair: AnyQueuePair<B>,
    number: Option<Qpn>,
    model: Model,
    /// Whether `model` describes this pair.
    modelled: bool,
    /// Whether a reset failed, perhaps half way: on the device, the pair may already be in Reset.
    half_reset: bool,
}

struct Polled<B> {
    queue: CompletionQueue<B>,
    poller: Option<Poller<B>>,
}

pub(crate) struct World<B> {
    pub(crate) tally: Tally,
    fabric: Fabric,
    random: Random,
    /// Whether faults were injected and have not been healed since, so that verbs may fail.
    armed: bool,
    links: Vec<[End<B>; 2]>,
    books: HashMap<Qpn, Books>,
    spare: Vec<Buffer<B>>,
    total: usize,
    under_way: usize,
    /// Addresses of buffers that are posted once and are dropped when they come back.
    guests: HashSet<usize>,
    share: SharedBuffer<B>,
    /// A grant of a region that has been deregistered.
    dead: RemoteRegion<RemoteAll>,
    window: MemoryRegion<B, RemoteAll, Vec<u64>>,
    queues: Vec<Polled<B>>,
    port: Port,
    domain: ProtectionDomain<B>,
}

fn fails(verb: Verb, errno: i32) -> Fault {
    Fault::VerbFails { verb, after: 0, count: 1, errno }
}

impl<B: Brand> World<B> {
    /// Makes `links` links of two ends each. None of the pairs exists yet.
    pub(crate) fn new(fabric: Fabric, domain: ProtectionDomain<B>, seed: u64, links: usize) -> Self {
        let port = domain.context().active_port().expect("a port");
        let room = (links * 2 * MOST_SENDS * 3 / 2) as u32;
        let queues = (0..2)
            .map(|_| {
                let (queue, poller) = domain.completion_queue(room).expect("a completion queue");
                Polled { queue, poller: Some(poller) }
            })
            .collect();
        let window = domain.register::<RemoteAll, _>(vec![0_u64; links * 2 * WINDOW]).expect("a region");
        let gone = domain.register::<RemoteAll, _>(vec![0_u64; WINDOW]).expect("a region");
        let dead = gone.remote();
        gone.deregister().expect("the memory again");
        let mut share = domain.buffer(SHORT).expect("a buffer");
        share.write(&SHARED_BYTES).expect("within its capacity");
        let mut spare = domain.buffers(links * 40, LEN).expect("buffers");
        spare.extend(domain.buffers(links.div_ceil(8), SHORT).expect("buffers"));
        let end = || End {
            pair: AnyQueuePair::Vacant,
            number: None,
            model: Model::default(),
            modelled: false,
            half_reset: false,
        };
        Self {
            tally: Tally::default(),
            fabric,
            random: Random::new(seed),
            armed: false,
            links: (0..links).map(|_| [end(), end()]).collect(),
            books: HashMap::new(),
            total: spare.len(),
            spare,
            under_way: 0,
            guests: HashSet::new(),
            share: share.share(),
            dead,
            window,
            queues,
            port,
            domain,
        }
    }

    pub(crate) fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
        }
    }

    fn step(&mut self) {
        let link = self.random.below(self.links.len());
        let side = self.random.below(2);
        self.traffic(link, side);
        match self.random.below(12) {
            0..4 => _ = self.fabric.run(),
            4..8 => _ = (0..self.random.below(40)).all(|_| self.fabric.step()),
            8 => {
                if let Some(time) = self.fabric.next_timer() {
                    self.fabric.advance(time);
                }
            }
            _ => {}
        }
        let at = self.random.below(2);
        self.collect(at);
        match self.random.below(600) {
            0..8 => self.inject(),
            8..12 => self.heal(),
            12..15 => self.reset(link),
            15 => self.destroy(link, side),
            16..18 => self.drain(link, side),
            18..21 => self.through_halves(link, side),
            21 => self.panicking_batch(link, side),
            22 => {
                self.queues[at].poller = None;
                self.queues[at].poller = self.queues[at].queue.take_poller();
                assert!(self.queues[at].queue.take_poller().is_none(), "two pollers");
            }
            23 => self.register_and_deregister(),
            24 => self.expect_progress(link),
            _ => {}
        }
        self.check_buffers();
    }

    fn check_buffers(&self) {
        assert_eq!(self.spare.len() + self.under_way, self.total, "buffers lost or given twice");
    }

    fn register_and_deregister(&mut self) {
        let Ok(region) = self.domain.register::<RemoteAll, _>(vec![7_u64; 8]) else {
            return assert!(self.armed, "a region");
        };
        self.fabric.inject(fails(Verb::DeregMr, libc::EBUSY));
        let region = region.deregister().expect_err("the fault").region;
        assert_eq!(region.deregister().expect("the second time"), [7; 8]);
    }

    fn inject(&mut self) {
        self.armed = true;
        self.tally.faults += 1;
        let count = 1 + self.random.below(20) as u32;
        let verb = |verb| Fault::VerbFails { verb, after: count, count: 1, errno: libc::ENOMEM };
        self.fabric.inject(match self.random.below(16) {
            0..3 => Fault::RequestsLost { count },
            3..6 => Fault::AnswersLost { count },
            // The peer seems silent until the faults are healed.
            6 => Fault::RequestsLost { count: u32::MAX },
            7 => Fault::FlushWithheld,
            8 => Fault::SendKept { errno: libc::EINVAL },
            9 => Fault::ReceiveKept { errno: libc::EINVAL },
            10 | 11 => verb(Verb::PostSend),
            12 => verb(Verb::PostRecv),
            13 => verb(Verb::ModifyQp),
            14 => verb(Verb::CreateQp),
            _ => verb([Verb::RegMr, Verb::ReqNotifyCq, Verb::GetCqEvent, Verb::QueryDevice][self.random.below(4)]),
        });
    }

    fn heal(&mut self) {
        self.fabric.heal();
        self.armed = false;
    }

    /// Destroys all pairs, and checks that all buffers and all room are back.
    pub(crate) fn checkpoint(&mut self) {
        self.heal();
        for link in 0..self.links.len() {
            self.destroy(link, 0);
            self.destroy(link, 1);
        }
        while let Some(time) = self.fabric.next_timer() {
            self.fabric.advance(time);
            self.fabric.run();
        }
        while self.collect(0) + self.collect(1) != 0 || !self.books.is_empty() {
            self.fabric.run();
        }
        for at in 0..2 {
            // The room of destroyed pairs comes back once the poller has seen the queue empty. A single `collect` does
            // not always poll that far, so call it many times.
            for _ in 0..1_000 {
                self.collect(at);
            }
            let queue = &self.queues[at].queue;
            assert_eq!(queue.room(), queue.capacity(), "room that did not come back");
        }
        self.check_buffers();
        assert_eq!(self.under_way, 0, "buffers under way with no pair");
        let Tally { posted, succeeded, failed, destroyed, .. } = self.tally;
        assert_eq!(posted, succeeded + failed + destroyed, "requests that came back");
        self.books.shrink_to_fit();
    }

    /// Breaks a completion queue for good.
    pub(crate) fn poison(&mut self) {
        let at = self.random.below(2);
        let device = self.random.one_in(2);
        if device {
            let name = self.domain.context().name().to_owned();
            self.fabric.inject(Fault::DeviceRemoved { device: name });
        } else {
            self.fabric.inject(fails(Verb::PollCq, libc::EIO));
        }
        let mut poller = self.queues[at].poller.take().expect("a poller");
        // Completions that the poller had already taken from the device come out first.
        let failed = loop {
            match poller.poll() {
                Ok(completion) => self.settle(at, completion.expect("an empty queue that works")),
                Err(error) => break error,
            }
        };
        assert_eq!(failed, PollError::Failed);
        assert!(poller.poll().is_err(), "a queue that works again");
        self.armed = true;
        self.queues[at].poller = Some(poller);
        let (link, side) = (self.random.below(self.links.len()), self.random.below(2));
        if device {
            self.reset_end(link, side);
        }
        self.heal();
    }
}

/// Runs a world on a fabric of its own for `steps` steps, with a checkpoint after each `checkpoint_every` of them. At
/// the end of the run, an even seed takes the world down in order, and an odd seed breaks a completion queue.
pub(crate) fn generation(seed: u64, links: usize, steps: usize, checkpoint_every: usize) -> Tally {
    let fabric = Fabric::manual();
    let context = Context::open_on(&fabric, "world").expect("a device");
    context
        .with_domain(|domain| {
            let mut world = World::new(fabric.clone(), domain, seed, links);
            let mut left = steps;
            while left > 0 {
                let some = left.min(checkpoint_every);
                world.run(some);
                left -= some;
                if left > 0 {
                    world.checkpoint();
                }
            }
            if seed.is_multiple_of(2) {
                world.checkpoint()
            } else {
                world.poison()
            }
            world.tally
        })
        .expect("a domain")
}
