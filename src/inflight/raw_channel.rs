//! The two descriptors that a poller sleeps on: a completion channel of the device, and an `eventfd(2)` of the library.
#![forbid(unsafe_code)]

use crate::domain::DomainInner;
use crate::os;
use crate::provider::handles;
use crate::verb_error::{VerbError, note_leak};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::{mem, sync::Arc};

/// An owned completion channel. Dropping this destroys the channel. Each completion queue on the channel keeps this
/// alive.
pub(crate) struct RawChannel {
    handle: Arc<handles::Channel>,
    domain: Arc<DomainInner>,
}

impl RawChannel {
    /// `ibv_create_comp_channel`.
    pub(crate) fn create(domain: &Arc<DomainInner>) -> Result<Arc<Self>, VerbError> {
        let handle = handles::Channel::create(domain.context.open())?;
        Ok(Arc::new(Self { handle: Arc::new(handle), domain: Arc::clone(domain) }))
    }

    pub(super) fn handle(&self) -> &Arc<handles::Channel> {
        &self.handle
    }

    pub(crate) fn domain(&self) -> &Arc<DomainInner> {
        &self.domain
    }

    /// The descriptor, which is readable while events wait. Reading from it does not block.
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        self.handle.fd()
    }

    /// Takes and acknowledges one event, if there is one. Returns the address of its completion queue, which may no
    /// longer exist.
    pub(crate) fn take_event(&self) -> Result<Option<usize>, VerbError> {
        Ok(self.handle.take_event()?.map(|cq| cq.addr().get()))
    }
}

impl Drop for RawChannel {
    fn drop(&mut self) {
        // No completion queue uses the channel any more: each one would keep this `RawChannel` alive.
        if let Err(error) = handles::Channel::end_shared(&mut self.handle, "ibv_destroy_comp_channel") {
            mem::forget(Arc::clone(&self.domain));
            note_leak("a completion channel", error);
        }
    }
}

/// Wakes a sleeping poller when something happens that raises no completion event, such as the end of a queue pair.
#[derive(Debug)]
pub(crate) struct Waker(
    /// An `eventfd(2)`.
    File,
);

impl Waker {
    pub(crate) fn new() -> Result<Self, VerbError> {
        let fd =
            os::eventfd().map_err(|error| VerbError::new("eventfd", error.raw_os_error().unwrap_or(libc::EMFILE)))?;
        Ok(Self(File::from(fd)))
    }

    /// Makes [`fd`](Self::fd) readable until the next [`clear`](Self::clear).
    pub(crate) fn wake(&self) {
        // The write fails only if the counter is full, and then the descriptor is readable already.
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
