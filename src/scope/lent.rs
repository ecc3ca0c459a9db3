//! Handles of memory that the program lends to a scope.

use super::ScopeRules;
use crate::domain::Brand;
use crate::inflight::PostedMemory;
use crate::memory::Buffer;
use crate::memory::{
    Access, Exposed, MemoryRegion, OutOfBounds, PeerCannotWrite, Plain, RemoteRegion, SharedBuffer, SplitError, TooLong,
};
use crate::queue::SendMemory;
use crate::seal::Key;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

/// Bytes that are lent to a scope to be read: by [`Scope::lend`](super::Scope::lend). Clones and slices share one
/// registration, and may be in flight many times at once.
pub struct Lent<'scope, B> {
    share: SharedBuffer<B>,
    rules: ScopeRules<'scope>,
}

/// Bytes that are lent to a scope to be written: by [`Scope::lend_mut`](super::Scope::lend_mut).
///
/// It works like a [`Buffer`]: [`Deref`] gives the filled part of its capacity, posting moves it away, and
/// [`Scope::wait`](super::Scope::wait) gives it back.
pub struct LentMut<'scope, B> {
    buffer: Buffer<B>,
    rules: ScopeRules<'scope>,
}

/// Words that are lent to peers for as long as a scope lasts: by [`Scope::grant`](super::Scope::grant).
pub struct Granted<'scope, B, A> {
    region: MemoryRegion<B, A>,
    rules: ScopeRules<'scope>,
}

static_assertions::assert_impl_all!(Lent<'static, ()>: Send, Sync);
static_assertions::assert_impl_all!(LentMut<'static, ()>: Send, Sync);
static_assertions::assert_not_impl_any!(LentMut<'static, ()>: Clone, Copy);

impl<B> Lent<'_, B> {
    pub(super) fn new(share: SharedBuffer<B>) -> Self {
        Self { share, rules: PhantomData }
    }

    /// The bytes in `range`, which may be empty, as memory of the same registration.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    pub fn slice(&self, range: Range<usize>) -> Result<Self, OutOfBounds> {
        Ok(Self::new(self.share.slice(range)?))
    }
}

impl<B> Clone for Lent<'_, B> {
    fn clone(&self) -> Self {
        Self::new(self.share.clone())
    }
}

impl<B> Deref for Lent<'_, B> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.share
    }
}

impl<B> LentMut<'_, B> {
    pub(super) fn new(buffer: Buffer<B>) -> Self {
        Self { buffer, rules: PhantomData }
    }

    /// How many bytes fit, which is how many were lent.
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Sets the length of the filled part, which a send takes and [`Deref`] gives.
    ///
    /// # Errors
    ///
    /// More than the capacity; nothing changes.
    pub fn set_len(&mut self, len_bytes: usize) -> Result<(), TooLong> {
        self.buffer.set_len(len_bytes)
    }

    /// Splits the memory in two at `mid` of its capacity. Both parts count as filled, and share the registration.
    ///
    /// # Errors
    ///
    /// `mid` is beyond the capacity. The memory comes back.
    pub fn split_at(self, mid: usize) -> Result<(Self, Self), SplitError<Self>> {
        match self.buffer.split_at(mid) {
            Ok((left, right)) => Ok((Self::new(left), Self::new(right))),
            Err(error) => Err(error.map(Self::new)),
        }
    }
}

impl<B> Deref for LentMut<'_, B> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl<B> DerefMut for LentMut<'_, B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

impl<B: Brand, A: Access> Granted<'_, B, A> {
    pub(super) fn new(region: MemoryRegion<B, A>) -> Self {
        Self { region, rules: PhantomData }
    }
}

impl<B: Brand, A: Exposed> Granted<'_, B, A> {
    /// The record that a peer needs to reach the memory: send its bytes to the peer. After the scope, requests of the
    /// peer fail.
    pub fn remote(&self) -> RemoteRegion<A> {
        self.region.remote()
    }

    /// Its length in bytes: a multiple of 8.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// The bytes, if the peer has no right to change them.
    pub fn as_bytes(&self) -> &[u8]
    where
        A: PeerCannotWrite,
    {
        self.region.as_bytes()
    }

    /// Copies the bytes at `offset` out, word by word: as [`MemoryRegion::read_into`].
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn read_into(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        self.region.read_into(offset, bytes)
    }

    /// Copies `bytes` in at `offset`, word by word: as [`MemoryRegion::write_from`].
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn write_from(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.region.write_from(offset, bytes)
    }

    /// Copies the values at `offset` out: as [`MemoryRegion::read_slice`].
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn read_slice<T: Plain>(&self, offset: usize, values: &mut [T]) -> Result<(), OutOfBounds> {
        self.region.read_slice(offset, values)
    }

    /// Copies `values` in at `offset`: as [`MemoryRegion::write_slice`].
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn write_slice<T: Plain>(&mut self, offset: usize, values: &[T]) -> Result<(), OutOfBounds> {
        self.region.write_slice(offset, values)
    }

    /// Loads the word at `offset`, a multiple of 8; native byte order.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], also where `offset` is not a multiple of 8.
    pub fn load(&self, offset: usize) -> Result<u64, OutOfBounds> {
        self.region.load(offset)
    }

    /// Stores the word at `offset`, a multiple of 8; native byte order.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn store(&mut self, offset: usize, value: u64) -> Result<(), OutOfBounds> {
        self.region.store(offset, value)
    }
}

impl<B> fmt::Debug for Lent<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<B> fmt::Debug for LentMut<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, capacity) = (self.len(), self.capacity());
        f.debug_struct("LentMut").field("len", &len).field("capacity", &capacity).finish_non_exhaustive()
    }
}

impl<B, A> fmt::Debug for Granted<'_, B, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Granted").field("region", &self.region).finish_non_exhaustive()
    }
}

mod sealed {
    use super::{Key, PostedMemory, SendMemory};

    #[allow(unnameable_types, reason = "seals `LentMemory`")]
    pub trait Sealed<B>: Sized {
        type Inner: SendMemory<B>;
        fn into_inner(self, key: Key) -> Self::Inner;
        fn from_inner(inner: Self::Inner, key: Key) -> Self;
        /// The handle of the memory that was posted; `None` if the memory is of the other kind.
        fn from_posted(memory: PostedMemory<B>, key: Key) -> Option<Self>;
    }
}

/// Memory that is lent to the scope `'scope`: [`Lent`] and [`LentMut`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not memory that was lent to this scope",
    label = "not lent to this scope",
    note = "lend memory that outlives the scope with `scope.lend(&bytes)` or `scope.lend_mut(&mut bytes)`"
)]
pub trait LentMemory<'scope, B>: sealed::Sealed<B> {}

impl<'scope, B> LentMemory<'scope, B> for Lent<'scope, B> {}
impl<B> sealed::Sealed<B> for Lent<'_, B> {
    type Inner = SharedBuffer<B>;
    fn into_inner(self, _: Key) -> SharedBuffer<B> {
        self.share
    }
    fn from_inner(inner: SharedBuffer<B>, _: Key) -> Self {
        Self::new(inner)
    }
    fn from_posted(memory: PostedMemory<B>, _: Key) -> Option<Self> {
        memory.into_shared().map(Self::new)
    }
}

impl<'scope, B> LentMemory<'scope, B> for LentMut<'scope, B> {}
impl<B> sealed::Sealed<B> for LentMut<'_, B> {
    type Inner = Buffer<B>;
    fn into_inner(self, _: Key) -> Buffer<B> {
        self.buffer
    }
    fn from_inner(inner: Buffer<B>, _: Key) -> Self {
        Self::new(inner)
    }
    fn from_posted(memory: PostedMemory<B>, _: Key) -> Option<Self> {
        memory.into_buffer().map(Self::new)
    }
}
