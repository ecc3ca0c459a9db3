//! The memory behind a region: its owner, taken apart for as long as a device may reach the bytes.
//!
//! A `Box`, a `Vec` or a `&mut` promises that nobody else writes the bytes behind it, and each move of such an owner
//! repeats that promise. A device that writes the bytes breaks it. So the library keeps no such owner while memory is
//! registered: it takes the owner apart into a raw pointer with exposed provenance, and rebuilds the owner after
//! deregistration.
//!
//! ```text
//!   M ──TakenApart::of──▶ TakenApart<M> ──hold──▶ HeldOwner     (a device may use the bytes)
//!   M ◀──Owner::rebuild── TakenApart<M> ◀──────── ReleasedOwner ◀──release── (no device knows the bytes any more)
//! ```
#![allow(unsafe_code, reason = "takes owners apart and rebuilds them")]

use super::foreign::{Foreign, ForeignMemory};
use crate::provider::handles::ObjectPtr;
use crate::seal::Key;
use std::any::Any;
use std::os::fd::RawFd;
use std::{fmt, mem, mem::ManuallyDrop, ptr, ptr::NonNull, sync::Mutex, sync::PoisonError};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Types that registered memory may hold: any bytes are a value, because a device writes them; there is no padding,
/// because a device would send it; and there is no interior mutability.
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

/// Types that received bytes may be viewed as: any bytes are a value, and there is no interior mutability.
#[diagnostic::on_unimplemented(
    message = "bytes cannot be viewed as `{Self}`",
    label = "not plain bytes",
    note = "any bytes must be a value of it (`zerocopy::FromBytes`), without cells (`Immutable`)",
    note = "a struct of such fields may `#[derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout)]`"
)]
pub trait Viewable: FromBytes + Immutable {}
#[diagnostic::do_not_recommend]
impl<T: FromBytes + Immutable> Viewable for T {}

/// Memory that can be registered. Sealed.
///
/// It is a `Box<[T]>`, `Vec<T>`, `&'static mut [T]`, [`Pages`](super::Pages), a [`Buffer`](super::Buffer), which is
/// then registered a second time, or [`Foreign`](super::Foreign) for memory of any other kind.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not memory that a device may write to",
    label = "cannot be registered",
    note = "give a `Box<[T]>`, `Vec<T>`, `&'static mut [T]` or `Pages`, of a type `T` for which any bytes are a value, \
            or a `Buffer`; `Foreign` takes memory of any other kind",
    note = "a `SharedMap` or `DmaBuf` goes to `register_opaque`; memory that is only borrowed is lent in a `scope`"
)]
pub trait Memory: Sized + sealed::Sealed {}

pub(super) mod sealed {
    /// An owner of bytes that can be taken apart and rebuilt.
    #[allow(unnameable_types, reason = "above the traits that seal `Memory` and `OpaqueMemory`")]
    pub trait Owner: Sized {
        /// The parts of the owner besides its bytes. Unlike a reference or a box, they claim none of the bytes.
        type Kept: Send + 'static;
        /// The type to rebuild the owner as where the code no longer knows `Self`. Usually it is `Self`.
        type Freed: Owner<Kept = Self::Kept> + 'static;
        /// Takes the owner apart, without freeing anything.
        fn take_apart(self, key: super::Key) -> super::Parts<Self::Kept>;
        /// Rebuilds the owner.
        fn rebuild(parts: super::TakenApart<Self>) -> Self;
    }

    #[allow(unnameable_types, reason = "seals `Memory`")]
    pub trait Sealed: Owner {}
}
use sealed::{Owner, Sealed};

/// An address, which by itself allows no access: the types that own the bytes decide who may touch them.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Address(ObjectPtr<u8>);

impl Address {
    /// The address of bytes that a device may access from now on. A device gets the address as an integer.
    pub(super) fn expose(first: *mut u8) -> Self {
        first.expose_provenance();
        // Only memory that is not mapped in this process has a null pointer. Nobody accesses such memory by this
        // pointer, so a dangling pointer takes its place.
        Self(ObjectPtr(NonNull::new(first).unwrap_or(NonNull::dangling())))
    }

    #[inline(always)]
    fn as_non_null(self) -> NonNull<u8> {
        self.0.0
    }

    #[inline(always)]
    pub(super) fn as_ptr(self) -> *mut u8 {
        self.as_non_null().as_ptr()
    }

    #[inline(always)]
    pub(super) fn addr(self) -> usize {
        self.as_non_null().addr().get()
    }

    pub(super) fn plus(self, offset: usize) -> Self {
        let moved = self.as_ptr().wrapping_add(offset);
        // `moved` is never null: no memory wraps around the end of the address space. So the dangling pointer is never
        // used.
        Self(ObjectPtr(NonNull::new(moved).unwrap_or(NonNull::dangling())))
    }
}

/// Memory of another driver: the descriptor of a dma-buf, and the offset of the memory inside the dma-buf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exported {
    pub(super) fd: RawFd,
    pub(super) offset: u64,
}

/// An owner that was taken apart: its bytes, and its other parts.
#[derive(Debug)]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct Parts<K> {
    /// The first byte. The pointer may be used to access all bytes.
    pub(super) first: *mut u8,
    pub(super) len_bytes: usize,
    pub(super) kept: K,
    /// How many nested registrations these bytes have already.
    pub(super) depth: u8,
    /// `Some` for memory that is not mapped in this process. `kept` keeps the descriptor open.
    pub(super) exported: Option<Exported>,
}

impl<K> Parts<K> {
    /// The parts of an owner of mapped bytes that are not registered yet.
    pub(super) fn of(first: *mut u8, len_bytes: usize, kept: K) -> Self {
        Self { first, len_bytes, kept, depth: 0, exported: None }
    }
}

/// An `M` that was taken apart. Dropping this leaks the owner.
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct TakenApart<M: Owner> {
    /// # Invariants
    ///
    /// 0. The fields are the parts that `M::take_apart` gave, and nobody else rebuilds the owner from them. No device
    ///    knows the bytes, unless this is inside of a [`HeldOwner`].
    address: Address,
    len_bytes: usize,
    depth: u8,
    exported: Option<Exported>,
    /// 1. Dropping this leaks the parts: a device may still know the bytes, if a registration did not end.
    kept: ManuallyDrop<M::Kept>,
}

impl<M: Owner> TakenApart<M> {
    pub(super) fn of(memory: M) -> Self {
        let Parts { first, len_bytes, kept, depth, exported } = memory.take_apart(Key(()));
        Self { address: Address::expose(first), len_bytes, depth, exported, kept: ManuallyDrop::new(kept) }
    }

    pub(super) fn into_kept(self) -> M::Kept {
        ManuallyDrop::into_inner(self.kept)
    }

    /// The same parts, for another type of owner that has the same kept parts.
    fn retype<N: Owner<Kept = M::Kept>>(self) -> TakenApart<N> {
        let Self { address, len_bytes, depth, exported, kept } = self;
        TakenApart { address, len_bytes, depth, exported, kept }
    }

    /// Keeps the owner for as long as a device may use the bytes.
    pub(super) fn hold(self) -> HeldOwner {
        HeldOwner { depth: self.depth, parts: Mutex::new(Box::new(self.retype::<M::Freed>())) }
    }

    pub(super) fn address(&self) -> Address {
        self.address
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// How many nested registrations these bytes have already.
    pub(super) fn depth(&self) -> u8 {
        self.depth
    }

    /// The dma-buf, if the memory is not mapped in this process. Its descriptor is open while this or the owner is
    /// kept.
    pub(super) fn exported(&self) -> Option<Exported> {
        self.exported
    }
}

impl<M: Owner> fmt::Debug for TakenApart<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakenApart").field("len", &self.len_bytes).finish_non_exhaustive()
    }
}

/// The parts of an owner, whatever its type.
trait AnyParts: Send {
    /// Rebuilds the owner and drops it.
    fn free(self: Box<Self>);
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<M: Owner + 'static> AnyParts for TakenApart<M> {
    fn free(self: Box<Self>) {
        drop(M::rebuild(*self));
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// An owner that was taken apart, without its type, while a device may use the bytes. Dropping this leaks the owner.
pub(super) struct HeldOwner {
    depth: u8,
    /// Never locked: the mutex makes this `Sync`, since parts are `Send` but not always `Sync`.
    parts: Mutex<Box<dyn AnyParts>>,
}

impl HeldOwner {
    /// How many nested registrations these bytes had before this one.
    pub(super) fn depth(&self) -> u8 {
        self.depth
    }

    /// Releases the parts, to rebuild the owner from them.
    ///
    /// # Safety
    ///
    /// Nobody uses the bytes any more, and nobody can use them later through what the registration gave out.
    pub(super) unsafe fn release(self) -> ReleasedOwner {
        ReleasedOwner(self.parts.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The parts of an owner whose bytes nobody uses any more. Dropping this leaks the owner.
pub(super) struct ReleasedOwner(Box<dyn AnyParts>);

impl ReleasedOwner {
    /// Rebuilds the owner and drops it.
    pub(super) fn free(self) {
        self.0.free();
    }

    /// The parts, if they are those of an `M`.
    pub(super) fn into_parts<M: Owner>(self) -> Option<TakenApart<M>> {
        let parts = self.0.into_any().downcast::<TakenApart<M::Freed>>().ok()?;
        Some(parts.retype())
    }
}

impl<T: Plain> Memory for Box<[T]> {}
impl<T: Plain> Sealed for Box<[T]> {}
impl<T: Plain> Owner for Box<[T]> {
    type Kept = (usize, usize);
    type Freed = Self;

    fn take_apart(self, key: Key) -> Parts<(usize, usize)> {
        self.into_vec().take_apart(key)
    }

    fn rebuild(parts: TakenApart<Self>) -> Self {
        // The vector is full, so `into_boxed_slice` does not allocate.
        Vec::rebuild(parts.retype()).into_boxed_slice()
    }
}

impl<T: Plain> Memory for Vec<T> {}
impl<T: Plain> Sealed for Vec<T> {}
impl<T: Plain> Owner for Vec<T> {
    /// Length and capacity.
    type Kept = (usize, usize);
    type Freed = Self;

    fn take_apart(self, _: Key) -> Parts<(usize, usize)> {
        let mut this = ManuallyDrop::new(self);
        let (len_bytes, kept) = (mem::size_of_val(&**this), (this.len(), this.capacity()));
        Parts::of(this.as_mut_ptr().cast(), len_bytes, kept)
    }

    fn rebuild(parts: TakenApart<Self>) -> Self {
        let (address, (len, capacity)) = (parts.address(), parts.into_kept());
        // SAFETY: these are pointer, length and capacity of a vector that was taken apart. They are used only once, and
        // nobody else uses the bytes (`TakenApart`, 0); any bytes are a valid `T`.
        unsafe { Vec::from_raw_parts(address.as_ptr().cast(), len, capacity) }
    }
}

impl<T: Plain> Memory for &'static mut [T] {}
impl<T: Plain> Sealed for &'static mut [T] {}
impl<T: Plain> Owner for &'static mut [T] {
    type Kept = usize;
    type Freed = Self;

    fn take_apart(self, _: Key) -> Parts<usize> {
        let (kept, len_bytes) = (self.len(), mem::size_of_val(self));
        Parts::of(ptr::from_mut(self).cast(), len_bytes, kept)
    }

    fn rebuild(parts: TakenApart<Self>) -> Self {
        let (address, count) = (parts.address(), parts.into_kept());
        // SAFETY: the pointer came from a `&'static mut`, whose memory is never freed. Nobody else uses the bytes
        // (`TakenApart`, 0), and any bytes are a valid `T`.
        unsafe { &mut *ptr::slice_from_raw_parts_mut(address.as_ptr().cast(), count) }
    }
}

impl<F: ForeignMemory> Memory for Foreign<F> {}
impl<F: ForeignMemory> Sealed for Foreign<F> {}
impl<F: ForeignMemory> Owner for Foreign<F> {
    type Kept = F::Parts;
    type Freed = Self;

    fn take_apart(self, _: Key) -> Parts<F::Parts> {
        let (bytes, kept) = self.0.into_parts();
        Parts::of(bytes.as_ptr().cast(), bytes.len(), kept)
    }

    fn rebuild(parts: TakenApart<Self>) -> Self {
        let bytes = NonNull::slice_from_raw_parts(parts.address().as_non_null(), parts.len_bytes());
        // SAFETY: both arguments came from one `into_parts` and are used once. Nobody else uses the bytes
        // (`TakenApart`, 0).
        Self(unsafe { F::from_parts(bytes, parts.into_kept()) })
    }
}
