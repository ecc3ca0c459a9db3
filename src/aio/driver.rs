//! The driver of a shared poller, which sleeps for all tasks.

use super::desk::{Desk, Turn};
use crate::completion::WaitError;
use crate::inflight::Waker as Bell;
use crate::readiness::{Readiness, until_readable};
use crate::verb_error::VerbError;
use std::fmt;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// Sleeps on the completion queue for all tasks that wait, and polls for them when an event comes.
///
/// Run it with [`run_on_thread`](Self::run_on_thread), which goes with any executor or none, or with
/// `interlock::aio::spawn` on a tokio runtime (feature `tokio`). The driver ends by itself when its poller has no
/// handles any more, such as a [`SharedPoller`](super::SharedPoller), a [`Sender`](super::Sender) or a
/// [`Receiver`](super::Receiver), and nobody waits. It does not wait for requests of dropped futures that perhaps never
/// complete: their memory is freed at the latest when the completion queue is dropped.
///
/// Dropping the driver early loses nothing: all tasks that wait are woken, and poll again and again until there is
/// another driver.
#[must_use = "it does nothing until it is run"]
pub struct Driver<B> {
    desk: Arc<Desk<B>>,
}

/// What a driver does between two sleeps.
pub(super) trait Turns {
    /// A descriptor that is readable when the driver has something to do.
    fn readiness(&self) -> Result<Readiness, VerbError>;

    /// Takes one turn: polls for all tasks, and says whether the driver may sleep.
    fn poll_turn(&self, context: &mut Context<'_>) -> Poll<Result<Turn, WaitError>>;
}

impl<B> Turns for Driver<B> {
    fn readiness(&self) -> Result<Readiness, VerbError> {
        self.desk.with(|state| state.poller.readiness())
    }

    fn poll_turn(&self, context: &mut Context<'_>) -> Poll<Result<Turn, WaitError>> {
        self.desk.drive(context)
    }
}

/// Takes turns on this thread, until the work is over.
pub(super) fn run_on_thread(turns: &impl Turns) -> Result<(), WaitError> {
    let sleeper = Sleeper::new(turns)?;
    let waker = sleeper.waker();
    let mut context = Context::from_waker(&waker);
    loop {
        match turns.poll_turn(&mut context) {
            Poll::Ready(Ok(Turn::Over)) => return Ok(()),
            Poll::Ready(Ok(Turn::Sleep(nap))) => sleeper.sleep(nap)?,
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Pending => {}
        }
    }
}

/// How long a driver thread sleeps if no timer is set. Nothing depends on this value.
const LONG: Duration = Duration::from_secs(3600);

impl<B> Driver<B> {
    pub(super) fn enter(desk: &Arc<Desk<B>>) -> Option<Self> {
        desk.enter_driver().then(|| Self { desk: Arc::clone(desk) })
    }

    /// Runs the driver on this thread until its work is over.
    ///
    /// # Errors
    ///
    /// [`WaitError`]: the completion queue or its channel failed.
    pub fn run_on_thread(self) -> Result<(), WaitError> {
        run_on_thread(&self)
    }

    /// Runs `future` on this thread, and takes a turn of the driver between the polls of `future`. For programs without
    /// a runtime, and for tests.
    ///
    /// # Errors
    ///
    /// [`WaitError`]: the completion queue or its channel failed. The future is dropped.
    pub fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, WaitError> {
        let sleeper = Sleeper::new(self)?;
        let waker = sleeper.waker();
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Ok(output);
            }
            match self.poll_turn(&mut context) {
                // `Over`: the poller has no handles, and nobody waits at it. But `future` is not ready, so it waits for
                // something else. Sleep until the waker is called, then poll `future` again.
                Poll::Ready(Ok(Turn::Over)) => sleeper.sleep(None)?,
                Poll::Ready(Ok(Turn::Sleep(nap))) => sleeper.sleep(nap)?,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {}
            }
        }
    }
}

impl<B> Drop for Driver<B> {
    fn drop(&mut self) {
        self.desk.leave_driver();
    }
}

impl<B> fmt::Debug for Driver<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// A thread that sleeps until the completion queue or a waker wakes it.
struct Sleeper {
    readiness: Readiness,
    alarm: Arc<Alarm>,
}

/// The bell that the waker of a [`Sleeper`] rings.
struct Alarm(Bell);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

impl Sleeper {
    fn new(turns: &impl Turns) -> Result<Self, WaitError> {
        Ok(Self { readiness: turns.readiness()?, alarm: Arc::new(Alarm(Bell::new()?)) })
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.alarm))
    }

    /// Sleeps until there is something to do, or for `nap`. May wake up early.
    fn sleep(&self, nap: Option<Duration>) -> Result<(), WaitError> {
        until_readable([self.readiness.as_fd(), self.alarm.0.fd()], nap.unwrap_or(LONG))?;
        self.alarm.0.clear();
        Ok(())
    }
}

/// Runs `future` on this thread, which sleeps while the future waits. The pollers that the future uses need drivers
/// elsewhere, for example [`Driver::run_on_thread`] on another thread. Without a driver, the future is polled again and
/// again.
pub fn block_on<F: Future>(future: F) -> F::Output {
    /// Wakes a thread that is parked.
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
