//! Which lanes belong to one pair, and who waits at another desk for the end of a pair.

use super::after::After;
use super::lane::{Parked, Tally, park};
use crate::types::Qpn;
use arrayvec::ArrayVec;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::task::Waker;

/// The pairs that have lanes at a desk.
#[derive(Default)]
pub(super) struct Pairs {
    /// The slots of the lanes of each pair.
    lanes: BTreeMap<u32, ArrayVec<usize, 2>>,
    /// The tasks that wait at another desk for the end of a pair. The sends of the pair complete at the one desk and
    /// its receives at the other, so either desk may be the first to see that the pair has broken.
    watches: BTreeMap<WatchKey, Option<Waker>>,
    last_watch: u64,
}

/// The place for a task that waits at another desk for the end of a pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct WatchKey {
    pair: u32,
    number: u64,
}

impl Pairs {
    /// Notes that the lane in this slot is of this pair.
    pub(super) fn join(&mut self, pair: Qpn, slot: usize) {
        let slots = self.lanes.entry(pair.value()).or_default();
        // A pair has at most two lanes. `slots` is full only if this pair has the number of an old pair whose lanes
        // have not ended. Then the new lanes replace those of the old pair.
        if slots.is_full() {
            slots.remove(0);
        }
        slots.push(slot);
    }

    /// Notes that the pair has no lane in this slot any more.
    pub(super) fn leave(&mut self, pair: Qpn, slot: usize) {
        let Entry::Occupied(mut slots) = self.lanes.entry(pair.value()) else { return };
        slots.get_mut().retain(|other| *other != slot);
        if slots.get().is_empty() {
            slots.remove();
        }
    }

    /// The slots of the pair's lanes.
    pub(super) fn slots(&self, pair: Qpn) -> impl Iterator<Item = usize> {
        self.lanes.get(&pair.value()).into_iter().flatten().copied()
    }

    /// Makes a place for a task that waits at another desk for the end of this pair.
    pub(super) fn watch(&mut self, pair: Qpn) -> WatchKey {
        self.last_watch += 1;
        let place = WatchKey { pair: pair.value(), number: self.last_watch };
        self.watches.insert(place, None);
        place
    }

    /// Takes the place away, and returns the waker in it.
    pub(super) fn unwatch(&mut self, place: WatchKey, tally: &mut Tally) -> Option<Waker> {
        let waker = self.take_waker(place, tally);
        self.watches.remove(&place);
        waker
    }

    /// Notes that a task waits in this place.
    pub(super) fn park<B>(
        &mut self,
        place: WatchKey,
        waker: &Waker,
        mine: &mut Option<Waker>,
        tally: &mut Tally,
        after: &mut After<B>,
    ) -> Parked {
        self.watches.get_mut(&place).map_or(Parked::Yes, |waiting| park(waiting, waker, mine, tally, after))
    }

    /// Takes the waker out of this place, if a task waits there.
    pub(super) fn take_waker(&mut self, place: WatchKey, tally: &mut Tally) -> Option<Waker> {
        let waker = self.watches.get_mut(&place)?.take();
        tally.waits -= usize::from(waker.is_some());
        waker
    }

    /// Wakes the tasks that wait at other desks for the end of this pair.
    pub(super) fn wake<B>(&mut self, pair: Qpn, tally: &mut Tally, after: &mut After<B>) {
        let [first, last] = [0, u64::MAX].map(|number| WatchKey { pair: pair.value(), number });
        // At most one task waits, as a rule. There can be more if the device gave the pair's number to a new pair
        // before the halves of the old pair were dropped.
        let wakers: Vec<_> = self.watches.range_mut(first..=last).filter_map(|(_, waker)| waker.take()).collect();
        tally.waits -= wakers.len();
        if !wakers.is_empty() {
            after.wake_all(wakers);
        }
    }

    /// Takes the wakers of all who wait.
    pub(super) fn take_wakers(&mut self, tally: &mut Tally, into: &mut Vec<Waker>) {
        let before = into.len();
        into.extend(self.watches.values_mut().filter_map(Option::take));
        tally.waits -= into.len() - before;
    }
}
