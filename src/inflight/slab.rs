//! The slab: who owns the values that a shared receive queue has in flight.
//!
//! Shared receives complete in any order, each on the completion queue of the pair that took it. So one [`SlabPoster`]
//! puts values in, and several parties take values out: the pollers of all those completion queues, on any threads, and
//! the thread that destroys the shared queue.
//!
//! ```text
//!               posted                     taken out
//!   free list ───────────▶ slot in flight ───────────▶ returned list ──▶ free list
//!   (the poster's)         its state says so           (many push)       (taken as a whole)
//! ```
//!
//! Each slot has one atomic state: a ticket, which is part of the request's id, and a bit that says whether a value is
//! in flight. The thread that clears the bit owns the value. The slot then gets its next ticket, so that a stale
//! completion finds no value. No thread locks or allocates.
//!
//! Many threads push to the returned list, and only the poster empties it, as a whole. So the ABA problem is harmless
//! here: if the old head was taken away and pushed again between the two steps of another push, that push still links
//! to the current head.
//!
//! When the slab is dropped, values still in flight are dropped if the queue [ended](Slab::end), and leaked otherwise.
#![forbid(unsafe_code)]

use super::Quiescent;
use super::cell::{FillRight, TicketCell};
use super::work_id::{COUNTS, MAX_SHARED, WorkId};
use crate::domain::Number;
use crate::sync::{Arc, AtomicBool, AtomicU32, Ordering};
use std::fmt;

/// The values in flight on one shared receive queue.
pub(crate) struct Slab<T> {
    slots: Box<[Slot<T>]>,
    /// The difference between two consecutive tickets of a slot: a power of two, no less than the number of slots. A
    /// ticket modulo the stride is the index of its slot.
    stride: u64,
    /// The number of the queue in its domain. Dropping the slab frees the number: by then nobody can look the queue up
    /// by it.
    number: Number,
    /// The head of the list of slots that came back since the poster last took that list, or [`NONE`].
    returned: Line<AtomicU32>,
    /// Whether the queue is gone: the device is done with all values, and nothing more is posted.
    ended: AtomicBool,
}

/// The ledger of a shared receive queue. Each completion queue that may have completions of the shared queue holds
/// this.
pub(crate) type SharedLedger = Arc<Slab<super::Entry>>;

#[repr(align(64))]
struct Line<T>(T);

struct Slot<T> {
    /// The next slot in the same list, or [`NONE`]. A slot is in at most one list.
    next: AtomicU32,
    /// The value, and the state of the slot: its ticket, and whether it is in flight.
    cell: TicketCell<T>,
}

/// The end of a list.
const NONE: u32 = u32::MAX;

impl<T> Slab<T> {
    /// Takes out the value of the request with this id, which has completed or was never handed to the device. `None`
    /// if the request is not in flight.
    #[inline]
    pub(crate) fn take(&self, id: WorkId) -> Option<T> {
        let (number, ticket) = id.as_shared()?;
        let index = ticket & (self.stride - 1);
        let slot = self.slots.get(index as usize)?;
        if number != self.number.get() {
            return None;
        }
        // `give_back` orders this take before the poster's next write to the cell.
        let value = slot.cell.take(ticket, self.stride)?;
        self.give_back(slot, index as u32);
        Some(value)
    }

    /// Whether this is the slab of the request with this id.
    #[inline]
    pub(crate) fn is_of(&self, id: WorkId) -> bool {
        id.as_shared().is_some_and(|(number, ..)| number == self.number.get())
    }

    /// Puts an emptied slot into the returned list, from which the poster takes it.
    #[inline]
    fn give_back(&self, slot: &Slot<T>, index: u32) {
        let mut head = self.returned.0.load(Ordering::Relaxed);
        loop {
            slot.next.store(head, Ordering::Relaxed);
            match self.returned.0.compare_exchange_weak(head, index, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Records that the queue is gone, and the device is done with all values.
    pub(crate) fn end(&self, _: &Quiescent) {
        self.ended.store(true, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Takes out the values in flight on a queue that [ended](Self::end); takes none out on any other queue. If a
    /// poller takes a value at the same time, the poller gets it. A poller that comes too late, because the values were
    /// taken here, also sees that the queue has ended.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = T> {
        let slots: &[_] = if self.has_ended() { &self.slots } else { &[] };
        slots.iter().filter_map(|slot| slot.cell.take_any(self.stride))
    }

    /// How many values are in flight. It reads every slot.
    pub(crate) fn in_flight(&self) -> u32 {
        self.slots.iter().map(|slot| u32::from(slot.cell.is_in_flight())).sum()
    }

    /// The number of the queue in its domain.
    pub(crate) fn number(&self) -> u32 {
        self.number.get()
    }

    /// How many slots there are.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }
}

impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        // The tickets of the next queue with this number begin after all tickets of this queue, so that no id is used
        // twice.
        let first = self.number.next;
        let used = |slot: &Slot<T>| slot.cell.ticket().wrapping_sub(first) % COUNTS;
        let most = self.slots.iter().map(used).max().unwrap_or(0);
        self.number.next = (first + most + 1) % COUNTS;
        self.take_all().for_each(drop);
    }
}

impl<T> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").field("number", &self.number.get()).field("slots", &self.slots()).finish_non_exhaustive()
    }
}

/// A slab with `slots` slots, 1 to [`MAX_SHARED`], of which `depth` are in use.
pub(crate) fn slab<T>(number: Number, slots: u32, depth: u32) -> SlabPoster<T> {
    let slots = slots.clamp(1, MAX_SHARED);
    let depth = depth.clamp(1, slots);
    let stride = u64::from(slots.next_power_of_two());
    let first = number.next.next_multiple_of(stride) % COUNTS;
    // The slots form two lists: those in use, and the reserve.
    let mut nexts = (1..=slots).map(|next| if next == depth || next == slots { NONE } else { next });
    let tickets = (0..slots).map(|index| first + u64::from(index));
    let (right, slots_and_cells) =
        FillRight::with_cells(tickets, |cell| Slot { next: AtomicU32::new(nexts.next().unwrap_or(NONE)), cell });
    let slab = Slab {
        slots: slots_and_cells,
        stride,
        number,
        returned: Line(AtomicU32::new(NONE)),
        ended: AtomicBool::new(false),
    };
    let reserve = if depth == slots { NONE } else { depth };
    SlabPoster { slab: Arc::new(slab), free: 0, depth, reserve, right }
}

/// The posting end of a slab.
pub(crate) struct SlabPoster<T> {
    pub(crate) slab: Arc<Slab<T>>,
    /// The first free slot, or [`NONE`].
    free: u32,
    /// How many slots are in use: free, in flight or returned.
    depth: u32,
    /// The first slot that is not in use, or [`NONE`].
    reserve: u32,
    right: FillRight,
}

impl<T> SlabPoster<T> {
    /// How many values the slab may have in flight.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// The next free slot; `None` if all are in flight.
    #[inline]
    pub(crate) fn vacancy(&mut self) -> Option<Vacancy<'_, T>> {
        if self.free == NONE {
            // Acquire: the pollers returned these slots after they had read the values. So the next writes of this
            // poster to the slots come after those reads.
            self.free = self.slab.returned.0.swap(NONE, Ordering::Acquire);
        }
        let slot = self.slab.slots.get(self.free as usize)?;
        Some(Vacancy { free: &mut self.free, slot, number: self.slab.number.get(), right: &mut self.right })
    }

    /// Puts a value in; a full slab gives it back.
    #[cfg(test)]
    pub(crate) fn push(&mut self, value: T) -> Result<WorkId, T> {
        match self.vacancy() {
            Some(vacancy) => Ok(vacancy.fill(value)),
            None => Err(value),
        }
    }

    /// Takes slots from the reserve until `depth` are in use.
    pub(crate) fn grow(&mut self, depth: u32) {
        while self.depth < depth
            && let Some(slot) = self.slab.slots.get(self.reserve as usize)
        {
            let next = slot.next.load(Ordering::Relaxed);
            slot.next.store(self.free, Ordering::Relaxed);
            (self.free, self.reserve) = (self.reserve, next);
            self.depth += 1;
        }
    }

    /// Moves free slots to the reserve until `depth` are in use. Returns false, and changes nothing, if too many are in
    /// flight.
    pub(crate) fn shrink(&mut self, depth: u32) -> bool {
        let before = self.depth;
        while self.depth > depth {
            let reserve = self.reserve;
            let Some((index, Vacancy { slot, .. })) = self.vacancy().map(Vacancy::withhold) else { break };
            slot.next.store(reserve, Ordering::Relaxed);
            self.reserve = index;
            self.depth -= 1;
        }
        if self.depth > depth {
            self.grow(before);
            return false;
        }
        true
    }
}

/// The first free slot of the list. If this is dropped, the slot stays free.
pub(crate) struct Vacancy<'p, T> {
    /// The head of the poster's list: the index of this slot. A slot in that list is free.
    free: &'p mut u32,
    slot: &'p Slot<T>,
    number: u32,
    right: &'p mut FillRight,
}

impl<'p, T> Vacancy<'p, T> {
    /// Puts a value into the slot. From here on the value belongs to the device.
    #[inline]
    pub(crate) fn fill(self, value: T) -> WorkId {
        let (_, Self { slot, number, right, .. }) = self.withhold();
        // The cell is filled before the post verb is called: another thread can poll the completion before that verb
        // returns. This write comes after the read by the thread that emptied the cell: that thread returned the slot
        // with release, and the poster took the returned slots with acquire.
        WorkId::shared(number, slot.cell.fill(right, value))
    }

    /// Takes the slot off the list without filling it.
    #[inline]
    fn withhold(self) -> (u32, Self) {
        let index = *self.free;
        *self.free = self.slot.next.load(Ordering::Relaxed);
        (index, self)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::domain::Numbers;

    fn numbers() -> std::sync::Arc<Numbers> {
        std::sync::Arc::new(Numbers::default())
    }

    fn new<T>(slots: u32, depth: u32) -> SlabPoster<T> {
        slab(numbers().take(1).unwrap(), slots, depth)
    }

    #[test]
    fn values_come_out_by_their_id_in_any_order_and_once() {
        let mut poster = new(3, 3);
        let ids = [0, 1, 2].map(|value| poster.push(value).unwrap());
        assert_eq!((poster.push(9), poster.slab.in_flight()), (Err(9), 3));
        for value in [1, 0, 2] {
            assert_eq!(poster.slab.take(ids[value]), Some(value));
            assert_eq!(poster.slab.take(ids[value]), None, "taken already");
        }
        assert_eq!((poster.slab.in_flight(), poster.vacancy().is_some()), (0, true));
    }

    #[test]
    fn an_id_of_before_takes_nothing_of_later() {
        let mut poster = new(1, 1);
        let mut stale = Vec::new();
        for value in 0..50 {
            let id = poster.push(value).unwrap();
            assert!(stale.iter().all(|&old| poster.slab.take(old).is_none()));
            assert_eq!(poster.slab.take(id), Some(value));
            stale.push(id);
        }
    }

    #[test]
    fn an_id_of_another_queue_or_of_no_slot_takes_nothing() {
        let numbers = numbers();
        let [mut one, mut other] = [(); 2].map(|()| slab(numbers.take(2).unwrap(), 1, 1));
        let (id, others) = (one.push(1).unwrap(), other.push(2).unwrap());
        assert_eq!((one.slab.take(others), other.slab.take(id)), (None, None));
        assert_eq!((one.slab.is_of(id), one.slab.is_of(others)), (true, false));
        let beyond = WorkId::shared(0, 1);
        assert_eq!(one.slab.take(beyond), None);
        assert_eq!(one.slab.take(id), Some(1));
        assert_eq!(other.slab.take(others), Some(2));
    }

    #[test]
    fn the_next_queue_of_a_number_has_other_ids() {
        let numbers = numbers();
        let mut seen = std::collections::HashSet::new();
        for rounds in [1, 3, 0, 2] {
            let mut poster = slab(numbers.take(1).unwrap(), 2, 2);
            for value in 0..2 * rounds {
                let id = poster.push(value).unwrap();
                assert!(seen.insert(id), "an id of another life");
                assert_eq!(poster.slab.take(id), Some(value));
            }
            let id = poster.push(0).unwrap();
            assert!(seen.insert(id));
        }
    }

    #[test]
    fn what_is_left_comes_out_at_the_end() {
        let mut poster = new(4, 4);
        let ids = ["a", "b", "c"].map(|value| poster.push(value).unwrap());
        assert_eq!(poster.slab.take(ids[1]), Some("b"));
        assert_eq!(poster.slab.take_all().count(), 0, "the device may still use them");
        poster.slab.end(&Quiescent::without_device());
        assert_eq!(poster.slab.take_all().collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!((poster.slab.take(ids[0]), poster.slab.in_flight()), (None, 0));
    }

    #[test]
    fn what_is_left_is_dropped_only_if_the_device_is_done_with_it() {
        /// A value that counts its drops.
        struct Counted<'a>(&'a std::cell::Cell<u32>);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        for (ends, dropped) in [(true, 2), (false, 1)] {
            let count = std::cell::Cell::new(0);
            let mut poster = new(2, 2);
            let Ok(id) = poster.push(Counted(&count)) else { panic!("room") };
            assert!(poster.push(Counted(&count)).is_ok());
            drop(poster.slab.take(id));
            if ends {
                poster.slab.end(&Quiescent::without_device());
            }
            drop(poster);
            assert_eq!(count.get(), dropped);
        }
    }

    #[test]
    fn a_slab_has_as_many_slots_in_use_as_it_was_told() {
        let mut poster = new(4, 2);
        let first = poster.push(0).unwrap();
        poster.push(1).unwrap();
        assert_eq!((poster.push(2), poster.depth()), (Err(2), 2));
        poster.grow(4);
        poster.push(2).unwrap();
        poster.push(3).unwrap();
        assert_eq!((poster.push(4), poster.depth()), (Err(4), 4));
        assert!(!poster.shrink(3), "all are in flight");
        assert_eq!(poster.slab.take(first), Some(0));
        assert!(!poster.shrink(2), "one is free");
        assert!(poster.shrink(3));
        assert_eq!((poster.push(4), poster.depth()), (Err(4), 3));
        poster.grow(9);
        assert_eq!((poster.depth(), poster.push(4).is_ok(), poster.push(5)), (4, true, Err(5)));
    }
}

#[cfg(all(test, loom))]
mod models {
    //! Every interleaving of a poster, two pollers and a thread that destroys the queue.
    use super::*;
    use crate::domain::Numbers;
    use loom::thread;

    fn new(slots: u32) -> SlabPoster<u32> {
        slab(std::sync::Arc::new(Numbers::default()).take(1).unwrap(), slots, slots)
    }

    #[test]
    fn two_pollers_never_take_one_value() {
        loom::model(|| {
            let mut poster = new(1);
            let id = poster.push(7).unwrap();
            let pollers = [(); 2].map(|()| {
                let slab = Arc::clone(&poster.slab);
                thread::spawn(move || slab.take(id))
            });
            // If one poller has returned the slot, this push fills it again. Then the other poller, with the old id,
            // must find nothing.
            let again = poster.push(8).ok();
            let taken: Vec<u32> = pollers.into_iter().filter_map(|poller| poller.join().unwrap()).collect();
            assert_eq!(taken, [7]);
            if let Some(again) = again {
                assert_eq!(poster.slab.take(again), Some(8));
            }
        });
    }

    #[test]
    fn no_slot_is_lost_that_two_pollers_give_back() {
        loom::model(|| {
            let mut poster = new(2);
            let pollers = [0, 1].map(|value| {
                let (id, slab) = (poster.push(value).unwrap(), Arc::clone(&poster.slab));
                thread::spawn(move || assert_eq!(slab.take(id), Some(value)))
            });
            let mut posted = Vec::new();
            if let Ok(id) = poster.push(2) {
                posted.push(id);
            }
            for poller in pollers {
                poller.join().unwrap();
            }
            while let Ok(id) = poster.push(2) {
                posted.push(id);
            }
            assert_eq!(posted.len(), 2);
            assert!(posted.into_iter().all(|id| poster.slab.take(id) == Some(2)));
        });
    }

    #[test]
    fn a_poller_that_comes_too_late_sees_that_the_queue_has_ended() {
        loom::model(|| {
            let mut poster = new(1);
            let id = poster.push(1).unwrap();
            let slab = Arc::clone(&poster.slab);
            let poller = thread::spawn(move || (slab.take(id), slab.has_ended()));
            poster.slab.end(&Quiescent::without_device());
            let left = poster.slab.take_all().count();
            match poller.join().unwrap() {
                (Some(1), _) => assert_eq!(left, 0),
                (taken, ended) => assert_eq!((taken, ended, left), (None, true, 1)),
            }
        });
    }

    #[test]
    fn a_value_comes_from_the_poller_or_from_the_destroy() {
        loom::model(|| {
            let mut poster = new(2);
            let id = poster.push(1).unwrap();
            poster.push(2).unwrap();
            let slab = Arc::clone(&poster.slab);
            let poller = thread::spawn(move || slab.take(id));
            poster.slab.end(&Quiescent::without_device());
            let mut out: Vec<u32> = poster.slab.take_all().collect();
            out.extend(poller.join().unwrap());
            out.sort_unstable();
            assert_eq!(out, [1, 2]);
        });
    }
}
