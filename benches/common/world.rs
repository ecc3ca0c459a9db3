//! A soak that one thread runs on a manual fabric, with faults and with accounts of every request. The same seed gives
//! the same soak.
//!
//! It checks all the time that
//! - each queue returns its requests in posting order, each one once and with the memory that it was posted with;
//! - each request that succeeded did its work: messages arrive once and in order, words and windows hold what was
//!   written, and each atomic was executed once;
//! - no request succeeds after a failure, and no request fails as destroyed unless its pair was reset or destroyed;
//! - at each checkpoint, when all pairs are gone, all buffers and all room on the completion queues are back.
//!
//! A destructor that the device refuses leaks by design, so the soak does not provoke that. A violation panics.

use super::random::Random;
use super::shape::{Ended, Outcome, Post, limits, poll_each, poll_retired};
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

/// What a request must have done if it succeeded.
#[derive(Clone, Copy, Debug)]
enum Want {
    Sent,
    Written,
    Read { tag: u64 },
    Atomic { original: u64 },
    Received,
}

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
struct Posted {
    id: WorkId,
    /// The address of its buffer, or 0 if it has no buffer of its own.
    address: usize,
    want: Want,
}

/// The accounts of one queue pair.
struct Books {
    /// The requests under way by side, the oldest first.
    posted: [VecDeque<Posted>; 2],
    /// The index of the completion queue of each side.
    queues: [usize; 2],
    failed: [bool; 2],
    /// The pair was reset or destroyed with requests in flight.
    ended: bool,
    gone: bool,
    /// A post may have been queued only in part, which breaks the pair.
    uncertain: bool,
    /// The number that the next arriving message must carry.
    next_message: u32,
}

/// What the window of an end holds once all that was posted has been executed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Model {
    word: u64,
    tag: u64,
    message: u32,
}

struct End<B> {
    pair: AnyQueuePair<B>,
    number: Option<Qpn>,
    model: Model,
    /// Whether `model` describes this pair.
    modelled: bool,
    /// A reset failed, perhaps half way: the device may already be in Reset.
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
    /// Faults were injected and have not been healed since, so verbs may fail.
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

/// The value of word `at` in a window that was written with `tag`.
fn word_of(tag: u64, at: usize) -> u64 {
    tag.wrapping_mul((2 * at as u64).wrapping_add(1))
}

fn byte_of(message: u32, at: usize) -> u8 {
    message.wrapping_mul(31).wrapping_add(at as u32) as u8
}

/// The outcome of a post.
enum Answer {
    Posted(Posted),
    Uncertain(Posted),
    /// Not posted: there was no room, or the request was malformed.
    Not,
    Broken,
    Refused,
}

/// Sorts the result of a post. If the request was not posted, hands it to `back`.
fn answer<M, K>(
    result: Result<WorkId, PostError<WorkRequest<M, K>>>,
    posted: impl FnOnce(WorkId) -> Posted,
    back: impl FnOnce(WorkRequest<M, K>),
) -> Answer {
    match result {
        Ok(id) => Answer::Posted(posted(id)),
        Err(PostError::Uncertain { id, .. }) => Answer::Uncertain(posted(id)),
        Err(error) => {
            let answer = match &error {
                PostError::Refused { .. } => Answer::Refused,
                PostError::Broken { .. } => Answer::Broken,
                _ => Answer::Not,
            };
            back(error.into_request().expect("what was not posted"));
            answer
        }
    }
}

/// What an end needs in order to post.
struct Source<'w, B> {
    random: &'w mut Random,
    spare: &'w mut Vec<Buffer<B>>,
    number: Qpn,
    target: &'w RemoteRegion<RemoteAll>,
    dead: &'w RemoteRegion<RemoteAll>,
    share: &'w SharedBuffer<B>,
}

impl<'env, B: Brand + 'env> Source<'_, B> {
    /// Posts a random request. Updates `model` to the state of the peer's window after the request is executed.
    fn emit(&mut self, poster: &mut impl Post<'env, B>, model: &mut Model) -> Answer {
        let before = *model;
        let answer = match self.random.below(17) {
            0..5 => self.send(poster, model),
            5 => {
                model.message += 1;
                let posted = |id| Posted { id, address: 0, want: Want::Sent };
                if self.random.one_in(2) {
                    answer(poster.post(WorkRequest::send(Inline(&SHARED_BYTES)).unsignalled()), posted, drop)
                } else {
                    answer(poster.post(WorkRequest::send(self.share.clone())), posted, drop)
                }
            }
            kind => self.one_sided(kind, poster, model),
        };
        if !matches!(answer, Answer::Posted(_) | Answer::Uncertain(_)) {
            *model = before;
        }
        answer
    }

    /// `which` is the address of the buffer and its filled length.
    fn post<K>(
        &mut self,
        poster: &mut impl Post<'env, B>,
        request: WorkRequest<Buffer<B>, K>,
        want: Want,
        which: (usize, usize),
    ) -> Answer
    where
        ReliableConnection: Carries<K>,
    {
        let request = if self.random.one_in(2) { request.unsignalled() } else { request };
        let posted = |id| Posted { id, address: which.0, want };
        answer(poster.post(request), posted, |request| {
            let buffer = request.into_memory();
            assert_eq!((buffer.as_ptr().addr(), buffer.len()), which, "a buffer that was not posted");
            self.spare.push(buffer);
        })
    }

    fn send(&mut self, poster: &mut impl Post<'env, B>, model: &mut Model) -> Answer {
        let Some(mut buffer) = self.spare.pop() else { return Answer::Not };
        let number = model.message;
        model.message += 1;
        let len = SHORT + self.random.below(buffer.capacity() - SHORT + 1);
        buffer.set_len(len).expect("within its capacity");
        for (at, byte) in buffer.iter_mut().enumerate() {
            *byte = byte_of(number, at);
        }
        buffer[..4].copy_from_slice(&number.to_ne_bytes());
        buffer[4..8].copy_from_slice(&self.number.value().to_ne_bytes());
        buffer[8] = len as u8;
        let which = which(&buffer);
        let request = WorkRequest::send(buffer);
        let request = if self.random.one_in(3) { request.with_immediate(number) } else { request };
        let request = if self.random.one_in(3) { request.solicited() } else { request };
        self.post(poster, request, Want::Sent, which)
    }

    fn one_sided(&mut self, kind: usize, poster: &mut impl Post<'env, B>, model: &mut Model) -> Answer {
        let Some(mut buffer) = self.spare.pop() else { return Answer::Not };
        let whole = self.target.slice(8..8 * WINDOW as u64).expect("within the window");
        if buffer.capacity() < LEN {
            // The buffer is too short to read into, so the library refuses to post the read.
            let result = poster.post(WorkRequest::read(buffer, &whole));
            assert!(matches!(result, Err(PostError::Flawed { .. })), "a read into too short a buffer");
            return answer(
                result,
                |id| Posted { id, address: 0, want: Want::Sent },
                |request| self.spare.push(request.into_memory()),
            );
        }
        match kind {
            // Rarely, write to memory that the peer refuses, which breaks both ends.
            6 if self.random.one_in(300) => {
                buffer.set_len(8).expect("within its capacity");
                let which = which(&buffer);
                let request = WorkRequest::write(buffer, self.dead);
                self.post(poster, request, Want::Written, which)
            }
            6..10 => {
                model.tag = self.random.next() | 1;
                buffer.set_len((WINDOW - 1) * 8).expect("within its capacity");
                for (at, word) in buffer.chunks_exact_mut(8).enumerate() {
                    word.copy_from_slice(&word_of(model.tag, at).to_ne_bytes());
                }
                let which = which(&buffer);
                let mut request = WorkRequest::write(buffer, &whole);
                if self.random.one_in(4) {
                    request = request.with_immediate(model.message);
                    model.message += 1;
                }
                self.post(poster, request, Want::Written, which)
            }
            10..14 => {
                let (want, which) = (Want::Read { tag: model.tag }, which(&buffer));
                self.post(poster, WorkRequest::read(buffer, &whole), want, which)
            }
            14 | 15 => {
                let (original, addend) = (model.word, self.random.next());
                model.word = original.wrapping_add(addend);
                let which = which(&buffer);
                let request = WorkRequest::fetch_and_add(buffer, self.target, addend);
                self.post(poster, request, Want::Atomic { original }, which)
            }
            _ => {
                let (original, swap) = (model.word, self.random.next());
                let hit = self.random.one_in(2);
                let compare = if hit { original } else { !original };
                model.word = if hit { swap } else { original };
                let which = which(&buffer);
                let request = WorkRequest::compare_and_swap(buffer, self.target, compare, swap).fenced();
                self.post(poster, request, Want::Atomic { original }, which)
            }
        }
    }
}

fn which<B>(buffer: &Buffer<B>) -> (usize, usize) {
    (buffer.as_ptr().addr(), buffer.len())
}

fn random_limits(random: &mut Random) -> Limits {
    let mut depth = || {
        let most = if random.one_in(3) { 4 } else { MOST_SENDS };
        1 + random.below(most) as u32
    };
    let limits = limits(depth(), depth());
    let posting = if random.one_in(3) { Posting::WorkRequestApi } else { Posting::List };
    Limits { posting, ..limits }
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

    /// Posts to one end, or brings up its link.
    fn traffic(&mut self, link: usize, side: usize) {
        let [left, right] = &self.links[link];
        let up = |end: &End<B>| matches!(end.pair, AnyQueuePair::ReadyToSend(_));
        let broken = |end: &End<B>| {
            // A pair that a refused post broke also counts; no completion reports it.
            end.number.and_then(|number| self.books.get(&number)).is_some_and(|books| books.failed != [false; 2])
        };
        if !up(left) || !up(right) {
            return self.bring_up(link);
        }
        if left.half_reset || right.half_reset || (broken(left) || broken(right)) && self.random.one_in(4) {
            return self.reset(link);
        }
        self.post_receives(link, 1 - side);
        let Self { random, spare, links, dead, share, window, books, tally, armed, under_way, .. } = self;
        let target = window_of(window, links.len(), link, side);
        let End { pair, number, model, .. } = &mut links[link][side];
        let (Some(pair), Some(number)) = (pair.ready(), *number) else { return };
        let own = books.get_mut(&number).expect("the accounts of a pair");
        assert_eq!(pair.sends_in_flight() as usize, own.posted[SEND].len(), "sends in flight");
        assert_eq!(pair.receives_in_flight() as usize, own.posted[RECEIVE].len(), "receives in flight");
        if own.failed != [false; 2] {
            assert!(pair.is_broken(), "a failure that the pair does not know of");
        }
        let mut source = Source { random, spare, number, target: &target, dead, share };
        if source.random.one_in(2) {
            for _ in 0..source.random.below(4) {
                match source.emit(pair, model) {
                    Answer::Posted(posted) => own.keep(SEND, posted, tally, under_way),
                    Answer::Uncertain(posted) => {
                        assert!(*armed, "uncertain without a fault");
                        tally.uncertain += 1;
                        own.keep(SEND, posted, tally, under_way);
                        own.uncertain = true;
                        break;
                    }
                    Answer::Broken => {
                        own.expect_broken();
                        break;
                    }
                    Answer::Refused => {
                        assert!(*armed, "refused without a fault");
                        tally.refused += 1;
                    }
                    Answer::Not => break,
                }
            }
            return;
        }
        let wanted = source.random.below(MOST_SENDS);
        let first = *model;
        // Each staged request with the model after it.
        let mut staged: Vec<(Posted, Model)> = Vec::with_capacity(wanted);
        let mut broken = false;
        let result = pair.batch(|batch| {
            for _ in 0..wanted {
                match source.emit(batch, model) {
                    Answer::Posted(posted) => staged.push((posted, *model)),
                    Answer::Uncertain(_) => panic!("a batch knows at its end only"),
                    Answer::Refused | Answer::Not => break,
                    Answer::Broken => {
                        broken = true;
                        break;
                    }
                }
            }
        });
        let mut uncertain = false;
        if let Err(error) = result {
            uncertain = error.uncertain != 0;
            assert!(*armed, "refused without a fault");
            let kept = error.posted + error.uncertain;
            assert_eq!(kept + error.refused.len(), staged.len(), "the parts of a batch");
            for ((posted, _), memory) in staged.drain(kept..).zip(error.refused) {
                tally.refused += 1;
                match memory {
                    PostedMemory::Unique(buffer) => {
                        assert_eq!(posted.address, buffer.as_ptr().addr(), "a refused buffer");
                        spare.push(buffer);
                    }
                    _ => {
                        assert_eq!(posted.address, 0, "refused without its buffer");
                    }
                }
            }
            tally.uncertain += error.uncertain as u64;
            *model = staged.last().map_or(first, |&(_, after)| after);
        }
        for (posted, _) in staged {
            own.keep(SEND, posted, tally, under_way);
        }
        own.uncertain |= uncertain;
        if broken {
            own.expect_broken();
        }
    }

    fn post_receives(&mut self, link: usize, side: usize) {
        let Self { random, spare, links, books, tally, armed, under_way, .. } = self;
        let End { pair, number: Some(number), .. } = &mut links[link][side] else { return };
        let own = books.get_mut(number).expect("the accounts of a pair");
        for _ in 0..random.below(12) {
            let Some(buffer) = spare.pop() else { return };
            let address = buffer.as_ptr().addr();
            let result = match pair {
                AnyQueuePair::Init(pair) => pair.post_receive(buffer),
                AnyQueuePair::ReadyToReceive(pair) => pair.post_receive(buffer),
                AnyQueuePair::ReadyToSend(pair) => pair.post_receive(buffer),
                AnyQueuePair::SendQueueDrain(pair) => pair.post_receive(buffer),
                _ => return spare.push(buffer),
            };
            let posted = |id| Posted { id, address, want: Want::Received };
            match result {
                Ok(id) => own.keep(RECEIVE, posted(id), tally, under_way),
                Err(PostError::Uncertain { id, .. }) => {
                    assert!(*armed, "uncertain without a fault");
                    tally.uncertain += 1;
                    own.keep(RECEIVE, posted(id), tally, under_way);
                    own.uncertain = true;
                    return;
                }
                Err(error) => {
                    if matches!(error, PostError::Refused { .. }) {
                        assert!(*armed, "refused without a fault");
                        tally.refused += 1;
                    }
                    if matches!(error, PostError::Broken { .. }) {
                        own.expect_broken();
                    }
                    let buffer = error.into_request().expect("what was not posted");
                    assert_eq!(address, buffer.as_ptr().addr(), "another buffer came back");
                    return spare.push(buffer);
                }
            }
        }
    }

    /// Takes an end through transitions; returns whether it got there.
    fn shift(
        &mut self,
        link: usize,
        side: usize,
        f: impl FnOnce(AnyQueuePair<B>) -> Result<AnyQueuePair<B>, Halted<B>>,
    ) -> bool {
        let result = self.links[link][side].pair.advance(f);
        match result {
            Ok(()) => return true,
            Err(error) => match error.source {
                TransitionFailure::Unsettled | TransitionFailure::Draining => {}
                TransitionFailure::Verb { .. } if self.armed => self.tally.refused += 1,
                TransitionFailure::Verb { source, .. }
                    if source.errno() == libc::EINVAL && self.links[link][side].half_reset => {}
                // The send queue has not drained yet, or the device entered Error by itself.
                TransitionFailure::Verb { to: "ReadyToSend" | "SendQueueDrain", source }
                    if source.errno() == libc::EINVAL => {}
                other => panic!("{other}"),
            },
        }
        false
    }

    /// Takes both ends one step towards Ready To Send.
    fn bring_up(&mut self, link: usize) {
        for side in 0..2 {
            match &self.links[link][side].pair {
                AnyQueuePair::Vacant => self.create(link, side),
                AnyQueuePair::Reset(_) => {
                    let port = self.port.clone();
                    let up = self.shift(link, side, |pair| match pair {
                        AnyQueuePair::Reset(pair) => Ok(pair.into_init(&port)?.into()),
                        other => Ok(other),
                    });
                    if up {
                        self.begin_life(link, side);
                        if self.random.one_in(2) {
                            self.post_receives(link, side);
                        }
                    }
                }
                AnyQueuePair::SendQueueDrain(_) => self.resume(link, side),
                AnyQueuePair::Errored(_) | AnyQueuePair::ReadyToReceive(_) => self.reset_end(link, side),
                _ => {}
            }
        }
        let [left, right] = &self.links[link];
        match (&left.pair, &right.pair) {
            (AnyQueuePair::Init(left), AnyQueuePair::Init(right)) => {
                let endpoints = [right.endpoint(), left.endpoint()];
                let attributes = ConnectAttributes {
                    timeout: interlock::number::AckTimeout::new(8).expect("in range"),
                    retry_count: RetryCount::new(if self.random.one_in(4) { 1 } else { 6 }).expect("in range"),
                    rnr_retry: if self.random.one_in(4) {
                        RnrRetry::new(1).expect("in range")
                    } else {
                        RnrRetry::FOREVER
                    },
                    ..ConnectAttributes::default()
                };
                for (side, peer) in endpoints.iter().enumerate() {
                    self.shift(link, side, |pair| match pair {
                        AnyQueuePair::Init(pair) => Ok(pair.connect_with(peer, &attributes)?.into()),
                        other => Ok(other),
                    });
                }
            }
            // The peer was reset, so the connection of the pair in Ready To Send is gone.
            (AnyQueuePair::ReadyToSend(_), AnyQueuePair::Init(_)) => self.reset_end(link, 0),
            (AnyQueuePair::Init(_), AnyQueuePair::ReadyToSend(_)) => self.reset_end(link, 1),
            _ => {}
        }
    }

    fn resume(&mut self, link: usize, side: usize) {
        let resumed = self.shift(link, side, |pair| match pair {
            AnyQueuePair::SendQueueDrain(pair) => Ok(pair.resume()?.into()),
            other => Ok(other),
        });
        if !resumed && self.random.one_in(8) {
            self.reset_end(link, side);
        }
    }

    fn create(&mut self, link: usize, side: usize) {
        let limits = random_limits(&mut self.random);
        let queues = [self.random.below(2), self.random.below(2)];
        let made =
            self.domain.reliable_on(&self.queues[queues[SEND]].queue, &self.queues[queues[RECEIVE]].queue, &limits);
        let pair = match made {
            Ok(pair) => pair,
            Err(CreateError::NoRoom(_)) => return,
            Err(error) => return assert!(self.armed, "{error}"),
        };
        self.tally.made += 1;
        let books = Books {
            posted: [VecDeque::new(), VecDeque::new()],
            queues,
            failed: [false; 2],
            ended: false,
            gone: false,
            uncertain: false,
            next_message: 0,
        };
        let number = pair.number();
        assert!(self.books.insert(number, books).is_none(), "two pairs of one number");
        let end = &mut self.links[link][side];
        (end.pair, end.number, end.modelled, end.half_reset) = (pair.into(), Some(number), false, false);
    }

    /// Begins the life of a pair that has entered Init. No request of its last life is under way any more.
    fn begin_life(&mut self, link: usize, side: usize) {
        self.tally.lives += 1;
        let target = (link * 2 + side) * WINDOW * 8;
        let load = |word: usize| self.window.load(target + 8 * word).expect("within the region");
        let found = Model { word: load(0), tag: load(1), message: 0 };
        for at in 1..WINDOW - 1 {
            assert_eq!(load(1 + at), word_of(found.tag, at), "a write was torn");
        }
        let end = &mut self.links[link][side];
        let own = end.number.and_then(|number| self.books.get_mut(&number)).expect("the accounts of a pair");
        assert!(own.posted.iter().all(VecDeque::is_empty), "settled with requests under way");
        if end.modelled && !own.failed[SEND] && !own.ended {
            assert_eq!((found.word, found.tag), (end.model.word, end.model.tag), "what was executed");
        }
        (end.model, end.modelled) = (found, true);
        (own.failed, own.ended, own.uncertain, own.next_message) = ([false; 2], false, false, 0);
    }

    fn reset(&mut self, link: usize) {
        self.reset_end(link, 0);
        self.reset_end(link, 1);
    }

    fn reset_end(&mut self, link: usize, side: usize) {
        let gently = self.random.one_in(2);
        let reached = self.shift(link, side, |pair| {
            Ok(match pair {
                AnyQueuePair::Init(pair) if gently => pair.into_error()?.into(),
                AnyQueuePair::ReadyToReceive(pair) if gently => pair.into_error()?.into(),
                AnyQueuePair::ReadyToSend(pair) if gently => pair.into_error()?.into(),
                AnyQueuePair::SendQueueDrain(pair) if gently => pair.into_error()?.into(),
                AnyQueuePair::Init(pair) => pair.into_reset()?.into(),
                AnyQueuePair::ReadyToReceive(pair) => pair.into_reset()?.into(),
                AnyQueuePair::ReadyToSend(pair) => pair.into_reset()?.into(),
                AnyQueuePair::SendQueueDrain(pair) => pair.into_reset()?.into(),
                AnyQueuePair::Errored(pair) => pair.into_reset()?.into(),
                other => other,
            })
        });
        let End { pair, number, half_reset, .. } = &mut self.links[link][side];
        *half_reset = !reached;
        if reached && matches!(pair, AnyQueuePair::Reset(_)) {
            let own = number.and_then(|number| self.books.get_mut(&number)).expect("the accounts of a pair");
            own.ended |= own.posted.iter().any(|posted| !posted.is_empty());
        }
    }

    /// Destroys a pair in any state: either by dropping it, or by a first attempt that fails and a second one.
    fn destroy(&mut self, link: usize, side: usize) {
        let end = &mut self.links[link][side];
        let Some(number) = end.number.take() else { return };
        let pair = mem::take(&mut end.pair);
        if self.random.one_in(2) {
            macro_rules! destroy {
                ($pair:expr) => {{
                    self.fabric.inject(fails(Verb::DestroyQp, libc::EBUSY));
                    let again = $pair.destroy().expect_err("the fault").queue_pair;
                    again.destroy().expect("the second time");
                }};
            }
            match pair {
                AnyQueuePair::Reset(pair) => destroy!(pair),
                AnyQueuePair::Init(pair) => destroy!(pair),
                AnyQueuePair::ReadyToReceive(pair) => destroy!(pair),
                AnyQueuePair::ReadyToSend(pair) => destroy!(pair),
                AnyQueuePair::SendQueueDrain(pair) => destroy!(pair),
                AnyQueuePair::Errored(pair) => destroy!(pair),
                _ => {}
            }
        } else {
            drop(pair);
        }
        let own = self.books.get_mut(&number).expect("the accounts of a pair");
        (own.ended, own.gone) = (true, true);
        if own.posted.iter().all(VecDeque::is_empty) {
            self.books.remove(&number);
        }
    }

    /// Moves a pair to Send Queue Drain. `bring_up` resumes it.
    fn drain(&mut self, link: usize, side: usize) {
        self.shift(link, side, |pair| match pair {
            AnyQueuePair::ReadyToSend(pair) => Ok(pair.into_sqd()?.into()),
            other => Ok(other),
        });
    }

    /// Splits a pair, posts to its halves, and joins them again.
    fn through_halves(&mut self, link: usize, side: usize) {
        let target = window_of(&self.window, self.links.len(), link, side);
        let Self { random, spare, links, dead, share, books, tally, armed, under_way, .. } = self;
        let End { pair, number: Some(number), model, .. } = &mut links[link][side] else { return };
        let own = books.get_mut(number).expect("the accounts of a pair");
        let whole = match mem::take(pair) {
            AnyQueuePair::ReadyToSend(whole) => whole,
            other => return *pair = other,
        };
        let (mut send, mut receive) = whole.split();
        let mut source = Source { random, spare, number: *number, target: &target, dead, share };
        match source.emit(&mut send, model) {
            Answer::Posted(posted) => own.keep(SEND, posted, tally, under_way),
            Answer::Uncertain(posted) => {
                assert!(*armed, "uncertain without a fault");
                tally.uncertain += 1;
                own.keep(SEND, posted, tally, under_way);
                own.uncertain = true;
            }
            Answer::Broken => own.expect_broken(),
            Answer::Refused | Answer::Not => {}
        }
        if let Some(buffer) = spare.pop() {
            let address = buffer.as_ptr().addr();
            let posted = |id| Posted { id, address, want: Want::Received };
            match receive.post_receive(buffer) {
                Ok(id) => own.keep(RECEIVE, posted(id), tally, under_way),
                Err(PostError::Uncertain { id, .. }) => {
                    tally.uncertain += 1;
                    own.keep(RECEIVE, posted(id), tally, under_way);
                    own.uncertain = true;
                }
                Err(error) => spare.push(error.into_request().expect("what was not posted")),
            }
        }
        *pair = send.join(receive).expect("the halves of one pair").into();
    }

    /// Runs a batch whose closure panics. The requests that were handed over before the panic are posted; the others
    /// never are.
    fn panicking_batch(&mut self, link: usize, side: usize) {
        let Ok(buffers) = self.domain.buffers(3, LEN) else { return assert!(self.armed, "a region") };
        let Self { links, books, tally, under_way, guests, total, armed, .. } = self;
        let End { pair, number: Some(number), model, .. } = &mut links[link][side] else { return };
        let Some(pair) = pair.ready() else { return };
        let in_flight = pair.sends_in_flight();
        let mut staged = Vec::new();
        let result = catch_unwind(AssertUnwindSafe(|| {
            pair.batch(|batch| {
                for mut buffer in buffers {
                    buffer.write(&SHARED_BYTES).expect("within its capacity");
                    let address = buffer.as_ptr().addr();
                    if let Ok(id) = batch.post(WorkRequest::send(buffer)) {
                        staged.push(Posted { id, address, want: Want::Sent });
                    }
                }
                // `panic!` would print a message.
                resume_unwind(Box::new(()));
            })
        }));
        assert!(result.is_err(), "a panic that stopped");
        let own = books.get_mut(number).expect("the accounts of a pair");
        for &posted in staged.iter().take((pair.sends_in_flight() - in_flight) as usize) {
            model.message += 1;
            guests.insert(posted.address);
            *total += 1;
            own.keep(SEND, posted, tally, under_way);
        }
        // If a fault hit the batch, the panic hides its error.
        own.uncertain |= *armed;
    }

    /// Checks that pairs whose peer has receives do not stay full, however many of their requests were unsignalled.
    fn expect_progress(&mut self, link: usize) {
        self.heal();
        for _ in 0..100 {
            self.fabric.run();
            if let Some(time) = self.fabric.next_timer() {
                self.fabric.advance(time);
            }
            self.collect(0);
            self.collect(1);
        }
        let [left, right] = &self.links[link];
        let (AnyQueuePair::ReadyToSend(left), AnyQueuePair::ReadyToSend(right)) = (&left.pair, &right.pair) else {
            return;
        };
        for (pair, peer) in [(left, right), (right, left)] {
            let own = &self.books[&pair.number()];
            // A pair that waited for a receive may not have had its turn yet, so the peer must have several receives.
            if own.failed == [false; 2] && !own.uncertain && peer.receives_in_flight() > 4 {
                assert!(pair.sends_in_flight() < pair.limits().sends, "a queue that stays full");
            }
        }
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
            // A peer that stays silent until the faults are healed.
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

    /// Polls a completion queue in a random way, not always until it is empty.
    fn collect(&mut self, at: usize) -> usize {
        let mut poller = self.queues[at].poller.take().expect("a poller");
        let mut count = 0;
        match self.random.below(8) {
            0 => {
                for _ in 0..self.random.below(20) {
                    let Some(completion) = poller.poll().expect("a queue that works") else { break };
                    self.settle(at, completion);
                    count += 1;
                }
            }
            1 => match poller.wait_for(Duration::ZERO) {
                Ok(Some(completion)) => {
                    self.settle(at, completion);
                    count = 1;
                }
                Ok(None) => {}
                Err(error) => assert!(self.armed, "{error}"),
            },
            2..5 => {
                count = poll_retired(&mut poller, |ended| self.settle_ended(at, ended)).expect("a queue that works");
            }
            5 if self.random.one_in(8) => {
                // If the closure panics, the next poll returns the remaining completions.
                let result = catch_unwind(AssertUnwindSafe(|| {
                    poll_each(&mut poller, |completion| {
                        self.settle(at, completion);
                        count += 1;
                        resume_unwind(Box::new(()));
                    })
                }));
                assert!(result.is_err() == (count == 1), "a panic that stopped");
            }
            _ => count = poll_each(&mut poller, |completion| self.settle(at, completion)).expect("a queue that works"),
        }
        assert_eq!(poller.unknown_completions(), 0, "unknown completions");
        self.queues[at].poller = Some(poller);
        count
    }

    /// Compares a completion with the accounts.
    fn settle(&mut self, at: usize, completion: Completion<B>) {
        self.settle_ended(at, Ended::of(completion));
    }

    fn settle_ended(&mut self, at: usize, ended: Ended<B>) {
        let Ended { id, queue_pair, outcome, memory } = ended;
        let own = self.books.get_mut(&queue_pair).expect("a completion of a pair that there is");
        let side = match outcome {
            Outcome::Received { .. }
            | Outcome::WrittenWithImmediate { .. }
            | Outcome::Failed { operation: Operation::Receive, .. } => RECEIVE,
            _ => SEND,
        };
        assert_eq!(own.queues[side], at, "a completion on the other queue");
        let posted = own.posted[side].pop_front().expect("a completion of a request that is under way");
        assert_eq!(posted.id, id, "completions in the order of posting");
        if let Outcome::Failed { status, .. } = outcome {
            if status == Status::Destroyed {
                assert!(own.ended, "destroyed, but nobody did");
                self.tally.destroyed += 1;
            } else {
                assert_ne!(status, Status::ProviderFault);
                self.tally.failed += 1;
            }
            own.failed[side] = true;
        } else {
            assert!(!own.failed[side], "{outcome:?} after a failure");
            self.tally.succeeded += 1;
        }
        match memory {
            PostedMemory::Unique(buffer) => {
                assert_eq!(posted.address, buffer.as_ptr().addr(), "the buffer of another request");
                check(&posted, outcome, &buffer, own);
                if self.guests.remove(&posted.address) {
                    self.total -= 1;
                } else {
                    self.spare.push(buffer);
                }
                self.under_way -= 1;
            }
            _ => {
                assert_eq!(posted.address, 0, "a completion without its buffer");
                assert!(matches!(outcome, Outcome::Sent | Outcome::Failed { .. }));
            }
        }
        if own.gone && own.posted.iter().all(VecDeque::is_empty) {
            self.books.remove(&queue_pair);
        }
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
            // The room comes back when the poller looks at the device for the last time.
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

fn window_of<B: Brand>(
    window: &MemoryRegion<B, RemoteAll, Vec<u64>>,
    links: usize,
    link: usize,
    side: usize,
) -> RemoteRegion<RemoteAll> {
    let at = ((link * 2 + side) * WINDOW * 8) as u64;
    assert!(link < links);
    window.remote().slice(at..at + WINDOW as u64 * 8).expect("within the region")
}

impl Books {
    fn expect_broken(&self) {
        assert!(self.failed != [false; 2] || self.uncertain, "broken, but nothing failed");
    }

    fn keep(&mut self, side: usize, posted: Posted, tally: &mut Tally, under_way: &mut usize) {
        assert!(self.failed == [false; 2], "posted to a pair that is known to have failed");
        tally.posted += 1;
        *under_way += usize::from(posted.address != 0);
        self.posted[side].push_back(posted);
    }
}

/// Checks that a request that succeeded did its work.
fn check<B>(posted: &Posted, outcome: Outcome, buffer: &Buffer<B>, own: &mut Books) {
    match (posted.want, outcome) {
        (_, Outcome::Failed { .. }) | (Want::Sent, Outcome::Sent) | (Want::Written, Outcome::Written) => {}
        (Want::Read { tag }, Outcome::Read) => {
            assert_eq!(buffer.len(), (WINDOW - 1) * 8, "the length of a read");
            for (at, word) in buffer.chunks_exact(8).enumerate() {
                assert_eq!(word, word_of(tag, at).to_ne_bytes(), "what was read");
            }
        }
        (Want::Atomic { original }, Outcome::Atomic { original: found }) => {
            assert_eq!(found, original, "a word before an atomic");
        }
        (Want::Received, Outcome::Received { immediate }) => {
            let number = own.next_message;
            own.next_message += 1;
            assert!(immediate.is_none_or(|immediate| immediate == number), "the immediate of another message");
            let found = buffer.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
            if found == Some(SHARED) {
                return assert_eq!(buffer.len(), 4, "the length of what was shared");
            }
            assert_eq!(found, Some(number), "messages in order");
            assert_eq!(buffer.len(), usize::from(buffer[8]), "the length of a message");
            for (at, &byte) in buffer.iter().enumerate().skip(9) {
                assert_eq!(byte, byte_of(number, at), "a byte of a message");
            }
        }
        (Want::Received, Outcome::WrittenWithImmediate { written_bytes, immediate }) => {
            assert_eq!(
                (immediate, written_bytes),
                (own.next_message, 8 * (WINDOW as u32 - 1)),
                "a write that was told"
            );
            own.next_message += 1;
        }
        (want, outcome) => panic!("{want:?} became {outcome:?}"),
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
