//! Waiting for descriptors, in this library and in an event loop of the program.
//!
//! The library does not hand out the descriptors of the verbs themselves. Reading one takes an event away, and if that
//! event is not acknowledged, the destroy of its object waits for ever. A poller also has two descriptors to watch. So
//! a program gets an `epoll(7)` descriptor over them, which only tells that there is something to take.

use crate::os;
use crate::verb_error::VerbError;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::Duration;
#[cfg(feature = "tokio")]
use tokio::io::unix::AsyncFd;

/// A descriptor for an event loop. It becomes readable when something may have come, after the call that its source
/// requires: for a poller, `arm` until that returns `Empty`.
///
/// An `epoll(7)` descriptor, for `poll(2)`, `epoll(7)`, mio's `SourceFd` or tokio's `AsyncFd`. Level-triggered and
/// edge-triggered loops both work: each new event is a new edge. It may be readable although there is nothing to take;
/// then wait again. It owns the `epoll` descriptor only: after the object that it came from is gone, it is never
/// readable again.
///
/// # tokio
///
/// With the feature `tokio`, `watch` lets tokio watch the descriptor, without `unsafe` in the program. (The program's
/// own way would be `AsyncFd::register`. That is an `unsafe fn`: the caller promises that the descriptor stays open and
/// stays the same.)
///
/// It comes from [`Poller::readiness`](crate::Poller::readiness),
/// [`CompletionChannel::readiness`](crate::completion::CompletionChannel::readiness) and
/// [`AsyncEvents::readiness`](crate::event::AsyncEvents::readiness), which say what to call before waiting.
#[derive(Debug)]
pub struct Readiness {
    epoll: OwnedFd,
}

impl Readiness {
    /// A descriptor that is readable while one of `fds` is. The `fds` stay the caller's: one that the caller closes is
    /// no longer watched.
    pub(crate) fn over(fds: &[BorrowedFd<'_>]) -> Result<Self, VerbError> {
        let epoll = os::epoll().map_err(|error| failed("epoll_create1", &error))?;
        // Miri cannot watch descriptors, so no descriptor is added to `epoll`. Under Miri, `until_readable` does not
        // wait for descriptors either.
        for &fd in fds.iter().filter(|_| !cfg!(miri)) {
            os::epoll_add(epoll.as_fd(), fd).map_err(|error| failed("epoll_ctl", &error))?;
        }
        Ok(Self { epoll })
    }

    /// Waits until the descriptor is readable, at most for `timeout`, and returns whether it is. For programs without
    /// an event loop.
    ///
    /// # Errors
    ///
    /// `poll(2)` failed.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        until_readable([self.epoll.as_fd()], timeout)
    }
}

#[cfg(feature = "tokio")]
impl Readiness {
    /// Lets tokio watch the descriptor.
    ///
    /// # Errors
    ///
    /// `epoll_ctl(2)` of the runtime failed.
    ///
    /// # Panics
    ///
    /// If the caller is not in a tokio runtime whose IO is enabled.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(context: interlock::Context) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut events = context.events()?;
    /// let readiness = events.readiness()?.watch()?;
    /// loop {
    ///     while let Some(event) = events.poll()? {
    ///         println!("{event:?}");
    ///     }
    ///     readiness.readable().await?;
    /// }
    /// # }
    /// ```
    pub fn watch(self) -> io::Result<WatchedReadiness> {
        self.into_async_fd().map(WatchedReadiness)
    }

    pub(crate) fn into_async_fd(self) -> io::Result<AsyncFd<OwnedFd>> {
        os::watch(self.epoll)
    }
}

/// A [`Readiness`] that tokio watches: see [`watch`](Readiness::watch).
///
/// The `AsyncFd` stays private. Safe methods of an `AsyncFd` exchange its descriptor, which would break the promise to
/// tokio that the descriptor stays the same:
///
/// ```compile_fail,E0599
/// # use interlock::event::WatchedReadiness;
/// fn exchange(mut one: WatchedReadiness, mut other: WatchedReadiness) {
///     std::mem::swap(one.get_mut(), other.get_mut());
/// }
/// ```
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub struct WatchedReadiness(AsyncFd<OwnedFd>);

#[cfg(feature = "tokio")]
impl WatchedReadiness {
    /// Waits until the descriptor is readable. Take all that there is before the next call: it waits for a new event.
    /// If the source has a `next_timer`, look again at that time even if this future is not ready: use it with
    /// `tokio::time::timeout`. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// The runtime is being shut down.
    pub async fn readable(&self) -> io::Result<()> {
        self.0.readable().await?.clear_ready();
        Ok(())
    }

    /// As [`readable`](Self::readable), for a future written by hand. Only the task of the last call is woken.
    ///
    /// # Errors
    ///
    /// As [`readable`](Self::readable).
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read_ready(context).map_ok(|mut ready| ready.clear_ready())
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl AsRawFd for Readiness {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

/// Sleeps until one of `fds` is readable, `left` is over, or a signal comes. Returns whether one is readable.
#[cfg(not(miri))]
pub(crate) fn until_readable<const N: usize>(fds: [BorrowedFd<'_>; N], left: Duration) -> io::Result<bool> {
    match os::poll_readable(fds, left) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// Miri has no `poll(2)`. Callers expect that this may return early.
#[cfg(miri)]
pub(crate) fn until_readable<const N: usize>(_: [BorrowedFd<'_>; N], _: Duration) -> io::Result<bool> {
    std::thread::yield_now();
    Ok(false)
}

fn failed(call: &'static str, error: &io::Error) -> VerbError {
    VerbError::new(call, error.raw_os_error().unwrap_or(libc::EMFILE))
}
