//! Parts of regions over which windows may be bound.

use super::buffer::{JoinError, SplitError};
use super::part::UniquePart;
use super::{Buffer, MayBind};
use crate::domain::DomainId;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A [`Buffer`] of a region that was registered as [`Windowed`](crate::access::Windowed), so that a window may be bound
/// over it.
///
/// It is a buffer like any other until a window is bound over it: binding moves it into the
/// [`BoundWindow`](crate::window::BoundWindow).
pub struct Bindable<B> {
    /// # Invariants
    ///
    /// 0. Windows may be bound over the buffer's region.
    buffer: Buffer<B>,
}

/// The region of a buffer was not registered as [`Windowed`](crate::access::Windowed). The buffer comes back.
#[derive(thiserror::Error)]
#[error("no window can be bound over this buffer: register its region as `Windowed<LocalWrite>`")]
pub struct NotBindable<P> {
    /// The buffer.
    pub buffer: P,
}

impl<P> fmt::Debug for NotBindable<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotBindable").finish_non_exhaustive()
    }
}

impl<B> Buffer<B> {
    /// Turns the buffer into one over which windows can be bound.
    ///
    /// # Errors
    ///
    /// The buffer's region is not registered as [`Windowed`](crate::access::Windowed). The buffer comes back.
    pub fn into_bindable(self) -> Result<Bindable<B>, NotBindable<Self>> {
        if self.descriptor().region().may_bind() {
            Ok(Bindable { buffer: self })
        } else {
            Err(NotBindable { buffer: self })
        }
    }
}

impl<B> Bindable<B> {
    /// A buffer of a region with the rights `A`.
    pub(super) fn of_region<A: MayBind>(buffer: Buffer<B>) -> Self {
        debug_assert!(buffer.descriptor().region().has_rights::<A>());
        Self { buffer }
    }

    /// A part that a window has given back. Its region allows windows (0), because a window takes only such parts.
    pub(super) fn of_window(part: UniquePart) -> Self {
        Self { buffer: Buffer::new(part) }
    }

    pub(super) fn into_part(self) -> UniquePart {
        self.buffer.into_part()
    }

    /// Whether the buffer's region belongs to that domain.
    pub(crate) fn is_of(&self, domain: DomainId) -> bool {
        self.buffer.descriptor().is_of(domain)
    }

    /// Its address, its length in bytes, and the length of its region in bytes.
    pub(crate) fn extent(&self) -> (u64, u64, u64) {
        let part = self.buffer.descriptor();
        (part.device_addr(), part.capacity() as u64, part.region().len_bytes() as u64)
    }

    /// Turns it into a buffer, to be posted. [`Buffer::into_bindable`] is the inverse.
    pub fn into_buffer(self) -> Buffer<B> {
        self.buffer
    }

    /// Its length in bytes. A window is bound over all of it, filled or not.
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// As [`Buffer::split_at`].
    ///
    /// # Errors
    ///
    /// `mid` is not inside. The memory comes back.
    pub fn split_at(self, mid: usize) -> Result<(Self, Self), SplitError<Self>> {
        match self.buffer.split_at(mid) {
            Ok((left, right)) => Ok((Self { buffer: left }, Self { buffer: right })),
            Err(error) => Err(error.map(|buffer| Self { buffer })),
        }
    }

    /// As [`Buffer::join`].
    ///
    /// # Errors
    ///
    /// `next` does not start where this ends; both come back.
    pub fn join(self, next: Self) -> Result<Self, JoinError<Self>> {
        match self.buffer.join(next.buffer) {
            Ok(buffer) => Ok(Self { buffer }),
            Err(JoinError { left, right }) => {
                Err(JoinError { left: Self { buffer: left }, right: Self { buffer: right } })
            }
        }
    }
}

/// The filled bytes of the buffer.
impl<B> Deref for Bindable<B> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl<B> DerefMut for Bindable<B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

impl<B> fmt::Debug for Bindable<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bindable").field(&self.buffer).finish()
    }
}
