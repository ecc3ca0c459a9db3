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
use super::lane::{Left, Parked};
use super::lanes::{Attached, Lanes};
use super::outcome::PollerCounters;
use super::pairs::{Pairs, WatchKey};
use super::timers::{SetTimer, TimerKey, Timers};
use crate::completion::{Armed, Completion, PollError, WaitError, WakeFor};
use crate::inflight::WorkId;
use crate::memory::Buffer;
use crate::queue::QueueIds;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::types::Qpn;
use std::convert::Infallible;
use std::mem;
use std::sync::Arc;
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
    pub(super) lanes: Lanes<B>,
    pub(super) pairs: Pairs,
    /// Whether the completion queue is armed, or has raised an event that the driver has not taken yet.
    is_armed: bool,
    driver: DriverState,
    timers: Timers,
    /// How many handles there are. The futures of requests do not count.
    handles: usize,
    pub(super) counters: PollerCounters,
}

/// Names a pair that has broken. The drop wakes the tasks at the desk that the end of the pair concerns. The drop takes
/// the lock of the desk, so the caller must hold no lock.
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
        self.desk.with_after(|state, after| state.note_broken(self.pair, after));
    }
}

/// Whether there is a driver, which sleeps for all tasks.
enum DriverState {
    Absent,
    /// There is a driver. The waker is that of the driver's task: `None` before the first sleep, and after the waker
    /// was taken to wake the driver.
    Present(Option<Waker>),
}

/// The part of [`Desk::attach`] that must be done without the lock: see [`Desk::settle_late`].
pub(super) struct Late<B> {
    attached: Attached<B>,
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
    /// The completion queue failed. The caller must release the lock and then wake these wakers.
    Failed(PollError, Vec<Waker>),
}

impl<B> Desk<B> {
    pub(super) fn new(mut poller: Poller<B>) -> Self {
        poller.keep_leftovers();
        let lanes = Lanes::new(poller.queue().capacity() as usize);
        Self {
            state: Mutex::new(State {
                poller,
                lanes,
                pairs: Pairs::default(),
                is_armed: false,
                driver: DriverState::Absent,
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
        after.run();
        result
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
        self.take_next(|state| state.lanes.tally.is_zero(), |found| found == id)
    }

    /// Polls once, if `is_free` is true: nobody waits, and no kept completion must go first. Returns the completion if
    /// it succeeded and `is_wanted` is true for it. Otherwise puts the completion in its place.
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
        after.run();
    }

    /// The completion of a request, if it is kept in its place or can be polled now.
    fn try_request(&self, id: WorkId) -> Option<Completion<B>> {
        self.try_for(|state| state.lanes.fetch(id), |state, found| found == id && state.lanes.is_unknown(id))
    }

    /// Looks for a completion without waiting. `kept` takes the completion out of its place. If `is_wanted` is true for
    /// a completion that the poller gives, that completion is returned at once. All other completions go to their
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
        after.run();
        found
    }

    #[cold]
    #[inline(never)]
    fn poll_request_slowly(&self, id: WorkId, context: &mut Context<'_>) -> Poll<Result<Completion<B>, PollError>> {
        let slot = id.key().slot();
        self.poll_for(
            context,
            |state| state.lanes.fetch(id),
            |state, waker, mine, after| {
                state.lanes.with(slot, |lane, tally| lane.park(id, waker, mine, tally, after)).unwrap_or(Parked::Yes)
            },
        )
    }

    /// The fast path: the next receive of the work queue of `next`, if no other work has to be done first and the next
    /// poll gives it.
    #[inline(always)]
    pub(super) fn take_receive(&self, next: WorkId) -> Option<Completion<B>> {
        let slot = next.key().slot();
        self.take_next(
            |state| state.lanes.tally.waits == 0 && state.lanes.has_received_nothing(slot),
            |found| found.key() == next.key(),
        )
    }

    /// The next receive of the work queue of `next`, if it is in the inbox or can be polled now.
    pub(super) fn try_receive(&self, next: WorkId) -> Option<Completion<B>> {
        let slot = next.key().slot();
        self.try_for(
            |state| state.lanes.get(slot)?.next_received(),
            // Return the receive that was found only if the inbox is empty: receives in the inbox came earlier, and
            // must be returned first.
            |state, found| found.key() == next.key() && state.lanes.has_received_nothing(slot),
        )
    }

    /// Takes a batch, without putting completions in their places: if the next completion retires the requests from
    /// `first` on, all of them succeeded, and they are at most `most`, puts their buffers into `buffers`. Returns how
    /// many requests were taken, and whether the caller must call [`settle_taken`](Self::settle_taken).
    #[inline]
    pub(super) fn take_batch(&self, first: WorkId, most: u32, buffers: &mut Vec<Buffer<B>>) -> (u32, bool) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let taken = if state.lanes.is_unknown(first) { state.poller.poll_batch(first, most, buffers) } else { 0 };
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
                    // An error is not lost: the next poll returns it again.
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
        // Perhaps the poller still keeps completions of such a work queue. Put them in their places first.
        self.settle_taken();
        self.with(|state| state.lanes.take_unclaimed())
    }

    /// Settles completions until `ready` returns a value. If no completions are left and `ready` has returned no value,
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
            after.run();
            match attempt {
                Attempt::Ready(found) => {
                    // Drop `mine` here, and not at the end of the function. If that drop panics here, `found` is
                    // dropped. At the end `found` is already being returned, and a panic would leak `found`.
                    drop(mine.take());
                    return Poll::Ready(Ok(found));
                }
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

    /// Leaves the waker of a task that waits at another desk in its [place](Pairs::watch), so that the end of the pair
    /// wakes the task.
    pub(super) fn watch(&self, place: WatchKey, context: &mut Context<'_>) -> Result<(), PollError> {
        let watched = self.poll_for(
            context,
            |_| None::<Infallible>,
            |state, waker, mine, after| state.pairs.park(place, waker, mine, &mut state.lanes.tally, after),
        );
        match watched {
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(never)) => match never {},
            Poll::Pending => Ok(()),
        }
    }

    /// Ends the wait of a task that waits at another desk. Returns its waker, to be dropped without a lock.
    pub(super) fn stop_watching(&self, place: WatchKey) -> Option<Waker> {
        self.with(|state| state.pairs.take_waker(place, &mut state.lanes.tally))
    }

    /// Settles completions that have come, without waiting: at least `count` of them, if so many have come.
    pub(super) fn settle_up_to(&self, count: u32) {
        for _ in 0..=count / BUDGET {
            let mut context = Context::from_waker(Waker::noop());
            let _: Poll<Result<(), _>> = self.poll_for(&mut context, |_| None, |_, _, _, _| Parked::Yes);
        }
    }

    /// Makes a lane for a work queue.
    ///
    /// `ids` is called under the lock, so no completion is polled between that call and the making of the lane. Returns
    /// the ids, the generation of the lane, and what [`settle_late`](Self::settle_late) takes.
    pub(super) fn attach(&self, ids: impl FnOnce() -> QueueIds, depth: u32) -> (QueueIds, u64, Late<B>) {
        self.with(|state| {
            let ids = ids();
            let slot = ids.next.key().slot();
            let mut after = After::new();
            let attached = state.lanes.attach(ids, depth, &mut after);
            if let Some(pair) = attached.pair_before {
                state.pairs.leave(pair, slot);
            }
            state.pairs.join(ids.pair, slot);
            (ids, attached.generation, Late { attached, after })
        })
    }

    /// Does the rest of [`attach`](Self::attach) without the lock. No future exists for sends that were posted before
    /// the call of `attach`, so they become strays.
    pub(super) fn settle_late(&self, ids: QueueIds, late: Late<B>) {
        let Late { attached: Attached { sends, left, .. }, mut after } = late;
        let slot = ids.next.key().slot();
        for completion in sends {
            self.with_after(|state, after| state.lanes.with(slot, |lane, _| lane.keep_stray(completion, after)));
        }
        if ids.next.key().is_send() {
            self.abandon_all(ids.next.before(ids.in_flight), ids.in_flight);
        }
        drop(left);
        after.run();
    }

    /// Ends the lane of a work queue that is gone. Returns what nobody will take any more.
    pub(super) fn end(&self, slot: usize, generation: u64, next: WorkId) -> Option<Left<B>> {
        self.with(|state| {
            let (left, pair) = state.lanes.end(slot, generation, next)?;
            if let Some(pair) = pair {
                state.pairs.leave(pair, slot);
            }
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
                state.lanes.with(id.key().slot(), |lane, tally| lane.abandon(id, tally, &mut after));
                is_noted = true;
                // If no handle is left, perhaps the driver has stayed only for the future of this request. Wake the
                // driver, so that it can end.
                if state.handles == 0
                    && let Some(driver) = state.take_driver()
                {
                    after.wake(driver);
                }
            }
            // `park` has nothing to do, since the request was noted above. If the attempt finds no more completions, it
            // arms the queue. The completion of the request then wakes the driver.
            let attempt = state.attempt(&mut budget, &mut after, &mut |_| None::<()>, |_, _| Parked::Yes);
            drop(state);
            after.run();
            match attempt {
                Attempt::Again => {}
                Attempt::Failed(_, wakers) => return wake_all(wakers),
                // The attempt has not armed the queue, so the completion of the request perhaps raises no event. If
                // there is a driver, wake it: it goes on polling, and arms the queue. Without a driver, the next task
                // that polls finds the completion.
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
        let (_driver, wakers) = self.with(|state| {
            state.is_armed = false;
            (mem::replace(&mut state.driver, DriverState::Absent), state.take_wakers())
        });
        wake_all(wakers);
    }

    /// Counts one more handle.
    pub(super) fn enter(&self) {
        self.with(|state| state.handles += 1);
    }

    /// Counts one handle less. After the last one, wakes the driver, which ends if nobody waits.
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
    /// Whether the second rule of this module allows the caller to release the lock. False if somebody waits while the
    /// poller keeps completions. False also while the poller has unread mail of pairs that came or went.
    #[inline(always)]
    fn may_release(&self) -> bool {
        (self.lanes.tally.waits == 0 || !self.poller.holds_completions()) && !self.poller.has_mail()
    }

    /// Wakes all tasks that the end of a pair concerns.
    fn note_broken(&mut self, pair: Qpn, after: &mut After<B>) {
        self.pairs.slots(pair).for_each(|slot| self.lanes.note_broken(slot, after));
        self.pairs.wake(pair, &mut self.lanes.tally, after);
    }

    /// Notes that a request has failed, which has broken its pair.
    #[cold]
    #[inline(never)]
    fn note_failure(&mut self, completion: &Completion<B>, after: &mut After<B>) {
        self.lanes.count_failure(completion.id());
        self.note_broken(completion.pair(), after);
    }

    /// Puts a completion in its place.
    #[inline]
    fn settle(&mut self, completion: Completion<B>, after: &mut After<B>) {
        if !completion.is_success() {
            self.note_failure(&completion, after);
        }
        self.lanes.place(completion, after);
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
            // Return a completion only if `after` is empty: an entry of `after` can panic, and the completion would be
            // lost.
            if after.is_empty() && self.may_release() && completion.is_success() && is_wanted(self, completion.id()) {
                return Some(completion);
            }
            // Even for the wanted completion a check above can fail, and then `settle` puts it in its place. While
            // somebody waits, this is common: `may_release` is false as long as the poller holds completions. So let
            // `kept` look in that place. While nobody waits, this is rare, and the caller's slow path finds the
            // completion.
            let may_be_in_place = self.lanes.tally.waits > 0;
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
            // The caller runs `after` before `ready` takes anything: an entry of `after` can panic, and what was taken
            // would be lost.
            if !after.is_empty() {
                return Attempt::Again;
            }
            match settled {
                Settled::Done => {}
                Settled::NoRoom => return Attempt::Again,
                Settled::Failed(error) => {
                    // If a completion was settled before the error came, return the completion first. The error is not
                    // lost: the next poll meets it again.
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
            // If the poller has a `next_timer`, somebody must poll the queue when that time is over, even without an
            // event. Wake the driver, so that it reads the timer before it sleeps again.
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

    /// The next completion. What the poller has no more use for goes to `after`.
    #[inline]
    fn poll(&mut self, after: &mut After<B>) -> Result<Option<Completion<B>>, PollError> {
        let polled = self.poller.poll();
        while after.has_room_to_spare()
            && let Some(leftover) = self.poller.take_leftover()
        {
            after.drop_leftover(leftover);
        }
        polled
    }

    /// Takes completions from the device and puts them in their places, until none is left, the budget is used up, or
    /// `after` has no room.
    fn settle_all(&mut self, budget: &mut u32, after: &mut After<B>) -> Settled {
        loop {
            // Without budget, take no more completions from the device, but still settle those that the poller holds.
            if *budget == 0 && !self.poller.holds_completions() {
                return Settled::Done;
            }
            if !after.has_room() {
                return Settled::NoRoom;
            }
            match self.poll(after) {
                Ok(Some(completion)) => self.settle(completion, after),
                // `poll` has filled `after` with what the poller has no more use for, and the poller keeps more. So the
                // caller runs `after` and tries again.
                Ok(None) if self.poller.has_leftovers() => return Settled::NoRoom,
                Ok(None) => return Settled::Done,
                Err(error) => return Settled::Failed(error),
            }
            *budget = budget.saturating_sub(1);
        }
    }

    /// Arms the queue, if it is not armed. False if the caller must poll again: a completion was found, which then is
    /// in its place, or the poller has something left over.
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
                Ok(!self.poller.has_leftovers())
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
                // The caller runs `after` before the wakers are taken: an entry of `after` can panic, and the wakers
                // would be lost.
                Settled::Failed(_) if !after.is_empty() => return Attempt::Again,
                Settled::Failed(error) => return Attempt::Failed(error, self.take_wakers()),
            }
            if *budget == 0 {
                return Attempt::Yield;
            }
            if self.handles == 0 && self.is_over() {
                return Attempt::Ready(Ok(Turn::Over));
            }
            if self.lanes.tally.waits > 0 && !after.has_room() {
                return Attempt::Again;
            }
            if self.lanes.tally.waits > 0 {
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

    /// Whether the driver has nobody to sleep for once there are no handles. If a pair was leaked, its abandoned
    /// requests never complete. So abandoned requests then do not keep the driver.
    fn is_over(&self) -> bool {
        self.lanes.tally.waits == 0 || self.lanes.tally.has_no_future() && self.poller.has_leaked()
    }

    /// Takes the wakers of all who wait. Those tasks will poll again. Abandoned requests stay noted.
    fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = self.lanes.take_wakers();
        self.pairs.take_wakers(&mut self.lanes.tally, &mut wakers);
        self.timers.take_wakers(&mut wakers);
        wakers
    }

    /// Keeps the waker of a timer. Returns the wakers that must be dropped or woken without the lock.
    pub(super) fn set_timer(&mut self, timer: TimerKey, waker: Waker) -> SetTimer {
        let before = self.timers.set(timer, waker);
        match self.driver {
            DriverState::Absent => SetTimer { before, driver: None, is_driven: false },
            // Return the driver's waker, since the driver perhaps sleeps past the end of this timer: the timer is new,
            // and is the first to be over. If `before` is a waker, the timer is not new, and the driver knows the timer
            // already.
            DriverState::Present(_) if before.is_none() && self.timers.is_next(timer) => {
                SetTimer { before, driver: self.take_driver(), is_driven: true }
            }
            DriverState::Present(_) => SetTimer { before, driver: None, is_driven: true },
        }
    }

    pub(super) fn unset_timer(&mut self, timer: TimerKey) -> Option<Waker> {
        self.timers.unset(timer)
    }
}

/// How far [`State::settle_all`] came.
enum Settled {
    /// Nothing is left, or the budget is used up.
    Done,
    /// [`After`] has no room for the entries of one more completion.
    NoRoom,
    Failed(PollError),
}
