//! All lanes of a completion queue, and the completions that have no lane.

use super::after::After;
use super::lane::{Lane, Left, Tally};
use super::outcome::Counters;
use crate::completion::Completion;
use crate::inflight::{QueueKind, WorkId};
use crate::queue::QueueIds;
use crate::types::Qpn;
use std::collections::VecDeque;
use std::task::Waker;

/// The lanes of the work queues and of the shared receive queues that complete on a completion queue.
pub(super) struct Lanes<B> {
    /// The work queues, by the slot in their ids.
    by_slot: Vec<Option<Lane<B>>>,
    /// How many work queues have had a lane.
    generations: u64,
    /// What each work queue left behind when its lane was given to the next queue in its slot, by generation. The
    /// handle of the old queue takes it when it ends.
    leaving: Vec<(u64, Left<B>)>,
    /// The shared receive queues, each with its number.
    shared: Vec<(u32, Lane<B>)>,
    /// Completions of work queues that have no lane. There are at most `most_unclaimed`.
    unclaimed: VecDeque<Completion<B>>,
    most_unclaimed: usize,
    pub(super) tally: Tally,
}

/// What comes with a new lane.
pub(super) struct Attached<B> {
    pub(super) generation: u64,
    /// The pair of the last work queue in the slot.
    pub(super) pair_before: Option<Qpn>,
    /// What the last work queue in the slot has left, to be dropped without the lock.
    pub(super) left: Option<Left<B>>,
    /// The sends that completed before there was a lane.
    pub(super) sends: Vec<Completion<B>>,
}

impl<B> Lanes<B> {
    /// No lanes yet. At most `most_unclaimed` completions without a lane are kept.
    pub(super) fn new(most_unclaimed: usize) -> Self {
        Self {
            by_slot: Vec::new(),
            generations: 0,
            leaving: Vec::new(),
            shared: Vec::new(),
            unclaimed: VecDeque::new(),
            most_unclaimed,
            tally: Tally::default(),
        }
    }

    pub(super) fn get(&mut self, slot: usize) -> Option<&mut Lane<B>> {
        self.by_slot.get_mut(slot)?.as_mut()
    }

    pub(super) fn with<R>(&mut self, slot: usize, f: impl FnOnce(&mut Lane<B>, &mut Tally) -> R) -> Option<R> {
        let lane = self.by_slot.get_mut(slot)?.as_mut()?;
        Some(f(lane, &mut self.tally))
    }

    /// As [`with`](Self::with), for the lane of a shared receive queue.
    pub(super) fn with_shared<R>(&mut self, number: u32, f: impl FnOnce(&mut Lane<B>, &mut Tally) -> R) -> Option<R> {
        let (_, lane) = self.shared.iter_mut().find(|(other, _)| *other == number)?;
        Some(f(lane, &mut self.tally))
    }

    /// The completion of a request, if it has come.
    #[inline]
    pub(super) fn fetch(&mut self, id: WorkId) -> Option<Completion<B>> {
        self.by_slot.get_mut(id.key().slot())?.as_mut()?.fetch(id, &mut self.tally)
    }

    /// Whether the completion of this request may be returned without going to its lane: nothing is known of the
    /// request, and nobody waits for room.
    #[inline(always)]
    pub(super) fn is_unknown(&self, id: WorkId) -> bool {
        self.tally.is_zero() || self.is_unknown_to_lane(id)
    }

    #[inline(never)]
    fn is_unknown_to_lane(&self, id: WorkId) -> bool {
        matches!(self.by_slot.get(id.key().slot()), Some(Some(lane)) if lane.is_unknown(id))
    }

    /// Whether the inbox of this lane is empty. False if there is no such lane.
    #[inline(always)]
    pub(super) fn has_received_nothing(&self, slot: usize) -> bool {
        matches!(self.by_slot.get(slot), Some(Some(lane)) if lane.has_received_nothing())
    }

    /// Makes a lane for a work queue.
    pub(super) fn attach(&mut self, ids: QueueIds, depth: u32, after: &mut After<B>) -> Attached<B> {
        let (key, slot) = (ids.next.key(), ids.next.key().slot());
        let (mut pair_before, mut left, mut sends) = (None, None, Vec::new());
        if self.by_slot.len() <= slot {
            self.by_slot.resize_with(slot + 1, || None);
        }
        self.generations += 1;
        if let Some(place) = self.by_slot.get_mut(slot) {
            let lane = place.get_or_insert_with(|| Lane::new(depth));
            let (before, has_ended) = (lane.generation, lane.has_ended());
            pair_before = lane.pair;
            if before != 0 {
                left = Some(lane.renew(ids.first, depth, &mut sends, &mut self.tally, after));
            }
            lane.pair = Some(ids.pair);
            lane.generation = self.generations;
            lane.first = Some(ids.first);
            // `left` is what the previous work queue in this slot has left. If the handle of that queue has not ended,
            // keep `left` in `leaving`: the end of that handle takes it from there.
            if !has_ended && let Some(left) = left.take() {
                self.leaving.push((before, left));
            }
        }
        // `unclaimed` perhaps also holds completions of an earlier pair in the same slot. Their ids are before `first`.
        self.claim(|id| id.key() == key && !id.is_before(ids.first), &mut sends, after);
        Attached { generation: self.generations, pair_before, left, sends }
    }

    /// Ends the lane of a work queue that is gone. Returns what nobody will take any more. Returns the pair too, if the
    /// lane is still that of the work queue.
    pub(super) fn end(&mut self, slot: usize, generation: u64, next: WorkId) -> Option<(Left<B>, Option<Qpn>)> {
        if let Some(at) = self.leaving.iter().position(|&(other, _)| other == generation) {
            return Some((self.leaving.swap_remove(at).1, None));
        }
        let Some(Some(lane)) = self.by_slot.get_mut(slot) else { return None };
        if lane.generation != generation {
            return None;
        }
        let mut left = lane.end(next, &mut self.tally);
        let pair = lane.pair;
        // `left.of_next` holds receives of the next work queue in this slot. That queue has no lane yet, so its
        // receives are unclaimed. If `unclaimed` then holds too many, move the surplus to `left.of_next`: the caller
        // drops it without the lock.
        self.unclaimed.append(&mut left.of_next);
        while self.unclaimed.len() > self.most_unclaimed {
            left.of_next.extend(self.take_oldest_unclaimed());
        }
        Some((left, pair))
    }

    /// Makes a lane for a shared receive queue. False if it has one.
    pub(super) fn attach_shared(&mut self, number: u32, depth: u32, after: &mut After<B>) -> bool {
        if self.shared.iter().any(|&(other, _)| other == number) {
            return false;
        }
        self.shared.push((number, Lane::new(depth)));
        // Shared receives are never sends, so the vector for sends stays empty.
        self.claim(|id| id.as_shared().is_some_and(|(of, _)| of == number), &mut Vec::new(), after);
        true
    }

    /// Takes the lane of a shared receive queue away.
    pub(super) fn detach_shared(&mut self, number: u32) -> (Option<Lane<B>>, Vec<Waker>) {
        let mut wakers = Vec::new();
        let at = self.shared.iter().position(|&(other, _)| other == number);
        let mut lane = at.map(|at| self.shared.swap_remove(at).1);
        if let Some(lane) = &mut lane {
            lane.take_wakers(&mut self.tally, &mut wakers);
        }
        (lane, wakers)
    }

    /// Takes the unclaimed completions for which `is_theirs` is true. Receives go to their lane, sends to `sends`.
    fn claim(&mut self, is_theirs: impl Fn(WorkId) -> bool, sends: &mut Vec<Completion<B>>, after: &mut After<B>) {
        for _ in 0..self.unclaimed.len() {
            let Some(completion) = self.unclaimed.pop_front() else { break };
            let id = completion.id();
            if !is_theirs(id) {
                self.unclaimed.push_back(completion);
            } else if id.key().is_send() {
                sends.push(completion);
            } else {
                // A failure is only counted here, and wakes nobody: when the completion came, `State::settle` woke the
                // tasks that wait for the end of the pair. `place` wakes nobody either, because nobody waits at the new
                // lane yet.
                if !completion.is_success() {
                    self.count_failure(id);
                }
                self.place(completion, after);
            }
        }
    }

    /// The oldest completion of a work queue that has no lane.
    pub(super) fn take_unclaimed(&mut self) -> Option<Completion<B>> {
        self.unclaimed.pop_front()
    }

    /// Counts a failed request, unless it is of an earlier work queue in its slot. A shared receive is counted in the
    /// lane of the shared receive queue, and not in a lane of the pair.
    pub(super) fn count_failure(&mut self, id: WorkId) {
        if let Some(lane) = lane_of(&mut self.by_slot, &mut self.shared, id)
            && !lane.first.is_some_and(|first| id.is_before(first))
        {
            lane.counters.failed += 1;
        }
    }

    /// Wakes the tasks of this lane that the end of its pair concerns.
    pub(super) fn note_broken(&mut self, slot: usize, after: &mut After<B>) {
        self.with(slot, |lane, tally| lane.note_broken(tally, after));
    }

    /// Puts a completion in its place. If it failed, the caller has noted the failure.
    #[inline(always)]
    pub(super) fn place(&mut self, completion: Completion<B>, after: &mut After<B>) {
        let Self { by_slot, shared, tally, .. } = self;
        let id = completion.id();
        let kind = id.key().kind();
        match lane_of(by_slot, shared, id) {
            Some(lane) if lane.is_past(id) => self.keep_unclaimed(completion, after),
            Some(lane) if kind == QueueKind::Send => lane.settle(completion, tally, after),
            Some(lane) => lane.receive(completion, tally, after),
            None => self.keep_unclaimed(completion, after),
        }
    }

    /// Keeps a completion of a work queue that has no lane yet. If the pair never connects, the queue never gets a
    /// lane. A peer may cause many such completions, so their number is bounded, and memory of a pool goes home if its
    /// request failed.
    #[cold]
    #[inline(never)]
    fn keep_unclaimed(&mut self, completion: Completion<B>, after: &mut After<B>) {
        if !completion.is_success() && completion.goes_home() {
            return after.drop_completion(completion);
        }
        if self.unclaimed.len() >= self.most_unclaimed {
            self.take_oldest_unclaimed().into_iter().for_each(|kept| after.drop_completion(kept));
        }
        self.unclaimed.push_back(completion);
    }

    /// The completion to drop if there are too many: the oldest failed one, since the others perhaps have messages,
    /// which a new lane can still claim. If none failed, the oldest of all.
    fn take_oldest_unclaimed(&mut self) -> Option<Completion<B>> {
        let oldest = self.unclaimed.iter().position(|kept| !kept.is_success()).unwrap_or(0);
        self.unclaimed.remove(oldest)
    }

    /// Takes the wakers of all who wait at a lane. Those tasks will poll again. Abandoned requests stay noted.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let shared = self.shared.iter_mut().map(|(_, lane)| lane);
        for lane in self.by_slot.iter_mut().flatten().chain(shared) {
            lane.take_wakers(&mut self.tally, &mut wakers);
        }
        wakers
    }

    /// The counters of this lane.
    pub(super) fn counters(&mut self, slot: usize) -> Counters {
        self.get(slot).map_or_else(Counters::default, |lane| lane.counters)
    }
}

/// The lane of a request, if its work queue has one.
#[inline(always)]
fn lane_of<'s, B>(
    by_slot: &'s mut [Option<Lane<B>>],
    shared: &'s mut [(u32, Lane<B>)],
    id: WorkId,
) -> Option<&'s mut Lane<B>> {
    match id.as_shared() {
        Some((number, _)) => shared.iter_mut().find(|(other, _)| *other == number).map(|(_, lane)| lane),
        None => by_slot.get_mut(id.key().slot())?.as_mut(),
    }
}
