//! Parts of regions. A buffer is one word, the pointer to its part.
#![allow(unsafe_code, reason = "counted references to memory of a region")]

use super::MAX_MESSAGE_BYTES;
use super::backing::Address;
use super::registration::RegionInner;
use crate::domain::DomainId;
use crate::sys;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::{fmt, mem, ptr::NonNull, slice, sync::Arc};

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
    /// 0. `capacity` bytes from the element's address are inside `region`, and inside no other exclusive descriptor.
    capacity: usize,
    /// 1. How many bytes are filled; at most `capacity`. Written by the one owner only.
    filled: AtomicUsize,
    /// 2. Whether the only owner of this descriptor may write the bytes. If so, the region's rights let the device
    ///    write and no peer in.
    exclusive: bool,
    region: Arc<RegionInner>,
}

/// An `ibv_sge` that is kept up to date, so that a request can point to it: a copy for each request would cost time,
/// and the provider would wait for the stores that made it.
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
    /// All of `region`.
    pub(super) fn whole(region: Arc<RegionInner>, exclusive: bool) -> Part {
        Self::part(region.address(), region.len_bytes(), exclusive, region)
    }

    /// `capacity` bytes of `region` from `addr`, all filled.
    pub(super) fn part(addr: Address, capacity: usize, exclusive: bool, region: Arc<RegionInner>) -> Part {
        let lkey = region.lkey().0;
        let element = Element {
            addr,
            #[cfg(target_pointer_width = "32")]
            high: 0,
            length: AtomicU32::new(message_len(capacity)),
            lkey,
        };
        let whole = sys::ibv_sge { addr: addr.addr() as u64, length: capacity.min(MAX_MESSAGE_BYTES) as u32, lkey };
        Part::new(Self { element, whole, capacity, filled: AtomicUsize::new(capacity), exclusive, region })
    }

    pub(super) fn region(&self) -> &Arc<RegionInner> {
        &self.region
    }

    /// Whether its region is of that domain.
    #[inline(always)]
    pub(crate) fn is_of(&self, domain: DomainId) -> bool {
        self.region.domain() == domain
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.exclusive
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

    /// Sets how many bytes a message has filled. Answers `false` and changes nothing if a receive into this part cannot
    /// take so many.
    #[inline(always)]
    pub(crate) fn fill(&self, len_bytes: usize) -> bool {
        let fits = len_bytes <= self.receives() as usize;
        if fits {
            self.filled.store(len_bytes, Ordering::Relaxed);
            self.element.length.store(len_bytes as u32, Ordering::Relaxed);
        }
        fits
    }

    /// How many bytes are filled, if one message can carry them; else 0.
    #[inline(always)]
    pub(crate) fn message(&self) -> u32 {
        self.element.length.load(Ordering::Relaxed)
    }

    /// How many bytes a receive into this part takes at most.
    #[inline(always)]
    pub(crate) fn receives(&self) -> u32 {
        self.whole.length
    }

    /// The filled bytes as a scatter/gather element. Nobody writes through this pointer. Its length is wrong if more
    /// than [`MAX_MESSAGE_BYTES`] are filled, which posts refuse.
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

/// `len_bytes` if one message can carry so many; else 0.
fn message_len(len_bytes: usize) -> u32 {
    if len_bytes <= MAX_MESSAGE_BYTES { len_bytes as u32 } else { 0 }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.filled()).field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

/// A counted reference to a descriptor, as the pointer that the ledger holds too: moving it in and out of the ledger
/// takes no arithmetic, which an `Arc` would.
pub(crate) struct Part {
    /// # Invariants
    ///
    /// 0. From `Arc::into_raw`, and owns one reference.
    raw: NonNull<Descriptor>,
}

// SAFETY: the same as an `Arc` of a descriptor, which is `Send` and `Sync`.
unsafe impl Send for Part {}
// SAFETY: the same as an `Arc` of a descriptor, which is `Send` and `Sync`.
unsafe impl Sync for Part {}

impl Part {
    fn new(descriptor: Descriptor) -> Self {
        let raw = Arc::into_raw(Arc::new(descriptor)).cast_mut();
        // SAFETY: not null, since it points into an `Arc`.
        Self { raw: unsafe { NonNull::new_unchecked(raw) } }
    }

    /// The pointer. Whoever has it owns the reference.
    #[inline(always)]
    pub(crate) fn into_raw(self) -> NonNull<Descriptor> {
        mem::ManuallyDrop::new(self).raw
    }

    /// The reference again.
    ///
    /// # Safety
    ///
    /// `raw` came from [`into_raw`](Self::into_raw), and is used once.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(raw: NonNull<Descriptor>) -> Self {
        Self { raw }
    }

    /// Whether this is the only reference.
    fn is_only(&mut self) -> bool {
        // SAFETY: from `Arc::into_raw` (0); not dropped, so the count stays.
        let mut arc = mem::ManuallyDrop::new(unsafe { Arc::from_raw(self.raw.as_ptr()) });
        Arc::get_mut(&mut arc).is_some()
    }
}

impl Deref for Part {
    type Target = Descriptor;
    #[inline(always)]
    fn deref(&self) -> &Descriptor {
        // SAFETY: a reference that we own (0).
        unsafe { self.raw.as_ref() }
    }
}

impl Clone for Part {
    fn clone(&self) -> Self {
        // SAFETY: from `Arc::into_raw` (0).
        unsafe { Arc::increment_strong_count(self.raw.as_ptr()) };
        Self { raw: self.raw }
    }
}

impl Drop for Part {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: from `Arc::into_raw` (0); given up here.
        drop(unsafe { Arc::from_raw(self.raw.as_ptr()) });
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The only handle of a part.
#[derive(Debug)]
#[repr(transparent)]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct UniquePart {
    /// # Invariants
    ///
    /// 0. The only reference to an exclusive descriptor. No peer may write to its region, and no request names it.
    part: Part,
}

impl UniquePart {
    /// The caller has the only reference, to a descriptor made exclusive; no request names it any more (0).
    #[inline(always)]
    pub(super) fn new(part: Part) -> Self {
        Self { part }
    }

    #[inline(always)]
    pub(super) fn into_part(self) -> Part {
        self.part
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        let (first, len_bytes) = self.part.filled_bytes();
        // SAFETY: initialised bytes of the region, which nobody writes: this is the only handle (0).
        unsafe { slice::from_raw_parts(first, len_bytes) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        let (first, len_bytes) = self.part.filled_bytes();
        // SAFETY: initialised bytes of the region, which nobody else uses: this is the only handle, borrowed
        // exclusively (0).
        unsafe { slice::from_raw_parts_mut(first, len_bytes) }
    }
}

impl Deref for UniquePart {
    type Target = Descriptor;
    #[inline(always)]
    fn deref(&self) -> &Descriptor {
        &self.part
    }
}

/// One of several handles of a part that nobody writes.
#[derive(Clone)]
pub(super) struct SharedPart {
    /// # Invariants
    ///
    /// 0. Nobody writes the part while any reference to it is around.
    part: Part,
}

impl SharedPart {
    /// Nobody writes the part while any reference to it is around, as the caller knows (0).
    #[inline(always)]
    pub(super) fn new(part: Part) -> Self {
        Self { part }
    }

    #[inline(always)]
    pub(super) fn into_part(self) -> Part {
        self.part
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        let (first, len_bytes) = self.part.filled_bytes();
        // SAFETY: initialised bytes of the region, which nobody writes (0).
        unsafe { slice::from_raw_parts(first, len_bytes) }
    }

    /// Whether this is the only reference.
    pub(super) fn is_only(&mut self) -> bool {
        self.part.is_only()
    }
}

impl Deref for SharedPart {
    type Target = Descriptor;
    #[inline(always)]
    fn deref(&self) -> &Descriptor {
        &self.part
    }
}
