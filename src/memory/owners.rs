//! The kinds of memory that can be registered: what types each may hold, and how each is taken apart and rebuilt.
//!
//! [`registration`](super::registration) keeps the parts for as long as a device may reach the bytes. A buffer, a
//! shared map and a dma-buf are taken apart in their own files.
#![allow(unsafe_code, reason = "rebuilds owners from their parts")]

use super::foreign::{Foreign, ForeignMemory};
use super::pages::Pages;
use super::registration::sealed::Owner;
use super::registration::{Parts, TakenApart};
use crate::seal::Key;
use std::{mem, mem::ManuallyDrop, ptr, ptr::NonNull};
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
/// It is a `Box<[T]>`, `Vec<T>`, `&'static mut [T]`, [`Pages`], a [`Buffer`](super::Buffer), which is then registered a
/// second time, or [`Foreign`] for memory of any other kind.
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
    pub trait Sealed: super::Owner {}
}
use sealed::Sealed;

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
        rebuild_vec(parts).into_boxed_slice()
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
        rebuild_vec(parts)
    }
}

/// Owners that are taken apart as a vector of `T`.
trait AsVec<T>: Owner<Kept = (usize, usize)> {}
impl<T: Plain> AsVec<T> for Vec<T> {}
impl<T: Plain> AsVec<T> for Box<[T]> {}

/// Rebuilds the vector that was taken apart.
fn rebuild_vec<T: Plain, M: AsVec<T>>(parts: TakenApart<M>) -> Vec<T> {
    let (address, (len, capacity)) = (parts.address(), parts.into_kept());
    // SAFETY: these are the pointer, the length and the capacity of a vector that was taken apart (`AsVec`). They are
    // used only once. Nobody else uses the bytes (`TakenApart`, 0), and any bytes are a valid `T`.
    unsafe { Vec::from_raw_parts(address.as_ptr().cast(), len, capacity) }
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

impl Memory for Pages {}
impl Sealed for Pages {}
impl Owner for Pages {
    type Kept = Self;
    type Freed = Self;

    fn take_apart(self, _: Key) -> Parts<Self> {
        Parts::of(self.map.as_ptr(), self.len, self)
    }

    fn rebuild(parts: TakenApart<Self>) -> Self {
        parts.into_kept()
    }
}
