//! Which lanes belong to one pair.

use crate::types::Qpn;
use arrayvec::ArrayVec;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The pairs that have lanes at a desk. `D` names another desk.
pub(super) struct Pairs<D>(BTreeMap<u32, PairLanes<D>>);

/// Where the lanes of a pair are.
struct PairLanes<D> {
    /// The slots of those at this desk.
    slots: ArrayVec<usize, 2>,
    /// The other desk that has a lane of this pair, and the generation of that lane.
    other: Option<(D, u64)>,
}

impl<D> Default for PairLanes<D> {
    fn default() -> Self {
        Self { slots: ArrayVec::new_const(), other: None }
    }
}

impl<D> Pairs<D> {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Notes that the lane in this slot is of this pair.
    pub(super) fn join(&mut self, pair: Qpn, slot: usize) {
        let PairLanes { slots, .. } = self.0.entry(pair.value()).or_default();
        // A pair has two work queues. If a number came again before the lanes of the old pair have ended, the new lanes
        // take the place of the old ones.
        if slots.is_full() {
            slots.remove(0);
        }
        slots.push(slot);
    }

    /// Notes that the pair has no lane in this slot any more.
    pub(super) fn leave(&mut self, pair: Qpn, slot: usize) {
        self.change(pair, |lanes| lanes.slots.retain(|other| *other != slot));
    }

    /// Notes that another desk has a lane of this pair.
    pub(super) fn note_other(&mut self, pair: Qpn, desk: D, generation: u64) {
        self.0.entry(pair.value()).or_default().other = Some((desk, generation));
    }

    /// Notes that the lane of this pair at another desk is gone.
    pub(super) fn forget_other(&mut self, pair: Qpn, generation: u64) {
        self.change(pair, |lanes| _ = lanes.other.take_if(|(_, other)| *other == generation));
    }

    fn change(&mut self, pair: Qpn, change: impl FnOnce(&mut PairLanes<D>)) {
        let Entry::Occupied(mut lanes) = self.0.entry(pair.value()) else { return };
        change(lanes.get_mut());
        if lanes.get().slots.is_empty() && lanes.get().other.is_none() {
            lanes.remove();
        }
    }

    /// The slots of the pair's lanes at this desk.
    pub(super) fn slots(&self, pair: Qpn) -> impl Iterator<Item = usize> {
        self.0.get(&pair.value()).into_iter().flat_map(|lanes| lanes.slots.iter().copied())
    }

    /// The other desk that has a lane of the pair.
    pub(super) fn other(&self, pair: Qpn) -> Option<&D> {
        self.0.get(&pair.value())?.other.as_ref().map(|(desk, _)| desk)
    }
}
