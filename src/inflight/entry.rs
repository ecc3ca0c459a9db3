//! What the ledger keeps of a request.
#![allow(unsafe_code, reason = "a tagged pointer to a descriptor")]

use super::operation::Operation;
use super::posted_memory::PostedMemory;
use super::work_id::QueueKind;
use crate::memory::{
    Buffer, BufferList, Descriptor, ListInner, Part, SharedBuffer, SharedPart, UniquePart, UnsettledWindow, WindowInner,
};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::num::NonZeroUsize;
use std::{fmt, mem, ptr::NonNull};

/// A request in the ledger: its memory and its operation, in one word.
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct Entry {
    /// # Invariants
    ///
    /// 0. The low bits ([`TAG`]) hold the operation and the form of the memory. The pointer without them came from the
    ///    `into_raw` of the type that the form names: [`UniquePart`] for `UNIQUE`, [`SharedPart`] for `SHARED`, a box
    ///    of a [`ListInner`] for `LIST`, a box of a [`WindowInner`] for `WINDOW`. `INLINE` has no pointer.
    /// 1. The entry owns what that pointer owns.
    tagged: NonNull<Descriptor>,
}

/// An entry as a plain word, which the compiler passes in a register. The word owns the entry: dropping it leaks.
#[must_use = "dropping it leaks the memory of the request"]
pub(crate) struct RawEntry(NonNull<Descriptor>);

const OPERATION: usize = Operation::MASK;
const FORM: usize = 0b11_1000;
/// A [`Buffer`]: the only reference to its descriptor.
const UNIQUE: usize = 0b00_0000;
/// A [`SharedBuffer`].
const SHARED: usize = 0b00_1000;
/// No memory.
const INLINE: usize = 0b01_0000;
/// A [`BufferList`].
const LIST: usize = 0b10_0000;
/// A memory window and the memory behind it. It has the bit of lists, so that one test sets both rare forms apart.
const WINDOW: usize = LIST | 0b00_1000;
const TAG: usize = OPERATION | FORM;
// The OR of several tags is `UNIQUE` only if each of them is: see `are_buffers`.
static_assertions::const_assert_eq!(UNIQUE, 0);
// The tag of a receive into a buffer is zero, so the word is the plain pointer: see `fill`.
static_assertions::const_assert_eq!(Operation::Receive.code(), 0);
static_assertions::assert_eq_size!(Buffer<()>, *mut Descriptor);
static_assertions::assert_eq_size!(Entry, Option<Entry>, u64);

// SAFETY: owns one of three types (0), each of which is `Send`: see the assertions below.
unsafe impl Send for Entry {}
// SAFETY: a shared entry gives out shared references to that type, and all three are `Sync`. The one method that
// changes something, `fill`, stores atomics.
unsafe impl Sync for Entry {}
static_assertions::assert_impl_all!(Part: Send, Sync);
static_assertions::assert_impl_all!(BufferList<()>: Send, Sync);
static_assertions::assert_impl_all!(WindowInner: Send, Sync);

impl Entry {
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

    /// A request without memory of its own.
    #[inline(always)]
    pub(crate) fn inline(operation: Operation) -> Self {
        const INLINE_TAG: NonZeroUsize = NonZeroUsize::new(INLINE).unwrap();
        Self { tagged: NonNull::dangling().map_addr(|_| INLINE_TAG | operation.code()) }
    }

    pub(crate) fn window(operation: Operation, window: Box<WindowInner>) -> Self {
        Self::tag(window.into_raw(), operation.code() | WINDOW)
    }

    /// Puts the tag into the low bits of a pointer, which its alignment keeps free.
    #[inline(always)]
    fn tag<T>(pointer: NonNull<T>, tag: usize) -> Self {
        const { assert!(mem::align_of::<T>() > TAG) };
        // The bits are free, so that adding sets them. (`map_addr` costs two instructions more.)
        let tagged = pointer.as_ptr().wrapping_byte_add(tag).cast();
        // SAFETY: not null, since it points into what `pointer` points to.
        Self { tagged: unsafe { NonNull::new_unchecked(tagged) } }
    }

    /// Gives up the entry for its word.
    #[inline(always)]
    pub(crate) fn into_raw(self) -> RawEntry {
        RawEntry(ManuallyDrop::new(self).tagged)
    }

    /// The entry of which `raw` is the word.
    #[inline(always)]
    pub(crate) fn from_raw(raw: RawEntry) -> Self {
        Self { tagged: raw.0 }
    }

    /// The word as a number, for [`are_buffers`](Self::are_buffers).
    #[inline(always)]
    pub(crate) fn bits(&self) -> usize {
        self.tagged.addr().get()
    }

    /// Whether several entries are all unique buffers; `bits` is the OR of their [`bits`](Self::bits).
    #[inline(always)]
    pub(crate) fn are_buffers(bits: usize) -> bool {
        bits & FORM == UNIQUE
    }

    #[inline(always)]
    fn form(&self) -> usize {
        self.tagged.addr().get() & FORM
    }

    /// The pointer without its tag. The caller has seen a form that has one (0).
    #[inline(always)]
    fn untagged(&self) -> NonNull<Descriptor> {
        let untagged = self.tagged.as_ptr().map_addr(|address| address & !TAG);
        // SAFETY: came from a `NonNull` (0).
        unsafe { NonNull::new_unchecked(untagged) }
    }

    /// The descriptor, if the entry has a buffer or a share of one.
    #[inline(always)]
    pub(crate) fn part(&self) -> Option<&Descriptor> {
        // SAFETY: alive, since the entry owns a reference to it (0, 1).
        matches!(self.form(), UNIQUE | SHARED).then(|| unsafe { self.untagged().as_ref() })
    }

    /// The list, if the entry has one.
    pub(crate) fn as_list(&self) -> Option<&ListInner> {
        // SAFETY: alive, since the entry owns it (0, 1).
        (self.form() == LIST).then(|| unsafe { self.untagged().cast::<ListInner>().as_ref() })
    }

    /// The list, if the entry has one.
    pub(crate) fn into_list<B>(self) -> Option<BufferList<B>> {
        self.into_memory().into_list()
    }

    /// The window, if the entry has one.
    #[cold]
    pub(crate) fn into_window(self) -> Option<Box<WindowInner>> {
        // SAFETY: came from `into_raw` (0), and the entry gives up its ownership here (1).
        (self.form() == WINDOW).then(|| unsafe { Box::from_raw(self.into_untagged().as_ptr().cast()) })
    }

    /// Sets how many bytes count as filled. False, without a change, if the memory is too small for them.
    #[inline(always)]
    pub(crate) fn fill(&self, len_bytes: usize) -> bool {
        if self.bits() & TAG == 0 {
            // SAFETY: the buffer of a receive, whose tag is zero (0), is alive (1).
            return unsafe { self.tagged.as_ref() }.fill(len_bytes);
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
        match (kind, self.tagged.addr().get() & OPERATION) {
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

    /// The pointer without its tag. Whoever has it owns what the entry owned (1).
    #[inline(always)]
    fn into_untagged(self) -> NonNull<Descriptor> {
        ManuallyDrop::new(self).untagged()
    }

    /// The memory. `B` is the brand of the queue that the request was posted to, which was also the brand of the
    /// memory.
    #[inline(always)]
    pub(crate) fn into_memory<B>(self) -> PostedMemory<B> {
        match self.form() {
            // SAFETY: this form has the only handle of a part (0, 1), and the request has ended.
            UNIQUE => PostedMemory::Unique(Buffer::new(unsafe { UniquePart::from_raw(self.into_untagged()) })),
            SHARED => {
                // SAFETY: this form has a share of a part (0, 1).
                let part = unsafe { SharedPart::from_raw(self.into_untagged()) };
                PostedMemory::Shared(SharedBuffer::new(part))
            }
            form if form & LIST == 0 => {
                // Nothing to drop.
                mem::forget(self);
                PostedMemory::Inline
            }
            LIST => {
                // SAFETY: the pointer of a box (0), and the entry gives up its ownership here (1).
                let list = unsafe { Box::from_raw(self.into_untagged().as_ptr().cast()) };
                PostedMemory::List(BufferList::of_inner(list))
            }
            _ => self.into_unsettled(),
        }
    }

    #[cold]
    #[inline(never)]
    fn into_unsettled<B>(self) -> PostedMemory<B> {
        self.into_window().map_or(PostedMemory::Inline, |inner| PostedMemory::Window(UnsettledWindow::of(inner)))
    }

    /// The buffer, if the entry is one; otherwise its memory is dropped.
    #[inline(always)]
    pub(crate) fn into_buffer<B>(self) -> Option<Buffer<B>> {
        if self.form() != UNIQUE {
            self.drop_out_of_line();
            return None;
        }
        // SAFETY: this form has the only handle of a part (0, 1), and the request has ended.
        Some(Buffer::new(unsafe { UniquePart::from_raw(self.into_untagged()) }))
    }

    /// The buffer, if the entry is one; otherwise the entry again.
    #[inline(always)]
    pub(crate) fn try_into_buffer<B>(self) -> Result<Buffer<B>, Self> {
        if self.form() != UNIQUE {
            return Err(self);
        }
        // SAFETY: this form has the only handle of a part (0, 1), and the request has ended.
        Ok(Buffer::new(unsafe { UniquePart::from_raw(self.into_untagged()) }))
    }

    /// The word without its tag, which is the buffer if the entry [is one](Self::are_buffers). Gives up the entry.
    #[inline(always)]
    pub(crate) fn into_maybe_buffer<B>(self) -> MaybeUninit<Buffer<B>> {
        // Null, where there is no memory.
        let descriptor = ManuallyDrop::new(self).tagged.as_ptr().map_addr(|address| address & !TAG);
        // SAFETY: both are one word, and any word may be a `MaybeUninit`. (A buffer is a pointer to its descriptor.)
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
            // SAFETY: came from `into_raw` (0); the entry gives up its ownership here (1).
            UNIQUE | SHARED => drop(unsafe { Part::from_raw(self.untagged()) }),
            form if form & LIST == 0 => (),
            // SAFETY: came from `into_raw` (0); the entry gives up its ownership here (1).
            LIST => drop(unsafe { Box::<ListInner>::from_raw(self.untagged().as_ptr().cast()) }),
            // SAFETY: came from `into_raw` (0); the entry gives up its ownership here (1).
            _ => drop_window(unsafe { Box::from_raw(self.untagged().as_ptr().cast()) }),
        }
    }
}

#[cold]
#[inline(never)]
fn drop_window(_: Box<WindowInner>) {}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("part", &self.part()).finish_non_exhaustive()
    }
}
