//! Shelves: the parts of a pool that are at home, and the queue of those who wait for one.
//!
//! Each item of a shelf has a *spot*, which is a number. The spots of the items at home form a stack. One atomic word,
//! the head, holds the top of the stack, a flag, and a turn:
//!
//! ```text
//!   63                     25   24   23              0
//!  ┌─────────────────────────┬─────────┬───────────────┐
//!  │ turn: +1 for each take  │ guarded │ spot on top   │
//!  └─────────────────────────┴─────────┴───────────────┘
//! ```
//!
//! - *Fast.* While the shelf is not guarded, [`take`](Shelf::take) and [`Place::put`] change the head by one
//!   compare-exchange each. A take reads what is under the top before it exchanges. The turn lets the exchange fail if
//!   the same spot went away and came back in between. A put needs no turn: it links to whatever is on top.
//!   (The turn wraps around after 2^39 takes. A thread would have to sleep for hours between its two steps, and wake at
//!   exactly the same turn.)
//! - *Guarded.* While the shelf is guarded, both refuse, and only the thread that has locked the desk changes the head.
//!   A shelf is guarded while somebody waits, for the length of a [`remove`](Shelf::remove) or a count, and for good
//!   once it is closed.
//!
//! Whoever is about to wait sets the flag first, and then looks at the stack. A put before that has left its item in
//! the stack. A put after that sees the flag, locks the desk, and finds the waiter. So no wake-up is lost. An item that
//! comes home goes straight to whoever has waited longest, and a take finds nothing while somebody waits. So nobody is
//! overtaken.
//!
//! A fast put touches nothing after its exchange: from then on another thread may take the item, close the shelf and
//! free both.

use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::AtomicPtr;
use std::task::Waker;
use std::{fmt, iter, mem, ptr, ptr::NonNull};

/// The bits of the spot on top; all set if there is none.
const SPOT: u64 = (1 << 24) - 1;
const GUARDED: u64 = 1 << 24;
/// The lowest bit of the turn.
const TURN: u64 = 1 << 25;

/// Stands for no spot: a shelf has far fewer (see [`Spots`]).
pub(super) const NOWHERE: u32 = SPOT as u32;

/// Items at home. `D` is what an item points to.
pub(super) struct Shelf<D> {
    head: Line<AtomicU64>,
    spots: Spots<D>,
    desk: Mutex<Desk>,
}

/// A cache line of its own, for the word that all threads write.
#[repr(align(64))]
struct Line<T>(T);

/// A table of spots that grows without moving. No spot is freed before the shelf, so a take may read a spot whose item
/// another thread has taken meanwhile.
struct Spots<D> {
    /// The spots from the start.
    first: Box<[Spot<D>]>,
    /// Those after them. Each segment is twice as long as the one before it.
    later: [OnceLock<Box<[Spot<D>]>>; SEGMENTS],
}

const SEGMENT: u32 = if cfg!(loom) { 4 } else { 64 };
const SEGMENTS: usize = 17;

/// The most spots that a shelf may have from the start, and the most that it may have after these.
pub(super) const MOST_SPOTS: u32 = SEGMENT * ((1 << SEGMENTS) - 1);
static_assertions::const_assert!(2 * MOST_SPOTS < NOWHERE);

struct Spot<D> {
    /// The spot under this one in the stack, or [`NOWHERE`]. The owner of the item writes it before the item goes home;
    /// [`restack`](Shelf::restack) writes it while the shelf is guarded.
    next: AtomicU32,
    /// The item of the spot, at home or not. Written before the item goes home for the first time.
    item: AtomicPtr<D>,
}

/// An item that has just left the shelf. Whoever has this owns the item.
#[must_use = "dropping it leaks the item"]
pub(super) struct TakenItem<D>(NonNull<D>);

/// A spot whose item is to go home.
#[derive(Clone, Copy)]
pub(super) struct Place<'shelf> {
    head: &'shelf AtomicU64,
    next: &'shelf AtomicU32,
    spot: u32,
}

/// A place in the queue of those who wait.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Ticket(u64);

/// Who waits. The tickets in each queue ascend.
struct Desk {
    waiting: VecDeque<(u64, Waker)>,
    /// Those who were given an item and have not fetched it, and the spots of these items.
    served: VecDeque<(u64, u32)>,
    next_ticket: u64,
    is_closed: bool,
}

impl<D> Spots<D> {
    fn new(count: u32) -> Self {
        Self { first: Self::some(count), later: [const { OnceLock::new() }; SEGMENTS] }
    }

    fn some(count: u32) -> Box<[Spot<D>]> {
        let empty = || Spot { next: AtomicU32::new(NOWHERE), item: AtomicPtr::new(ptr::null_mut()) };
        (0..count).map(|_| empty()).collect()
    }

    /// The spot with this number; `None` for [`NOWHERE`].
    #[inline(always)]
    fn get(&self, spot: u32) -> Option<&Spot<D>> {
        match self.first.get(spot as usize) {
            None => self.get_later(spot),
            first => first,
        }
    }

    #[inline(never)]
    fn get_later(&self, spot: u32) -> Option<&Spot<D>> {
        let (segment, index) = self.position(spot)?;
        self.later.get(segment)?.get()?.get(index)
    }

    /// As [`get`](Self::get), but makes the spot if it is not there.
    fn get_or_make(&self, spot: u32) -> Option<&Spot<D>> {
        let Some((segment, index)) = self.position(spot) else { return self.get(spot) };
        self.later.get(segment)?.get_or_init(|| Self::some(SEGMENT << segment)).get(index)
    }

    /// The segment of a later spot, and its index there.
    fn position(&self, spot: u32) -> Option<(usize, usize)> {
        let from_start = (spot as usize).checked_sub(self.first.len())? + SEGMENT as usize;
        let bit = from_start.checked_ilog2()?;
        Some(((bit - SEGMENT.ilog2()) as usize, from_start - (1 << bit)))
    }
}

/// The head after a take, with `next` on top.
#[inline(always)]
fn after_take(head: u64, next: u32) -> u64 {
    (head & !SPOT | u64::from(next)).wrapping_add(TURN)
}

#[inline(always)]
fn top(head: u64) -> u32 {
    (head & SPOT) as u32
}

impl<D> Shelf<D> {
    /// An empty shelf, of which the first `count` spots are found fastest. It may have [`MOST_SPOTS`] more.
    pub(super) fn new(count: u32) -> Self {
        let desk = Desk { waiting: VecDeque::new(), served: VecDeque::new(), next_ticket: 0, is_closed: false };
        Self { head: Line(AtomicU64::new(SPOT)), spots: Spots::new(count), desk: Mutex::new(desk) }
    }

    /// Sets the item of a spot. The item is not at home yet. Returns false, and does nothing, if there is no such spot.
    pub(super) fn assign(&self, spot: u32, item: NonNull<D>) -> bool {
        self.spots.get_or_make(spot).is_some_and(|at| {
            at.item.store(item.as_ptr(), Ordering::Relaxed);
            true
        })
    }

    /// Takes an item, if there is one and the shelf is not guarded.
    #[inline(always)]
    pub(super) fn take(&self) -> Option<TakenItem<D>> {
        let mut head = self.head.0.load(Ordering::Acquire);
        loop {
            if head & GUARDED != 0 {
                return None;
            }
            let spot = self.spots.get(top(head))?;
            let after = after_take(head, spot.next.load(Ordering::Relaxed));
            // Acquire: this thread sees what the last owner of the item did to the item. That holds even if other
            // threads changed the head after the last owner's release: each change of the head is a read-modify-write,
            // which continues the release sequence.
            match self.head.0.compare_exchange_weak(head, after, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return TakenItem::of(spot),
                Err(now) => head = now,
            }
        }
    }

    /// Whether a take would probably find an item.
    pub(super) fn has_some(&self) -> bool {
        let head = self.head.0.load(Ordering::Relaxed);
        head & GUARDED == 0 && top(head) != NOWHERE
    }

    /// Takes an item, guarded or not, unless somebody waits or the shelf is closed.
    pub(super) fn take_in_turn(&self) -> Option<TakenItem<D>> {
        let desk = lock(&self.desk);
        if desk.is_closed || !desk.waiting.is_empty() { None } else { self.pop() }
    }

    /// Where the item of this spot goes home; `None` for [`NOWHERE`].
    #[inline(always)]
    pub(super) fn place(&self, spot: u32) -> Option<Place<'_>> {
        Some(Place { head: &self.head.0, next: &self.spots.get(spot)?.next, spot })
    }

    /// Puts an item home or gives it to whoever waits. Returns false if the shelf is closed: then the caller keeps the
    /// item.
    ///
    /// The caller keeps the shelf alive: the item no longer does.
    #[cold]
    pub(super) fn put_in_turn(&self, spot: u32) -> bool {
        let mut desk = lock(&self.desk);
        if desk.is_closed {
            return false;
        }
        let waker = self.hand_over(&mut desk, spot);
        self.unguard(desk);
        waker.into_iter().for_each(wake);
        true
    }

    /// Puts new items home, or gives them to those who wait. Returns the wakers of those who got one.
    pub(super) fn add(&self, spots: Range<u32>) -> Vec<Waker> {
        let mut desk = lock(&self.desk);
        let wakers = spots.rev().filter_map(|spot| self.hand_over(&mut desk, spot)).collect();
        self.unguard(desk);
        wakers
    }

    fn hand_over(&self, desk: &mut Desk, spot: u32) -> Option<Waker> {
        let Some((ticket, waker)) = desk.waiting.pop_front() else {
            self.push(spot);
            return None;
        };
        let at = desk.served.partition_point(|&(other, _)| other < ticket);
        desk.served.insert(at, (ticket, spot));
        Some(waker)
    }

    /// Takes an item for the holder of the ticket. If no item is there, leaves the waker, and makes a ticket if the
    /// caller has none yet.
    pub(super) fn wait(&self, ticket: &mut Option<Ticket>, waker: &Waker) -> Option<TakenItem<D>> {
        // Cloning and dropping a waker run code of the program, which can call the shelf again: both happen outside of
        // the lock.
        let mut waker = waker.clone();
        let mut desk = lock(&self.desk);
        let Some(Ticket(number)) = *ticket else {
            self.guard();
            let taken = if desk.waiting.is_empty() { self.pop() } else { None };
            if taken.is_none() {
                let number = desk.next_ticket;
                desk.next_ticket += 1;
                desk.waiting.push_back((number, waker));
                *ticket = Some(Ticket(number));
            }
            self.unguard(desk);
            return taken;
        };
        if let Some(spot) = desk.take_served(number) {
            drop(desk);
            *ticket = None;
            return self.spots.get(spot).and_then(TakenItem::of);
        }
        let at = desk.waiting.binary_search_by_key(&number, |&(other, _)| other).ok()?;
        mem::swap(&mut desk.waiting[at].1, &mut waker);
        drop(desk);
        None
    }

    /// Leaves the queue. Returns the item that was set aside for the ticket; the caller must put it home.
    pub(super) fn leave(&self, Ticket(number): Ticket) -> Option<TakenItem<D>> {
        let mut desk = lock(&self.desk);
        if let Some(spot) = desk.take_served(number) {
            return self.spots.get(spot).and_then(TakenItem::of);
        }
        let at = desk.waiting.binary_search_by_key(&number, |&(other, _)| other).ok()?;
        let waker = desk.waiting.remove(at);
        self.unguard(desk);
        drop(waker);
        None
    }

    /// How many items are at home, and how many wait for one.
    pub(super) fn count(&self) -> (usize, usize) {
        let desk = lock(&self.desk);
        self.guard();
        let counts = (self.stacked().count(), desk.waiting.len());
        self.unguard(desk);
        counts
    }

    /// Removes each group whose items are all at home. `group` tells the group of a spot and how many items that group
    /// has, or `None` if the spot is to stay. Returns the removed groups and their items.
    pub(super) fn remove(&self, group: impl Fn(u32) -> Option<(u32, u32)>) -> (Vec<u32>, Vec<TakenItem<D>>) {
        let desk = lock(&self.desk);
        self.guard();
        let mut missing: BTreeMap<u32, u32> = BTreeMap::new();
        for (name, all) in self.stacked().filter_map(&group) {
            *missing.entry(name).or_insert(all) -= 1;
        }
        missing.retain(|_, missing| *missing == 0);
        let goes = |spot: &u32| group(*spot).is_some_and(|(name, _)| missing.contains_key(&name));
        let (gone, kept): (Vec<u32>, Vec<u32>) = self.stacked().partition(goes);
        self.restack(&kept);
        self.unguard(desk);
        let items = gone.into_iter().filter_map(|spot| self.spots.get(spot).and_then(TakenItem::of)).collect();
        (missing.into_keys().collect(), items)
    }

    /// Closes the shelf for good, and takes all items that are at home.
    pub(super) fn close(&self) -> Vec<TakenItem<D>> {
        let mut desk = lock(&self.desk);
        desk.is_closed = true;
        self.guard();
        let waiting = mem::take(&mut desk.waiting);
        let items = iter::from_fn(|| self.pop()).collect();
        drop(desk);
        drop(waiting);
        items
    }

    /// Guards the shelf: from here on, only the holder of the desk changes the head.
    fn guard(&self) {
        self.head.0.fetch_or(GUARDED, Ordering::Acquire);
    }

    /// Unlocks the desk. Ends the guard first, unless somebody waits or the shelf is closed.
    fn unguard(&self, desk: MutexGuard<'_, Desk>) {
        if desk.waiting.is_empty() && !desk.is_closed {
            self.head.0.fetch_and(!GUARDED, Ordering::Release);
        }
    }

    /// Takes the top, guarded or not. The caller holds the desk.
    fn pop(&self) -> Option<TakenItem<D>> {
        let mut head = self.head.0.load(Ordering::Acquire);
        loop {
            let spot = self.spots.get(top(head))?;
            let after = after_take(head, spot.next.load(Ordering::Relaxed));
            match self.head.0.compare_exchange_weak(head, after, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return TakenItem::of(spot),
                Err(now) => head = now,
            }
        }
    }

    /// Puts a spot on top, guarded or not. The caller holds the desk.
    fn push(&self, spot: u32) {
        let Some(place) = self.place(spot) else { return };
        let mut head = self.head.0.load(Ordering::Relaxed);
        while let Err(now) = place.exchange(head) {
            head = now;
        }
    }

    /// The spots in the stack, from the top. The shelf is guarded, and the caller holds the desk.
    fn stacked(&self) -> impl Iterator<Item = u32> {
        let mut at = top(self.head.0.load(Ordering::Acquire));
        iter::from_fn(move || {
            let next = self.spots.get(at)?.next.load(Ordering::Relaxed);
            Some(mem::replace(&mut at, next))
        })
    }

    /// Makes these spots the stack. The shelf is guarded, and the caller holds the desk.
    fn restack(&self, spots: &[u32]) {
        let below = spots.iter().skip(1).copied().chain([NOWHERE]);
        for (&spot, next) in spots.iter().zip(below) {
            let Some(at) = self.spots.get(spot) else { continue };
            at.next.store(next, Ordering::Relaxed);
        }
        let head = self.head.0.load(Ordering::Relaxed);
        let after = after_take(head, spots.first().copied().unwrap_or(NOWHERE));
        // The exchange cannot fail. The caller has set `GUARDED` in the head and holds the lock of the desk. While
        // `GUARDED` is set, only the holder of that lock changes the head.
        let _ = self.head.0.compare_exchange(head, after, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Wakes. A waker runs code of the program. If that panics, the panic hook has reported it; the panic must not unwind
/// out of a drop.
pub(super) fn wake(waker: Waker) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        mem::forget(panic);
    }
}

impl Desk {
    /// The spot of the item that was set aside for this ticket.
    fn take_served(&mut self, number: u64) -> Option<u32> {
        let at = self.served.binary_search_by_key(&number, |&(other, _)| other).ok()?;
        self.served.remove(at).map(|(_, spot)| spot)
    }
}

impl Place<'_> {
    /// Puts the item home. Returns false, and does nothing, if the shelf is guarded.
    #[inline(always)]
    pub(super) fn put(self) -> bool {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head & GUARDED != 0 {
                return false;
            }
            match self.exchange(head) {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
    }

    /// Release: whoever takes the item sees the link, and what this thread has done to the item.
    #[inline(always)]
    fn exchange(self, head: u64) -> Result<u64, u64> {
        self.next.store(top(head), Ordering::Relaxed);
        let after = head & !SPOT | u64::from(self.spot);
        self.head.compare_exchange_weak(head, after, Ordering::Release, Ordering::Relaxed)
    }
}

impl<D> TakenItem<D> {
    /// The item of a spot that is not at home any more.
    #[inline(always)]
    fn of(spot: &Spot<D>) -> Option<Self> {
        NonNull::new(spot.item.load(Ordering::Relaxed)).map(Self)
    }

    #[inline(always)]
    pub(super) fn into_pointer(self) -> NonNull<D> {
        self.0
    }
}

impl<D> fmt::Debug for Shelf<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf").finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod models;
