//! Random programs on every profile. Whatever the program and the device do: a buffer comes back at most once, memory
//! that the program holds does not change by itself, and the library makes no call that the provider does not support.

use super::{connected, for_programs, objects_die, posts_fail, profiles, rounds, shared_queue};
use interlock::memory::BufferList;
use interlock::request::PostedMemory;
use interlock::shared::{Messages, SharedLimits, SharedReceiveQueue};
use interlock::soft::{Fabric, Profile};
use interlock::transport::OnShared;
use interlock::{
    Brand, Buffer, Completion, CompletionQueue, Context, Inline, Limits, MemoryRegion, Poller, Port, ProtectionDomain,
    QueuePair, ReadyToSend, ReliableConnection, RemoteAll, RemoteRegion, UnreliableConnection, WorkRequest,
};
use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};
use support::steps::{Program, Step};
use support::{PATIENCE, Random};

const BYTES: usize = 48;
const LIMITS: Limits =
    Limits { sends: 6, receives: 6, inline_bytes: 16, elements: 3, posting: interlock::queue::Posting::List };

/// A buffer that the program holds, and the byte that fills it.
struct Mine<B> {
    buffer: Buffer<B>,
    mark: u8,
}

enum Pair<B> {
    Reliable(QueuePair<B>),
    Unreliable(QueuePair<B, ReadyToSend, UnreliableConnection>),
    Served(QueuePair<B, ReadyToSend, OnShared<ReliableConnection>>),
}

/// Evaluates the same expression for each kind of pair.
macro_rules! each {
    ($pair:expr, $inner:ident => $do:expr) => {
        match $pair {
            Pair::Reliable($inner) => $do,
            Pair::Unreliable($inner) => $do,
            Pair::Served($inner) => $do,
        }
    };
}

/// The call that a step of a program makes. If there is no object for the call, the step posts something.
#[derive(Clone, Copy, Debug)]
enum Call {
    Post,
    Poll,
    AddPairs,
    DropPair,
    EndPairSlowly,
    /// Drops a poller, and takes the poller of the same queue again.
    TakePollerAgain,
    AddQueue,
    DropQueue,
    Register,
    Deregister,
}

/// Each call, with its relative frequency. When a failing program is reduced, later calls are replaced by earlier ones.
const CALLS: [(u32, Call); 10] = [
    (64, Call::Post),
    (24, Call::Poll),
    (12, Call::AddPairs),
    (4, Call::DropPair),
    (4, Call::EndPairSlowly),
    (4, Call::TakePollerAgain),
    (7, Call::AddQueue),
    (1, Call::DropQueue),
    (4, Call::Register),
    (4, Call::Deregister),
];

struct World<'d, B> {
    profile: Profile,
    domain: &'d ProtectionDomain<B>,
    port: Port,
    /// The random numbers of the current step.
    dice: Random,
    queues: Vec<(CompletionQueue<B>, Option<Poller<B>>)>,
    shared: Option<SharedReceiveQueue<B, Messages>>,
    pairs: Vec<Pair<B>>,
    regions: Vec<MemoryRegion<B, RemoteAll, Vec<u64>>>,
    /// The grants that peers have been given, including those that have ended.
    granted: Vec<RemoteRegion<RemoteAll>>,
    /// Memory whose registration has ended, with a copy of its bytes at that time. It must not change any more.
    retired: Vec<(Vec<u64>, Vec<u64>)>,
    mine: Vec<Mine<B>>,
    /// The addresses of the buffers that the program holds.
    here: HashSet<usize>,
    marks: u8,
}

impl<B: Brand> World<'_, B> {
    fn take_back(&mut self, mut buffer: Buffer<B>) {
        let profile = self.profile;
        assert!(self.here.insert(buffer.as_ptr().addr()), "{profile:?}: a buffer came back twice");
        self.marks = self.marks.wrapping_add(1);
        let mark = self.marks;
        // Fill the whole buffer, not only the part that a message filled.
        buffer.write(&vec![mark; buffer.capacity()]).unwrap();
        self.mine.push(Mine { buffer, mark });
    }

    fn check(&self) {
        for Mine { buffer, mark } in &self.mine {
            assert!(buffer.iter().all(|byte| byte == mark), "{:?}: a buffer changed by itself", self.profile);
        }
        for (memory, before) in &self.retired {
            assert_eq!(memory, before, "{:?}: memory changed after its registration", self.profile);
        }
    }

    /// Takes one of the program's buffers, to post it.
    fn give(&mut self) -> Option<Buffer<B>> {
        let at = self.dice.below(self.mine.len());
        if self.mine.is_empty() {
            return None;
        }
        let Mine { mut buffer, mark } = self.mine.swap_remove(at);
        assert!(buffer.iter().all(|byte| *byte == mark), "{:?}: a buffer changed by itself", self.profile);
        self.here.remove(&buffer.as_ptr().addr());
        let len = 1 + self.dice.below(BYTES);
        buffer.set_len(len).unwrap();
        Some(buffer)
    }

    fn give_list(&mut self) -> BufferList<B> {
        let count = self.dice.below(4);
        BufferList::new((0..count).filter_map(|_| self.give()).collect())
    }

    fn take_memory(&mut self, memory: PostedMemory<B>) {
        match memory {
            PostedMemory::Unique(buffer) => self.take_back(buffer),
            PostedMemory::List(list) => list.into_buffers().into_iter().for_each(|buffer| self.take_back(buffer)),
            _ => {}
        }
    }

    fn take_completion(&mut self, completion: Completion<B>) {
        let memory = match completion.check() {
            Ok(success) => success.into_memory(),
            Err(failure) => failure.memory,
        };
        self.take_memory(memory);
    }

    fn poll(&mut self, queue: usize, most: usize) {
        for _ in 0..most {
            let Some((_, Some(poller))) = self.queues.get_mut(queue) else { return };
            match poller.poll() {
                Ok(Some(completion)) => self.take_completion(completion),
                Ok(None) => return,
                Err(error) => {
                    assert!(objects_die(self.profile), "{:?}: {error}", self.profile);
                    return;
                }
            }
        }
    }

    fn add_pairs(&mut self) {
        let at = self.dice.below(self.queues.len());
        let queue = &self.queues[at].0;
        if queue.room() < 32 {
            return;
        }
        match self.dice.below(3) {
            0 => {
                let (left, right) = connected(self.domain, queue, &self.port);
                self.pairs.extend([Pair::Reliable(left), Pair::Reliable(right)]);
            }
            1 => {
                let make = || self.domain.unreliable(queue, &LIMITS).unwrap().into_init(&self.port).unwrap();
                let (left, right) = (make(), make());
                let (to_left, to_right) = (left.endpoint(), right.endpoint());
                let (left, right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
                self.pairs.extend([Pair::Unreliable(left), Pair::Unreliable(right)]);
            }
            _ => {
                let Some(shared) = &self.shared else { return };
                // The first pair of `shared` on `queue` leases room in `queue` for all receives of `shared`. If `queue`
                // has too little room, no pair is made.
                let Ok(server) = shared.reliable(queue, &LIMITS) else { return };
                let Ok(client) = self.domain.reliable(queue, &LIMITS) else { return };
                let (client, server) = (client.into_init(&self.port).unwrap(), server.into_init(&self.port).unwrap());
                let (to_client, to_server) = (client.endpoint(), server.endpoint());
                let (client, server) = (client.connect(&to_server).unwrap(), server.connect(&to_client).unwrap());
                self.pairs.extend([Pair::Reliable(client), Pair::Served(server)]);
            }
        }
    }

    fn post(&mut self, at: usize) {
        let kind = self.dice.below(9);
        let silent = self.dice.below(3) == 0;
        let to = match self.granted.len() {
            0 => return,
            count => self.granted[self.dice.below(count)],
        };
        if kind == 0 {
            let list = self.give_list();
            let error = each!(&mut self.pairs[at], pair => {
                let request = WorkRequest::send(list);
                pair.post(if silent { request.unsignalled() } else { request }).err()
            });
            if let Some(request) = error.and_then(|error| error.into_request()) {
                self.take_memory(PostedMemory::List(request.into_memory()));
            }
            return;
        }
        if kind == 1 {
            let _ = each!(&mut self.pairs[at], pair => pair.post_send(Inline(b"by the way")));
            return;
        }
        let Some(buffer) = self.give() else { return };
        let back = match (kind, &mut self.pairs[at]) {
            (2 | 3, Pair::Reliable(pair)) => pair.post_receive(buffer).err().and_then(|error| error.into_request()),
            (2 | 3, Pair::Unreliable(pair)) => pair.post_receive(buffer).err().and_then(|error| error.into_request()),
            (2 | 3, Pair::Served(_)) => match &mut self.shared {
                Some(shared) => shared.post_receive(buffer).err().and_then(|error| error.into_request()),
                None => Some(buffer),
            },
            (4, pair) => {
                let error = each!(pair, pair => {
                    let request = WorkRequest::write(buffer, &to);
                    pair.post(if silent { request.unsignalled() } else { request }).err()
                });
                error.and_then(|error| error.into_request()).map(WorkRequest::into_memory)
            }
            (5, Pair::Reliable(pair)) => {
                let request = WorkRequest::read(buffer, &to);
                let error = pair.post(if silent { request.unsignalled() } else { request }).err();
                error.and_then(|error| error.into_request()).map(WorkRequest::into_memory)
            }
            (6, Pair::Reliable(pair)) => {
                pair.post_fetch_and_add(buffer, &to, 1).err().and_then(|error| error.into_request())
            }
            (_, pair) => {
                let error = each!(pair, pair => {
                    let request = WorkRequest::send(buffer);
                    pair.post(if silent { request.unsignalled() } else { request }).err()
                });
                error.and_then(|error| error.into_request()).map(WorkRequest::into_memory)
            }
        };
        if let Some(buffer) = back {
            self.take_back(buffer);
        }
    }

    /// Takes a pair through Error and Reset, as far as the device allows, and destroys it.
    fn end_slowly(&mut self, at: usize) {
        fn end<B: Brand, T: interlock::transport::Transport>(pair: QueuePair<B, ReadyToSend, T>) {
            if let Ok(pair) = pair.into_error()
                && let Ok(pair) = pair.into_reset()
            {
                drop(pair.destroy());
            }
        }
        match self.pairs.swap_remove(at) {
            Pair::Reliable(pair) => end(pair),
            Pair::Unreliable(pair) => end(pair),
            Pair::Served(pair) => end(pair),
        }
    }

    fn step(&mut self, step: &Step<Call>) {
        self.dice = step.random();
        let pairs = self.pairs.len();
        let queue = self.dice.below(self.queues.len());
        match step.call {
            Call::AddPairs if pairs < 10 => self.add_pairs(),
            Call::DropPair if pairs > 0 => drop(self.pairs.swap_remove(self.dice.below(pairs))),
            Call::EndPairSlowly if pairs > 0 => {
                let at = self.dice.below(pairs);
                self.end_slowly(at);
            }
            Call::TakePollerAgain => {
                self.queues[queue].1 = None;
                self.queues[queue].1 = self.queues[queue].0.take_poller();
            }
            Call::DropQueue if self.queues.len() > 1 => drop(self.queues.swap_remove(queue)),
            Call::AddQueue if self.queues.len() < 3 => {
                let (made, poller) = self.domain.completion_queue(128).unwrap();
                self.queues.push((made, Some(poller)));
            }
            Call::Register => {
                let region = self.domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
                self.granted.push(region.remote());
                self.regions.push(region);
            }
            Call::Deregister if !self.regions.is_empty() => {
                let at = self.dice.below(self.regions.len());
                let memory = self.regions.swap_remove(at).deregister().unwrap();
                let before = memory.clone();
                self.retired.push((memory, before));
            }
            Call::Poll => {
                let most = self.dice.below(8);
                self.poll(queue, most);
            }
            _ if pairs > 0 => {
                let at = self.dice.below(pairs);
                self.post(at);
            }
            _ => {}
        }
        // The program drops old buffers and makes new ones. A new buffer often gets the address of an old one, so a
        // late write to the old buffer shows up in the new one.
        if self.mine.len() < 4 {
            for buffer in self.domain.buffers(8, BYTES).unwrap() {
                self.take_back(buffer);
            }
        } else if self.mine.len() > 24 {
            let Mine { buffer, .. } = self.mine.swap_remove(0);
            self.here.remove(&buffer.as_ptr().addr());
        }
    }

    /// Ends all pairs, and waits for the requests in flight.
    fn settle(&mut self) {
        self.pairs.clear();
        // With this profile, a request that is posted after its pair has failed is not flushed. The poller keeps such a
        // pair until the completion queue is dropped.
        let forgets = self.profile == Profile::Irdma;
        let sure = !forgets && !posts_fail(self.profile) && !objects_die(self.profile);
        let deadline = Instant::now() + if sure { PATIENCE } else { Duration::from_millis(100) };
        let is_over = |queue: &CompletionQueue<B>| queue.room() == queue.capacity();
        loop {
            (0..self.queues.len()).for_each(|queue| self.poll(queue, 64));
            self.check();
            if self.queues.iter().all(|(queue, _)| is_over(queue)) {
                break;
            }
            if Instant::now() > deadline {
                let queues: Vec<_> = self
                    .queues
                    .iter()
                    .map(|(queue, poller)| (queue.room(), queue.capacity(), poller.is_some()))
                    .collect();
                assert!(!sure, "{:?}: it does not end: {queues:?}", self.profile);
                break;
            }
            thread::yield_now();
        }
    }
}

fn run(profile: Profile, program: &Program<Call>) {
    let fabric = Fabric::with_profile(profile);
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let port = context.active_port().unwrap();
    // The domain has no name: a leaked object would keep the name for ever, so the next run could not use it.
    let domain = context.checked_domain().unwrap();
    let (queue, poller) = domain.completion_queue(128).unwrap();
    let shared = shared_queue(profile, &domain, &SharedLimits { receives: 16, ..SharedLimits::default() });
    let region = domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
    let mut world = World {
        profile,
        domain: &domain,
        port,
        dice: program.random_after(),
        queues: vec![(queue, Some(poller))],
        shared,
        pairs: Vec::new(),
        granted: vec![region.remote()],
        regions: vec![region],
        retired: Vec::new(),
        mine: Vec::new(),
        here: HashSet::new(),
        marks: 0,
    };
    program.steps().for_each(|step| world.step(step));
    world.settle();
    if let Some(shared) = world.shared.take() {
        match shared.destroy() {
            Ok(buffers) => buffers.into_iter().for_each(|buffer| world.take_back(buffer)),
            Err(error) => assert!(posts_fail(profile) || objects_die(profile), "{profile:?}: {error:?}"),
        }
    }
    world.check();
    drop(world);
    assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}");
}

#[test]
fn random_programs_keep_their_memory() {
    let devices = profiles().into_iter().flat_map(|profile| (0..rounds(4)).map(move |seed| (profile, seed)));
    for_programs("random_programs_keep_their_memory", devices, &CALLS, 4000, run);
}

/// Polls and destroys may fail too. Then memory may be leaked, but a buffer still comes back at most once.
#[test]
fn random_programs_keep_their_memory_where_objects_die() {
    let devices = (0..rounds(8)).map(|seed| (Profile::Adversary(4 + seed % 4 + 8 * seed), seed));
    for_programs("random_programs_keep_their_memory_where_objects_die", devices, &CALLS, 4000, run);
}
