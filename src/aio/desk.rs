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
mod state;

use super::after::{After, wake_all};
use super::lane::{Left, Parked};
use super::lanes::{Attached, Lanes};
use super::outcome::PollerCounters;
use super::pairs::{Pairs, WatchKey};
use super::timers::Timers;
use crate::completion::{Completion, PollError, WaitError};
use crate::inflight::WorkId;
use crate::memory::Buffer;
use crate::queue::QueueIds;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::types::Qpn;
use state::{Attempt, DriverState};
use std::convert::Infallible;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

pub(super) use state::{State, Turn};

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

/// Reports that a pair is broken: a request of it has failed, or the pair was moved to Error. The drop of this value
/// wakes the tasks that wait at this desk for room in the pair or for its end. (If sends and receives complete on
/// different queues, the pair has two desks. A task at one leaves a waker at the other, so it is woken too.) The drop
/// takes the lock of the desk, so the caller must hold no lock.
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

/// The part of [`Desk::attach`] that must be done without the lock: see [`Desk::settle_late`].
pub(super) struct Late<B> {
    attached: Attached<B>,
    after: After<B>,
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
            |state, waker, mine, after| match state.pairs.park(place, waker, mine, &mut state.lanes.tally, after) {
                Parked::Yes => Parked::NoWait,
                parked => parked,
            },
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
            let _: Poll<Result<(), _>> = self.poll_for(&mut context, |_| None, |_, _, _, _| Parked::NoWait);
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
            let attempt = state.attempt(&mut budget, &mut after, &mut |_| None::<()>, |_, _| Parked::NoWait);
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
