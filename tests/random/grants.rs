//! Parts of a page are split and joined, registered again, leased, bound to windows and taken back. Meanwhile a peer
//! writes to memory that it was granted, and tries to write to memory that it was not granted.

use crate::{Device, Effort, Random, Stage, connect, for_programs, two_pairs};
use interlock::access::Windowed;
use interlock::memory::{Lapsed, Lease, Pages, SplitRegion};
use interlock::request::PostedMemory;
use interlock::soft::{Fault, Verb};
use interlock::window::{BoundWindow, Type2};
use interlock::{
    AnyQueuePair, Brand, Buffer, CompletionQueue, Failure, Limits, LocalWrite, MemoryRegion, Poller, Port, PostError,
    ProtectionDomain, QueuePair, ReadyToSend, RemoteAll, RemoteRead, RemoteRegion, Status, Work, WorkId,
};
use std::ops::Range;
use std::time::Duration;
use support::steps::Step;
use support::{Need, Queues, lacks_need};

const LIMITS: Limits =
    Limits { sends: 8, receives: 1, inline_bytes: 0, elements: 1, posting: interlock::queue::Posting::List };
/// The size of the page in words of 8 bytes.
const WORDS: usize = 64;
const MOST_WORDS_WRITTEN: usize = 4;

/// The ways to grant memory to a peer.
enum Grant<B> {
    Lease(Lease<B, RemoteAll>),
    ReadOnly(Lease<B, RemoteRead>),
    Region(MemoryRegion<B, RemoteAll, Buffer<B>>),
    /// A lease inside a registration of only that part.
    Nested(Lease<B, RemoteAll>, SplitRegion<B, LocalWrite, Buffer<B>>),
    /// A window over a part of the page, on a device that checks the bounds of windows.
    Window(BoundWindow<B, Type2>),
    /// A window over a whole registration of that part, which works on every device with windows.
    WholeWindow(BoundWindow<B, Type2>, SplitRegion<B, Windowed<LocalWrite>, Buffer<B>>),
    /// A lease that the program forgot, so that the peer keeps the memory for ever. After a failed write to it, only a
    /// read by the peer can show whether the write was executed; `is_known` is false until that read.
    Forgotten {
        is_known: bool,
    },
}

struct Live<B> {
    grant: Grant<B>,
    first: usize,
    words: usize,
    record: RemoteRegion<RemoteAll>,
}

impl<B: Brand> Live<B> {
    /// The words that are there now, if this side can read them.
    fn load(&self) -> Option<Vec<u64>> {
        let words = (0..self.words).map(|word| match &self.grant {
            Grant::Lease(lease) | Grant::Nested(lease, _) => lease.load(8 * word).ok(),
            Grant::ReadOnly(lease) => Some(word_at(lease.as_bytes(), word)),
            Grant::Region(region) => region.load(8 * word).ok(),
            Grant::Window(window) | Grant::WholeWindow(window, _) => window.load(8 * word).ok(),
            Grant::Forgotten { .. } => None,
        });
        words.collect()
    }

    fn is_window(&self) -> bool {
        matches!(self.grant, Grant::Window(_) | Grant::WholeWindow(..))
    }
}

fn word_at(bytes: &[u8], word: usize) -> u64 {
    u64::from_ne_bytes(bytes[8 * word..8 * word + 8].try_into().unwrap())
}

/// A write of the peer that has not completed.
#[derive(Debug)]
struct Written {
    id: WorkId,
    at: usize,
    words: usize,
    value: u64,
    /// Whether the write was executed. Known after it was seen in memory, or was missing when the memory was taken
    /// back.
    done: Option<bool>,
}

/// The call that a step of a program makes.
#[derive(Clone, Copy, Debug)]
enum Call {
    Poll,
    Step,
    Grant,
    Revoke,
    Write,
    Look,
    Shape,
    Lose,
    Trespass,
    RenewLink,
    CheckAll,
}

/// Each call, with its relative frequency. When a failing program is reduced, later calls are replaced by earlier ones.
const CALLS: [(u32, Call); 11] = [
    (15, Call::Poll),
    (25, Call::Step),
    (30, Call::Grant),
    (20, Call::Revoke),
    (60, Call::Write),
    (10, Call::Look),
    (30, Call::Shape),
    (4, Call::Lose),
    (3, Call::Trespass),
    (1, Call::RenewLink),
    (2, Call::CheckAll),
];

struct World<B> {
    device: Device,
    domain: ProtectionDomain<B>,
    port: Port,
    queue: CompletionQueue<B>,
    poller: Poller<B>,
    peer: AnyQueuePair<B>,
    own: AnyQueuePair<B>,
    base: usize,
    /// The expected content of the memory, without the writes in `writes`.
    content: Vec<u64>,
    free: Vec<Buffer<B>>,
    live: Vec<Live<B>>,
    /// Records of grants that have been taken back.
    stale: Vec<RemoteRegion<RemoteAll>>,
    writes: Vec<Written>,
    /// Writes that failed while their window was being revoked. They may have been executed before the revocation.
    lost: Vec<Written>,
    revoking: Option<Range<usize>>,
    /// A request in flight that is not a write: one of the peer, or one of this side about a window. There is at most
    /// one; `came` is its outcome.
    other: Option<WorkId>,
    came: Option<Result<Work<B>, Failure<B>>>,
    last_value: u64,
    /// Whether the connection may fail.
    failing: bool,
    bounded: bool,
}

impl<B: Brand> World<B> {
    fn new(device: Device, domain: ProtectionDomain<B>) -> Self {
        let port = device.context.active_port().unwrap();
        let (queue, poller) = domain.queue(4 * LIMITS.completions()).unwrap();
        let page = domain.register::<Windowed<LocalWrite>, _>(Pages::new(8 * WORDS).unwrap()).unwrap();
        let mut page = page.split().1.split_at(8 * WORDS).map_or_else(|error| error.buffer, |(page, _)| page);
        page.fill(0);
        let base = page.as_ptr().addr();
        let bounded = device.context.promises().windows_are_barriers();
        let mut world = Self {
            device,
            domain,
            port,
            queue,
            poller,
            peer: AnyQueuePair::Vacant,
            own: AnyQueuePair::Vacant,
            base,
            content: vec![0; page.capacity() / 8],
            free: vec![page],
            live: Vec::new(),
            stale: Vec::new(),
            writes: Vec::new(),
            lost: Vec::new(),
            revoking: None,
            other: None,
            came: None,
            last_value: 0,
            failing: false,
            bounded,
        };
        world.connect();
        world
    }

    fn connect(&mut self) {
        let [peer, own] = two_pairs(&self.domain, &self.queue, &LIMITS, &self.port);
        let (peer, own) = connect(&self.domain, peer, own);
        (self.peer, self.own) = (peer.into(), own.into());
        self.failing = false;
    }

    fn peer(&mut self) -> &mut QueuePair<B, ReadyToSend> {
        self.peer.ready().unwrap()
    }

    /// The index in the page of the first word of `buffer`.
    fn first_of(&self, buffer: &Buffer<B>) -> usize {
        (buffer.as_ptr().addr() - self.base) / 8
    }

    /// Checks that this side's memory holds what this side wrote, and what the peer wrote while the memory was granted.
    fn check(&self) {
        for buffer in &self.free {
            let first = self.first_of(buffer);
            for word in 0..buffer.capacity() / 8 {
                let (found, expected) = (word_at(buffer, word), self.content[first + word]);
                assert_eq!(found, expected, "word {} of memory that no peer may reach", first + word);
            }
        }
    }

    /// Finds out which writes in flight show in the words `found`, which start at word `first`. Writes are executed in
    /// order, so these are the oldest ones.
    fn settle(&mut self, first: usize, found: &[u64], ended: bool) {
        let range = first..first + found.len();
        let mut content = self.content[range.clone()].to_vec();
        let mut reached = (content == found).then_some(0);
        let is_open = |write: &&mut Written| write.done.is_none() && range.contains(&write.at);
        let open: Vec<&mut Written> = self.lost.iter_mut().chain(&mut self.writes).filter(is_open).collect();
        for (count, Written { at, words, value, .. }) in open.iter().enumerate() {
            content[at - first..at - first + words].fill(*value);
            if content == found {
                reached = Some(count + 1);
            }
        }
        // This side has read `found` word by word. Until the memory is taken back, a device that is not stepped can
        // write between two of these reads.
        let (under_way, content) = (!ended && self.device.stepped.is_none(), &self.content);
        let is_possible = |(word, found): (usize, &u64)| {
            let covers = |write: &Written| (write.at..write.at + write.words).contains(&word) && write.value == *found;
            content[word] == *found || open.iter().any(|write| covers(write))
        };
        if reached.is_none() && under_way && range.clone().zip(found).all(is_possible) {
            return;
        }
        let reached = reached.unwrap_or_else(|| {
            let content = &self.content[range.clone()];
            panic!("{found:x?} from {first} on is not {content:x?} and then some of {open:x?}, taken back: {ended}")
        });
        for (count, write) in open.into_iter().enumerate() {
            if count < reached || ended {
                write.done = Some(count < reached);
            }
        }
        self.content[range].copy_from_slice(found);
    }

    /// Records that a part of the memory belongs to the program again.
    fn take_back(&mut self, record: RemoteRegion<RemoteAll>, mut buffer: Buffer<B>) {
        buffer.set_len(buffer.capacity()).unwrap();
        let first = self.first_of(&buffer);
        let found: Vec<u64> = (0..buffer.capacity() / 8).map(|word| word_at(&buffer, word)).collect();
        self.settle(first, &found, true);
        self.lost.clear();
        self.stale.push(record);
        self.free.push(buffer);
    }

    /// Grants one of the free buffers to the peer.
    fn grant(&mut self, random: &mut Random) {
        if self.free.is_empty() || self.live.len() > 5 {
            return;
        }
        let buffer = self.free.swap_remove(random.below(self.free.len()));
        let (first, words) = (self.first_of(&buffer), buffer.capacity() / 8);
        let duration = Duration::from_micros(random.below(3000) as u64);
        if random.one_in(10) && self.device.inject(fails(Verb::RegMr)) {
            let error = self.domain.lease::<RemoteAll, _>(buffer, duration).unwrap_err();
            return self.free.push(error.memory);
        }
        let (grant, record) = match random.below(if self.failing { 4 } else { 6 }) {
            0 => {
                let lease = self.domain.lease(buffer, duration).unwrap();
                let record = lease.remote();
                (Grant::Lease(lease), record)
            }
            1 => {
                let lease = self.domain.lease::<RemoteRead, _>(buffer, duration).unwrap();
                let record = lease.remote();
                // A peer can change the record that it got, so that the record claims more rights.
                let record = RemoteRegion::of_peer(record.address(), record.len(), record.rkey().value()).unwrap();
                (Grant::ReadOnly(lease), record)
            }
            2 => {
                let region = self.domain.register(buffer).unwrap();
                let record = region.remote();
                (Grant::Region(region), record)
            }
            3 => {
                let (rest, inner) = self.domain.register::<LocalWrite, _>(buffer).unwrap().split();
                let lease = self.domain.lease(inner, duration).unwrap();
                let record = lease.remote();
                (Grant::Nested(lease, rest), record)
            }
            kind => {
                let window = self.own.ready().unwrap().window().unwrap();
                let (rest, part) = if kind == 4 && self.bounded {
                    (None, buffer.into_bindable().unwrap())
                } else {
                    let (rest, part) =
                        self.domain.register::<Windowed<LocalWrite>, _>(buffer).unwrap().split_bindable();
                    (Some(rest), part)
                };
                let id = self.own.ready().unwrap().post_bind::<RemoteAll, _>(window, part).unwrap();
                let bound = match self.outcome(id) {
                    Ok(Work::Bound(bound)) => bound,
                    other => {
                        let lapsed = self.unsettled(other);
                        let buffer = match rest {
                            None => lapsed.reclaim().unwrap().into_buffer(),
                            Some(rest) => rest.rejoin_lapsed(lapsed).unwrap().deregister().unwrap(),
                        };
                        return self.free.push(buffer);
                    }
                };
                let record = bound.remote().unwrap();
                let grant = match rest {
                    None => Grant::Window(bound),
                    Some(rest) => Grant::WholeWindow(bound, rest),
                };
                (grant, record)
            }
        };
        self.live.push(Live { grant, first, words, record });
    }

    /// Takes a grant back while the peer may have writes in flight.
    fn revoke(&mut self, random: &mut Random, at: usize) {
        let Live { grant, first, words, record } = self.live.swap_remove(at);
        let refused = random.one_in(8) && !self.device.fatal.get();
        macro_rules! end {
            ($lease:expr, $end:ident, $again:expr) => {{
                if refused && self.device.inject(fails(Verb::DeregMr)) {
                    // The device refused to end the grant. So the grant comes back unchanged, and the peer still
                    // reaches the memory.
                    let grant = $again($lease.$end().unwrap_err().region);
                    return self.live.push(Live { grant, first, words, record });
                }
                $lease.$end().unwrap()
            }};
        }
        let buffer = match grant {
            Grant::Lease(mut lease) => {
                if words < 5 && random.one_in(10) {
                    std::mem::forget(lease);
                    return self.live.push(Live { grant: Grant::Forgotten { is_known: true }, first, words, record });
                }
                if !lease.has_expired() && random.one_in(2) {
                    lease.renew(Duration::ZERO);
                    assert!(lease.has_expired());
                }
                end!(lease, end, Grant::Lease)
            }
            Grant::ReadOnly(lease) => end!(lease, end, Grant::ReadOnly),
            Grant::Region(region) => end!(region, deregister, Grant::Region),
            Grant::Nested(lease, rest) => {
                let inner = end!(lease, end, |lease| Grant::Nested(lease, rest));
                rest.rejoin(inner).unwrap().deregister().unwrap()
            }
            Grant::Window(window) => {
                let own = self.own.ready().filter(|own| !own.is_broken());
                if let Some(own) = own.filter(|_| !self.failing && random.one_in(2)) {
                    let id = own.post_revoke(window).unwrap();
                    self.revoking = Some(first..first + words);
                    let outcome = self.outcome(id);
                    let buffer = match outcome {
                        Ok(Work::Revoked(revoked)) => revoked.memory.into_buffer(),
                        other => self.unsettled(other).reclaim().unwrap().into_buffer(),
                    };
                    self.revoking = None;
                    buffer
                } else {
                    window.dealloc().unwrap().reclaim().unwrap().into_buffer()
                }
            }
            Grant::WholeWindow(window, rest) => {
                rest.rejoin_lapsed(window.dealloc().unwrap()).unwrap().deregister().unwrap()
            }
            Grant::Forgotten { .. } => return self.live.push(Live { grant, first, words, record }),
        };
        self.take_back(record, buffer);
    }

    /// Ends a window whose bind or revocation was flushed because the connection failed, and returns its memory.
    fn unsettled(&mut self, result: Result<Work<B>, Failure<B>>) -> Lapsed<B> {
        // A write of the peer to a window that has just ended breaks the pair, perhaps before this side has seen the
        // end of the window.
        let too_late = |write: &Written| write.done == Some(false) || self.is_revoking(write.at);
        let failing = self.failing || self.writes.iter().any(too_late);
        self.failing = true;
        match result {
            Err(Failure { status: Status::Flushed, memory: PostedMemory::Window(window), .. }) if failing => {
                window.dealloc().unwrap()
            }
            other => panic!("{other:?}: {:?}", self.writes),
        }
    }

    fn is_revoking(&self, at: usize) -> bool {
        self.revoking.as_ref().is_some_and(|range| range.contains(&at))
    }

    /// Polls until request `id` completes. It is not one of the peer's writes.
    fn outcome(&mut self, id: WorkId) -> Result<Work<B>, Failure<B>> {
        self.other = Some(id);
        self.until("what was posted", |world| world.came.is_some());
        self.came.take().unwrap()
    }

    /// Posts a write of the peer to one of the grants, and does not wait for it.
    fn write(&mut self, random: &mut Random) {
        if self.live.is_empty() || self.failing {
            return;
        }
        let Live { grant, first, words, record } = &self.live[random.below(self.live.len())];
        if matches!(grant, Grant::ReadOnly(_)) {
            return;
        }
        let start = random.below(*words);
        let words = 1 + random.below((*words - start).min(MOST_WORDS_WRITTEN));
        let (at, target) = (first + start, record.slice(8 * start as u64..8 * (start + words) as u64).unwrap());
        self.last_value += 1;
        let value = self.last_value;
        let mut buffer = self.domain.buffer(8 * words).unwrap();
        buffer.view_slice_mut::<u64>().unwrap().fill(value);
        match self.peer().post_write(buffer, &target) {
            Ok(id) => self.writes.push(Written { id, at, words, value, done: None }),
            Err(PostError::QueueFull(_)) => assert_eq!(self.writes.len(), LIMITS.sends as usize),
            Err(PostError::Broken { .. }) => assert!(self.failing),
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits for all writes of the peer. Then makes the peer read one of the grants, or do an atomic there, and checks
    /// the result.
    fn look(&mut self, random: &mut Random) {
        self.rest();
        if self.live.is_empty() || self.failing {
            return;
        }
        let at = random.below(self.live.len());
        let Live { grant, first, words, record } = &mut self.live[at];
        let (first, words, record) = (*first, *words, *record);
        let word = random.below(words);
        let (at, target) = (first + word, record.slice(8 * word as u64..8 * word as u64 + 8).unwrap());
        let was_known = !matches!(grant, Grant::Forgotten { is_known: false });
        let only_reads = matches!(grant, Grant::ReadOnly(_)) || !was_known;
        if let Grant::Forgotten { is_known } = grant {
            *is_known = true;
        }
        let buffer = self.domain.buffer(8 * words).unwrap();
        let (before, value) = (self.content[at], self.last_value + 1);
        let id = match if only_reads { 0 } else { random.below(4) } {
            0 => self.peer().post_read(buffer, &record),
            1 => {
                self.content[at] = before.wrapping_add(value << 32);
                self.peer().post_fetch_and_add(buffer, &target, value << 32)
            }
            2 => {
                self.content[at] = value;
                self.peer().post_compare_and_swap(buffer, &target, before, value)
            }
            _ => self.peer().post_compare_and_swap(buffer, &target, !before, value),
        };
        self.last_value += 1;
        match self.outcome(id.unwrap()).unwrap() {
            Work::Read(buffer) => {
                let found: Vec<u64> = (0..words).map(|word| word_at(&buffer, word)).collect();
                let content = &mut self.content[first..first + words];
                assert!(!was_known || found == content, "a read of {found:x?} at {first}, not {content:x?}");
                content.copy_from_slice(&found);
            }
            Work::Atomic { original, .. } => assert_eq!(original, before, "an atomic at {at}"),
            other => panic!("{other:?}"),
        }
    }

    /// Makes the peer access memory that it was not granted. The access is refused, nothing changes, and the connection
    /// breaks.
    fn trespass(&mut self, random: &mut Random) {
        self.rest();
        // A refusal that gets lost would look like a peer that does not answer, so nothing may get lost here.
        self.device.heal();
        let moved = |record: &RemoteRegion<RemoteAll>, by: i64| {
            RemoteRegion::of_peer(record.address().wrapping_add_signed(by), record.len(), record.rkey().value())
                .unwrap()
        };
        // If `last` is true, the last word of the target is certainly not granted. Otherwise the first word is
        // certainly not granted.
        let mut last = false;
        let target = match (self.live.get(random.below(self.live.len())), random.below(3)) {
            // The target is the grant, moved up or down by at least one word. It can still overlap the grant.
            (Some(Live { words, record, .. }), 0) => {
                let by = 8 * (1 + random.below(*words + 1)) as i64;
                last = random.one_in(2);
                moved(record, if last { by } else { -by })
            }
            (Some(Live { grant: Grant::ReadOnly(_), record, .. }), _) => *record,
            _ if self.stale.is_empty() => return,
            _ => {
                let record = self.stale[random.below(self.stale.len())];
                // If the device has given the key to another grant, the access would be legal.
                if self.live.iter().any(|live| live.record.rkey() == record.rkey()) {
                    return;
                }
                record
            }
        };
        let read_only = self.live.iter().any(|live| live.record.address() == target.address());
        let mut buffer = self.domain.buffer(target.len() as usize).unwrap();
        buffer.fill(0xee);
        let Some(peer) = self.peer.ready().filter(|_| !self.failing) else { return };
        let posted = match random.below(if read_only { 2 } else { 3 }) {
            0 => peer.post_write(buffer, &target),
            1 => {
                let word = if last { target.len() - 8 } else { 0 };
                peer.post_fetch_and_add(buffer, &target.slice(word..word + 8).unwrap(), 1)
            }
            _ => peer.post_read(buffer, &target),
        };
        self.failing = true;
        match self.outcome(posted.unwrap()) {
            Err(failure) => assert_eq!(failure.status, Status::RemoteAccess, "{target:?}"),
            Ok(work) => panic!("{work:?} to {target:?}, which is not granted"),
        }
        self.check_all();
        self.renew_link(random);
    }

    /// Checks all memory, including granted memory.
    fn check_all(&mut self) {
        self.check();
        for at in 0..self.live.len() {
            let Live { first, .. } = self.live[at];
            if let Some(found) = self.live[at].load() {
                self.settle(first, &found, false);
            }
        }
    }

    /// Waits for all writes of the peer.
    fn rest(&mut self) {
        self.until("the peer's writes", |world| world.writes.is_empty());
        self.check_all();
        if self.failing {
            self.renew_link(&mut Random::new(self.last_value));
        }
    }

    /// Ends both pairs and connects new ones. Writes in flight may have been executed. A window ends with the pair on
    /// which it was bound.
    fn renew_link(&mut self, random: &mut Random) {
        self.failing = true;
        let end_windows = |world: &mut Self, random: &mut Random, all: bool| {
            for at in (0..world.live.len()).rev() {
                if world.live[at].is_window() && (all || random.one_in(2)) {
                    world.revoke(random, at);
                }
            }
        };
        // A failed device does not end windows together with their pair, so there all windows are ended first.
        // Otherwise only some are.
        end_windows(self, random, self.device.fatal.get());
        let (peer, own) = (std::mem::take(&mut self.peer), std::mem::take(&mut self.own));
        if random.one_in(2) {
            drop(self.take_down(random, peer, |world| world.writes.is_empty(), |_, _| ()));
            drop(own);
        } else {
            drop(own);
            drop(self.take_down(random, peer, |world| world.writes.is_empty(), |_, _| ()));
        }
        self.until("the peer's writes", |world| world.writes.is_empty());
        end_windows(self, random, true);
        self.check();
        if !self.device.fatal.get() {
            self.connect();
        }
    }

    /// Splits a free buffer, joins two, or fills one.
    fn shape(&mut self, random: &mut Random) {
        self.check();
        if self.free.is_empty() {
            return;
        }
        let mut buffer = self.free.swap_remove(random.below(self.free.len()));
        let (first, words) = (self.first_of(&buffer), buffer.capacity() / 8);
        match random.below(3) {
            0 if words > 1 => {
                let (left, right) = buffer.split_at(8 * (1 + random.below(words - 1))).unwrap();
                return self.free.extend([left, right]);
            }
            1 => {
                let end = buffer.as_ptr().addr() + buffer.capacity();
                let next = self.free.iter().position(|next| next.as_ptr().addr() == end);
                // A free buffer that begins where this one ends belongs to the same page, so the two can be joined.
                if let Some(next) = next.map(|next| self.free.swap_remove(next)) {
                    match buffer.join(next) {
                        Ok(both) => return self.free.push(both),
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            _ => {
                self.last_value += 1;
                buffer.view_slice_mut::<u64>().unwrap().fill(self.last_value);
                self.content[first..first + words].fill(self.last_value);
            }
        }
        self.free.push(buffer);
    }

    fn act(&mut self, step: &Step<Call>) {
        let random = &mut step.random();
        match step.call {
            Call::Poll => drop(self.poll(1 + random.below(4))),
            Call::Step => self.device.step(random),
            Call::Grant => self.grant(random),
            Call::Revoke if self.live.is_empty() => (),
            Call::Revoke => {
                let at = random.below(self.live.len());
                self.revoke(random, at);
            }
            Call::Write => self.write(random),
            Call::Look => self.look(random),
            Call::Shape => self.shape(random),
            Call::Lose => self.device.lose(random),
            Call::Trespass => self.trespass(random),
            Call::RenewLink => self.renew_link(random),
            Call::CheckAll => self.check_all(),
        }
    }
}

fn fails(verb: Verb) -> Fault {
    Fault::VerbFails { verb, after: 0, count: 1, errno: libc::EBUSY }
}

impl<B: Brand> Stage<B> for World<B> {
    fn device(&self) -> &Device {
        &self.device
    }

    fn port(&self) -> &Port {
        &self.port
    }

    fn poll(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(completion) = self.poller.poll().unwrap() else { return true };
            let id = completion.id();
            let result = completion.check();
            if self.other == Some(id) {
                (self.other, self.came) = (None, Some(result.map(interlock::Success::into_work)));
                continue;
            }
            assert_eq!(self.writes.first().map(|write| write.id), Some(id), "not the next write: {:?}", self.writes);
            let write = self.writes.remove(0);
            let Written { at, words, value, done, .. } = write;
            match result {
                Ok(_) => {
                    assert_ne!(done, Some(false), "a write succeeds after the memory was taken back without it");
                    // If `done` is set, this side has already seen the write in memory. Then `content` already holds
                    // the write, or later writes that have overwritten it.
                    if done.is_none() {
                        self.content[at..at + words].fill(value);
                    }
                }
                Err(failure) => {
                    let may = match failure.status {
                        Status::RemoteAccess => done == Some(false) || self.is_revoking(at),
                        Status::Flushed | Status::Destroyed | Status::RetryExceeded => {
                            self.failing || done == Some(false) || self.is_revoking(at) || self.device.fatal.get()
                        }
                        _ => false,
                    };
                    assert!(may, "a write at {at}, done: {done:?}, ends with {}", failure.status);
                    self.failing = true;
                    // A write that failed can still have been executed.
                    if done.is_none() {
                        let holds = |live: &&mut Live<B>| (live.first..live.first + live.words).contains(&at);
                        let Some(live) = self.live.iter_mut().find(holds) else {
                            assert!(self.is_revoking(at), "it was taken back");
                            self.lost.push(write);
                            continue;
                        };
                        let found = live.load().map(|found| found[at - live.first..at - live.first + words].to_vec());
                        match (found, &mut live.grant) {
                            (Some(found), _) if found.iter().all(|&word| word == value) => {
                                self.content[at..at + words].fill(value);
                            }
                            (_, Grant::Forgotten { is_known }) => *is_known = false,
                            _ => (),
                        }
                    }
                }
            }
        }
        false
    }
}

#[test]
fn a_peer_reaches_what_it_is_granted_and_nothing_else() {
    // The model learns of each refusal from the status of the completion.
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    let effort = Effort { programs: [150, 6], most_steps: [1200, 300] };
    for_programs("a_peer_reaches_what_it_is_granted_and_nothing_else", &effort, 1, &CALLS, |program| {
        let device = Device::open();
        let context = device.context.clone();
        let done = context.with_domain(|domain| {
            let mut world = World::new(device, domain);
            program.steps().for_each(|step| world.act(step));
            let random = &mut program.random_after();
            if random.one_in(3) {
                world.device.fail();
            }
            if !world.device.fatal.get() {
                world.rest();
            }
            world.renew_link(random);
            for at in (0..world.live.len()).rev() {
                while world.live.get(at).is_some_and(|live| !matches!(live.grant, Grant::Forgotten { .. })) {
                    world.revoke(random, at);
                }
            }
            world.check();
            let forgotten: usize = world.live.iter().map(|live| live.words).sum();
            let back: usize = world.free.iter().map(|buffer| buffer.capacity() / 8).sum();
            assert_eq!(back + forgotten, world.content.len(), "memory was lost");
        });
        done.unwrap();
    });
}
