//! Buffers of a pool that are taken, waited for, split, shared, leased, forgotten and dropped, while the pool grows and
//! is trimmed, and the device now and then refuses memory.

use crate::{Device, Effort, Random, for_programs};
use interlock::error::NoBuffer;
use interlock::memory::{Growth, Lease, Pool, PoolOptions, SizeClass, Take};
use interlock::soft::{Fault, Verb};
use interlock::{Buffer, Checked, ProtectionDomain, RemoteWrite, SharedBuffer};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use support::steps::Step;

/// The lengths of buffers, and how many there are from the start. Each chunk is shorter than a page, and has a page of
/// its own.
const CLASSES: [(usize, u32); 2] = [(64, 2), (192, 1)];
const CHUNK_BYTES: usize = 200;
const LIMIT_BYTES: usize = 1000;
const PAGE_BYTES: usize = 4096;

/// The call that a step of a program makes. The `place` of a step chooses a class.
#[derive(Clone, Copy, Debug)]
enum Call {
    Take,
    Drop,
    Wait,
    Poll,
    Cancel,
    Split,
    Share,
    Lease,
    Trim,
    Forget,
    Refuse,
}

/// Each call, with its relative frequency.
const CALLS: [(u32, Call); 11] = [
    (40, Call::Take),
    (40, Call::Drop),
    (20, Call::Wait),
    (20, Call::Poll),
    (8, Call::Cancel),
    (12, Call::Split),
    (12, Call::Share),
    (4, Call::Lease),
    (6, Call::Trim),
    (1, Call::Forget),
    (3, Call::Refuse),
];

/// What the program has of one buffer.
enum Held {
    Whole(Buffer<Checked>),
    Parts(Vec<Buffer<Checked>>),
    Shares(Vec<SharedBuffer<Checked>>),
    Leased(Lease<Checked, RemoteWrite>),
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        assert!(!self.0.swap(true, Ordering::Relaxed), "woken twice");
    }
}

struct Waiter {
    take: Take<Checked>,
    woken: Arc<Woken>,
    /// Whether a buffer must have been set aside for this waiter.
    served: bool,
}

impl Waiter {
    fn poll(&mut self) -> Option<Buffer<Checked>> {
        let waker = Waker::from(Arc::clone(&self.woken));
        match Pin::new(&mut self.take).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(buffer) => Some(buffer.unwrap()),
            Poll::Pending => None,
        }
    }
}

/// What the model knows of a class.
struct Class {
    capacity: usize,
    /// How many buffers there are, in all chunks.
    all: usize,
    home: usize,
    /// For each page, how many of its buffers the program has, or has forgotten.
    away: HashMap<usize, usize>,
    held: Vec<(usize, u64, Held)>,
    waiters: VecDeque<Waiter>,
}

struct World {
    device: Device,
    domain: ProtectionDomain<Checked>,
    pool: Pool<Checked>,
    classes: Vec<Class>,
    /// How many bytes are registered.
    registered: usize,
    /// Whether the device refuses the next registration.
    refuses: bool,
    last: u64,
}

fn options() -> PoolOptions {
    PoolOptions {
        classes: CLASSES.map(|(len_bytes, count)| SizeClass { len_bytes, count }).to_vec(),
        chunk_bytes: CHUNK_BYTES,
        growth: Growth::UpTo(LIMIT_BYTES),
        ..PoolOptions::default()
    }
}

impl World {
    fn new() -> Self {
        let device = Device::open();
        let domain = device.context.checked_domain().unwrap();
        let pool = domain.pool(&options()).unwrap();
        let classes = CLASSES.map(|(capacity, count)| Class {
            capacity,
            all: count as usize,
            home: count as usize,
            away: HashMap::new(),
            held: Vec::new(),
            waiters: VecDeque::new(),
        });
        let registered = CLASSES.iter().map(|(capacity, count)| capacity * *count as usize).sum();
        Self { device, domain, pool, classes: classes.into(), registered, refuses: false, last: 0 }
    }

    /// Grows a class of the model as the pool must grow. Returns whether that adds buffers.
    fn grow(&mut self, at: usize) -> bool {
        let class = &mut self.classes[at];
        let room = (LIMIT_BYTES - self.registered) / class.capacity;
        let count = room.min((CHUNK_BYTES / class.capacity).max(1));
        if count == 0 || std::mem::take(&mut self.refuses) {
            return false;
        }
        self.registered += count * class.capacity;
        class.all += count;
        (0..count).for_each(|_| self.comes_home(at));
        true
    }

    /// A buffer comes home, and goes to whoever waits.
    fn comes_home(&mut self, at: usize) {
        let class = &mut self.classes[at];
        match class.waiters.iter_mut().find(|waiter| !waiter.served) {
            Some(waiter) => waiter.served = true,
            None => class.home += 1,
        }
    }

    /// Whether a take must return a buffer. If so, removes one from those at home.
    fn gives(&mut self, at: usize) -> bool {
        loop {
            let class = &mut self.classes[at];
            if class.home > 0 {
                class.home -= 1;
                return true;
            }
            if !self.grow(at) {
                return false;
            }
        }
    }

    /// Records a taken buffer, and fills it with its number.
    fn hold(&mut self, at: usize, mut buffer: Buffer<Checked>) {
        let class = &mut self.classes[at];
        assert_eq!((buffer.len(), buffer.capacity()), (0, class.capacity));
        let address = buffer.as_ptr().addr();
        assert!(class.held.iter().all(|(other, ..)| *other != address), "a buffer with two owners");
        *class.away.entry(address / PAGE_BYTES).or_default() += 1;
        self.last += 1;
        buffer.set_len(class.capacity).unwrap();
        buffer.fill(self.last as u8);
        class.held.push((address, self.last, Held::Whole(buffer)));
    }

    /// Removes one of the buffers of the class that the program has, after a check of its bytes.
    fn let_go(&mut self, at: usize, random: &mut Random) -> Option<(usize, u64, Held)> {
        let class = &mut self.classes[at];
        if class.held.is_empty() {
            return None;
        }
        let (address, mark, held) = class.held.swap_remove(random.below(class.held.len()));
        let same = |bytes: &[u8]| bytes.iter().all(|&byte| byte == mark as u8);
        let intact = match &held {
            Held::Whole(buffer) => same(buffer),
            Held::Parts(parts) => parts.iter().all(|part| same(part)),
            Held::Shares(shares) => shares.iter().all(|share| same(share)),
            Held::Leased(lease) => same(&lease.to_vec(0..lease.len()).unwrap()),
        };
        assert!(intact, "somebody else has written to a buffer");
        Some((address, mark, held))
    }

    fn step(&mut self, step: &Step<Call>) {
        let (at, mut random) = (step.place, step.random());
        match step.call {
            Call::Take => {
                let refused = self.refuses;
                let gives = self.gives(at);
                let class = &self.classes[at];
                let zeroed = random.one_in(8);
                let len_bytes = if at == 0 { random.below(65) } else { 65 + random.below(128) };
                let taken = if zeroed { self.pool.try_take_zeroed(len_bytes) } else { self.pool.try_take(len_bytes) };
                match taken {
                    Ok(mut buffer) => {
                        assert!(gives, "a buffer out of nothing");
                        if zeroed {
                            assert_eq!(buffer.len(), len_bytes);
                            buffer.set_len(class.capacity).unwrap();
                            assert!(buffer.iter().all(|&byte| byte == 0));
                            buffer.set_len(0).unwrap();
                        }
                        self.hold(at, buffer);
                    }
                    Err(NoBuffer::NotGrown { .. }) => assert!(refused && !self.refuses && !gives),
                    Err(NoBuffer::AtLimit { registered_bytes, .. }) => {
                        assert_eq!((gives, registered_bytes), (false, self.registered));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Call::Drop => {
                if let Some((address, _, held)) = self.let_go(at, &mut random) {
                    match held {
                        Held::Parts(mut parts) if random.one_in(2) => {
                            // If all parts are joined again, they are the whole buffer.
                            let mut whole = parts.remove(0);
                            while !parts.is_empty() {
                                whole = whole.join(parts.remove(0)).unwrap();
                            }
                            assert_eq!(whole.capacity(), self.classes[at].capacity);
                        }
                        Held::Shares(mut shares) if random.one_in(2) => {
                            let share = shares.swap_remove(0);
                            drop(shares);
                            drop(share.into_unique().unwrap());
                        }
                        Held::Leased(lease) if random.one_in(2) => drop(lease.end().unwrap()),
                        held => drop(held),
                    }
                    *self.classes[at].away.get_mut(&(address / PAGE_BYTES)).unwrap() -= 1;
                    self.comes_home(at);
                }
            }
            Call::Wait => {
                let gives = self.gives(at);
                let capacity = self.classes[at].capacity;
                let (take, woken) = (self.pool.take(capacity), Arc::default());
                let mut waiter = Waiter { take, woken, served: false };
                match waiter.poll() {
                    Some(buffer) => {
                        assert!(gives, "a buffer out of nothing");
                        self.hold(at, buffer);
                    }
                    None => {
                        assert!(!gives);
                        self.classes[at].waiters.push_back(waiter);
                    }
                }
            }
            Call::Poll | Call::Cancel => {
                let waiters = &mut self.classes[at].waiters;
                if waiters.is_empty() {
                    return;
                }
                let place = random.below(waiters.len());
                let mut waiter = waiters.remove(place).unwrap();
                assert_eq!(waiter.woken.0.load(Ordering::Relaxed), waiter.served);
                if let Call::Cancel = step.call {
                    let served = waiter.served;
                    drop(waiter);
                    if served {
                        self.comes_home(at);
                    }
                    return;
                }
                match waiter.poll() {
                    Some(buffer) => {
                        assert!(waiter.served);
                        self.hold(at, buffer);
                    }
                    None => {
                        assert!(!waiter.served);
                        self.classes[at].waiters.insert(place, waiter);
                    }
                }
            }
            Call::Split | Call::Share | Call::Lease => {
                let Some((address, mark, held)) = self.let_go(at, &mut random) else { return };
                let held = match (step.call, held) {
                    (Call::Split, Held::Whole(buffer)) => Held::Parts(buffer.into_chunks(8 + random.below(100))),
                    (Call::Share, Held::Whole(buffer)) => {
                        let share = buffer.share();
                        let (start, middle) = (random.below(32), 32 + random.below(32));
                        let slice = share.slice(start..middle).unwrap();
                        Held::Shares(vec![share.clone(), slice.slice(0..1.min(slice.len())).unwrap(), slice])
                    }
                    (Call::Lease, Held::Whole(buffer)) if !self.refuses => {
                        Held::Leased(self.domain.lease(buffer, Duration::from_secs(9)).unwrap())
                    }
                    (_, held) => held,
                };
                self.classes[at].held.push((address, mark, held));
            }
            Call::Trim => self.trim(),
            Call::Forget => {
                // `away` still counts the forgotten buffer, because the pool never trims its chunk.
                if let Some((_, _, held)) = self.let_go(at, &mut random) {
                    std::mem::forget(held);
                }
            }
            Call::Refuse => {
                let fault = Fault::VerbFails { verb: Verb::RegMr, after: 0, count: 1, errno: libc::EAGAIN };
                self.refuses = self.refuses || self.device.inject(fault);
            }
        }
    }

    /// The model knows how many buffers are at home, but not which. So it takes from the pool how much was trimmed, and
    /// checks that no buffer that is away was.
    fn trim(&mut self) {
        let before = self.pool.stats();
        let room = LIMIT_BYTES - self.registered;
        let trimmed = self.pool.trim();
        let after = self.pool.stats();
        assert_eq!(before.registered_bytes, LIMIT_BYTES - room);
        let mut gone = 0;
        for ((class, stats), (_, count)) in self.classes.iter_mut().zip(&after.classes).zip(CLASSES) {
            let away = class.away.values().sum::<usize>();
            let served = class.waiters.iter().filter(|waiter| waiter.served).count();
            assert_eq!(away + served + class.home, class.all);
            // If a waiter is not served, no buffer of the class was at home, so none was trimmed. Instead the class can
            // have grown into the room that was trimmed from other classes. Then `less` would be negative.
            if class.waiters.len() > served {
                continue;
            }
            let less = class.all - stats.buffers;
            gone += less * class.capacity;
            class.all -= less;
            class.home -= less;
            // The pool keeps the `count` buffers that it had from the start. It also keeps each chunk that has a buffer
            // away, or set aside for a waiter.
            let kept = class.away.values().filter(|away| **away > 0).count() + served;
            let most = count as usize + kept * (CHUNK_BYTES / class.capacity).max(1);
            assert!(class.all <= most, "{} of at most {most} buffers", class.all);
        }
        assert_eq!(gone, trimmed);
        self.registered -= trimmed;
        // Classes with waiters grow into the room that was trimmed.
        for at in 0..self.classes.len() {
            while self.classes[at].waiters.iter().any(|waiter| !waiter.served) && self.grow(at) {}
        }
    }

    /// Compares the pool with the model.
    fn compare(&self) {
        let stats = self.pool.stats();
        assert_eq!(stats.registered_bytes, self.registered);
        for (class, stats) in self.classes.iter().zip(&stats.classes) {
            let waiting = class.waiters.iter().filter(|waiter| !waiter.served).count();
            let model = (class.capacity, class.all, class.home, waiting);
            assert_eq!((stats.capacity, stats.buffers, stats.free, stats.waiting), model);
        }
    }
}

#[test]
fn buffers_of_a_pool_have_one_owner_and_are_never_lost() {
    let effort = Effort { programs: [400, 40], most_steps: [300, 150] };
    for_programs("pools", &effort, CLASSES.len(), &CALLS, |program| {
        let mut world = World::new();
        for step in program.steps() {
            world.step(step);
            world.compare();
        }
        // Either the pool is dropped first, or the buffers that were taken from it.
        world.device.heal();
        if program.random_after().one_in(2) {
            drop(world.pool);
            world.classes.clear();
        } else {
            world.classes.clear();
            drop(world.pool);
        }
    });
}
