//! The timers of a shared poller. Its driver wakes the tasks that wait for them.

use super::after::After;
use std::collections::BTreeMap;
use std::task::Waker;
use std::time::{Duration, Instant};

/// When a timer is over, and a number that tells timers of the same time apart.
pub(super) type TimerKey = (Instant, u64);

/// The timers for which somebody waits.
#[derive(Default)]
pub(super) struct Timers(BTreeMap<TimerKey, Waker>);

impl Timers {
    pub(super) fn set(&mut self, timer: TimerKey, waker: Waker) -> Option<Waker> {
        self.0.insert(timer, waker)
    }

    pub(super) fn unset(&mut self, timer: TimerKey) -> Option<Waker> {
        self.0.remove(&timer)
    }

    pub(super) fn is_next(&self, timer: TimerKey) -> bool {
        self.0.first_key_value().is_some_and(|(next, _)| *next == timer)
    }

    /// How long it takes until the next timer is over.
    pub(super) fn left(&self) -> Option<Duration> {
        self.0.first_key_value().map(|((at, _), _)| at.saturating_duration_since(Instant::now()))
    }

    /// Wakes the tasks whose timers are over. False if `after` has no room for all of their wakers.
    pub(super) fn ring<B>(&mut self, after: &mut After<B>) -> bool {
        while self.left().is_some_and(|left| left.is_zero()) {
            if !after.has_room() {
                return false;
            }
            if let Some((_, waker)) = self.0.pop_first() {
                after.wake(waker);
            }
        }
        true
    }

    pub(super) fn take_wakers(&mut self, into: &mut Vec<Waker>) {
        into.extend(std::mem::take(&mut self.0).into_values());
    }
}

/// What setting a timer returns: wakers to drop or wake without the lock.
pub(super) struct SetTimer {
    /// The waker that the timer had before, to be dropped.
    pub(super) before: Option<Waker>,
    /// The waker of the driver, to be woken if the driver must learn of this timer.
    pub(super) driver: Option<Waker>,
    /// Whether there is a driver.
    pub(super) is_driven: bool,
}
