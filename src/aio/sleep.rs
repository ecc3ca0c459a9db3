//! A future that is ready at a time, with the driver of a poller as its clock.

use super::shared_poller::SharedPoller;
use super::timer::Timer;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A future that is ready at a given time. [`SharedPoller::sleep`] makes it.
///
/// The [`Driver`](super::Driver) of the poller wakes its task. Without a driver, the future is polled again and again,
/// as all futures of the poller are.
#[must_use = "it does nothing until it is awaited"]
pub struct Sleep<B> {
    /// `None`: never ready.
    timer: Option<Timer<B>>,
}
static_assertions::assert_impl_all!(Sleep<()>: Send, Sync, Unpin);

impl<B> SharedPoller<B> {
    /// A future that is ready after `duration`. It needs no timer of a runtime: the driver of this poller is its clock.
    ///
    /// # Examples
    ///
    /// ```
    /// use interlock::Context;
    /// use interlock::aio::SharedPoller;
    /// use std::time::{Duration, Instant};
    /// interlock::domain! { struct Docs; }
    ///
    /// let domain = Context::open("soft0")?.named_domain(Docs)?;
    /// let (_queue, poller) = domain.completion_queue(4)?;
    /// let poller = SharedPoller::new(poller);
    /// let mut driver = poller.driver().expect("there is no other driver");
    /// let before = Instant::now();
    /// driver.block_on(poller.sleep(Duration::from_millis(2)))?;
    /// assert!(before.elapsed() >= Duration::from_millis(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sleep(&self, duration: Duration) -> Sleep<B> {
        self.sleep_until(Instant::now().checked_add(duration))
    }

    /// A future that is ready at `at`; never, if that is `None`.
    pub(super) fn sleep_until(&self, at: Option<Instant>) -> Sleep<B> {
        Sleep { timer: at.map(|at| Timer::until(self, at)) }
    }
}

impl<B> Future for Sleep<B> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.timer.as_mut().map_or(Poll::Pending, |timer| timer.poll(context))
    }
}

impl<B> fmt::Debug for Sleep<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("at", &self.timer.as_ref().map(Timer::at)).finish_non_exhaustive()
    }
}
