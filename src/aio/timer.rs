//! A time to wait for. The driver of a shared poller is the clock, so no runtime is needed.

use super::shared_poller::SharedPoller;
use super::timers::TimerKey;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// 30 years, the longest wait. tokio adds to the time that it gets, and panics if the sum is too large for an
/// [`Instant`].
pub(super) const LONG: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The time `left` from now, but at most [`LONG`] from now.
pub(super) fn after(left: Duration) -> Instant {
    Instant::now() + left.min(LONG)
}

/// A time to wait for. Without a driver, the task that waits polls again and again.
pub(super) struct Timer<B> {
    poller: SharedPoller<B>,
    key: TimerKey,
    is_set: bool,
}

impl<B> Timer<B> {
    /// A timer that is over [after `left`](after).
    pub(super) fn after(poller: &SharedPoller<B>, left: Duration) -> Self {
        Self::until(poller, after(left))
    }

    /// A timer that is over at `at`.
    pub(super) fn until(poller: &SharedPoller<B>, at: Instant) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self { poller: poller.clone(), key: (at, NUMBERS.fetch_add(1, Ordering::Relaxed)), is_set: false }
    }

    /// When the timer is over.
    pub(super) fn at(&self) -> Instant {
        self.key.0
    }

    /// Starts the timer again: it is over after `left`.
    pub(super) fn restart(&mut self, left: Duration) {
        let poller = self.poller.clone();
        *self = Self::after(&poller, left);
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.key.0 {
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        let set = self.poller.desk().with(|state| state.set_timer(self.key, waker));
        self.is_set = true;
        drop(set.before);
        if let Some(driver) = set.driver {
            driver.wake();
        }
        if !set.is_driven {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<B> Drop for Timer<B> {
    fn drop(&mut self) {
        if self.is_set {
            drop(self.poller.desk().with(|state| state.unset_timer(self.key)));
        }
    }
}
