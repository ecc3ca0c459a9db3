//! Errors of registering memory, of ending a registration, of making a region whole again, and of offsets.

use super::huge::NoHugePages;
use super::locked::LockedMemoryLimit;
use super::pages::NoPages;
use crate::device::iwarp::NotOnIwarp;
use crate::sys;
use crate::verb_error::VerbError;
use std::{error, fmt};

/// Why memory was not registered. The memory comes back.
pub struct RegisterError<M> {
    /// The memory, unchanged.
    pub memory: M,
    /// The reason.
    pub source: RegisterFailure,
}

impl<M> RegisterError<M> {
    /// The error without the memory, which is dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> RegisterFailure {
        self.source
    }
}

impl<M> fmt::Debug for RegisterError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisterError").field("source", &self.source).finish_non_exhaustive()
    }
}

impl<M> fmt::Display for RegisterError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl<M> error::Error for RegisterError<M> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        error::Error::source(&self.source)
    }
}

impl<M> From<RegisterError<M>> for RegisterFailure {
    fn from(error: RegisterError<M>) -> Self {
        error.source
    }
}

/// The reason why memory was not registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterFailure {
    /// The memory has no bytes.
    #[error("a memory region must have at least one byte")]
    Empty,
    /// The buffer has too many nested registrations already.
    #[error("a buffer can be registered at most {most} times at once: deregister it first")]
    TooDeep {
        /// The limit.
        most: u8,
    },
    /// Memory that peers reach must consist of whole aligned words, because the program accesses it by atomic words.
    #[error(
        "memory that peers can access must be 8-byte aligned and a multiple of 8 bytes long, \
         not {len_bytes} bytes at {address:#x} (use `Pages` or a `Box<[u64]>`)"
    )]
    NotInWords {
        /// The address of its first byte.
        address: usize,
        /// Its length.
        len_bytes: usize,
    },
    /// Memory that peers address from 0 on must start on a page.
    #[error(
        "memory registered as `ZeroBased` must start on a page of {page_bytes} bytes, not at {address:#x} (use `Pages`)"
    )]
    NotInPages {
        /// The address of its first byte.
        address: usize,
        /// The length of a page.
        page_bytes: usize,
    },
    /// The limit of locked memory is probably too low.
    #[error(transparent)]
    LockedMemoryLimit(LockedMemoryLimit),
    /// The device lacks a feature.
    #[error("the device does not support {feature}: register memory without it")]
    Unsupported {
        /// The feature.
        feature: &'static str,
        /// What the device answered.
        source: VerbError,
    },
    /// The rights allow requests that an iWARP device does not have.
    #[error(transparent)]
    NotOnIwarp(NotOnIwarp),
    /// The system did not map the memory.
    #[error(transparent)]
    NoPages(#[from] NoPages),
    /// There are not enough huge pages.
    #[error(transparent)]
    NoHugePages(#[from] NoHugePages),
    /// The device answered with an error.
    #[error(transparent)]
    Verb(VerbError),
}

impl RegisterFailure {
    /// The failure that `source` stands for, in a registration of `needed_bytes`. `has_paging` asks the device whether
    /// it has on-demand paging.
    pub(super) fn of(
        source: VerbError,
        needed_bytes: usize,
        rights: sys::ibv_access_flags,
        has_paging: impl Fn() -> bool,
    ) -> Self {
        let paging = rights.0 & sys::ibv_access_flags::IBV_ACCESS_ON_DEMAND.0 != 0;
        match (source.errno(), source.verb()) {
            (libc::ENOMEM, _) => {
                LockedMemoryLimit::of(source, needed_bytes).map_or(Self::Verb(source), Self::LockedMemoryLimit)
            }
            (libc::EOPNOTSUPP, "ibv_reg_dmabuf_mr") => Self::Unsupported { feature: "dma-bufs", source },
            // Some kernels answer `EINVAL` to an access flag that they do not know. So ask the device whether it has
            // on-demand paging.
            (libc::EOPNOTSUPP | libc::EINVAL, _) if paging && !has_paging() => {
                Self::Unsupported { feature: "on-demand paging", source }
            }
            _ => Self::Verb(source),
        }
    }
}

/// The memory of a region does not come back, because the device or a peer may still use it. The region comes back.
///
/// Either the device did not deregister the region, which is still registered. Or, on soft iWARP, the registration has
/// ended, but a peer may go on with a read or a write that it has begun.
#[derive(thiserror::Error)]
#[error(
    "the memory does not come back, because the device or a peer may still use it: drop the region, or try again \
     unless the cause is `EOPNOTSUPP` (see docs/failures.md#not-destroyed)"
)]
pub struct DeregisterError<R> {
    /// The region.
    pub region: R,
    /// What the device answered. On soft iWARP also: `EOPNOTSUPP` of `ibv_dereg_mr` for memory that peers may read, and
    /// an error of `membarrier` for memory that peers may only write.
    pub source: VerbError,
}

impl<R> DeregisterError<R> {
    pub(super) fn map<S>(self, f: impl FnOnce(R) -> S) -> DeregisterError<S> {
        DeregisterError { region: f(self.region), source: self.source }
    }

    /// The error without the region, which is dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> VerbError {
        self.source
    }
}

impl<R> fmt::Debug for DeregisterError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeregisterError").field("source", &self.source).finish_non_exhaustive()
    }
}

impl<R> From<DeregisterError<R>> for VerbError {
    fn from(error: DeregisterError<R>) -> Self {
        error.source
    }
}

/// The buffer is not all of the region. Both come back.
#[derive(thiserror::Error)]
#[error("the buffer is not all of the region, or belongs to another region: first join all parts of this region")]
pub struct RejoinError<R, P> {
    /// The rest of the region.
    pub region: R,
    /// The buffer.
    pub buffer: P,
}

impl<R, P> RejoinError<R, P> {
    /// The error without the region and the buffer, which are dropped. The result has no brand, so it can leave the
    /// closure of [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> RejoinError<(), ()> {
        RejoinError { region: (), buffer: () }
    }
}

impl<R, P> fmt::Debug for RejoinError<R, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejoinError").finish_non_exhaustive()
    }
}

/// A range that is not inside the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len_bytes} bytes at offset {offset} do not fit inside {within} bytes")]
pub struct OutOfBounds {
    /// The offset of the range in bytes.
    pub offset: u64,
    /// The length of the range in bytes.
    pub len_bytes: u64,
    /// The length of the memory in bytes.
    pub within: u64,
}

impl OutOfBounds {
    /// Checks that `len_bytes` at `offset` are inside `within`.
    pub(super) fn check(offset: u64, len_bytes: u64, within: u64) -> Result<(), Self> {
        let inside = offset.checked_add(len_bytes).is_some_and(|end| end <= within);
        if inside { Ok(()) } else { Err(Self { offset, len_bytes, within }) }
    }
}
