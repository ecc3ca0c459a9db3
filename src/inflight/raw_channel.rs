//! The two descriptors that a poller sleeps on: a completion channel of the device, and an `eventfd(2)` of the library.
//!
//! `eventfd(2)` is called through libc: two calls do not pay for a crate of wrappers, and libc is a dependency anyway.
#![allow(unsafe_code, reason = "owns a completion channel; eventfd(2)")]

use crate::domain::DomainInner;
use crate::sys;
use crate::verb_error::{VerbError, note_leak};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::{mem, ptr::NonNull, sync::Arc};

/// A pointer to an object of the device. Having it allows nothing: a verb on it takes `unsafe` code, which answers for
/// the object being alive.
pub(super) struct ObjectPtr<T>(pub(super) NonNull<T>);

// SAFETY: verbs may be called from any thread (see `ContextInner`), and only `unsafe` code uses the pointer.
unsafe impl<T> Send for ObjectPtr<T> {}
// SAFETY: shared access copies the pointer.
unsafe impl<T> Sync for ObjectPtr<T> {}

/// An owned completion channel. Dropping it destroys it, so each completion queue on it keeps it alive.
pub(crate) struct RawChannel {
    /// # Invariants
    ///
    /// 0. Came from the provider of the domain's context, and is alive until this is dropped.
    raw: ObjectPtr<sys::ibv_comp_channel>,
    fd: RawFd,
    domain: Arc<DomainInner>,
}

impl RawChannel {
    /// `ibv_create_comp_channel`.
    pub(crate) fn create(domain: &Arc<DomainInner>) -> Result<Arc<Self>, VerbError> {
        // SAFETY: the domain keeps its context open.
        let raw = unsafe { domain.context.provider.create_comp_channel(domain.context.raw) }?;
        // SAFETY: created just now; nobody changes the field afterwards.
        let fd = unsafe { (*raw.as_ptr()).fd };
        Ok(Arc::new(Self { raw: ObjectPtr(raw), fd, domain: Arc::clone(domain) }))
    }

    pub(super) fn as_ptr(&self) -> NonNull<sys::ibv_comp_channel> {
        self.raw.0
    }

    pub(crate) fn domain(&self) -> &Arc<DomainInner> {
        &self.domain
    }

    /// The descriptor that is readable while events wait. It does not block.
    pub(crate) fn fd(&self) -> RawFd {
        self.fd
    }

    /// Takes and acknowledges one event, if there is one; gives the address of its completion queue, which may be gone
    /// by now.
    pub(crate) fn take_event(&self) -> Result<Option<usize>, VerbError> {
        // SAFETY: alive (0).
        let event = unsafe { self.domain.context.provider.take_cq_event_of(self.raw.0) }?;
        Ok(event.map(|cq| cq.addr().get()))
    }
}

impl Drop for RawChannel {
    fn drop(&mut self) {
        // SAFETY: alive (0), and nobody else destroys it. No completion queue uses it, since each keeps this alive.
        if let Err(error) = unsafe { self.domain.context.provider.destroy_comp_channel(self.raw.0) } {
            mem::forget(Arc::clone(&self.domain));
            note_leak("a completion channel", error);
        }
    }
}

/// Wakes a poller that sleeps when something happens that raises no completion event, such as the end of a queue pair.
#[derive(Debug)]
pub(crate) struct Waker(
    /// An `eventfd(2)`.
    File,
);

impl Waker {
    pub(crate) fn new() -> Result<Self, VerbError> {
        // SAFETY: takes numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EMFILE);
            return Err(VerbError::new("eventfd", errno));
        }
        // SAFETY: made just now, so nobody else owns it.
        Ok(Self(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Makes [`fd`](Self::fd) readable until the next [`clear`](Self::clear).
    pub(crate) fn wake(&self) {
        // A write fails only if the counter is full, and then the descriptor is readable.
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
