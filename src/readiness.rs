//! Waiting for descriptors: in this library, and in an event loop of the program's own.
//!
//! The descriptors of the verbs themselves are not given out. A read takes an event away, and whoever reads without
//! acknowledging makes the destroy of the event's object wait for ever; and a poller has two of them to watch. So a program
//! gets an `epoll(7)` descriptor over them, which tells no more than that there is something.

use crate::error::VerbError;
use crate::os;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// Tells an event loop when there is something to take: a descriptor that is readable then.
///
/// An `epoll(7)` descriptor, for `poll(2)`, `epoll(7)`, mio's `SourceFd` or tokio's `AsyncFd`. Level-triggered and edge-triggered
/// loops both work: whatever happens anew is a new edge. It may be readable although nothing is there; so look, and wait again.
/// It owns nothing but the descriptor: where the object that it came from is gone, it is never readable again.
///
/// # tokio
///
/// `AsyncFd::new`, and the constructors like it, are deprecated as unsound (RUSTSEC-2026-0386): they take any number for a
/// descriptor. Since then there is `AsyncFd::register`, an `unsafe fn` that asks for a descriptor which stays open and stays the
/// same. A `Readiness` is one, so it may be moved in:
///
/// ```text
/// // SAFETY: a `Readiness` owns its descriptor, which never changes, until it is dropped.
/// let readiness = unsafe { AsyncFd::register(poller.readiness()?) }?;
/// // .. arm until it says `Armed::Empty`, then
/// readiness.readable().await?.clear_ready();
/// ```
///
/// A program without `unsafe` waits for it on a thread of its own ([`wait`](Self::wait)).
///
/// From [`Poller::readiness`](crate::Poller::readiness), [`CompletionChannel::readiness`](crate::CompletionChannel::readiness) and
/// [`AsyncEvents::readiness`](crate::AsyncEvents::readiness), which say what to call before waiting.
#[derive(Debug)]
pub struct Readiness {
    epoll: OwnedFd,
}

impl Readiness {
    /// Readable while one of `fds` is. The caller's descriptors stay the caller's: one that is closed counts no more.
    pub(crate) fn over(fds: &[RawFd]) -> Result<Self, VerbError> {
        let epoll = os::epoll().map_err(|error| failed("epoll_create1", &error))?;
        for &fd in fds {
            os::epoll_add(epoll.as_fd(), fd).map_err(|error| failed("epoll_ctl", &error))?;
        }
        Ok(Self { epoll })
    }

    /// Waits until it is readable, at most for `timeout`; whether it is. For programs without an event loop.
    ///
    /// # Errors
    ///
    /// `poll(2)` failed.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        until_readable([self.epoll.as_raw_fd()], timeout)
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

/// Sleeps until one of `fds` can be read, or for `left`, or until a signal. Whether one can be.
#[cfg(not(miri))]
pub(crate) fn until_readable<const N: usize>(fds: [RawFd; N], left: Duration) -> io::Result<bool> {
    // Rounded up: rounding down would spin through the last millisecond.
    let millis = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    match os::poll_readable(fds, millis) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// Miri has no `poll(2)`; to come back early is allowed.
#[cfg(miri)]
pub(crate) fn until_readable<const N: usize>(_: [RawFd; N], _: Duration) -> io::Result<bool> {
    std::thread::yield_now();
    Ok(false)
}

fn failed(call: &'static str, error: &io::Error) -> VerbError {
    VerbError::new(call, error.raw_os_error().unwrap_or(libc::EMFILE))
}
