//! The memory behind a region: its owner, taken apart for as long as a device may reach the bytes.
//!
//! A `Box`, a `Vec` or a `&mut` promises that nobody else writes the bytes behind it, and moving one makes that promise
//! again. A device breaks it. So the library stores none of them for registered memory: it takes the owner apart into a
//! raw pointer with exposed provenance, and rebuilds the owner after deregistration.
#![allow(unsafe_code, reason = "takes owners apart and rebuilds them")]

use super::foreign::{Foreign, ForeignMemory};
use crate::seal::Key;
use std::os::fd::RawFd;
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
        /// What the owner is made of besides its bytes. It claims none of them, as a reference or a box would.
        type Kept: Send + 'static;
        /// Takes the owner apart, without freeing anything.
        fn take_apart(self, key: super::Key) -> super::Parts<Self::Kept>;
        /// Puts it together again.
        fn rebuild(parts: super::TakenApart<Self>) -> Self;
        /// The descriptor of memory that is not mapped here; what is kept of the owner keeps it open.
        fn exported(&self, _: super::Key) -> Option<super::Exported> {
            None
        }
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

/// Memory of another driver: a descriptor of a dma-buf, and where in it the memory starts.
#[derive(Clone, Copy, Debug)]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct Exported {
    pub(super) fd: RawFd,
    pub(super) offset: u64,
}

/// The bytes of an owner, and what it is made of besides.
#[derive(Debug)]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct Parts<K> {
    /// The first byte. It may be used to access all of them.
    pub(super) first: *mut u8,
    pub(super) len_bytes: usize,
    pub(super) kept: K,
    /// How many registrations of these bytes there are already, one around the other.
    pub(super) depth: u8,
}

/// The parts of an owner, of which one type is forgotten.
#[derive(Debug)]
struct RawMemory {
    address: Address,
    len_bytes: usize,
    /// A box of what was kept.
    kept: Address,
    depth: u8,
}

/// An `M`, taken apart. Nobody uses the bytes yet, or any more.
#[derive(Debug)]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct TakenApart<M> {
    /// # Invariants
    ///
    /// 0. The parts that `M::take_apart` gave, with a box of an `M::Kept`. Nobody else rebuilds the owner from them,
    ///    and no device knows the bytes.
    raw: RawMemory,
    owner: PhantomData<fn() -> M>,
}

impl<M: Owner> TakenApart<M> {
    pub(super) fn of(memory: M) -> Self {
        let Parts { first, len_bytes, kept, depth } = memory.take_apart(Key(()));
        let kept = Address(Box::into_raw(Box::new(kept)).cast());
        let raw = RawMemory { address: Address::expose(first), len_bytes, kept, depth };
        Self { raw, owner: PhantomData }
    }

    pub(super) fn into_kept(self) -> M::Kept {
        // SAFETY: a box of an `M::Kept` (0), which is given up here.
        *unsafe { Box::from_raw(self.raw.kept.0.cast::<M::Kept>()) }
    }

    /// The owner for as long as a device may use the bytes.
    pub(super) fn hold(self) -> HeldOwner {
        let rebuild_and_drop = |raw| drop(M::rebuild(Self { raw, owner: PhantomData }));
        HeldOwner { raw: self.raw, rebuild_and_drop }
    }
}

impl<M> TakenApart<M> {
    pub(super) fn address(&self) -> Address {
        self.raw.address
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
    /// 0. The parts of some `M`, as in [`TakenApart`]; but a device may know the bytes.
    raw: RawMemory,
    /// 1. Rebuilds that `M` and drops it. To be called with `raw` only, once nobody uses the bytes any more.
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
    type Kept = usize;

    fn take_apart(self, _: Key) -> Parts<usize> {
        let (kept, len_bytes) = (self.len(), mem::size_of_val(&*self));
        Parts { first: Box::into_raw(self).cast(), len_bytes, kept, depth: 0 }
    }

    fn rebuild(parts: TakenApart<Self>) -> Self {
        let (address, count) = (parts.address(), parts.into_kept());
        // SAFETY: this slice came out of `Box::into_raw`, is used once and by nobody else (`TakenApart`, 0); any bytes
        // are a `T`.
        unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(address.0.cast(), count)) }
    }
}

impl<T: Plain> Memory for Vec<T> {}
impl<T: Plain> Sealed for Vec<T> {}
impl<T: Plain> Owner for Vec<T> {
    /// Length and capacity.
    type Kept = (usize, usize);

    fn take_apart(self, _: Key) -> Parts<(usize, usize)> {
        let mut this = mem::ManuallyDrop::new(self);
        let (len_bytes, kept) = (mem::size_of_val(&**this), (this.len(), this.capacity()));
        Parts { first: this.as_mut_ptr().cast(), len_bytes, kept, depth: 0 }
    }

    fn rebuild(parts: TakenApart<Self>) -> Self {
        let (address, (len, capacity)) = (parts.address(), parts.into_kept());
        // SAFETY: pointer, length and capacity of a vector that was taken apart, used once and by nobody else
        // (`TakenApart`, 0); any bytes are a `T`.
        unsafe { Vec::from_raw_parts(address.0.cast(), len, capacity) }
    }
}

impl<T: Plain> Memory for &'static mut [T] {}
impl<T: Plain> Sealed for &'static mut [T] {}
impl<T: Plain> Owner for &'static mut [T] {
    type Kept = usize;

    fn take_apart(self, _: Key) -> Parts<usize> {
        let (kept, len_bytes) = (self.len(), mem::size_of_val(self));
        Parts { first: ptr::from_mut(self).cast(), len_bytes, kept, depth: 0 }
    }

    fn rebuild(parts: TakenApart<Self>) -> Self {
        let (address, count) = (parts.address(), parts.into_kept());
        // SAFETY: came from a `&'static mut`, whose memory is never freed. Nobody else uses the bytes (`TakenApart`,
        // 0), and any are a `T`.
        unsafe { &mut *ptr::slice_from_raw_parts_mut(address.0.cast(), count) }
    }
}

impl<F: ForeignMemory> Memory for Foreign<F> {}
impl<F: ForeignMemory> Sealed for Foreign<F> {}
impl<F: ForeignMemory> Owner for Foreign<F> {
    type Kept = F::Parts;

    fn take_apart(self, _: Key) -> Parts<F::Parts> {
        let (bytes, kept) = self.0.into_parts();
        Parts { first: bytes.as_ptr().cast(), len_bytes: bytes.len(), kept, depth: 0 }
    }

    fn rebuild(parts: TakenApart<Self>) -> Self {
        // Never null: it came from `into_parts`.
        let first = NonNull::new(parts.address().0).unwrap_or(NonNull::dangling());
        let bytes = NonNull::slice_from_raw_parts(first, parts.len_bytes());
        // SAFETY: both came from one `into_parts`, are used once, and nobody else uses the bytes (`TakenApart`, 0).
        Self(unsafe { F::from_parts(bytes, parts.into_kept()) })
    }
}
