//! The driver as a task of a tokio runtime.

use super::desk::Turn;
use super::driver::{Driver, Turns};
use super::timer::LONG;
use crate::completion::WaitError;
use crate::domain::Brand;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::task::{Context, Poll};
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// Runs the driver as a task of the current tokio runtime. The task ends by itself when the driver's work is over.
///
/// # Errors
///
/// The process has no descriptor left.
///
/// # Panics
///
/// Outside of a runtime, or if the runtime has no I/O driver or no timer (`enable_all`).
pub fn spawn<B: Brand + 'static>(driver: Driver<B>) -> Result<JoinHandle<Result<(), WaitError>>, WaitError> {
    let readiness = driver.readiness()?.into_async_fd()?;
    Ok(tokio::spawn(run(driver, readiness)))
}

/// Runs the driver of a channel of rdma_cm as a task of the current tokio runtime. The task ends by itself when the
/// driver's work is over.
///
/// # Errors
///
/// The process has no descriptor left.
///
/// # Panics
///
/// As [`spawn`].
#[cfg(feature = "cm")]
pub fn spawn_channel(driver: super::cm::ChannelDriver) -> Result<JoinHandle<Result<(), WaitError>>, WaitError> {
    let readiness = driver.readiness()?.into_async_fd()?;
    Ok(tokio::spawn(run(driver, readiness)))
}

async fn run(driver: impl Turns, readiness: AsyncFd<OwnedFd>) -> Result<(), WaitError> {
    let mut timer = pin!(sleep_until(Instant::now()));
    let mut poll = |context: &mut Context<'_>| loop {
        let nap = match driver.poll_turn(context) {
            Poll::Ready(Ok(Turn::Over)) => return Poll::Ready(Ok(())),
            Poll::Ready(Ok(Turn::Sleep(nap))) => nap,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        match readiness.poll_read_ready(context) {
            // Clear the readiness before the next turn takes the events. So no event is lost: an event that comes later
            // makes the descriptor ready again.
            Poll::Ready(Ok(mut ready)) => {
                ready.clear_ready();
                continue;
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
            Poll::Pending => {}
        }
        let Some(nap) = nap else { return Poll::Pending };
        timer.as_mut().reset(Instant::now() + nap.min(LONG));
        if timer.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
    };
    poll_fn(&mut poll).await
}
