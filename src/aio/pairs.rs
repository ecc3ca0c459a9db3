//! Which lanes belong to one pair, and who waits at another desk for the end of a pair.

use super::after::After;
use super::lane::{Parked, Tally, park, wake};
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
    watches: Vec<Watch>,
    last_watch: u64,
}

/// The place for a task that waits at another desk for the end of a pair. The sends of that pair complete at the one
/// desk and its receives at the other, so either may be the first to see that the pair has broken.
struct Watch {
    number: u64,
    pair: Qpn,
    waker: Option<Waker>,
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

    /// Makes a place for a task that waits at another desk for the end of this pair. Returns the number of the place.
    pub(super) fn watch(&mut self, pair: Qpn) -> u64 {
        self.last_watch += 1;
        self.watches.push(Watch { number: self.last_watch, pair, waker: None });
        self.last_watch
    }

    /// Removes the place, and returns the waker in it.
    pub(super) fn unwatch(&mut self, number: u64, tally: &mut Tally) -> Option<Waker> {
        let at = self.watches.iter().position(|watch| watch.number == number)?;
        let waker = self.watches.swap_remove(at).waker;
        tally.waits -= usize::from(waker.is_some());
        waker
    }

    /// Notes that a task waits in this place.
    pub(super) fn park<B>(
        &mut self,
        number: u64,
        waker: &Waker,
        mine: &mut Option<Waker>,
        tally: &mut Tally,
        after: &mut After<B>,
    ) -> Parked {
        let watch = self.watches.iter_mut().find(|watch| watch.number == number);
        watch.map_or(Parked::Yes, |watch| park(&mut watch.waker, waker, mine, tally, after))
    }

    /// Wakes the task that waits at another desk for the end of this pair.
    pub(super) fn wake<B>(&mut self, pair: Qpn, tally: &mut Tally, after: &mut After<B>) {
        for watch in self.watches.iter_mut().filter(|watch| watch.pair == pair) {
            wake(&mut watch.waker, tally, after);
        }
    }

    /// Takes the wakers of all who wait.
    pub(super) fn take_wakers(&mut self, tally: &mut Tally, into: &mut Vec<Waker>) {
        let before = into.len();
        into.extend(self.watches.iter_mut().filter_map(|watch| watch.waker.take()));
        tally.waits -= into.len() - before;
    }
}
