//! Buffers: disjoint parts of a region that no peer can write, posted by move.

use super::owners::Memory;
use super::owners::sealed::Sealed;
pub use super::part::NotUniqueReason;
use super::part::{Descriptor, SharedPart, UniquePart};
use super::registration::sealed::Owner;
use super::registration::{Parts, TakenApart};
use super::{OutOfBounds, Plain, Viewable};
use crate::domain::brand::Branded;
use crate::seal::Key;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::{fmt, mem, ptr};
use zerocopy::{FromBytes, KnownLayout};

/// A part of a region of domain `B` that nobody but this program owns. One word.
///
/// The filled part is at the front of its capacity: [`Deref`] gives the filled part, a send sends it, and a receive
/// sets it. Posting moves the buffer away; the completion gives it back.
///
/// The region is deregistered and freed when its last buffer is dropped.
#[repr(transparent)]
pub struct Buffer<B> {
    part: UniquePart,
    brand: Branded<B>,
}

impl<B> Buffer<B> {
    #[inline(always)]
    pub(crate) fn new(part: UniquePart) -> Self {
        Self { part, brand: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn into_part(self) -> UniquePart {
        self.part
    }

    #[inline(always)]
    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.part
    }

    /// How many bytes fit.
    pub fn capacity(&self) -> usize {
        self.part.capacity()
    }

    /// How many bytes at the front are filled.
    pub fn len(&self) -> usize {
        self.part.filled()
    }

    /// Whether nothing is filled.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets how many bytes are filled. The bytes themselves do not change: those that were not written are zero or
    /// older data.
    ///
    /// # Errors
    ///
    /// More than the capacity; nothing changes.
    pub fn set_len(&mut self, len_bytes: usize) -> Result<(), TooLong> {
        let fits = len_bytes <= self.capacity();
        fits.then(|| self.part.set_filled(len_bytes)).ok_or(TooLong { len_bytes, capacity: self.capacity() })
    }

    /// Replaces the filled part by `bytes`.
    ///
    /// # Errors
    ///
    /// More than the capacity; nothing changes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        self.set_len(bytes.len())?;
        self.copy_from_slice(bytes);
        Ok(())
    }

    /// Splits the buffer in two at byte `mid` of its capacity. All of both parts counts as filled.
    ///
    /// # Errors
    ///
    /// `mid` is not inside; the buffer comes back.
    pub fn split_at(self, mid: usize) -> Result<(Self, Self), SplitError<Self>> {
        match self.part.split_at(mid) {
            Ok((left, right)) => Ok((Self::new(left), Self::new(right))),
            Err(part) => Err(SplitError { mid, capacity: part.capacity(), buffer: Self::new(part) }),
        }
    }

    /// Splits the buffer into parts of `len_bytes`; the last part may be shorter.
    ///
    /// A length of 0 gives the buffer as one part.
    pub fn into_chunks(self, len_bytes: usize) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut rest = self;
        loop {
            match rest.split_at(len_bytes) {
                Ok((part, after)) => {
                    parts.push(part);
                    rest = after;
                }
                Err(last) => {
                    parts.push(last.buffer);
                    return parts;
                }
            }
        }
    }

    /// Joins two adjacent buffers. All of the result counts as filled.
    ///
    /// # Errors
    ///
    /// `next` does not start where this ends; both come back.
    pub fn join(self, next: Self) -> Result<Self, JoinError<Self>> {
        match self.part.join(next.part) {
            Ok(part) => Ok(Self::new(part)),
            Err((left, right)) => Err(JoinError { left: Self::new(left), right: Self::new(right) }),
        }
    }

    /// Makes the buffer read-only and clonable. [`SharedBuffer::into_unique`] is the inverse.
    pub fn share(self) -> SharedBuffer<B> {
        SharedBuffer::new(self.part.share())
    }

    /// The filled bytes as one `T`.
    ///
    /// # Errors
    ///
    /// The length or the alignment is not that of a `T`.
    pub fn view<T: Viewable + KnownLayout>(&self) -> Result<&T, ViewError> {
        T::ref_from_bytes(self).map_err(|_| ViewError::of::<T>(self))
    }

    /// The filled bytes as one `T`, to write.
    ///
    /// # Errors
    ///
    /// As [`view`](Self::view).
    pub fn view_mut<T: Plain + KnownLayout>(&mut self) -> Result<&mut T, ViewError> {
        let error = ViewError::of::<T>(self);
        T::mut_from_bytes(self).map_err(|_| error)
    }

    /// The filled bytes as `T`s.
    ///
    /// # Errors
    ///
    /// The length is not a multiple of the size of a `T`, or the alignment is not that of a `T`; or a `T` has no bytes,
    /// so that their number is unknown.
    pub fn view_slice<T: Viewable>(&self) -> Result<&[T], ViewError> {
        let error = || ViewError::of::<T>(self);
        // `ref_from_bytes` is not used: for a `T` of size 0 that function is a compile error, which only a full build
        // reports, not `cargo check`. `checked_div` makes such a `T` an error at run time.
        let count = self.len().checked_div(mem::size_of::<T>()).ok_or_else(error)?;
        <[T]>::ref_from_bytes_with_elems(self, count).map_err(|_| error())
    }

    /// The filled bytes as `T`s, to write.
    ///
    /// # Errors
    ///
    /// As [`view_slice`](Self::view_slice).
    pub fn view_slice_mut<T: Plain>(&mut self) -> Result<&mut [T], ViewError> {
        let error = ViewError::of::<T>(self);
        let count = self.len().checked_div(mem::size_of::<T>()).ok_or(error)?;
        <[T]>::mut_from_bytes_with_elems(self, count).map_err(|_| error)
    }
}

impl<B> Deref for Buffer<B> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.part.as_slice()
    }
}

impl<B> DerefMut for Buffer<B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.part.as_mut_slice()
    }
}

/// The filled bytes, as [`Deref`] gives them.
impl<B> AsRef<[u8]> for Buffer<B> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// The filled bytes, to write, as [`DerefMut`] gives them.
impl<B> AsMut<[u8]> for Buffer<B> {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// A buffer can be registered a second time, over all of its capacity, with rights for peers. Peers then reach these
/// bytes of its region and no others.
impl<B> Memory for Buffer<B> {}
impl<B> Sealed for Buffer<B> {}
impl<B> Owner for Buffer<B> {
    type Kept = UniquePart;
    /// The brand does not matter for freeing the part.
    type Freed = Buffer<()>;

    fn take_apart(self, _: Key) -> Parts<UniquePart> {
        let (first, len_bytes) = (self.part.address().as_ptr(), self.capacity());
        let depth = self.part.region().depth().saturating_add(1);
        Parts { depth, ..Parts::of(first, len_bytes, self.part) }
    }

    fn rebuild(parts: TakenApart<Self>) -> Self {
        Self::new(parts.into_kept())
    }
}

impl<B> fmt::Debug for Buffer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.part.fmt(f)
    }
}

/// A read-only part of a region, which can be cloned and be in flight many times at once, as for a broadcast. One word.
pub struct SharedBuffer<B> {
    part: SharedPart,
    brand: Branded<B>,
}

impl<B> SharedBuffer<B> {
    #[inline(always)]
    pub(crate) fn new(part: SharedPart) -> Self {
        Self { part, brand: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn into_part(self) -> SharedPart {
        self.part
    }

    #[inline(always)]
    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.part
    }

    /// Turns the last share into a unique buffer.
    ///
    /// # Errors
    ///
    /// [`NotUnique`] gives the share back and says why.
    pub fn into_unique(self) -> Result<Buffer<B>, NotUnique<Self>> {
        match self.part.into_unique() {
            Ok(part) => Ok(Buffer::new(part)),
            Err((part, reason)) => Err(NotUnique { share: Self::new(part), reason }),
        }
    }

    /// A share of the filled bytes in `range`, which may be empty.
    ///
    /// The slice keeps the whole share alive, so the share cannot become a unique buffer while the slice exists. The
    /// slice itself never can.
    ///
    /// # Errors
    ///
    /// The range is not inside.
    ///
    /// # Examples
    ///
    /// ```
    /// use interlock::Context;
    /// interlock::domain! { struct Docs; }
    /// let domain = Context::open("soft0")?.named_domain(Docs)?;
    /// let mut text = domain.buffer(64)?;
    /// text.write(b"head and body")?;
    /// let text = text.share();
    /// let head = text.slice(0..4)?;
    /// assert_eq!(&head[..], b"head");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slice(&self, range: Range<usize>) -> Result<Self, OutOfBounds> {
        let len_bytes = range.end.checked_sub(range.start).map_or(u64::MAX, |len_bytes| len_bytes as u64);
        let out_of_bounds = OutOfBounds { offset: range.start as u64, len_bytes, within: self.len() as u64 };
        self.part.part_of(range).map(Self::new).ok_or(out_of_bounds)
    }
}

impl<B> Clone for SharedBuffer<B> {
    fn clone(&self) -> Self {
        Self { part: self.part.clone(), brand: PhantomData }
    }
}

impl<B> Deref for SharedBuffer<B> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.part.as_slice()
    }
}

impl<B> AsRef<[u8]> for SharedBuffer<B> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<B> fmt::Debug for SharedBuffer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.part.fmt(f)
    }
}

static_assertions::assert_eq_size!(Buffer<()>, Option<Buffer<()>>, SharedBuffer<()>, *const ());
static_assertions::assert_impl_all!(Buffer<()>: Send, Sync);
static_assertions::assert_not_impl_any!(Buffer<()>: Clone, Copy);

/// A share cannot become a unique buffer. The share comes back.
#[derive(thiserror::Error)]
#[error("{reason}")]
pub struct NotUnique<P> {
    /// The share.
    pub share: P,
    /// Why it cannot become a unique buffer.
    pub reason: NotUniqueReason,
}

impl<P> NotUnique<P> {
    /// The error without the share, which is dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> NotUniqueReason {
        self.reason
    }
}

impl<P> fmt::Debug for NotUnique<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotUnique").field("reason", &self.reason).finish_non_exhaustive()
    }
}

/// More bytes than the buffer holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len_bytes} bytes do not fit in a buffer of {capacity}")]
pub struct TooLong {
    /// How many bytes were to be filled.
    pub len_bytes: usize,
    /// How many bytes fit.
    pub capacity: usize,
}

/// A buffer cannot be split at this place. The buffer comes back.
#[derive(thiserror::Error)]
#[error("a buffer of {capacity} bytes cannot be split at {mid}: each part must have at least one byte")]
pub struct SplitError<P> {
    mid: usize,
    capacity: usize,
    /// The buffer.
    pub buffer: P,
}

impl<P> SplitError<P> {
    /// The error without the buffer, which is dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> SplitError<()> {
        self.map(drop)
    }

    /// The same error, with the buffer replaced by the result of `f`.
    pub(crate) fn map<Q>(self, f: impl FnOnce(P) -> Q) -> SplitError<Q> {
        SplitError { mid: self.mid, capacity: self.capacity, buffer: f(self.buffer) }
    }
}

impl<P> fmt::Debug for SplitError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplitError").field("mid", &self.mid).field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

/// Two buffers are not adjacent in one region, or are different buffers of a pool. Both come back.
#[derive(thiserror::Error)]
#[error(
    "the buffers are not adjacent in one region: the second must start where the first ends, and different buffers of a \
     pool are not joined"
)]
pub struct JoinError<P> {
    /// The one that should come first.
    pub left: P,
    /// The one that should follow.
    pub right: P,
}

impl<P> JoinError<P> {
    /// The error without the buffers, which are dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> JoinError<()> {
        JoinError { left: (), right: () }
    }
}

impl<P> fmt::Debug for JoinError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinError").finish_non_exhaustive()
    }
}

/// The length or the alignment of the bytes does not fit the type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len_bytes} bytes at {address:#x} cannot be viewed as {wanted} (size {size}, alignment {align})")]
pub struct ViewError {
    len_bytes: usize,
    address: usize,
    wanted: &'static str,
    size: usize,
    align: usize,
}

impl ViewError {
    fn of<T>(bytes: &[u8]) -> Self {
        Self {
            len_bytes: bytes.len(),
            address: ptr::from_ref(bytes).addr(),
            wanted: std::any::type_name::<T>(),
            size: mem::size_of::<T>(),
            align: mem::align_of::<T>(),
        }
    }
}
