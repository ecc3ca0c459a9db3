//! Parts of regions over which windows may be bound.

use super::buffer::{JoinError, SplitError};
use super::part::Part;
use super::{Access, Buffer, MayBind, Memory, MemoryRegion, SplitRegion};
use crate::domain::{Brand, DomainId};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A [`Buffer`] of a region that was registered as [`Windowed`](crate::access::Windowed), so that a window may be bound
/// over it.
///
/// To bind a window over it moves it into the [`BoundWindow`](crate::window::BoundWindow). Until then it is a buffer
/// like any other.
pub struct Bindable<B> {
    /// # Invariants
    ///
    /// 0. Its region has the right to be bound to.
    buffer: Buffer<B>,
}

/// A buffer of a region that was not registered as [`Windowed`](crate::access::Windowed). It comes back.
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

impl<B: Brand, A: Access, M: Memory> MemoryRegion<B, A, M> {
    /// As [`split`](Self::split), into one part for windows.
    pub fn split_bindable(self) -> (SplitRegion<B, A, M>, Bindable<B>)
    where
        A: MayBind,
    {
        let (rest, buffer) = self.split();
        (rest, Bindable { buffer })
    }
}

impl<B> Buffer<B> {
    /// The buffer, to bind windows over.
    ///
    /// # Errors
    ///
    /// Its region is not registered as [`Windowed`](crate::access::Windowed); it comes back.
    pub fn into_bindable(self) -> Result<Bindable<B>, NotBindable<Self>> {
        if self.part().region().may_bind() { Ok(Bindable { buffer: self }) } else { Err(NotBindable { buffer: self }) }
    }
}

impl<B> Bindable<B> {
    /// The part of a window that has ended; its region is as (0) says.
    pub(super) fn of_window(part: Part) -> Self {
        Self { buffer: Buffer::new(part) }
    }

    pub(super) fn into_part(self) -> Part {
        self.buffer.into_part()
    }

    /// Whether its region is of that domain.
    pub(crate) fn is_of(&self, domain: DomainId) -> bool {
        self.buffer.part().is_of(domain)
    }

    /// Its address, and its length and that of its region in bytes.
    pub(crate) fn extent(&self) -> (u64, u64, u64) {
        let part = self.buffer.part();
        (part.device_addr(), part.capacity() as u64, part.region().len_bytes() as u64)
    }

    /// As a buffer, to be posted; [`Buffer::into_bindable`] is the way back.
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
    /// `mid` is not inside; it comes back.
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
