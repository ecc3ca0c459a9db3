//! The desk: the poller that all tasks share, its lock, and the routine by which tasks poll and wait.
//!
//! A task that waits polls by itself. One lock guards the poller and all that is known of requests in flight. So two
//! steps that belong together, such as to look for a completion and to park a waker, happen under one lock, and no
//! wake-up is lost between them. Nobody holds the lock while code of the program runs: see [`After`].
//!
//! The first rule makes sure that everybody who sleeps is woken. Before a task sleeps, it puts all completions in their
//! places, arms the queue, and sees it empty. The event of the armed queue then wakes the driver. The driver puts all
//! completions in their places, which wakes the tasks that wait for them, and arms the queue again.
//!
//! The second rule makes sure that no completion needs the driver after it was taken from the device. While anybody
//! waits, whoever takes completions from the device puts all of them in their places before it releases the lock. While
//! nobody waits, the poller may keep them for the next task that polls. An abandoned request counts as a wait.

#[cfg(loom)]
mod models;

use super::after::{After, wake_all};
use super::lane::{Lane, Left, Parked, Tally};
use super::outcome::{Counters, PollerCounters};
use super::timers::{SetTimer, TimerKey, Timers};
use crate::completion::{Armed, Completion, PollError, WaitError, WakeFor};
use crate::inflight::{QueueKind, WorkId};
use crate::memory::Buffer;
use crate::queue::QueueIds;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::types::Qpn;
use arrayvec::ArrayVec;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[cfg(not(loom))]
pub(super) use crate::completion::Poller;
#[cfg(loom)]
pub(super) use models::Poller;

/// How many completions one call may settle before it lets other tasks run.
pub(super) const BUDGET: u32 = 64;

/// A poller that all tasks share, behind its lock.
pub(super) struct Desk<B> {
    state: Mutex<State<B>>,
}

/// What the lock guards.
pub(super) struct State<B> {
    pub(super) poller: Poller<B>,
    /// The work queues, by the slot in their ids.
    lanes: Vec<Option<Lane<B>>>,
    /// The pairs that have lanes, by number.
    pairs: BTreeMap<u32, PairLanes<B>>,
    /// Pairs that have broken, for the other desks that have lanes of them.
    broken: Vec<Broken<B>>,
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
    tally: Tally,
    /// Whether the completion queue is armed, or has raised an event that the driver has not taken yet.
    is_armed: bool,
    driver: DriverState,
    timers: Timers,
    /// How many handles there are. The futures of requests do not count.
    handles: usize,
    pub(super) counters: PollerCounters,
}

/// Where the lanes of a pair are.
struct PairLanes<B> {
    /// The slots of those at this desk.
    slots: ArrayVec<usize, 2>,
    /// The other desk that has a lane of this pair, and the generation of that lane.
    other: Option<(Weak<Desk<B>>, u64)>,
}

impl<B> Default for PairLanes<B> {
    fn default() -> Self {
        Self { slots: ArrayVec::new_const(), other: None }
    }
}

impl<B> PairLanes<B> {
    fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.other.is_none()
    }
}

/// A pair that is broken, and a desk with a lane of it. The drop wakes all at that desk whom the end of the pair
/// concerns. It takes the lock of that desk, so the caller must hold no lock.
pub(super) struct Broken<B> {
    desk: Arc<Desk<B>>,
    pair: Qpn,
}

impl<B> Broken<B> {
    pub(super) fn new(desk: Arc<Desk<B>>, pair: Qpn) -> Self {
        Self { desk, pair }
    }
}

impl<B> Drop for Broken<B> {
    fn drop(&mut self) {
        self.desk.with_after(|state, after| state.wake_lanes(self.pair, after));
    }
}

/// Whether there is a driver, which sleeps for all tasks.
enum DriverState {
    Absent,
    /// There is a driver. The waker is that of the driver's task: `None` before the first sleep, and after the waker
    /// was taken to wake the driver.
    Present(Option<Waker>),
}

/// What a new lane leaves to be done without the lock.
pub(super) struct Late<B> {
    /// The sends that completed before there was a lane.
    sends: Vec<Completion<B>>,
    /// What the last work queue in the slot has left.
    left: Option<Left<B>>,
    after: After<B>,
}

/// How one attempt under the lock ended.
enum Attempt<R> {
    Ready(R),
    /// The caller must release the lock, run what is in [`After`], and try again.
    Again,
    /// The caller must release the lock, clone its waker, and try again.
    NeedsWaker,
    /// The waker is kept, and somebody will wake it.
    Parked,
    /// Nobody will wake the waker, so the task must poll again.
    Yield,
    Failed(PollError, Vec<Waker>),
}

impl<B> Desk<B> {
    pub(super) fn new(mut poller: Poller<B>) -> Self {
        poller.keep_gone();
        let (lanes, shared, unclaimed) = Default::default();
        let most_unclaimed = poller.queue().capacity() as usize;
        let driver = DriverState::Absent;
        Self {
            state: Mutex::new(State {
                poller,
                lanes,
                pairs: BTreeMap::new(),
                broken: Vec::new(),
                generations: 0,
                leaving: Vec::new(),
                shared,
                unclaimed,
                most_unclaimed,
                tally: Tally::default(),
                is_armed: false,
                driver,
                timers: Timers::default(),
                handles: 0,
                counters: PollerCounters::default(),
            }),
        }
    }

    pub(super) fn with<R>(&self, f: impl FnOnce(&mut State<B>) -> R) -> R {
        f(&mut lock(&self.state))
    }

    /// As [`with`](Self::with). After the lock is released, runs what `f` put into [`After`].
    pub(super) fn with_after<R>(&self, f: impl FnOnce(&mut State<B>, &mut After<B>) -> R) -> R {
        let mut after = After::new();
        let result = f(&mut lock(&self.state), &mut after);
        self.run(&mut after);
        result
    }

    /// Runs what was left for after the lock. Those at other desks come first: if one of their wakers panics, the drop
    /// of `after` runs the rest.
    fn run(&self, after: &mut After<B>) {
        if after.takes_others() {
            drop(self.with(|state| mem::take(&mut state.broken)));
        }
        after.run();
    }

    /// The completion of one request of a send queue. Polls for it if it has not come yet.
    #[inline]
    pub(super) fn poll_request(&self, id: WorkId, context: &mut Context<'_>) -> Poll<Result<Completion<B>, PollError>> {
        match self.try_request(id) {
            Some(completion) => Poll::Ready(Ok(completion)),
            None => self.poll_request_slowly(id, context),
        }
    }

    /// The fast path: the completion of a request, if no other work has to be done first and the next poll gives it.
    #[inline(always)]
    pub(super) fn take_request(&self, id: WorkId) -> Option<Completion<B>> {
        self.take_next(|state| state.tally.is_zero(), |found| found == id)
    }

    /// Polls once, and returns the completion if it succeeded and `is_wanted` is true for it. Otherwise puts the
    /// completion in its place. Polls only if `is_free` is true: that nobody waits, and that no kept completion must go
    /// first.
    #[inline(always)]
    fn take_next(
        &self,
        is_free: impl FnOnce(&State<B>) -> bool,
        is_wanted: impl FnOnce(WorkId) -> bool,
    ) -> Option<Completion<B>> {
        let mut guard = lock(&self.state);
        let next = if is_free(&guard) && !guard.poller.has_mail() { guard.poller.poll() } else { Ok(None) };
        match next {
            Ok(Some(completion)) if completion.is_success() && is_wanted(completion.id()) => return Some(completion),
            Ok(Some(completion)) => self.settle_one(guard, completion),
            Ok(None) | Err(_) => {}
        }
        None
    }

    /// Puts a completion in its place, and releases the lock.
    #[inline(never)]
    fn settle_one(&self, mut guard: MutexGuard<'_, State<B>>, completion: Completion<B>) {
        let mut after = After::new();
        guard.settle(completion, &mut after);
        drop(guard);
        self.run(&mut after);
    }

    /// The completion of a request, if it is kept in its place or can be polled now.
    fn try_request(&self, id: WorkId) -> Option<Completion<B>> {
        self.try_for(|state| state.fetch(id), |state, found| found == id && state.is_unknown(id))
    }

    /// Looks for a completion without waiting. `kept` takes the completion out of its place. `is_wanted` recognises it
    /// when the poller gives it; then it is returned without going to its place. All other completions go to their
    /// places.
    #[inline(always)]
    fn try_for(
        &self,
        mut kept: impl FnMut(&mut State<B>) -> Option<Completion<B>>,
        is_wanted: impl FnMut(&State<B>, WorkId) -> bool,
    ) -> Option<Completion<B>> {
        if let Some(completion) = self.with(|state| if state.may_release() { kept(state) } else { None }) {
            return Some(completion);
        }
        let mut after = After::new();
        let found = lock(&self.state).poll_until(&mut after, kept, is_wanted);
        self.run(&mut after);
        found
    }

    #[cold]
    #[inline(never)]
    fn poll_request_slowly(&self, id: WorkId, context: &mut Context<'_>) -> Poll<Result<Completion<B>, PollError>> {
        let slot = id.key().slot();
        self.poll_for(
            context,
            |state| state.fetch(id),
            |state, waker, mine, after| {
                state.with_lane(slot, |lane, tally| lane.park(id, waker, mine, tally, after)).unwrap_or(Parked::Yes)
            },
        )
    }

    /// The fast path: the next receive of the work queue of `next`, if no other work has to be done first and the next
    /// poll gives it.
    #[inline(always)]
    pub(super) fn take_receive(&self, next: WorkId) -> Option<Completion<B>> {
        let slot = next.key().slot();
        self.take_next(
            |state| state.tally.waits == 0 && state.has_received_nothing(slot),
            |found| found.key() == next.key(),
        )
    }

    /// The next receive of the work queue of `next`, if it is in the inbox or can be polled now.
    pub(super) fn try_receive(&self, next: WorkId) -> Option<Completion<B>> {
        let slot = next.key().slot();
        self.try_for(
            |state| state.lane(slot)?.next_received(),
            // If the inbox has receives, they came earlier and must go first.
            |state, found| found.key() == next.key() && state.has_received_nothing(slot),
        )
    }

    /// Takes a batch, without putting completions in their places: if the next completion retires the requests from
    /// `first` on, and all of them succeeded, puts at most `most` buffers into `buffers`. Returns how many requests
    /// were taken.
    #[inline]
    pub(super) fn take_batch(&self, first: WorkId, most: u32, buffers: &mut Vec<Buffer<B>>) -> (u32, bool) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let taken = if state.is_unknown(first) { state.poller.poll_batch(first, most, buffers) } else { 0 };
        (taken, taken > 0 && !state.may_release())
    }

    /// Settles the completions that the poller has taken from the device and still keeps.
    #[cold]
    #[inline(never)]
    pub(super) fn settle_taken(&self) {
        let mut after = After::new();
        loop {
            let mut state = lock(&self.state);
            let mut has_more = state.poller.has_taken();
            while has_more && after.has_room() {
                match state.poll(&mut after) {
                    Ok(Some(completion)) => state.settle(completion, &mut after),
                    // The next one who polls learns of an error.
                    Ok(None) | Err(_) => has_more = false,
                }
                has_more &= state.poller.has_taken();
            }
            drop(state);
            self.run(&mut after);
            if !has_more {
                return;
            }
        }
    }

    /// The oldest completion of a work queue that has no lane.
    pub(super) fn take_unclaimed(&self) -> Option<Completion<B>> {
        // The poller may still keep it.
        self.settle_taken();
        self.with(|state| state.unclaimed.pop_front())
    }

    /// Settles completions until `ready` returns a value. If no completions are left and `ready` has returned none,
    /// calls `park`, which stores the waker.
    pub(super) fn poll_for<R>(
        &self,
        context: &mut Context<'_>,
        mut ready: impl FnMut(&mut State<B>) -> Option<R>,
        mut park: impl FnMut(&mut State<B>, &Waker, &mut Option<Waker>, &mut After<B>) -> Parked,
    ) -> Poll<Result<R, PollError>> {
        let (mut mine, mut budget) = (None, BUDGET);
        let mut after = After::new();
        loop {
            let attempt = lock(&self.state).attempt(&mut budget, &mut after, &mut ready, |state, after| {
                park(state, context.waker(), &mut mine, after)
            });
            self.run(&mut after);
            match attempt {
                Attempt::Ready(found) => return Poll::Ready(Ok(found)),
                Attempt::Again => {}
                Attempt::NeedsWaker => mine = Some(context.waker().clone()),
                Attempt::Parked => return Poll::Pending,
                Attempt::Yield => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Attempt::Failed(error, wakers) => {
                    wake_all(wakers);
                    return Poll::Ready(Err(error));
                }
            }
        }
    }

    /// Makes a lane for a work queue.
    ///
    /// `ids` is called under the lock, so that no completion is polled meanwhile. Returns the ids, the generation of
    /// the lane, and what [`settle_late`](Self::settle_late) takes.
    pub(super) fn attach(&self, ids: impl FnOnce() -> QueueIds, depth: u32) -> (QueueIds, u64, Late<B>) {
        self.with(|state| {
            let ids = ids();
            let mut after = After::new();
            let (generation, left, sends) = state.attach(ids, depth, &mut after);
            (ids, generation, Late { sends, left, after })
        })
    }

    /// Does the rest of [`attach`](Self::attach) without the lock. No future exists for sends that were posted before
    /// the call of `attach`, so they become strays.
    pub(super) fn settle_late(&self, ids: QueueIds, late: Late<B>) {
        let Late { sends, left, mut after } = late;
        let slot = ids.next.key().slot();
        for completion in sends {
            self.with_after(|state, after| state.with_lane(slot, |lane, _| lane.keep_stray(completion, after)));
        }
        if ids.next.key().is_send() {
            self.abandon_all(ids.next.before(ids.in_flight), ids.in_flight);
        }
        drop(left);
        self.run(&mut after);
    }

    /// Ends the lane of a work queue that is gone. Returns what nobody will take any more.
    pub(super) fn end(&self, slot: usize, generation: u64, next: WorkId) -> Option<Left<B>> {
        self.with(|state| {
            if let Some(at) = state.leaving.iter().position(|&(other, _)| other == generation) {
                return Some(state.leaving.swap_remove(at).1);
            }
            let Some(Some(lane)) = state.lanes.get_mut(slot) else { return None };
            if lane.generation != generation {
                return None;
            }
            let mut left = lane.end(next, &mut state.tally);
            let pair = lane.pair;
            state.leave_pair(pair, slot);
            // This keeps `unclaimed` small: there are at most as many as the completion queue has room for.
            state.unclaimed.append(&mut left.of_next);
            Some(left)
        })
    }

    /// Abandons `count` requests from `first` on. If a waker panics, the others are abandoned all the same.
    pub(super) fn abandon_all(&self, first: WorkId, count: u32) {
        struct Rest<'d, B> {
            desk: &'d Desk<B>,
            next: WorkId,
            left: u32,
        }
        impl<B> Rest<'_, B> {
            fn run(&mut self) {
                while self.left > 0 {
                    let id = self.next;
                    self.next = id.after(1);
                    self.left -= 1;
                    self.desk.abandon(id);
                }
            }
        }
        impl<B> Drop for Rest<'_, B> {
            fn drop(&mut self) {
                self.run();
            }
        }
        Rest { desk: self, next: first, left: count }.run();
    }

    /// Notes that nobody will ask for a request any more. Polls, and arms the queue, so that the driver wakes when the
    /// request completes.
    #[cold]
    #[inline(never)]
    pub(super) fn abandon(&self, id: WorkId) {
        let (mut budget, mut after) = (BUDGET, After::new());
        let mut is_noted = false;
        loop {
            let mut state = lock(&self.state);
            if !is_noted {
                state.with_lane(id.key().slot(), |lane, tally| lane.abandon(id, tally, &mut after));
                is_noted = true;
                // The driver may have nobody left to sleep for.
                if state.handles == 0
                    && let Some(driver) = state.take_driver()
                {
                    after.wake(driver);
                }
            }
            // The request is noted already, so `park` has nothing to do: it is enough that the armed queue was seen
            // empty. If there is no driver, the next task that polls finds the completion.
            let attempt = state.attempt(&mut budget, &mut after, &mut |_| None::<()>, |_, _| Parked::Yes);
            drop(state);
            self.run(&mut after);
            match attempt {
                Attempt::Again => {}
                Attempt::Failed(_, wakers) => return wake_all(wakers),
                // There may be more completions, and the queue is not armed: the driver goes on.
                Attempt::Yield => {
                    if let Some(driver) = self.with(State::take_driver) {
                        driver.wake();
                    }
                    return;
                }
                _ => return,
            }
        }
    }

    /// One turn of the driver: settles the completions that have come, and arms the queue if anybody waits. The
    /// driver's work is over when nobody waits and no handles are left. Pending if the budget was used up: the task of
    /// the driver is woken, to take another turn.
    pub(super) fn drive(&self, context: &mut Context<'_>) -> Poll<Result<Turn, WaitError>> {
        let (mut mine, mut budget) = (None, BUDGET);
        let mut after = After::new();
        let mut has_taken_events = false;
        loop {
            let attempt = lock(&self.state).turn(&mut budget, &mut after, &mut has_taken_events, context, &mut mine);
            self.run(&mut after);
            match attempt {
                Attempt::Ready(turn) => return Poll::Ready(turn),
                Attempt::Again => {}
                Attempt::NeedsWaker => mine = Some(context.waker().clone()),
                Attempt::Failed(error, wakers) => {
                    wake_all(wakers);
                    return Poll::Ready(Err(error.into()));
                }
                Attempt::Parked | Attempt::Yield => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }

    /// Registers a driver. False if there is one already.
    pub(super) fn enter_driver(&self) -> bool {
        self.with(|state| {
            let is_free = matches!(state.driver, DriverState::Absent);
            if is_free {
                state.driver = DriverState::Present(None);
            }
            is_free
        })
    }

    /// The driver is gone. All who wait are woken, and from now on poll by themselves.
    pub(super) fn leave_driver(&self) {
        let wakers = self.with(|state| {
            state.driver = DriverState::Absent;
            state.is_armed = false;
            state.take_wakers()
        });
        wake_all(wakers);
    }

    /// Counts one more handle.
    pub(super) fn enter(&self) {
        self.with(|state| state.handles += 1);
    }

    /// Counts one handle less. The driver ends with the last one.
    pub(super) fn leave(&self) {
        let driver = self.with(|state| {
            state.handles -= 1;
            if state.handles == 0 { state.take_driver() } else { None }
        });
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

/// What the driver does after a turn.
pub(super) enum Turn {
    /// Sleep until the descriptor is readable, or for at most this long.
    Sleep(Option<Duration>),
    /// End.
    Over,
}

impl<B> State<B> {
    pub(super) fn lane(&mut self, slot: usize) -> Option<&mut Lane<B>> {
        self.lanes.get_mut(slot)?.as_mut()
    }

    /// The completion of a request, if it has come.
    #[inline]
    fn fetch(&mut self, id: WorkId) -> Option<Completion<B>> {
        self.lanes.get_mut(id.key().slot())?.as_mut()?.fetch(id, &mut self.tally)
    }

    /// Whether the second rule of this module allows to release the lock. Not if somebody waits while the poller keeps
    /// completions, and not while the poller has unread mail of pairs that came or went.
    #[inline(always)]
    fn may_release(&self) -> bool {
        (self.tally.waits == 0 || !self.poller.holds_completions()) && !self.poller.has_mail()
    }

    /// Whether the completion of this request may be returned without going to its lane: nothing is known of the
    /// request, and nobody waits for room.
    #[inline(always)]
    fn is_unknown(&self, id: WorkId) -> bool {
        self.tally.is_zero() || self.is_unknown_to_lane(id)
    }

    #[inline(never)]
    fn is_unknown_to_lane(&self, id: WorkId) -> bool {
        matches!(self.lanes.get(id.key().slot()), Some(Some(lane)) if lane.is_unknown(id))
    }

    /// Whether the inbox of this lane is empty. False if there is no such lane.
    #[inline(always)]
    fn has_received_nothing(&self, slot: usize) -> bool {
        matches!(self.lanes.get(slot), Some(Some(lane)) if lane.has_received_nothing())
    }

    pub(super) fn with_lane<R>(&mut self, slot: usize, f: impl FnOnce(&mut Lane<B>, &mut Tally) -> R) -> Option<R> {
        let lane = self.lanes.get_mut(slot)?.as_mut()?;
        Some(f(lane, &mut self.tally))
    }

    /// As [`with_lane`](Self::with_lane), for the lane of a shared receive queue.
    pub(super) fn with_shared_lane<R>(
        &mut self,
        number: u32,
        f: impl FnOnce(&mut Lane<B>, &mut Tally) -> R,
    ) -> Option<R> {
        let (_, lane) = self.shared.iter_mut().find(|(other, _)| *other == number)?;
        Some(f(lane, &mut self.tally))
    }

    /// Makes a lane for a work queue. Returns the generation of the lane; what the last queue in its slot left, to be
    /// dropped without the lock; and the completions of sends that came before there was a lane.
    #[allow(clippy::type_complexity, reason = "two kinds of completions")]
    fn attach(
        &mut self,
        ids: QueueIds,
        depth: u32,
        after: &mut After<B>,
    ) -> (u64, Option<Left<B>>, Vec<Completion<B>>) {
        let (key, slot) = (ids.next.key(), ids.next.key().slot());
        let mut sends = Vec::new();
        if self.lanes.len() <= slot {
            self.lanes.resize_with(slot + 1, || None);
        }
        self.generations += 1;
        let mut left = None;
        if let Some(place) = self.lanes.get_mut(slot) {
            let lane = place.get_or_insert_with(|| Lane::new(depth));
            let (before, pair_before, has_ended) = (lane.generation, lane.pair, lane.has_ended());
            if before != 0 {
                left = Some(lane.renew(ids.first, depth, &mut sends, &mut self.tally, after));
            }
            lane.pair = Some(ids.pair);
            lane.generation = self.generations;
            lane.first = Some(ids.first);
            // The handle of the last queue has not ended yet. It takes what is left when it ends.
            if !has_ended && let Some(left) = left.take() {
                self.leaving.push((before, left));
            }
            self.leave_pair(pair_before, slot);
            // A pair has two work queues. If a number came again before the lanes of the old pair have ended, the new
            // lanes take the place of the old ones.
            let PairLanes { slots, .. } = self.pairs.entry(ids.pair.value()).or_default();
            if slots.is_full() {
                slots.remove(0);
            }
            slots.push(slot);
        }
        // An earlier pair in the same slot may have left completions too, so ids before `first` are not taken.
        self.claim(|id| id.key() == key && !id.is_before(ids.first), &mut sends, after);
        (self.generations, left, sends)
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
                // Nobody waits on the new lane yet, so this wakes nobody. When the completion came, it woke those whom
                // the end of its pair concerns.
                if !completion.is_success() {
                    self.count_failure(id);
                }
                self.place(completion, after);
            }
        }
    }

    /// Notes that the pair has no lane in this slot any more.
    fn leave_pair(&mut self, pair: Option<Qpn>, slot: usize) {
        if let Some(pair) = pair {
            self.change_lanes(pair, |lanes| lanes.slots.retain(|other| *other != slot));
        }
    }

    /// Notes that another desk has a lane of this pair.
    pub(super) fn note_other(&mut self, pair: Qpn, desk: Weak<Desk<B>>, generation: u64) {
        self.pairs.entry(pair.value()).or_default().other = Some((desk, generation));
    }

    /// Notes that the lane of this pair at another desk is gone.
    pub(super) fn forget_other(&mut self, pair: Qpn, generation: u64) {
        self.change_lanes(pair, |lanes| _ = lanes.other.take_if(|(_, other)| *other == generation));
    }

    fn change_lanes(&mut self, pair: Qpn, change: impl FnOnce(&mut PairLanes<B>)) {
        if let Entry::Occupied(mut lanes) = self.pairs.entry(pair.value()) {
            change(lanes.get_mut());
            if lanes.get().is_empty() {
                lanes.remove();
            }
        }
    }

    /// Wakes all tasks at this desk that the end of a pair concerns.
    pub(super) fn wake_lanes(&mut self, pair: Qpn, after: &mut After<B>) {
        for slot in self.pairs.get(&pair.value()).into_iter().flat_map(|lanes| &lanes.slots) {
            if let Some(Some(lane)) = self.lanes.get_mut(*slot) {
                lane.note_broken(&mut self.tally, after);
            }
        }
    }

    /// As [`wake_lanes`](Self::wake_lanes), also at the other desk that has a lane of this pair.
    fn note_broken(&mut self, pair: Qpn, after: &mut After<B>) {
        self.wake_lanes(pair, after);
        let other = self.pairs.get(&pair.value()).and_then(|lanes| lanes.other.as_ref()?.0.upgrade());
        if let Some(desk) = other {
            self.broken.push(Broken::new(desk, pair));
            after.tell_others();
        }
    }

    /// Notes that a request has failed. That has broken its pair. A shared receive is counted in the lane of the shared
    /// receive queue, and not in a lane of the pair.
    #[cold]
    #[inline(never)]
    fn note_failure(&mut self, completion: &Completion<B>, after: &mut After<B>) {
        self.count_failure(completion.id());
        self.note_broken(completion.pair(), after);
    }

    fn count_failure(&mut self, id: WorkId) {
        if let Some(lane) = lane_of(&mut self.lanes, &mut self.shared, id) {
            lane.counters.failed += 1;
        }
    }

    /// Puts a completion in its place.
    #[inline]
    pub(super) fn settle(&mut self, completion: Completion<B>, after: &mut After<B>) {
        if !completion.is_success() {
            self.note_failure(&completion, after);
        }
        self.place(completion, after);
    }

    /// As [`settle`](Self::settle), for a completion whose failure was noted before.
    #[inline(always)]
    fn place(&mut self, completion: Completion<B>, after: &mut After<B>) {
        let Self { lanes, shared, tally, .. } = self;
        let id = completion.id();
        let kind = id.key().kind();
        match lane_of(lanes, shared, id) {
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
            // Drop the oldest failed one, if there is any: the others have messages, which may still be claimed.
            let oldest = self.unclaimed.iter().position(|kept| !kept.is_success()).unwrap_or(0);
            self.unclaimed.remove(oldest).into_iter().for_each(|kept| after.drop_completion(kept));
        }
        self.unclaimed.push_back(completion);
    }

    /// The part of [`Desk::try_for`] that polls.
    #[inline(always)]
    fn poll_until(
        &mut self,
        after: &mut After<B>,
        mut kept: impl FnMut(&mut Self) -> Option<Completion<B>>,
        mut is_wanted: impl FnMut(&Self, WorkId) -> bool,
    ) -> Option<Completion<B>> {
        for _ in 0..BUDGET {
            let completion = self.poll(after).ok()??;
            // What is left to run may panic, and a completion that was taken would be lost.
            if after.is_empty() && self.may_release() && completion.is_success() && is_wanted(self, completion.id()) {
                return Some(completion);
            }
            // While nobody waits, a wanted completion was returned above, so this look is not needed. If mail prevented
            // that, the caller's slow path finds the completion in its place.
            let may_be_in_place = self.tally.waits > 0;
            self.settle(completion, after);
            if may_be_in_place
                && after.is_empty()
                && self.may_release()
                && let Some(completion) = kept(self)
            {
                return Some(completion);
            }
            if !after.has_room() {
                break;
            }
        }
        None
    }

    /// Settles the completions that have come, and asks `ready`. If `ready` returns nothing, arms the queue and lets
    /// `park` note the wait.
    fn attempt<R>(
        &mut self,
        budget: &mut u32,
        after: &mut After<B>,
        ready: &mut impl FnMut(&mut Self) -> Option<R>,
        mut park: impl FnMut(&mut Self, &mut After<B>) -> Parked,
    ) -> Attempt<R> {
        loop {
            let settled = self.settle_all(budget, after);
            // What is left to run may panic, and what `ready` takes would be lost.
            if !after.is_empty() {
                return Attempt::Again;
            }
            match settled {
                Settled::Done => {}
                Settled::NoRoom => return Attempt::Again,
                Settled::Failed(error) => {
                    // If `ready` finds something that was settled before the error, that comes first.
                    return match ready(self) {
                        Some(found) => Attempt::Ready(found),
                        None => Attempt::Failed(error, self.take_wakers()),
                    };
                }
            }
            if let Some(found) = ready(self) {
                return Attempt::Ready(found);
            }
            if *budget == 0 || matches!(self.driver, DriverState::Absent) {
                return Attempt::Yield;
            }
            match self.arm(after) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) => return Attempt::Yield,
            }
            // This queue must be polled after some time even without an event. The driver is woken to learn of that
            // time.
            if self.poller.next_timer().is_some()
                && let Some(driver) = self.take_driver()
            {
                after.wake(driver);
            }
            return match park(self, after) {
                Parked::NeedsWaker => Attempt::NeedsWaker,
                Parked::Yes => {
                    self.counters.sleeps += 1;
                    Attempt::Parked
                }
            };
        }
    }

    /// The next completion. If the poll finds that a pair is gone, the handle of the pair's shared receive queue goes
    /// to `after`.
    #[inline]
    fn poll(&mut self, after: &mut After<B>) -> Result<Option<Completion<B>>, PollError> {
        let polled = self.poller.poll();
        while after.has_room()
            && let Some(gone) = self.poller.take_gone()
        {
            after.drop_shared(gone);
        }
        polled
    }

    /// Takes completions from the device until none is left, or the budget is used up.
    fn settle_all(&mut self, budget: &mut u32, after: &mut After<B>) -> Settled {
        loop {
            // Without budget, poll no more, but still settle the completions that were taken from the device.
            if *budget == 0 && !self.poller.holds_completions() {
                return Settled::Done;
            }
            if !after.has_room() {
                return Settled::NoRoom;
            }
            match self.poll(after) {
                Ok(Some(completion)) => self.settle(completion, after),
                // More may be gone than there was room for.
                Ok(None) if !after.has_room() => return Settled::NoRoom,
                Ok(None) => return Settled::Done,
                Err(error) => return Settled::Failed(error),
            }
            *budget = budget.saturating_sub(1);
        }
    }

    /// Arms the queue, if it is not armed. False if a completion was there already.
    fn arm(&mut self, after: &mut After<B>) -> Result<bool, WaitError> {
        if self.is_armed {
            return Ok(true);
        }
        match self.poller.arm(WakeFor::Any)? {
            Armed::Ready(completion) => {
                self.settle(completion, after);
                Ok(false)
            }
            Armed::Empty => {
                self.is_armed = true;
                Ok(true)
            }
        }
    }

    fn take_driver(&mut self) -> Option<Waker> {
        match &mut self.driver {
            DriverState::Present(waker) => waker.take(),
            DriverState::Absent => None,
        }
    }

    fn turn(
        &mut self,
        budget: &mut u32,
        after: &mut After<B>,
        has_taken_events: &mut bool,
        context: &Context<'_>,
        mine: &mut Option<Waker>,
    ) -> Attempt<Result<Turn, WaitError>> {
        if !*has_taken_events {
            if let Err(error) = self.poller.take_events() {
                return Attempt::Ready(Err(error));
            }
            *has_taken_events = true;
            self.counters.turns += 1;
            self.is_armed = false;
        }
        if !self.timers.ring(after) {
            return Attempt::Again;
        }
        loop {
            match self.settle_all(budget, after) {
                Settled::Done => {}
                Settled::NoRoom => return Attempt::Again,
                Settled::Failed(error) => return Attempt::Failed(error, self.take_wakers()),
            }
            if *budget == 0 {
                return Attempt::Yield;
            }
            if self.handles == 0 && self.is_over() {
                return Attempt::Ready(Ok(Turn::Over));
            }
            if self.tally.waits > 0 && !after.has_room() {
                return Attempt::Again;
            }
            if self.tally.waits > 0 {
                match self.arm(after) {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(error) => return Attempt::Ready(Err(error)),
                }
            }
            let DriverState::Present(waker) = &mut self.driver else { return Attempt::Ready(Ok(Turn::Over)) };
            if !waker.as_ref().is_some_and(|old| old.will_wake(context.waker())) {
                let Some(new) = mine.take() else { return Attempt::NeedsWaker };
                if let Some(old) = waker.replace(new) {
                    after.drop_waker(old);
                }
            }
            let timers = [self.poller.next_timer(), self.timers.left()];
            return Attempt::Ready(Ok(Turn::Sleep(timers.into_iter().flatten().min())));
        }
    }

    /// Whether the driver has nobody to sleep for once there are no handles. The abandoned requests of a pair that was
    /// leaked never complete.
    fn is_over(&self) -> bool {
        self.tally.waits == 0 || self.tally.has_no_future() && self.poller.has_leaked()
    }

    /// Takes the wakers of all who wait. Those tasks will poll again. Abandoned requests stay noted.
    fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let shared = self.shared.iter_mut().map(|(_, lane)| lane);
        for lane in self.lanes.iter_mut().flatten().chain(shared) {
            lane.take_wakers(&mut self.tally, &mut wakers);
        }
        self.timers.take_wakers(&mut wakers);
        wakers
    }

    /// Keeps the waker of a timer. Returns the wakers that must be dropped or woken without the lock.
    pub(super) fn set_timer(&mut self, timer: TimerKey, waker: Waker) -> SetTimer {
        let before = self.timers.set(timer, waker);
        match self.driver {
            DriverState::Absent => SetTimer { before, driver: None, is_driven: false },
            // A driver that sleeps must learn of an earlier timer.
            DriverState::Present(_) if before.is_none() && self.timers.is_next(timer) => {
                SetTimer { before, driver: self.take_driver(), is_driven: true }
            }
            DriverState::Present(_) => SetTimer { before, driver: None, is_driven: true },
        }
    }

    pub(super) fn unset_timer(&mut self, timer: TimerKey) -> Option<Waker> {
        self.timers.unset(timer)
    }

    /// The counters of this lane.
    pub(super) fn counters(&mut self, slot: usize) -> Counters {
        self.lane(slot).map_or_else(Counters::default, |lane| lane.counters)
    }
}

/// The lane of a request, if its work queue has one.
#[inline(always)]
fn lane_of<'s, B>(
    lanes: &'s mut [Option<Lane<B>>],
    shared: &'s mut [(u32, Lane<B>)],
    id: WorkId,
) -> Option<&'s mut Lane<B>> {
    match id.as_shared() {
        Some((number, _)) => shared.iter_mut().find(|(other, _)| *other == number).map(|(_, lane)| lane),
        None => lanes.get_mut(id.key().slot())?.as_mut(),
    }
}

/// How far [`State::settle_all`] came.
enum Settled {
    /// Nothing is left, or the budget is used up.
    Done,
    NoRoom,
    Failed(PollError),
}
