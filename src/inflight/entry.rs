//! How the memory of a request becomes an entry of the ledger, and how it comes back. An entry holds the memory and the
//! operation of one request.
#![allow(unsafe_code, reason = "a tagged pointer to a descriptor")]

use super::operation::Operation;
use super::peers::To;
use super::posted_memory::PostedMemory;
use super::work_id::QueueKind;
use crate::domain::DomainId;
use crate::memory::{
    Buffer, BufferList, Descriptor, ListInner, Part, SharedBuffer, SharedPart, UniquePart, UnsettledWindow, WindowInner,
};
use crate::provider::handles::ObjectPtr;
use crate::seal::{KEY, Key};
use sealed::Postable;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::num::NonZeroUsize;
use std::ptr::{self, NonNull};
use std::{fmt, mem};

pub(super) mod sealed {
    use super::{Descriptor, DomainId, Entry, Key, ListInner, Operation, To};

    /// Memory that a request can have. It can be split into what the device reads and what the ledger keeps.
    ///
    /// The device may use only what the ledger keeps. So if `descriptor` or `list` returns something, `into_entry` must
    /// return an entry that owns exactly that. [`Entry::of`] checks this in debug builds.
    #[allow(unnameable_types, reason = "seals `SendMemory`")]
    pub trait Postable<B>: Sized {
        /// The part of the handle that the ledger's entry does not keep.
        type Rest;
        /// How many bytes are filled.
        fn filled(&self, key: Key) -> usize;
        /// The number of filled bytes of one buffer or of inline bytes, if it is not 0 and fits in one message;
        /// otherwise 0.
        fn message_bytes(&self, _: Key) -> u32 {
            0
        }
        /// The descriptor of one buffer; `None` for a list and for inline bytes.
        fn descriptor(&self, key: Key) -> Option<&Descriptor>;
        /// The list; `None` if the memory is not a list.
        fn list(&mut self, _: Key) -> Option<&mut ListInner> {
            None
        }
        /// The number of scatter/gather elements (0 for inline bytes), and the number of bytes that fit in them.
        fn extent(&self, key: Key) -> (usize, usize) {
            self.descriptor(key).map_or((0, 0), |part| (1, part.capacity()))
        }
        /// The inline bytes; empty for registered memory.
        fn bytes(&self, _: Key) -> &[u8] {
            &[]
        }
        /// Whether the memory and the recipient belong to `domain`. Called only for brands that are checked at run
        /// time.
        fn is_of(&self, domain: DomainId, key: Key) -> bool;
        /// The recipient of a datagram.
        fn recipient(&self, _: Key) -> Option<To<'_>> {
            None
        }
        fn into_entry(self, operation: Operation, key: Key) -> (Entry, Self::Rest);
        /// Rebuilds the handle from its `entry` and `rest`.
        fn from_entry(entry: Entry, rest: Self::Rest, key: Key) -> Option<Self>;
    }
}

/// A request in the ledger: its memory and its operation, in one word.
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct Entry {
    /// # Invariants
    ///
    /// 0. The low bits ([`TAG`]) hold the operation and the form of the memory. The rest of the word is a pointer from
    ///    the `into_raw` of the type that the form names: [`UniquePart`] for `UNIQUE`, [`SharedPart`] for `SHARED`, a
    ///    box of a [`ListInner`] for `LIST`, a box of a [`WindowInner`] for `WINDOW`. An `INLINE` entry has no pointer.
    /// 1. The entry owns what the pointer owns.
    tagged: ObjectPtr<Descriptor>,
}

/// An entry as a bare word, which the compiler passes in a register. The word owns the memory of the request; dropping
/// the word leaks that memory.
#[must_use = "dropping it leaks the memory of the request"]
pub(crate) struct RawEntry(NonNull<Descriptor>);

const OPERATION: usize = Operation::MASK;
const FORM: usize = 0b11_1000;
/// A [`Buffer`]: the only reference to its descriptor.
const UNIQUE: usize = 0b00_0000;
/// A [`SharedBuffer`].
const SHARED: usize = 0b00_1000;
/// No memory: an inline request.
const INLINE: usize = 0b01_0000;
/// A [`BufferList`].
const LIST: usize = 0b10_0000;
/// A memory window and the memory behind it. The code includes the bit of `LIST`, so that one test finds both rare
/// forms.
const WINDOW: usize = LIST | 0b00_1000;
const TAG: usize = OPERATION | FORM;
// `are_buffers` relies on this: since `UNIQUE` is 0, the OR of several forms is `UNIQUE` only if each of them is.
static_assertions::const_assert_eq!(UNIQUE, 0);
// `fill` relies on this: the tag of a receive into a unique buffer is 0, so the word of the entry is the bare pointer.
static_assertions::const_assert_eq!(Operation::Receive.code(), 0);
static_assertions::assert_eq_size!(Buffer<()>, *mut Descriptor);
static_assertions::assert_eq_size!(Entry, Option<Entry>, u64);

// An `Entry` is `Send` and `Sync` because its `ObjectPtr` is. This is sound: the entry owns a part, a list or a window
// (0, 1), each of which is `Send` and `Sync`. The entry lends only shared references to what it owns. (`fill` writes
// through such a reference, but only to atomics.)
static_assertions::assert_impl_all!(Part: Send, Sync);
static_assertions::assert_impl_all!(BufferList<()>: Send, Sync);
static_assertions::assert_impl_all!(WindowInner: Send, Sync);

impl Entry {
    /// Splits `memory` into the entry and the rest.
    #[inline(always)]
    pub(super) fn of<B, M: Postable<B>>(mut memory: M, operation: Operation) -> (Self, M::Rest) {
        let named = cfg!(debug_assertions).then(|| {
            let list = memory.list(KEY).map(|list| ptr::from_ref(list));
            (memory.descriptor(KEY).map(ptr::from_ref), list)
        });
        let (entry, rest) = memory.into_entry(operation, KEY);
        debug_assert_eq!(named, Some((entry.descriptor().map(ptr::from_ref), entry.as_list().map(ptr::from_ref))));
        (entry, rest)
    }

    #[inline(always)]
    pub(crate) fn unique<B>(operation: Operation, buffer: Buffer<B>) -> Self {
        Self::tag(buffer.into_part().into_raw(), operation.code() | UNIQUE)
    }

    #[inline(always)]
    pub(crate) fn shared<B>(operation: Operation, share: SharedBuffer<B>) -> Self {
        Self::tag(share.into_part().into_raw(), operation.code() | SHARED)
    }

    #[inline(always)]
    pub(crate) fn list<B>(operation: Operation, list: BufferList<B>) -> Self {
        Self::tag(list.into_raw(), operation.code() | LIST)
    }

    /// The entry of an inline request, which has no memory.
    #[inline(always)]
    pub(crate) fn inline(operation: Operation) -> Self {
        const INLINE_TAG: NonZeroUsize = NonZeroUsize::new(INLINE).unwrap();
        Self { tagged: ObjectPtr(NonNull::dangling().map_addr(|_| INLINE_TAG | operation.code())) }
    }

    pub(crate) fn window(operation: Operation, window: Box<WindowInner>) -> Self {
        Self::tag(window.into_raw(), operation.code() | WINDOW)
    }

    /// Puts `tag` into the low bits of `pointer`, which are zero because of the alignment of `T`.
    #[inline(always)]
    fn tag<T>(pointer: NonNull<T>, tag: usize) -> Self {
        const { assert!(mem::align_of::<T>() > TAG) };
        // The low bits are zero, so adding the tag sets them. (`map_addr` costs two instructions more.)
        let tagged = pointer.as_ptr().wrapping_byte_add(tag).cast();
        // SAFETY: `tag` is at most `TAG`, which is less than the alignment of `T` (asserted above). `T` is a
        // descriptor, a list or a window, so it is not zero-sized, and its size is at least its alignment. So `tagged`
        // points into the object of `pointer`, and is not null.
        Self { tagged: ObjectPtr(unsafe { NonNull::new_unchecked(tagged) }) }
    }

    /// Turns the entry into its word, which owns the memory from here on.
    #[inline(always)]
    pub(crate) fn into_raw(self) -> RawEntry {
        RawEntry(ManuallyDrop::new(self).tagged.0)
    }

    /// The entry whose word is `raw`.
    #[inline(always)]
    pub(crate) fn from_raw(raw: RawEntry) -> Self {
        Self { tagged: ObjectPtr(raw.0) }
    }

    /// The word as a number, for [`are_buffers`](Self::are_buffers).
    #[inline(always)]
    pub(crate) fn bits(&self) -> usize {
        self.tagged.0.addr().get()
    }

    /// Whether several entries are all unique buffers; `bits` is the OR of their [`bits`](Self::bits).
    #[inline(always)]
    pub(crate) fn are_buffers(bits: usize) -> bool {
        bits & FORM == UNIQUE
    }

    #[inline(always)]
    fn form(&self) -> usize {
        self.tagged.0.addr().get() & FORM
    }

    /// The pointer without its tag. The caller has checked that the form has a pointer (0).
    #[inline(always)]
    fn untagged(&self) -> NonNull<Descriptor> {
        let untagged = self.tagged.0.as_ptr().map_addr(|address| address & !TAG);
        // SAFETY: the form has a pointer (caller), which came from a `NonNull` (0).
        unsafe { NonNull::new_unchecked(untagged) }
    }

    /// The descriptor, if the entry has a buffer or a share of one.
    #[inline(always)]
    pub(crate) fn descriptor(&self) -> Option<&Descriptor> {
        // SAFETY: the descriptor is alive, since the entry owns a reference to it (0, 1).
        matches!(self.form(), UNIQUE | SHARED).then(|| unsafe { self.untagged().as_ref() })
    }

    /// The list, if the entry has one.
    pub(crate) fn as_list(&self) -> Option<&ListInner> {
        // SAFETY: the list is alive, since the entry owns it (0, 1).
        (self.form() == LIST).then(|| unsafe { self.untagged().cast::<ListInner>().as_ref() })
    }

    /// The list, if the entry has one. Other memory is dropped.
    pub(crate) fn into_list<B>(self) -> Option<BufferList<B>> {
        self.into_memory().into_list()
    }

    /// The window, if the entry has one. Other memory is dropped.
    #[cold]
    pub(crate) fn into_window(self) -> Option<Box<WindowInner>> {
        // SAFETY: the pointer came from `WindowInner::into_raw` (0), and the entry gives up its ownership here (1).
        (self.form() == WINDOW).then(|| unsafe { Box::from_raw(self.into_untagged().as_ptr().cast()) })
    }

    /// Sets how many bytes count as filled. Returns false, and changes nothing, if the memory is too small for them.
    #[inline(always)]
    pub(crate) fn fill(&self, len_bytes: usize) -> bool {
        if self.bits() & TAG == 0 {
            // SAFETY: the tag is zero, so the form is `UNIQUE` and the word is the bare pointer to the buffer's
            // descriptor (0). The descriptor is alive, since the entry owns a reference to it (1).
            return unsafe { self.tagged.0.as_ref() }.fill(len_bytes);
        }
        match self.as_list() {
            Some(list) if len_bytes <= list.capacity() => list.fill(len_bytes),
            _ => return false,
        }
        true
    }

    /// The operation of the request, which was posted to a queue of this `kind`.
    #[inline(always)]
    pub(crate) fn operation(&self, kind: QueueKind) -> Operation {
        match (kind, self.tagged.0.addr().get() & OPERATION) {
            (QueueKind::Receive | QueueKind::Shared, _) => Operation::Receive,
            (_, 0) => Operation::Send,
            (_, 1) => Operation::Write,
            (_, 2) => Operation::Read,
            (_, 3) => Operation::CompareAndSwap,
            (_, 4) => Operation::FetchAndAdd,
            (_, 5) => Operation::AtomicWrite,
            (_, 6) => Operation::Bind,
            _ => Operation::Revoke,
        }
    }

    /// Gives up the entry for its pointer without the tag. Whoever has the pointer owns what the entry owned (1).
    #[inline(always)]
    fn into_untagged(self) -> NonNull<Descriptor> {
        ManuallyDrop::new(self).untagged()
    }

    /// The memory of the request. `B` must be the brand of the queue that the request was posted to, which is also the
    /// brand of the memory.
    #[inline(always)]
    pub(crate) fn into_memory<B>(self) -> PostedMemory<B> {
        let this = match self.try_into_buffer() {
            Ok(buffer) => return PostedMemory::Unique(buffer),
            Err(this) => this,
        };
        let this = match this.try_into_shared() {
            Ok(share) => return PostedMemory::Shared(share),
            Err(this) => this,
        };
        if this.form() & LIST == 0 {
            // Only an inline entry is left in this branch. It owns nothing, so nothing needs to be dropped.
            mem::forget(this);
            return PostedMemory::Inline;
        }
        match this.try_into_list() {
            Ok(list) => PostedMemory::List(list),
            Err(this) => this.into_unsettled(),
        }
    }

    /// The share, if the entry has one; otherwise the entry. `B` as for [`into_memory`](Self::into_memory).
    #[inline(always)]
    pub(crate) fn try_into_shared<B>(self) -> Result<SharedBuffer<B>, Self> {
        if self.form() != SHARED {
            return Err(self);
        }
        // SAFETY: the pointer came from the `into_raw` of a share (0), and the entry gives up its ownership here (1).
        Ok(SharedBuffer::new(unsafe { SharedPart::from_raw(self.into_untagged()) }))
    }

    /// The list, if the entry has one; otherwise the entry. `B` as for [`into_memory`](Self::into_memory).
    #[inline(always)]
    pub(crate) fn try_into_list<B>(self) -> Result<BufferList<B>, Self> {
        self.try_into_inner().map(BufferList::of_inner)
    }

    /// As [`try_into_list`](Self::try_into_list), without a brand.
    #[inline(always)]
    fn try_into_inner(self) -> Result<Box<ListInner>, Self> {
        if self.form() != LIST {
            return Err(self);
        }
        // SAFETY: the pointer came from the box of a list (0), and the entry gives up its ownership here (1).
        Ok(unsafe { Box::from_raw(self.into_untagged().as_ptr().cast()) })
    }

    #[cold]
    #[inline(never)]
    fn into_unsettled<B>(self) -> PostedMemory<B> {
        self.into_window().map_or(PostedMemory::Inline, |inner| PostedMemory::Window(UnsettledWindow::of(inner)))
    }

    /// The buffer, if the entry has one. Other memory is dropped.
    #[inline(always)]
    pub(crate) fn into_buffer<B>(self) -> Option<Buffer<B>> {
        match self.try_into_buffer() {
            Ok(buffer) => Some(buffer),
            Err(other) => {
                other.drop_out_of_line();
                None
            }
        }
    }

    /// The buffer, if the entry has one; otherwise the entry.
    #[inline(always)]
    pub(crate) fn try_into_buffer<B>(self) -> Result<Buffer<B>, Self> {
        if self.form() != UNIQUE {
            return Err(self);
        }
        // SAFETY: the pointer came from the `into_raw` of a part's only handle (0), and the entry gives up its
        // ownership here (1). No request in flight names the part: the entry's request has ended, or was never posted.
        Ok(Buffer::new(unsafe { UniquePart::from_raw(self.into_untagged()) }))
    }

    /// The word of the entry without its tag. If the entry [has a buffer](Self::are_buffers), the word is that buffer.
    /// Otherwise its memory is leaked.
    #[inline(always)]
    pub(crate) fn into_maybe_buffer<B>(self) -> MaybeUninit<Buffer<B>> {
        // `descriptor` is null if the request was inline. So `untagged`, which returns a `NonNull`, cannot be used.
        let descriptor = ManuallyDrop::new(self).tagged.0.as_ptr().map_addr(|address| address & !TAG);
        // SAFETY: `descriptor` and the result are one word each, and any word is a valid `MaybeUninit`. (A buffer is a
        // pointer to its descriptor.)
        unsafe { mem::transmute_copy(&descriptor) }
    }

    #[cold]
    #[inline(never)]
    fn drop_out_of_line(self) {}
}

impl Drop for Entry {
    #[inline]
    fn drop(&mut self) {
        match self.form() {
            // SAFETY: the pointer came from the `into_raw` of a part (0); the entry gives up its ownership here (1).
            UNIQUE | SHARED => drop(unsafe { Part::from_raw(self.untagged()) }),
            form if form & LIST == 0 => (),
            // The new entry takes over what `self` owned, and `self` is not used any more.
            _ => drop_list_or_window(Self { tagged: self.tagged }),
        }
    }
}

#[cold]
#[inline(never)]
fn drop_list_or_window(entry: Entry) {
    match entry.try_into_inner() {
        Ok(list) => drop(list),
        Err(entry) => drop(entry.into_window()),
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("part", &self.descriptor()).finish_non_exhaustive()
    }
}

impl<B> Postable<B> for Buffer<B> {
    type Rest = ();
    #[inline(always)]
    fn filled(&self, _: Key) -> usize {
        self.descriptor().filled()
    }
    #[inline(always)]
    fn message_bytes(&self, _: Key) -> u32 {
        self.descriptor().message_bytes()
    }
    #[inline(always)]
    fn is_of(&self, domain: DomainId, _: Key) -> bool {
        self.descriptor().is_of(domain)
    }
    #[inline(always)]
    fn descriptor(&self, _: Key) -> Option<&Descriptor> {
        Some(self.descriptor())
    }
    #[inline(always)]
    fn into_entry(self, operation: Operation, _: Key) -> (Entry, ()) {
        (Entry::unique(operation, self), ())
    }
    fn from_entry(entry: Entry, (): (), _: Key) -> Option<Self> {
        entry.into_buffer()
    }
}

impl<B> Postable<B> for SharedBuffer<B> {
    type Rest = ();
    #[inline(always)]
    fn filled(&self, _: Key) -> usize {
        self.descriptor().filled()
    }
    #[inline(always)]
    fn message_bytes(&self, _: Key) -> u32 {
        self.descriptor().message_bytes()
    }
    #[inline(always)]
    fn is_of(&self, domain: DomainId, _: Key) -> bool {
        self.descriptor().is_of(domain)
    }
    #[inline(always)]
    fn descriptor(&self, _: Key) -> Option<&Descriptor> {
        Some(self.descriptor())
    }
    #[inline(always)]
    fn into_entry(self, operation: Operation, _: Key) -> (Entry, ()) {
        (Entry::shared(operation, self), ())
    }
    fn from_entry(entry: Entry, (): (), _: Key) -> Option<Self> {
        entry.into_memory().into_shared()
    }
}

impl<B> Postable<B> for BufferList<B> {
    type Rest = ();
    fn filled(&self, _: Key) -> usize {
        self.inner().filled()
    }
    /// Compares each buffer on every post, because a program can replace the buffers of a list in place.
    fn is_of(&self, domain: DomainId, _: Key) -> bool {
        self.inner().is_of(domain)
    }
    fn descriptor(&self, _: Key) -> Option<&Descriptor> {
        None
    }
    fn list(&mut self, _: Key) -> Option<&mut ListInner> {
        Some(self.inner_mut())
    }
    fn extent(&self, _: Key) -> (usize, usize) {
        (self.inner().len().max(1), self.inner().capacity())
    }
    fn into_entry(self, operation: Operation, _: Key) -> (Entry, ()) {
        (Entry::list(operation, self), ())
    }
    fn from_entry(entry: Entry, (): (), _: Key) -> Option<Self> {
        entry.into_list()
    }
}

#[cfg(all(test, feature = "soft", debug_assertions, not(loom)))]
mod tests {
    use super::*;
    use crate::soft::Fabric;

    /// Names a buffer to the device, and does not give it to the ledger.
    struct Keeps<B>(Buffer<B>);

    impl<B> Postable<B> for Keeps<B> {
        type Rest = Buffer<B>;
        fn filled(&self, _: Key) -> usize {
            0
        }
        fn is_of(&self, _: DomainId, _: Key) -> bool {
            true
        }
        fn descriptor(&self, _: Key) -> Option<&Descriptor> {
            Some(self.0.descriptor())
        }
        fn into_entry(self, operation: Operation, _: Key) -> (Entry, Buffer<B>) {
            (Entry::inline(operation), self.0)
        }
        fn from_entry(_: Entry, rest: Buffer<B>, _: Key) -> Option<Self> {
            Some(Self(rest))
        }
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn memory_that_the_ledger_would_not_keep_is_noticed() {
        let domain = crate::Context::open_on(&Fabric::new(), "entry").unwrap().checked_domain().unwrap();
        Entry::of(Keeps(domain.buffer(8).unwrap()), Operation::Send);
    }
}
