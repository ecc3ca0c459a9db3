//! The memory behind a region, with its type erased while the device may reach it.
//!
//! A `Box`, `Vec` or `&mut` promises that nobody else writes behind it, and moving one asserts that promise again. So
//! none is kept of registered memory: it enters as a raw pointer with exposed provenance, and is rebuilt after
//! deregistration.
#![allow(unsafe_code, reason = "takes owners apart and rebuilds them")]

use super::RegionInner;
use crate::seal::Key;
use std::ops::{Deref, DerefMut};
use std::{fmt, io, mem, ptr, slice};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Types that registered memory may hold: any bytes are a value (a device writes them), no padding (a device sends it),
/// no interior mutability.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot live in memory that a device reads and writes",
    label = "not plain bytes",
    note = "any bytes must be a value of it (`zerocopy::FromBytes`), without padding (`IntoBytes`) and without cells \
            (`Immutable`)",
    note = "a `#[repr(C)]` struct of such fields may `#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]`"
)]
pub trait Plain: FromBytes + IntoBytes + Immutable + Send + Sync + 'static {}
#[diagnostic::do_not_recommend]
impl<T: FromBytes + IntoBytes + Immutable + Send + Sync + 'static> Plain for T {}

/// Types as which bytes may be viewed: any bytes are a value, no interior mutability.
#[diagnostic::on_unimplemented(
    message = "bytes cannot be viewed as `{Self}`",
    label = "not plain bytes",
    note = "any bytes must be a value of it (`zerocopy::FromBytes`), without cells (`Immutable`)",
    note = "a struct of such fields may `#[derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout)]`"
)]
pub trait Viewable: FromBytes + Immutable {}
#[diagnostic::do_not_recommend]
impl<T: FromBytes + Immutable> Viewable for T {}

/// Memory that can be registered. Sealed: `Box<[T]>`, `Vec<T>`, `&'static mut [T]`, [`Pages`], a
/// [`Buffer`](super::Buffer) once more, and [`Foreign`](super::Foreign) for memory of any other kind.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not memory that a device may write to",
    label = "cannot be registered",
    note = "give a `Box<[T]>`, `Vec<T>`, `&'static mut [T]` or `Pages`, of a type `T` for which any bytes are a value, \
            or a `Buffer`; `Foreign` takes memory of any other kind",
    note = "a `SharedMap` or `DmaBuf` goes to `register_opaque`; memory that is only borrowed is lent in a `scope`"
)]
pub trait Memory: Sized + sealed::Sealed {}

pub(super) mod sealed {
    #[allow(unnameable_types, reason = "seals `Memory`")]
    pub trait Sealed {
        fn into_raw(self, key: super::Key) -> super::RawMemory;
        /// # Safety
        ///
        /// `raw` came from `into_raw` of this type, and nobody else uses it any more.
        unsafe fn from_raw(raw: super::RawMemory) -> Self;
    }
}
use sealed::Sealed;

/// An owner of memory, taken apart.
#[derive(Clone, Copy, Debug)]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct RawMemory {
    /// The first byte, with exposed provenance over all of them.
    pub(crate) addr: *mut u8,
    pub(crate) len_bytes: usize,
    /// Elements, and how many of them fit: what the owner needs to be rebuilt.
    count: usize,
    capacity: usize,
    /// What else the owner needs; see [`keep`](Self::keep).
    parts: *mut (),
    /// How many registrations there are of it, one around the other.
    depth: u8,
}

impl RawMemory {
    pub(super) fn of_slice<T>(slice: *mut [T], capacity: usize) -> Self {
        let addr = slice.cast::<u8>();
        addr.expose_provenance();
        let (len_bytes, count) = (slice.len() * mem::size_of::<T>(), slice.len());
        Self { addr, len_bytes, count, capacity, parts: ptr::null_mut(), depth: 0 }
    }

    /// Bytes with what their owner is made of besides.
    pub(super) fn keep<P>(bytes: *mut [u8], parts: P) -> Self {
        Self { parts: Box::into_raw(Box::new(parts)).cast(), ..Self::of_slice(bytes, bytes.len()) }
    }

    /// The same, within one more registration than there are of it.
    pub(super) fn within(self, region: &RegionInner) -> Self {
        Self { depth: region.depth().saturating_add(1), ..self }
    }

    pub(super) fn depth(&self) -> u8 {
        self.depth
    }

    /// The bytes.
    pub(super) fn bytes(&self) -> *mut [u8] {
        ptr::slice_from_raw_parts_mut(self.addr, self.len_bytes)
    }

    /// What was kept with them, where it is.
    ///
    /// # Safety
    ///
    /// From [`keep`](Self::keep) of the same `P`, and [`parts`](Self::parts) is not called meanwhile.
    pub(super) unsafe fn peek<P>(&self) -> &P {
        // SAFETY: from a box of `P`, which is not given up (caller).
        unsafe { &*self.parts.cast::<P>() }
    }

    /// What was kept with them.
    ///
    /// # Safety
    ///
    /// From [`keep`](Self::keep) of the same `P`; called once.
    pub(super) unsafe fn parts<P>(&self) -> P {
        // SAFETY: from a box of `P`, which is given up here (caller).
        *unsafe { Box::from_raw(self.parts.cast::<P>()) }
    }

    fn as_slice_of<T>(&self) -> *mut [T] {
        ptr::slice_from_raw_parts_mut(self.addr.cast(), self.count)
    }
}

impl<T: Plain> Memory for Box<[T]> {}
impl<T: Plain> Sealed for Box<[T]> {
    fn into_raw(self, _: Key) -> RawMemory {
        let count = self.len();
        RawMemory::of_slice(Box::into_raw(self), count)
    }

    unsafe fn from_raw(raw: RawMemory) -> Self {
        // SAFETY: this slice came out of `Box::into_raw` (caller); any bytes are a `T`.
        unsafe { Box::from_raw(raw.as_slice_of()) }
    }
}

impl<T: Plain> Memory for Vec<T> {}
impl<T: Plain> Sealed for Vec<T> {
    fn into_raw(self, _: Key) -> RawMemory {
        let mut this = mem::ManuallyDrop::new(self);
        let capacity = this.capacity();
        RawMemory::of_slice(ptr::slice_from_raw_parts_mut(this.as_mut_ptr(), this.len()), capacity)
    }

    unsafe fn from_raw(raw: RawMemory) -> Self {
        // SAFETY: pointer, length and capacity of a vector that was taken apart (caller); any bytes are a `T`.
        unsafe { Vec::from_raw_parts(raw.addr.cast(), raw.count, raw.capacity) }
    }
}

impl<T: Plain> Memory for &'static mut [T] {}
impl<T: Plain> Sealed for &'static mut [T] {
    fn into_raw(self, _: Key) -> RawMemory {
        let count = self.len();
        RawMemory::of_slice(ptr::from_mut(self), count)
    }

    unsafe fn from_raw(raw: RawMemory) -> Self {
        // SAFETY: came from a `&'static mut` (caller), whose memory is never freed; any bytes are a `T`.
        unsafe { &mut *raw.as_slice_of() }
    }
}

/// Zeroed memory in whole pages of its own: a private anonymous map, `mmap(2)`.
///
/// Registering pins whole pages, and a fork may treat pinned pages apart; sharing none of them with other data avoids
/// both surprises.
pub struct Pages {
    /// # Invariants
    ///
    /// 0. The start of a map of `mapped` bytes, readable and writable, ours alone; dangling if `mapped` is 0.
    pub(super) addr: ptr::NonNull<u8>,
    /// 1. At most `mapped`.
    pub(super) len: usize,
    pub(super) mapped: usize,
}

/// There are no pages: the system does not map so many bytes.
#[derive(Debug, thiserror::Error)]
#[error("cannot map {len_bytes} bytes")]
pub struct NoPages {
    /// What was asked for.
    pub len_bytes: usize,
    /// What the system answered.
    pub source: io::Error,
}

// SAFETY: an owner of plain bytes (0), as `Box<[u8]>` is.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// `len_bytes` zeroed bytes.
    ///
    /// # Errors
    ///
    /// The system does not map so many.
    pub fn new(len_bytes: usize) -> Result<Self, NoPages> {
        if len_bytes == 0 {
            return Ok(Self { addr: ptr::NonNull::dangling(), len: 0, mapped: 0 });
        }
        let addr = map(len_bytes, 0).map_err(|source| NoPages { len_bytes, source })?;
        Ok(Self { addr, len: len_bytes, mapped: len_bytes })
    }
}

/// A new private anonymous map of `len_bytes`, which are not 0, with `flags` besides.
pub(super) fn map(len_bytes: usize, flags: i32) -> io::Result<ptr::NonNull<u8>> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags);
    // SAFETY: a new map, which replaces none.
    let addr = unsafe { libc::mmap(ptr::null_mut(), len_bytes, access, kind, -1, 0) };
    ptr::NonNull::new(addr.cast()).filter(|_| addr != libc::MAP_FAILED).ok_or_else(io::Error::last_os_error)
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.mapped != 0 {
            // SAFETY: our own map (0), which nobody uses any more.
            unsafe { libc::munmap(self.addr.as_ptr().cast(), self.mapped) };
        }
    }
}

impl Deref for Pages {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: ours alone, zeroed at first and so never uninitialised (0, 1).
        unsafe { slice::from_raw_parts(self.addr.as_ptr(), self.len) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.addr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Memory for Pages {}
impl Sealed for Pages {
    fn into_raw(self, _: Key) -> RawMemory {
        let this = mem::ManuallyDrop::new(self);
        RawMemory::of_slice(ptr::slice_from_raw_parts_mut(this.addr.as_ptr(), this.len), this.mapped)
    }

    unsafe fn from_raw(raw: RawMemory) -> Self {
        // SAFETY: the pointer of pages that were taken apart is not null.
        Self { addr: unsafe { ptr::NonNull::new_unchecked(raw.addr) }, len: raw.count, mapped: raw.capacity }
    }
}
