//! Wakes a poller that sleeps when something happens that raises no completion event: a pair was destroyed.
#![allow(unsafe_code, reason = "eventfd(2)")]

use crate::error::VerbError;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An `eventfd(2)`.
#[derive(Debug)]
pub(super) struct Waker(File);

impl Waker {
    pub(super) fn new() -> Result<Self, VerbError> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EMFILE);
            return Err(VerbError::new("eventfd", errno));
        }
        // SAFETY: a file descriptor made just now, which nobody else owns.
        Ok(Self(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Makes [`fd`](Self::fd) readable, now and for the next sleeper.
    pub(super) fn wake(&self) {
        // Full means that it is readable already.
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    /// Makes it not readable.
    pub(super) fn clear(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
