//! The shared poller: the lock around a poller, and the routine by which everybody polls and waits.
//!
//! Whoever waits polls. One lock guards the poller together with all that is known of requests in flight. So there is
//! no moment at which a completion has left the device and is not in its place, and no wake-up can be lost between two
//! locks. Nobody holds the lock while code of the program runs: see [`After`].
//!
//! One rule keeps everybody awake: whoever waits has put all completions in their places and has seen the armed queue
//! empty. The event of an armed queue wakes the driver, which puts all completions in their places and arms the queue
//! again.
//!
//! Another rule keeps the driver out of the way: while anybody waits, whoever takes completions from the device puts
//! all of them in their places before it releases the lock. If nobody waits, the poller may keep them for whoever polls
//! next.

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
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[cfg(not(loom))]
pub(super) use crate::completion::Poller;
#[cfg(loom)]
pub(super) use models::Poller;

/// How many completions one call may take in before it lets others run.
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
    /// How many work queues have had a lane.
    generations: u64,
    /// What work queues have left whose lane serves the next queue in the slot, until their handles end.
    leaving: Vec<(u64, Left<B>)>,
    /// The shared receive queues, each with its number.
    shared: Vec<(u32, Lane<B>)>,
    /// Completions of work queues that have no lane, and how many there are at most.
    unclaimed: VecDeque<Completion<B>>,
    most_unclaimed: usize,
    tally: Tally,
    /// Whether the completion queue is armed, or has raised an event that the driver has not taken yet.
    is_armed: bool,
    driver: DriverState,
    timers: Timers,
    /// How many handles there are, besides the futures of requests.
    handles: usize,
    pub(super) counters: PollerCounters,
}

/// Whether somebody sleeps for all.
enum DriverState {
    Absent,
    /// There is a driver. The waker is that of its task, once it has slept.
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
    /// Run what must run without the lock, then try again.
    Again,
    /// Clone the waker, then try again.
    NeedsWaker,
    /// Somebody will wake the waker.
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

    /// As [`with`](Self::with). Afterwards runs what must run without the lock.
    pub(super) fn with_after<R>(&self, f: impl FnOnce(&mut State<B>, &mut After<B>) -> R) -> R {
        let mut after = After::new();
        let result = f(&mut lock(&self.state), &mut after);
        after.run();
        result
    }

    /// The completion of one request of a send queue, which is polled for if it has not come yet.
    #[inline]
    pub(super) fn poll_request(&self, id: WorkId, context: &mut Context<'_>) -> Poll<Result<Completion<B>, PollError>> {
        match self.try_request(id) {
            Some(completion) => Poll::Ready(Ok(completion)),
            None => self.poll_request_slowly(id, context),
        }
    }

    /// The completion of a request, if nothing is in its way and the next poll gives it.
    #[inline(always)]
    pub(super) fn take_request(&self, id: WorkId) -> Option<Completion<B>> {
        self.take_next(|state| state.tally.is_zero(), |found| found == id)
    }

    /// The next completion, if it is a success that is wanted. The fast path: `is_free` says that nobody waits, and
    /// that nothing which has come before is in the way.
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
            Ok(Some(completion)) => settle_one(guard, completion),
            Ok(None) | Err(_) => {}
        }
        None
    }

    /// The completion of a request, if it is there or a poll gives it.
    fn try_request(&self, id: WorkId) -> Option<Completion<B>> {
        self.try_for(|state| state.fetch(id), |state, found| found == id && state.is_unknown(id))
    }

    /// Looks for a completion without waiting. `kept` takes it out of its place; `is_wanted` says whether a completion
    /// is the one, so that it need not go to its place. Completions for others go to theirs.
    #[inline(always)]
    fn try_for(
        &self,
        mut kept: impl FnMut(&mut State<B>) -> Option<Completion<B>>,
        mut is_wanted: impl FnMut(&State<B>, WorkId) -> bool,
    ) -> Option<Completion<B>> {
        if let Some(completion) = self.with(|state| if state.may_release() { kept(state) } else { None }) {
            return Some(completion);
        }
        // Dropped after the guard, so it runs without the lock.
        let mut after = After::new();
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        for _ in 0..BUDGET {
            let completion = state.poll(&mut after).ok()??;
            // What is left to run may panic, and a completion that was taken would be lost.
            if after.is_empty() && state.may_release() && completion.is_success() && is_wanted(state, completion.id()) {
                return Some(completion);
            }
            // Only while somebody waits may an earlier turn of this loop have put the wanted completion in its place.
            let may_be_in_place = state.tally.waits > 0;
            state.settle(completion, &mut after);
            if may_be_in_place
                && after.is_empty()
                && state.may_release()
                && let Some(completion) = kept(state)
            {
                return Some(completion);
            }
            if !after.has_room() {
                break;
            }
        }
        None
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

    /// The next receive of the work queue of `next`, if nothing is in its way and the next poll gives it.
    #[inline(always)]
    pub(super) fn take_receive(&self, next: WorkId) -> Option<Completion<B>> {
        let slot = next.key().slot();
        self.take_next(
            |state| state.tally.waits == 0 && state.has_received_nothing(slot),
            |found| found.key() == next.key(),
        )
    }

    /// The next receive of the work queue of `next`, if it is there or a poll gives it.
    pub(super) fn try_receive(&self, next: WorkId) -> Option<Completion<B>> {
        let slot = next.key().slot();
        self.try_for(
            |state| state.lane(slot)?.next_received(),
            // Receives that are still in the lane completed earlier, and must be given out first.
            |state, found| found.key() == next.key() && state.has_received_nothing(slot),
        )
    }

    /// Puts the buffers of the requests from `first` on into `buffers`, as far as they complete together and nothing is
    /// known of them yet. Returns how many, and whether the caller must [settle](Self::settle_taken) other
    /// completions.
    #[inline]
    pub(super) fn take_batch(&self, first: WorkId, most: u32, buffers: &mut Vec<Buffer<B>>) -> (u32, bool) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let taken = if state.is_unknown(first) { state.poller.poll_batch(first, most, buffers) } else { 0 };
        (taken, taken > 0 && !state.may_release())
    }

    /// Settles what was taken from the device.
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
            after.run();
            if !has_more {
                return;
            }
        }
    }

    /// The oldest completion of a work queue that has no lane.
    pub(super) fn take_unclaimed(&self) -> Option<Completion<B>> {
        // The poller may still hold that completion.
        self.settle_taken();
        self.with(|state| state.unclaimed.pop_front())
    }

    /// Waits for something: settles completions until `ready` gives it. When none are left, calls `park`, which stores
    /// the waker.
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
            after.run();
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
    /// `ids` is called under the lock, where no request completes. Returns the ids, the generation of the lane, and
    /// what [`settle_late`](Self::settle_late) takes.
    pub(super) fn attach(&self, ids: impl FnOnce() -> QueueIds, depth: u32) -> (QueueIds, u64, Late<B>) {
        self.with(|state| {
            let ids = ids();
            let mut after = After::new();
            let (generation, left, sends) = state.attach(ids, depth, &mut after);
            (ids, generation, Late { sends, left, after })
        })
    }

    /// Does the rest of [`attach`](Self::attach) without the lock. Sends from before the lane have nobody who asks for
    /// them, so they become strays.
    pub(super) fn settle_late(&self, ids: QueueIds, late: Late<B>) {
        let Late { sends, left, mut after } = late;
        let slot = ids.next.key().slot();
        for completion in sends {
            self.with_after(|state, after| state.with_lane(slot, |lane, _| lane.keep_stray(completion, after)));
        }
        if ids.next.key().is_send() {
            (1..=ids.in_flight).rev().for_each(|count| self.abandon(ids.next.before(count)));
        }
        drop(left);
        after.run();
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
            // There are at most as many as the completion queue has room for.
            state.unclaimed.append(&mut left.of_next);
            Some(left)
        })
    }

    /// Notes that nobody will ask for a request any more, and sees to it that somebody polls for it.
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
            // The request is noted, so it is enough to see the armed queue empty. If there is no driver, whoever polls
            // next finds it.
            let attempt = state.attempt(&mut budget, &mut after, &mut |_| None::<()>, |_, _| Parked::Yes);
            drop(state);
            after.run();
            match attempt {
                Attempt::Again => {}
                Attempt::Failed(_, wakers) => return wake_all(wakers),
                _ => return,
            }
        }
    }

    /// One turn of the driver: settles what there is, and arms the queue if anybody waits. Ready when the driver's work
    /// is over, because there are no handles left; otherwise the time after which it must look again, although nothing
    /// is readable.
    pub(super) fn drive(&self, context: &mut Context<'_>) -> Poll<Result<Turn, WaitError>> {
        let (mut mine, mut budget) = (None, BUDGET);
        let mut after = After::new();
        let mut has_taken_events = false;
        loop {
            let attempt = lock(&self.state).turn(&mut budget, &mut after, &mut has_taken_events, context, &mut mine);
            after.run();
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
    /// Sleep until the descriptor is readable, or for this long.
    Sleep(Option<Duration>),
    /// End.
    Over,
}

/// Puts a completion of another request in its place.
#[inline(never)]
fn settle_one<B>(mut guard: MutexGuard<'_, State<B>>, completion: Completion<B>) {
    let mut after = After::new();
    guard.settle(completion, &mut after);
    drop(guard);
    after.run();
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

    /// Whether the lock may be released: the poller keeps nothing that somebody waits for, and no news of pairs.
    #[inline(always)]
    fn may_release(&self) -> bool {
        (self.tally.waits == 0 || !self.poller.holds_completions()) && !self.poller.has_mail()
    }

    /// Whether nothing is known of this request and nobody waits for room, so that its completion may go past its lane.
    #[inline(always)]
    fn is_unknown(&self, id: WorkId) -> bool {
        self.tally.is_zero() || self.is_unknown_to_lane(id)
    }

    #[inline(never)]
    fn is_unknown_to_lane(&self, id: WorkId) -> bool {
        matches!(self.lanes.get(id.key().slot()), Some(Some(lane)) if lane.is_unknown(id))
    }

    /// Whether no receive waits in this lane to be fetched.
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

    /// Makes a lane for a work queue. Returns what the last queue in its slot has left, to be dropped without the lock,
    /// and the completions of sends that came before there was a lane.
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
            let (before, has_ended) = (lane.generation, lane.has_ended());
            if before != 0 {
                left = Some(lane.renew(ids.first, depth, &mut sends, &mut self.tally, after));
            }
            lane.generation = self.generations;
            lane.first = Some(ids.first);
            // The handle of the earlier queue has not ended yet, and will take what is left.
            if !has_ended && let Some(left) = left.take() {
                self.leaving.push((before, left));
            }
        }
        // An earlier pair in the same slot may have left completions, too.
        self.claim(|id| id.key() == key && !id.is_before(ids.first), &mut sends, after);
        (self.generations, left, sends)
    }

    /// Makes a lane for a shared receive queue. False if it has one.
    pub(super) fn attach_shared(&mut self, number: u32, depth: u32, after: &mut After<B>) -> bool {
        if self.shared.iter().any(|&(other, _)| other == number) {
            return false;
        }
        self.shared.push((number, Lane::new(depth)));
        // The vector for sends stays empty: no send has the id of a shared receive.
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

    /// Moves receives that came before their lane into it, and sends into `sends`.
    fn claim(&mut self, is_theirs: impl Fn(WorkId) -> bool, sends: &mut Vec<Completion<B>>, after: &mut After<B>) {
        for _ in 0..self.unclaimed.len() {
            let Some(completion) = self.unclaimed.pop_front() else { break };
            let id = completion.id();
            if !is_theirs(id) {
                self.unclaimed.push_back(completion);
            } else if id.key().is_send() {
                sends.push(completion);
            } else {
                // Nobody waits on the new lane yet, so this wakes nobody.
                self.settle(completion, after);
            }
        }
    }

    /// Puts a completion in its place.
    #[inline]
    pub(super) fn settle(&mut self, completion: Completion<B>, after: &mut After<B>) {
        let Self { lanes, shared, tally, .. } = self;
        let id = completion.id();
        let kind = id.key().kind();
        let lane = match id.as_shared() {
            Some((number, _)) => shared.iter_mut().find(|(other, _)| *other == number).map(|(_, lane)| lane),
            None => lanes.get_mut(id.key().slot()).and_then(Option::as_mut),
        };
        match lane {
            Some(lane) if lane.is_past(id) => self.keep_unclaimed(completion, after),
            Some(lane) if kind == QueueKind::Send => lane.settle(completion, tally, after),
            Some(lane) => lane.receive(completion, tally, after),
            None => self.keep_unclaimed(completion, after),
        }
    }

    /// Keeps a completion of a work queue that has no lane yet. If its pair does not connect, it never gets a lane, and
    /// a peer may cause many of these: so flushed memory of a pool goes home, and the number is bounded.
    #[cold]
    #[inline(never)]
    fn keep_unclaimed(&mut self, completion: Completion<B>, after: &mut After<B>) {
        if !completion.is_success() && completion.goes_home() {
            return after.drop_completion(completion);
        }
        if self.unclaimed.len() >= self.most_unclaimed {
            // A flushed request is dropped first. A message may still be claimed, when its pair gets a lane.
            let oldest = self.unclaimed.iter().position(|kept| !kept.is_success()).unwrap_or(0);
            self.unclaimed.remove(oldest).into_iter().for_each(|kept| after.drop_completion(kept));
        }
        self.unclaimed.push_back(completion);
    }

    /// Settles completions until `ready` gives something or nothing is left. Then arms the queue and lets `park` note
    /// the wait.
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
                    // What the caller waits for may have come before the queue failed.
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
            // A queue that must be polled without an event needs its driver to know that somebody waits.
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

    /// The next completion. A shared receive queue whose pair is found to be gone is dropped without the lock.
    #[inline]
    fn poll(&mut self, after: &mut After<B>) -> Result<Option<Completion<B>>, PollError> {
        let polled = self.poller.poll();
        if let Some(gone) = self.poller.take_gone() {
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

    /// Takes the wakers of all who wait. They will poll again. What is abandoned stays noted.
    fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let shared = self.shared.iter_mut().map(|(_, lane)| lane);
        for lane in self.lanes.iter_mut().flatten().chain(shared) {
            lane.take_wakers(&mut self.tally, &mut wakers);
        }
        self.timers.take_wakers(&mut wakers);
        wakers
    }

    /// Keeps the waker of a timer. Returns who must be woken or dropped without the lock.
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

    /// What became of the requests of this lane.
    pub(super) fn counters(&mut self, slot: usize) -> Counters {
        self.lane(slot).map_or_else(Counters::default, |lane| lane.counters)
    }
}

/// How far [`State::settle_all`] came.
enum Settled {
    /// Nothing is left, or the budget is used up.
    Done,
    NoRoom,
    Failed(PollError),
}
