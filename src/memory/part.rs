//! Parts of regions: who holds a part says who may use its bytes.
//!
//! | handle | how many | the bytes |
//! |---|---|---|
//! | [`UniquePart`] | one | the holder reads and writes them |
//! | [`SharedPart`] | many | all holders read them; nobody writes |
//! | [`ExposedPart`] | one | peers may reach them through a window; the holder does not touch them |
//! | [`UniqueRegion`] | one, for a whole region | what the rights of the region allow |
//!
//! Only [`SharedPart`] can be cloned. Each change from one handle to another consumes the first handle. A change that
//! needs a condition checks it, takes a proof of it, or is `unsafe`: this is the last clone; the window or the request
//! has ended.
//!
//! When the last handle of a part is dropped, the part is freed, unless it has a [home](Home): a part of a pool goes
//! back there.
#![allow(unsafe_code, reason = "counted references to memory of a region")]

use super::MAX_MESSAGE_BYTES;
use super::registration::{Address, RegionInner, ReleasedOwner};
use super::shelf::{NOWHERE, Shelf, TakenItem};
use super::{Access, DeviceMayWrite, LocalRead, PeerCannotWrite, Unexposed};
use crate::domain::DomainId;
use crate::provider::handles::ObjectPtr;
use crate::provider::window_handles::Unreached;
use crate::sys;
use crate::verb_error::VerbError;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::Waker;
use std::{fmt, mem, process, ptr::NonNull, slice, sync::Arc};

/// A part of a region.
///
/// Made when a region is split, never on the data path. The alignment leaves room for the ledger's tag.
#[repr(C, align(64))]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct Descriptor {
    /// The filled bytes, to be sent.
    element: Element,
    /// All bytes, to be received into; at most [`MAX_MESSAGE_BYTES`].
    whole: sys::ibv_sge,
    /// # Invariants
    ///
    /// 0. `capacity` bytes from the element's address are inside `region`. No other exclusive descriptor with a handle
    ///    has any of these bytes.
    capacity: usize,
    /// 1. How many bytes are filled; at most `capacity`. Only the owner of the part writes it.
    filled: AtomicUsize,
    /// How many [`Part`]s refer to this.
    references: AtomicUsize,
    region: Arc<RegionInner>,
    /// 2. Whether a [`UniquePart`] of this descriptor may be made. If so, the rights of the region let the device
    ///    write, and let no peer in.
    exclusive: bool,
    home: Home,
}

/// What happens to a part when its last handle is dropped.
enum Home {
    /// It is freed.
    Nowhere,
    /// It goes home to this spot of a pool's shelf. It is freed instead if the shelf is closed or the spot is
    /// [`NOWHERE`].
    ///
    /// # Invariants
    ///
    /// 0. The item of the spot is this descriptor, which is exclusive. While the item is at home, the shelf owns the
    ///    only reference.
    Shelf(Arc<Shelf<Descriptor>>, AtomicU32),
    /// It was cut out of a part with a home. That part goes home as a whole, once all that was cut out of it is
    /// dropped.
    Cut(Arc<Uncut>),
    /// It is a slice of this share. While the slice exists, the share cannot become unique.
    Slice(SharedPart),
}

/// The whole part of a pool that smaller parts were cut from. It gives no access to its bytes.
struct Uncut {
    part: Part,
}

/// An `ibv_sge` that is kept up to date, so that a request can point to it. To write a copy for each request would cost
/// time, and the provider's read would wait for those stores.
#[repr(C)]
struct Element {
    /// The address as the device names it, with the provenance of the region's memory.
    addr: Address,
    #[cfg(target_pointer_width = "32")]
    high: u32,
    /// How many bytes are filled; 0 if more than [`MAX_MESSAGE_BYTES`].
    length: AtomicU32,
    lkey: u32,
}
static_assertions::assert_eq_size!(Element, sys::ibv_sge);
static_assertions::const_assert_eq!(mem::offset_of!(Element, length), mem::offset_of!(sys::ibv_sge, length));
static_assertions::const_assert_eq!(mem::offset_of!(Element, lkey), mem::offset_of!(sys::ibv_sge, lkey));
static_assertions::const_assert!(cfg!(target_endian = "little") || cfg!(target_pointer_width = "64"));

impl Element {
    fn copy(&self) -> sys::ibv_sge {
        sys::ibv_sge { addr: self.addr.addr() as u64, length: self.length.load(Ordering::Relaxed), lkey: self.lkey }
    }
}

impl Descriptor {
    /// Whether the bytes belong to a part of a pool. That part goes home after it and all pieces that were cut or
    /// sliced from it are dropped.
    pub(crate) fn has_home(&self) -> bool {
        match &self.home {
            Home::Nowhere => false,
            Home::Shelf(..) | Home::Cut(_) => true,
            Home::Slice(share) => share.has_home(),
        }
    }

    /// A part of `capacity` bytes of `region` from `addr`, all filled.
    fn part(addr: Address, capacity: usize, exclusive: bool, region: Arc<RegionInner>, home: Home) -> Part {
        let lkey = region.lkey().0;
        let element = Element {
            addr,
            #[cfg(target_pointer_width = "32")]
            high: 0,
            length: AtomicU32::new(message_len(capacity)),
            lkey,
        };
        let whole = sys::ibv_sge { addr: addr.addr() as u64, length: capacity.min(MAX_MESSAGE_BYTES) as u32, lkey };
        let (filled, references) = (AtomicUsize::new(capacity), AtomicUsize::new(1));
        Part::new(Self { element, whole, capacity, filled, references, region, exclusive, home })
    }

    pub(super) fn region(&self) -> &Arc<RegionInner> {
        &self.region
    }

    /// Whether its region is of that domain.
    #[inline(always)]
    pub(crate) fn is_of(&self, domain: DomainId) -> bool {
        self.region.domain() == domain
    }

    #[inline(always)]
    pub(super) fn address(&self) -> Address {
        self.element.addr
    }

    /// The address as the device names it.
    #[inline(always)]
    pub(crate) fn device_addr(&self) -> u64 {
        self.element.addr.addr() as u64
    }

    #[inline(always)]
    pub(crate) fn lkey(&self) -> u32 {
        self.element.lkey
    }

    #[inline(always)]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline(always)]
    pub(crate) fn filled(&self) -> usize {
        self.filled.load(Ordering::Relaxed)
    }

    /// Sets how many bytes are filled; more than the capacity counts as all.
    #[inline(always)]
    pub(crate) fn set_filled(&self, len_bytes: usize) {
        let len_bytes = len_bytes.min(self.capacity);
        self.filled.store(len_bytes, Ordering::Relaxed);
        self.element.length.store(message_len(len_bytes), Ordering::Relaxed);
    }

    /// Sets how many bytes a message has filled. Returns false, and changes nothing, if a receive into this part cannot
    /// take that many.
    #[inline(always)]
    pub(crate) fn fill(&self, len_bytes: usize) -> bool {
        let fits = len_bytes <= self.receive_capacity() as usize;
        if fits {
            self.filled.store(len_bytes, Ordering::Relaxed);
            self.element.length.store(len_bytes as u32, Ordering::Relaxed);
        }
        fits
    }

    /// How many bytes are filled, if one message can carry them; else 0.
    #[inline(always)]
    pub(crate) fn message_bytes(&self) -> u32 {
        self.element.length.load(Ordering::Relaxed)
    }

    /// How many bytes a receive into this part takes at most.
    #[inline(always)]
    pub(crate) fn receive_capacity(&self) -> u32 {
        self.whole.length
    }

    /// The filled bytes as a scatter/gather element. Nobody writes through this pointer. If more than
    /// [`MAX_MESSAGE_BYTES`] are filled, its length is 0, and posts refuse the part.
    #[inline(always)]
    pub(crate) fn element(&self) -> *mut sys::ibv_sge {
        (&raw const self.element).cast_mut().cast()
    }

    /// A copy of [`element`](Self::element).
    pub(super) fn filled_element(&self) -> sys::ibv_sge {
        self.element.copy()
    }

    /// A copy of [`whole_element`](Self::whole_element).
    pub(super) fn whole_element_copy(&self) -> sys::ibv_sge {
        self.whole
    }

    /// All bytes as a scatter/gather element. Nobody writes through this pointer.
    #[inline(always)]
    pub(crate) fn whole_element(&self) -> *mut sys::ibv_sge {
        (&raw const self.whole).cast_mut()
    }

    /// The filled bytes: initialised, and inside the region (0, 1).
    fn filled_bytes(&self) -> (*mut u8, usize) {
        (self.element.addr.as_ptr(), self.filled())
    }
}

/// `len_bytes` if one message can carry that many; else 0.
fn message_len(len_bytes: usize) -> u32 {
    if len_bytes <= MAX_MESSAGE_BYTES { len_bytes as u32 } else { 0 }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.filled()).field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

/// A counted reference to a descriptor. The ledger holds the same pointer, so moving a reference into and out of the
/// ledger needs no arithmetic. (An `Arc` would need some. And when two clones of an `Arc` are dropped at the same time,
/// neither can keep the allocation to take it home.)
///
/// On its own it gives no access to the bytes. The types that wrap it do, and each says why it may.
pub(crate) struct Part {
    /// # Invariants
    ///
    /// 0. The pointer came from a box of the descriptor, and owns one of its references. Whoever owns the last one owns
    ///    the box.
    raw: ObjectPtr<Descriptor>,
}

// An `ObjectPtr` is `Send` and `Sync`, whatever it points to, and so is a `Part`. That is sound only if a descriptor is
// `Send` and `Sync`, too.
static_assertions::assert_impl_all!(Descriptor: Send, Sync);

impl Part {
    fn new(descriptor: Descriptor) -> Self {
        Self { raw: ObjectPtr(NonNull::from(Box::leak(Box::new(descriptor)))) }
    }

    /// Turns the reference into its pointer, which owns the reference from here on.
    #[inline(always)]
    fn into_raw(self) -> NonNull<Descriptor> {
        ManuallyDrop::new(self).raw.0
    }

    /// Rebuilds the reference.
    ///
    /// # Safety
    ///
    /// `raw` came from the `into_raw` of a [`UniquePart`] or a [`SharedPart`], and is used once.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(raw: NonNull<Descriptor>) -> Self {
        Self { raw: ObjectPtr(raw) }
    }

    /// One more reference.
    fn another(&self) -> Self {
        // Abort before the count wraps around, as `Arc` does. Only a program that forgets clones in a loop gets so far.
        if self.references.fetch_add(1, Ordering::Relaxed) > usize::MAX / 2 {
            process::abort();
        }
        Self { raw: ObjectPtr(self.raw.0) }
    }

    /// Whether this is the only reference. If so, it stays the only one, since nobody else can clone it. Acquire: this
    /// thread sees what the holders of dropped references did.
    #[inline(always)]
    fn is_only(&self) -> bool {
        self.references.load(Ordering::Acquire) == 1
    }

    /// Gives up the reference if there are others. Returns true, and keeps the reference, if it is the last one.
    #[inline(always)]
    fn release_unless_last(&self) -> bool {
        self.is_only() || {
            let was_last = self.references.fetch_sub(1, Ordering::AcqRel) == 1;
            if was_last {
                self.references.store(1, Ordering::Relaxed);
            }
            was_last
        }
    }

    /// Moves the last reference to the part's shelf, if there is one and it is not closed. Returns whether it did so.
    /// After `true` the descriptor belongs to others, who may have freed it.
    #[inline(always)]
    fn try_send_home(&self) -> bool {
        let descriptor: &Descriptor = self;
        let Home::Shelf(shelf, spot) = &descriptor.home else { return false };
        let spot = spot.load(Ordering::Relaxed);
        let Some(place) = shelf.place(spot) else { return false };
        place.put() || put_in_turn(Arc::clone(shelf), spot)
    }
}

impl Deref for Part {
    type Target = Descriptor;
    #[inline(always)]
    fn deref(&self) -> &Descriptor {
        // SAFETY: the descriptor is alive, since this part owns a reference to it (0).
        unsafe { self.raw.0.as_ref() }
    }
}

impl Drop for Part {
    #[inline(always)]
    fn drop(&mut self) {
        let_go(ManuallyDrop::new(Self { raw: ObjectPtr(self.raw.0) }));
    }
}

/// Gives up the reference. This is a function of its own, so that a drop of a part inlines little code.
#[inline(never)]
fn let_go(part: ManuallyDrop<Part>) {
    if part.release_unless_last() && !part.try_send_home() {
        // SAFETY: the pointer came from a box (0). This was the last reference, and it ends here.
        free(unsafe { Box::from_raw(part.raw.0.as_ptr()) });
    }
}

/// `shelf` is a reference of this call, which keeps the shelf alive. The part's own reference does not: once the part
/// is home, others may free the part.
#[cold]
#[inline(never)]
fn put_in_turn(shelf: Arc<Shelf<Descriptor>>, spot: u32) -> bool {
    shelf.put_in_turn(spot)
}

#[inline(never)]
fn free(descriptor: Box<Descriptor>) {
    drop(descriptor);
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// One of several handles of a part that nobody writes.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct SharedPart {
    /// # Invariants
    ///
    /// 0. Nobody writes the part while one of its handles is borrowed as shared.
    part: Part,
}

impl SharedPart {
    /// A share of all bytes of a region that was just registered for reading. Others may read the memory, too.
    pub(super) fn of_read_only(region: RegionInner) -> Self {
        debug_assert!(region.has_rights::<LocalRead>());
        let (address, len_bytes) = (region.address(), region.len_bytes());
        Self { part: Descriptor::part(address, len_bytes, false, Arc::new(region), Home::Nowhere) }
    }

    /// Turns the handle into its pointer, which owns the handle from here on.
    #[inline(always)]
    pub(crate) fn into_raw(self) -> NonNull<Descriptor> {
        self.part.into_raw()
    }

    /// Rebuilds the handle.
    ///
    /// # Safety
    ///
    /// `raw` came from [`into_raw`](Self::into_raw), and is used once.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(raw: NonNull<Descriptor>) -> Self {
        Self { part: Part { raw: ObjectPtr(raw) } }
    }

    /// The filled bytes.
    pub(super) fn as_slice(&self) -> &[u8] {
        let (first, len_bytes) = self.part.filled_bytes();
        // SAFETY: these are initialised bytes of the region, and nobody writes them while `self` is borrowed (0).
        unsafe { slice::from_raw_parts(first, len_bytes) }
    }

    /// A share of the bytes in `range`; `None` if they are not all filled.
    pub(super) fn part_of(&self, range: Range<usize>) -> Option<Self> {
        let len_bytes = range.end.checked_sub(range.start)?;
        if range.end > self.filled() {
            return None;
        }
        // A slice of a slice keeps a share of the whole part, not of the outer slice. Otherwise slices could form a
        // long chain, and the drop of the last one would recurse along the chain.
        let share = if let Home::Slice(share) = &self.home { share.clone() } else { self.clone() };
        let (address, region) = (self.address().plus(range.start), Arc::clone(self.region()));
        Some(Self { part: Descriptor::part(address, len_bytes, false, region, Home::Slice(share)) })
    }

    /// Turns this into the only handle of the part, if it is the last one and the part may be written at all.
    pub(super) fn into_unique(self) -> Result<UniquePart, (Self, NotUniqueReason)> {
        if let Home::Slice(_) = self.home {
            Err((self, NotUniqueReason::Slice))
        } else if !self.part.exclusive {
            Err((self, NotUniqueReason::ReadOnly))
        } else if !self.part.is_only() {
            Err((self, NotUniqueReason::Clones))
        } else {
            Ok(UniquePart { share: self })
        }
    }
}

impl Clone for SharedPart {
    fn clone(&self) -> Self {
        Self { part: self.part.another() }
    }
}

impl Deref for SharedPart {
    type Target = Descriptor;
    #[inline(always)]
    fn deref(&self) -> &Descriptor {
        &self.part
    }
}

/// The only handle of a part.
#[derive(Debug)]
#[repr(transparent)]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct UniquePart {
    /// # Invariants
    ///
    /// 0. The only reference to its descriptor, which is exclusive: the rights of the region let no peer in. No request
    ///    names the descriptor.
    share: SharedPart,
}

impl UniquePart {
    /// Turns the part into its pointer, which owns the part from here on.
    #[inline(always)]
    pub(crate) fn into_raw(self) -> NonNull<Descriptor> {
        self.share.into_raw()
    }

    /// Rebuilds the part.
    ///
    /// # Safety
    ///
    /// `raw` came from [`into_raw`](Self::into_raw), and is used once. No request names the part any more.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(raw: NonNull<Descriptor>) -> Self {
        Self { share: SharedPart { part: Part { raw: ObjectPtr(raw) } } }
    }

    fn of_part(part: Part) -> Self {
        Self { share: SharedPart { part } }
    }

    /// Takes over a part that has just left its shelf.
    #[inline(always)]
    pub(super) fn from_home(taken: TakenItem<Descriptor>) -> Self {
        // SAFETY: the shelf owned the only reference to an exclusive descriptor (`Home::Shelf`, 0), and `taken` is that
        // reference. No request names the part: such a request would hold another reference.
        unsafe { Self::from_raw(taken.into_pointer()) }
    }

    /// Cuts the part into parts of `len_bytes`, whose homes are the spots of `shelf` from `first` on, and puts them
    /// there. Returns the wakers of those who get one of them.
    pub(super) fn stock(self, shelf: &Arc<Shelf<Descriptor>>, len_bytes: usize, first: u32) -> Vec<Waker> {
        let (address, capacity, region) = (self.address(), self.capacity(), Arc::clone(self.region()));
        drop(self);
        let mut spots = first..first;
        for offset in (0..capacity / len_bytes).map(|index| index * len_bytes) {
            let home = Home::Shelf(Arc::clone(shelf), AtomicU32::new(spots.end));
            let part = Descriptor::part(address.plus(offset), len_bytes, true, Arc::clone(&region), home);
            if !shelf.assign(spots.end, part.raw.0) {
                break;
            }
            // The shelf owns the part from here on, so the part must not be dropped.
            part.into_raw();
            spots.end += 1;
        }
        shelf.add(spots)
    }

    /// Frees the part even if it has a home.
    pub(super) fn free(self) {
        if let Home::Shelf(_, spot) = &self.home {
            spot.store(NOWHERE, Ordering::Relaxed);
        }
    }

    /// The home of the parts that this part is split or joined into.
    fn into_home(self) -> Home {
        match &self.home {
            Home::Shelf(..) => Home::Cut(Arc::new(Uncut { part: self.share.part })),
            Home::Cut(uncut) => Home::Cut(Arc::clone(uncut)),
            Home::Nowhere | Home::Slice(_) => Home::Nowhere,
        }
    }

    /// Splits the part into the first `mid` bytes and the others. Returns the part if `mid` is not inside.
    pub(super) fn split_at(self, mid: usize) -> Result<(Self, Self), Self> {
        if mid == 0 || mid >= self.capacity() {
            return Err(self);
        }
        let (address, capacity, region) = (self.address(), self.capacity(), Arc::clone(self.region()));
        let home = self.into_home();
        let second_home = if let Home::Cut(uncut) = &home { Home::Cut(Arc::clone(uncut)) } else { Home::Nowhere };
        let right = Descriptor::part(address.plus(mid), capacity - mid, true, Arc::clone(&region), second_home);
        let left = Descriptor::part(address, mid, true, region, home);
        Ok((Self::of_part(left), Self::of_part(right)))
    }

    /// Joins both into one part, if `next` starts in the same region where this one ends. Parts with a home are joined
    /// only if both were cut out of the same part.
    pub(super) fn join(self, next: Self) -> Result<Self, (Self, Self)> {
        let is_adjacent = self.address().plus(self.capacity()).addr() == next.address().addr();
        let have_one_home = match (&self.home, &next.home) {
            (Home::Nowhere, Home::Nowhere) => true,
            (Home::Cut(uncut), Home::Cut(other)) => Arc::ptr_eq(uncut, other),
            _ => false,
        };
        if !is_adjacent || !have_one_home || !Arc::ptr_eq(self.region(), next.region()) {
            return Err((self, next));
        }
        let (address, region) = (self.address(), Arc::clone(self.region()));
        let capacity = self.capacity() + next.capacity();
        drop(next);
        let home = match self.into_home() {
            Home::Cut(uncut) if uncut.part.capacity() == capacity => match Arc::try_unwrap(uncut) {
                Ok(Uncut { part }) => {
                    part.set_filled(capacity);
                    return Ok(Self::of_part(part));
                }
                Err(uncut) => Home::Cut(uncut),
            },
            home => home,
        };
        Ok(Self::of_part(Descriptor::part(address, capacity, true, region, home)))
    }

    /// The same part as a share, which can be cloned.
    pub(super) fn share(self) -> SharedPart {
        self.share
    }

    /// The same part for a window, through which peers may reach it.
    pub(super) fn expose(self) -> ExposedPart {
        ExposedPart { part: self.share.part }
    }

    /// Turns the part into its region, if `rest` names that region and the part is all of it.
    pub(super) fn into_region<A>(self, rest: &RegionRest<A>) -> Result<UniqueRegion<A>, Self> {
        if rest.is_all(&self) { Ok(UniqueRegion::of_all(self.share.part)) } else { Err(self) }
    }

    /// The filled bytes.
    pub(super) fn as_slice(&self) -> &[u8] {
        self.share.as_slice()
    }

    /// The filled bytes, to write.
    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        let (first, len_bytes) = self.share.part.filled_bytes();
        // SAFETY: these are initialised bytes of the region. Nobody else uses them: this is the only handle, and it is
        // borrowed mutably (0).
        unsafe { slice::from_raw_parts_mut(first, len_bytes) }
    }
}

impl Deref for UniquePart {
    type Target = Descriptor;
    #[inline(always)]
    fn deref(&self) -> &Descriptor {
        &self.share
    }
}

/// The only handle of a part that peers may reach through a window. It gives no view of the bytes.
#[derive(Debug)]
pub(super) struct ExposedPart {
    /// # Invariants
    ///
    /// 0. The only reference to an exclusive descriptor. Peers may write the bytes until the window has ended.
    part: Part,
}

impl ExposedPart {
    /// Turns the part into the program's own, once no peer reaches it through its window any more.
    pub(super) fn reclaim(self, _: Unreached) -> UniquePart {
        UniquePart::of_part(self.part)
    }

    /// As [`UniquePart::into_region`], but the region comes without rights, and so without a view of its bytes: only
    /// the end of the registration ends the accesses of peers.
    pub(super) fn into_region<A>(self, rest: &RegionRest<A>) -> Result<UniqueRegion<()>, Self> {
        if rest.is_all(&self) { Ok(UniqueRegion::of_all(self.part)) } else { Err(self) }
    }
}

impl Deref for ExposedPart {
    type Target = Descriptor;
    fn deref(&self) -> &Descriptor {
        &self.part
    }
}

/// The only handle of a whole region with the rights `A`. If `A` is `()`, the region can only be ended.
pub(super) struct UniqueRegion<A> {
    /// # Invariants
    ///
    /// 0. No part of the region has a handle, so no request names it.
    /// 1. The region is registered with the rights `A`, unless `A` is `()`. Peers have no other access to it, such as
    ///    by a window.
    region: Arc<RegionInner>,
    rights: PhantomData<fn() -> A>,
}

impl<A> UniqueRegion<A> {
    /// The region of a part that is all of it. Parts do not overlap, so no other part exists.
    fn of_all(part: Part) -> Self {
        Self { region: Arc::clone(part.region()), rights: PhantomData }
    }

    /// Ends the registration. See [`RegionInner::end`].
    pub(super) fn end(&mut self) -> Result<Option<ReleasedOwner>, VerbError> {
        // `get_mut` never fails: only a part or a `RegionRest` could hold another reference to the region. No part is
        // left, since none has a handle (0). If the region was split before, its `RegionRest` was dropped when this
        // `UniqueRegion` was rebuilt.
        Arc::get_mut(&mut self.region).map_or(Err(VerbError::new("ibv_dereg_mr", libc::EBUSY)), RegionInner::end)
    }
}

impl<A: Access> UniqueRegion<A> {
    /// Takes over a region that was registered just now.
    pub(super) fn new(region: RegionInner) -> Self {
        debug_assert!(region.has_rights::<A>());
        Self { region: Arc::new(region), rights: PhantomData }
    }

    /// All bytes.
    pub(super) fn as_bytes(&self) -> &[u8]
    where
        A: PeerCannotWrite,
    {
        // SAFETY: the bytes are the region's, mapped and initialised: `Whole` offers this only for a `Memory`, and no
        // other process writes the bytes of a `Memory`. Nobody writes them while they are borrowed: the rights let no
        // peer write (1), and no request names the bytes (0), so the device does not write them either.
        unsafe { slice::from_raw_parts(self.address().as_ptr(), self.len_bytes()) }
    }

    /// All bytes, to write.
    pub(super) fn as_bytes_mut(&mut self) -> &mut [u8]
    where
        A: Unexposed,
    {
        // SAFETY: the bytes are the region's, mapped and initialised: `Whole` offers this only for a `Memory`, and no
        // other process reaches the bytes of a `Memory`. Nobody else reaches them while they are borrowed: the rights
        // let no peer in (1), and no request names the bytes (0), so the device does not access them either.
        unsafe { slice::from_raw_parts_mut(self.address().as_ptr(), self.len_bytes()) }
    }

    /// Splits the region into one part over all of its bytes, and the remainder that takes the part back.
    pub(super) fn split(self) -> (RegionRest<A>, UniquePart)
    where
        A: DeviceMayWrite + Unexposed,
    {
        let region = Arc::clone(&self.region);
        let part = Descriptor::part(self.address(), self.len_bytes(), true, region, Home::Nowhere);
        (RegionRest { region: self.region, rights: PhantomData }, UniquePart::of_part(part))
    }

    /// All bytes as a share.
    pub(super) fn share(self) -> SharedPart
    where
        A: PeerCannotWrite,
    {
        let (address, len_bytes) = (self.address(), self.len_bytes());
        SharedPart { part: Descriptor::part(address, len_bytes, false, self.region, Home::Nowhere) }
    }
}

impl<A> Deref for UniqueRegion<A> {
    type Target = RegionInner;
    fn deref(&self) -> &RegionInner {
        &self.region
    }
}

/// Names a region with the rights `A` whose bytes are handed out as parts. It gives access to none of the bytes.
pub(super) struct RegionRest<A> {
    region: Arc<RegionInner>,
    rights: PhantomData<fn() -> A>,
}

impl<A> RegionRest<A> {
    pub(super) fn len_bytes(&self) -> usize {
        self.region.len_bytes()
    }

    /// Whether `part` is all of the region.
    fn is_all(&self, part: &Descriptor) -> bool {
        Arc::ptr_eq(part.region(), &self.region) && part.capacity() == self.region.len_bytes()
    }
}

static_assertions::assert_not_impl_any!(UniquePart: Clone, Copy);
static_assertions::assert_not_impl_any!(ExposedPart: Clone, Copy);
static_assertions::assert_not_impl_any!(UniqueRegion<()>: Clone, Copy);
static_assertions::assert_not_impl_any!(Part: Clone, Copy);

/// Why a share cannot become a unique buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotUniqueReason {
    /// Clones of the share exist, in the program or in flight.
    #[error("the share has other clones, in the program or in flight: take their completions, and drop them")]
    Clones,
    /// Its region stays read-only.
    #[error(
        "the region of the share was registered without `LocalWrite`, or peers may read it: the share stays read-only"
    )]
    ReadOnly,
    /// It is a slice of a share.
    #[error("a slice of a share stays read-only: drop it, and turn the whole share into a unique buffer")]
    Slice,
}
