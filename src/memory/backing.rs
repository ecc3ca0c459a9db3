//! The memory behind a region: its owner, taken apart for as long as a device may reach the bytes.
//!
//! A `Box`, a `Vec` or a `&mut` promises that nobody else writes the bytes behind it, and moving one makes that promise
//! again. A device breaks it. So the library stores none of them for registered memory: it takes the owner apart into a
//! raw pointer with exposed provenance, and rebuilds the owner after deregistration.
#![allow(unsafe_code, reason = "takes owners apart and rebuilds them")]

use super::foreign::{Foreign, ForeignMemory};
use super::part::UniquePart;
use super::{Buffer, DmaBuf, Pages, SharedMap};
use crate::seal::Key;
use std::{marker::PhantomData, mem, ptr, ptr::NonNull};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Types that registered memory may hold: any bytes are a value (a device writes them), there is no padding (a device
/// would send it), and no interior mutability.
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

/// Types as which received bytes may be viewed: any bytes are a value, and there is no interior mutability.
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
/// It is a `Box<[T]>`, `Vec<T>`, `&'static mut [T]`, [`Pages`], a [`Buffer`](super::Buffer), which is then registered a
/// second time, or [`Foreign`](super::Foreign) for memory of any other kind.
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
        fn into_raw(self, key: super::Key) -> super::RawMemory;
        /// # Safety
        ///
        /// `raw` came from `into_raw` of this type, is used once, and nobody else uses the bytes any more.
        unsafe fn from_raw(raw: super::RawMemory) -> Self;
    }

    #[allow(unnameable_types, reason = "seals `Memory`")]
    pub trait Sealed: Owner {}
}
use sealed::{Owner, Sealed};

/// An address. Who has it may not touch what is there: the types that own the bytes decide that.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Address(*mut u8);

// SAFETY: a number with provenance. Using what is there takes `unsafe` code, which answers for the thread that it is
// on.
unsafe impl Send for Address {}
// SAFETY: shared access copies the number.
unsafe impl Sync for Address {}

impl Address {
    /// The address of bytes that a device may reach from now on, which is an access by a number.
    pub(super) fn expose(first: *mut u8) -> Self {
        first.expose_provenance();
        Self(first)
    }

    #[inline(always)]
    pub(super) fn as_ptr(self) -> *mut u8 {
        self.0
    }

    #[inline(always)]
    pub(super) fn addr(self) -> usize {
        self.0.addr()
    }

    pub(super) fn plus(self, offset: usize) -> Self {
        Self(self.0.wrapping_add(offset))
    }
}

/// An owner of bytes, taken apart.
#[derive(Debug)]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct RawMemory {
    /// The first byte, with provenance over all of them.
    addr: Address,
    len_bytes: usize,
    /// How many elements there are and how many fit, for `Vec` and slices.
    count: usize,
    capacity: usize,
    /// A box of what else the owner is made of, with its type forgotten: see [`keep`](Self::keep).
    kept: Address,
    /// How many registrations of these bytes there are already, one around the other.
    depth: u8,
}

impl RawMemory {
    fn of_slice<T>(slice: *mut [T], capacity: usize) -> Self {
        let addr = Address::expose(slice.cast::<u8>());
        let (len_bytes, count) = (slice.len() * mem::size_of::<T>(), slice.len());
        Self { addr, len_bytes, count, capacity, kept: Address(ptr::null_mut()), depth: 0 }
    }

    /// Bytes, and what their owner is made of besides. `kept` must not claim the bytes, as a reference or a box would.
    fn keep<P: Send + 'static>(addr: *mut u8, len_bytes: usize, kept: P) -> Self {
        let kept = Address(Box::into_raw(Box::new(kept)).cast());
        Self { kept, ..Self::of_slice(ptr::slice_from_raw_parts_mut(addr, len_bytes), len_bytes) }
    }

    /// # Safety
    ///
    /// From [`keep`](Self::keep) of the same `P`; called once.
    unsafe fn into_kept<P>(self) -> P {
        // SAFETY: a box of `P`, which is given up here (caller).
        *unsafe { Box::from_raw(self.kept.0.cast::<P>()) }
    }

    fn as_slice_of<T>(&self) -> *mut [T] {
        ptr::slice_from_raw_parts_mut(self.addr.0.cast(), self.count)
    }
}

/// An `M`, taken apart. Nobody uses the bytes yet, or any more.
pub(super) struct TakenApart<M> {
    /// # Invariants
    ///
    /// 0. Came from `M::into_raw`, and nobody else rebuilds the owner from it. No device knows the bytes.
    raw: RawMemory,
    owner: PhantomData<fn() -> M>,
}

impl<M: Owner> TakenApart<M> {
    pub(super) fn of(memory: M) -> Self {
        Self { raw: memory.into_raw(Key(())), owner: PhantomData }
    }

    pub(super) fn rebuild(self) -> M {
        // SAFETY: from `M::into_raw`, used once, and nobody uses the bytes (0).
        unsafe { M::from_raw(self.raw) }
    }

    /// The owner for as long as a device may use the bytes.
    pub(super) fn hold(self) -> HeldOwner {
        let rebuild_and_drop = |raw| drop(Self { raw, owner: PhantomData }.rebuild());
        HeldOwner { raw: self.raw, rebuild_and_drop }
    }
}

impl<M> TakenApart<M> {
    pub(super) fn address(&self) -> Address {
        self.raw.addr
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.raw.len_bytes
    }

    /// How many registrations of these bytes there are already, one around the other.
    pub(super) fn depth(&self) -> u8 {
        self.raw.depth
    }
}

/// An owner, taken apart and its type forgotten, whose bytes a device may use. Dropping this leaks the owner.
#[derive(Debug)]
pub(super) struct HeldOwner {
    /// # Invariants
    ///
    /// 0. Came from `into_raw` of some `M`, and nobody else rebuilds the owner from it.
    raw: RawMemory,
    /// 1. Rebuilds that `M` and drops it; as unsafe as `M::from_raw`.
    rebuild_and_drop: unsafe fn(RawMemory),
}

impl HeldOwner {
    /// How many registrations of these bytes there were before, one around the other.
    pub(super) fn depth(&self) -> u8 {
        self.raw.depth
    }

    /// The parts of the owner, with its type.
    ///
    /// # Safety
    ///
    /// The owner is an `M`, and nobody uses the bytes any more.
    pub(super) unsafe fn into_parts<M>(self) -> TakenApart<M> {
        TakenApart { raw: self.raw, owner: PhantomData }
    }

    /// Rebuilds the owner and drops it.
    ///
    /// # Safety
    ///
    /// Nobody uses the bytes any more.
    pub(super) unsafe fn free(self) {
        // SAFETY: used once, with the function of its type (0, 1); nobody uses the bytes (caller).
        unsafe { (self.rebuild_and_drop)(self.raw) }
    }
}

impl<T: Plain> Memory for Box<[T]> {}
impl<T: Plain> Sealed for Box<[T]> {}
impl<T: Plain> Owner for Box<[T]> {
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
impl<T: Plain> Sealed for Vec<T> {}
impl<T: Plain> Owner for Vec<T> {
    fn into_raw(self, _: Key) -> RawMemory {
        let mut this = mem::ManuallyDrop::new(self);
        let capacity = this.capacity();
        RawMemory::of_slice(ptr::slice_from_raw_parts_mut(this.as_mut_ptr(), this.len()), capacity)
    }

    unsafe fn from_raw(raw: RawMemory) -> Self {
        // SAFETY: pointer, length and capacity of a vector that was taken apart (caller); any bytes are a `T`.
        unsafe { Vec::from_raw_parts(raw.addr.0.cast(), raw.count, raw.capacity) }
    }
}

impl<T: Plain> Memory for &'static mut [T] {}
impl<T: Plain> Sealed for &'static mut [T] {}
impl<T: Plain> Owner for &'static mut [T] {
    fn into_raw(self, _: Key) -> RawMemory {
        let count = self.len();
        RawMemory::of_slice(ptr::from_mut(self), count)
    }

    unsafe fn from_raw(raw: RawMemory) -> Self {
        // SAFETY: came from a `&'static mut` (caller), whose memory is never freed; any bytes are a `T`.
        unsafe { &mut *raw.as_slice_of() }
    }
}

/// Owners that keep a raw pointer to their bytes: moving one claims nothing, so it is kept whole.
macro_rules! kept_whole {
    ($($owner:ty),*) => {$(
        impl Owner for $owner {
            fn into_raw(self, _: Key) -> RawMemory {
                RawMemory::keep(self.first_byte(), self.len_bytes(), self)
            }

            unsafe fn from_raw(raw: RawMemory) -> Self {
                // SAFETY: kept by `into_raw`; called once (caller).
                unsafe { raw.into_kept() }
            }
        }
    )*};
}
impl Memory for Pages {}
impl Sealed for Pages {}
kept_whole!(Pages, SharedMap, DmaBuf);

/// All of its capacity, for one more registration: with rights of peers, who then reach these bytes of its region and
/// no others.
impl<B> Memory for Buffer<B> {}
impl<B> Sealed for Buffer<B> {}
impl<B> Owner for Buffer<B> {
    fn into_raw(self, _: Key) -> RawMemory {
        let part = self.into_unique();
        let depth = part.region().depth().saturating_add(1);
        RawMemory { depth, ..RawMemory::keep(part.address().as_ptr(), part.capacity(), part) }
    }

    unsafe fn from_raw(raw: RawMemory) -> Self {
        // SAFETY: kept by `into_raw`; called once (caller).
        unsafe { raw.into_kept::<UniquePart>() }.into_buffer()
    }
}

impl<F: ForeignMemory> Memory for Foreign<F> {}
impl<F: ForeignMemory> Sealed for Foreign<F> {}
impl<F: ForeignMemory> Owner for Foreign<F> {
    fn into_raw(self, _: Key) -> RawMemory {
        let (bytes, parts) = self.0.into_parts();
        RawMemory::keep(bytes.as_ptr().cast(), bytes.len(), parts)
    }

    unsafe fn from_raw(raw: RawMemory) -> Self {
        // Never null: it came from `into_parts`.
        let first = NonNull::new(raw.addr.0).unwrap_or(NonNull::dangling());
        let bytes = NonNull::slice_from_raw_parts(first, raw.len_bytes);
        // SAFETY: kept by `into_raw`; called once (caller).
        let parts = unsafe { raw.into_kept::<F::Parts>() };
        // SAFETY: both came from one `into_parts`, and nobody else uses the bytes (caller).
        Self(unsafe { F::from_parts(bytes, parts) })
    }
}
