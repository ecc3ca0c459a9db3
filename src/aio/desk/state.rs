//! What the lock of the desk guards, and the steps that a task or the driver takes while it holds the lock.

use super::{BUDGET, Poller};
use crate::aio::after::After;
use crate::aio::lane::Parked;
use crate::aio::lanes::Lanes;
use crate::aio::outcome::PollerCounters;
use crate::aio::pairs::Pairs;
use crate::aio::timers::{SetTimer, TimerKey, Timers};
use crate::completion::{Armed, Completion, PollError, WaitError, WakeFor};
use crate::inflight::WorkId;
use crate::types::Qpn;
use std::task::{Context, Waker};
use std::time::Duration;

/// What the lock guards.
pub(in crate::aio) struct State<B> {
    pub(in crate::aio) poller: Poller<B>,
    pub(in crate::aio) lanes: Lanes<B>,
    pub(in crate::aio) pairs: Pairs,
    /// Whether the completion queue is armed, or has raised an event that the driver has not taken yet.
    pub(super) is_armed: bool,
    pub(super) driver: DriverState,
    pub(super) timers: Timers,
    /// How many handles there are. The futures of requests do not count.
    pub(super) handles: usize,
    pub(in crate::aio) counters: PollerCounters,
}

/// Whether there is a driver, which sleeps for all tasks.
pub(super) enum DriverState {
    Absent,
    /// There is a driver. The waker is that of the driver's task: `None` before the first sleep, and after the waker
    /// was taken to wake the driver.
    Present(Option<Waker>),
}

/// How one attempt under the lock ended.
pub(super) enum Attempt<R> {
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

/// What the driver does after a turn.
pub(in crate::aio) enum Turn {
    /// Sleep until the descriptor is readable, or for at most this long.
    Sleep(Option<Duration>),
    /// End.
    Over,
}

impl<B> State<B> {
    /// Whether the second rule of the desk allows the caller to release the lock. False if somebody waits while the
    /// poller keeps completions. False also while the poller has unread mail of pairs that came or went.
    #[inline(always)]
    pub(super) fn may_release(&self) -> bool {
        (self.lanes.tally.waits == 0 || !self.poller.holds_completions()) && !self.poller.has_mail()
    }

    /// Wakes all tasks that the end of a pair concerns.
    pub(super) fn note_broken(&mut self, pair: Qpn, after: &mut After<B>) {
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
    pub(super) fn settle(&mut self, completion: Completion<B>, after: &mut After<B>) {
        if !completion.is_success() {
            self.note_failure(&completion, after);
        }
        self.lanes.place(completion, after);
    }

    /// The part of `Desk::try_for` that polls.
    #[inline(always)]
    pub(super) fn poll_until(
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
            // A check above can fail even for the wanted completion. Then `settle` puts that completion in its place.
            // While somebody waits, this is common: `may_release` is false as long as the poller holds completions. So
            // let `kept` look in that place. While nobody waits, this is rare, and the caller's slow path finds the
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
    pub(super) fn attempt<R>(
        &mut self,
        budget: &mut u32,
        after: &mut After<B>,
        ready: &mut impl FnMut(&mut Self) -> Option<R>,
        mut park: impl FnMut(&mut Self, &mut After<B>) -> Parked,
    ) -> Attempt<R> {
        loop {
            let settled = self.settle_all(budget, after);
            // Let the caller run `after` first: an entry of `after` can panic. If `ready` took something before, the
            // panic would lose it.
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
                // Perhaps `arm` took the event that should have woken the driver, and read the mail that raised the
                // event. This task may return before it reads `next_timer` below. So wake the driver, which reads
                // `next_timer`.
                armed => {
                    if let Some(driver) = self.take_driver() {
                        after.wake(driver);
                    }
                    if armed.is_err() {
                        return Attempt::Yield;
                    }
                    continue;
                }
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
                Parked::NoWait => Attempt::Parked,
                Parked::Yes => {
                    self.counters.sleeps += 1;
                    Attempt::Parked
                }
            };
        }
    }

    /// The next completion. What the poller has no more use for goes to `after`.
    #[inline]
    pub(super) fn poll(&mut self, after: &mut After<B>) -> Result<Option<Completion<B>>, PollError> {
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
                // `poll` has put leftovers of the poller into `after` until no room was to spare, and the poller has
                // more of them. So the caller runs `after` and tries again.
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

    pub(super) fn take_driver(&mut self) -> Option<Waker> {
        match &mut self.driver {
            DriverState::Present(waker) => waker.take(),
            DriverState::Absent => None,
        }
    }

    pub(super) fn turn(
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
                // Let the caller run `after` first: an entry of `after` can panic. If the wakers were taken before, the
                // panic would lose them.
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

    /// Whether the driver has nobody to sleep for once there are no handles. If some requests may never come out,
    /// abandoned requests do not keep the driver. The end of the completion queue frees their memory.
    fn is_over(&self) -> bool {
        self.lanes.tally.waits == 0 || self.lanes.tally.has_no_future() && self.poller.may_keep_requests()
    }

    /// Takes the wakers of all who wait. Those tasks will poll again. Abandoned requests stay noted.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = self.lanes.take_wakers();
        self.pairs.take_wakers(&mut self.lanes.tally, &mut wakers);
        self.timers.take_wakers(&mut wakers);
        wakers
    }

    /// Keeps the waker of a timer. Returns the wakers that must be dropped or woken without the lock.
    pub(in crate::aio) fn set_timer(&mut self, timer: TimerKey, waker: Waker) -> SetTimer {
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

    pub(in crate::aio) fn unset_timer(&mut self, timer: TimerKey) -> Option<Waker> {
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
