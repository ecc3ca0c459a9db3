//! What the ledger keeps of a request.
#![allow(unsafe_code, reason = "a tagged pointer to a descriptor")]

use super::operation::Operation;
use super::posted_memory::PostedMemory;
use super::work_id::QueueKind;
use crate::memory::{Buffer, BufferList, Descriptor, ListInner, Part, SharedBuffer, UnsettledWindow, WindowInner};
use std::mem::MaybeUninit;
use std::{fmt, mem, ptr, ptr::NonNull};

/// A request in the ledger: its memory and what it does, in one word.
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct Entry {
    /// # Invariants
    ///
    /// 0. Low bits: the operation, and the form of the memory. Above them, where the form is `UNIQUE` or `SHARED`, a
    ///    [`Part`], where it is `LIST`, a [`BufferList`], where it is `WINDOW`, a [`WindowInner`], from `into_raw`; the alignment
    ///    of what they point to keeps the low bits free.
    tagged: NonNull<Descriptor>,
}

/// An entry on its way, as a plain word that moves in a register.
#[derive(Clone, Copy)]
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
/// A memory window with what is behind it. With the bit of lists, so that the more frequent forms are told apart without it.
const WINDOW: usize = LIST | 0b00_1000;
const TAG: usize = OPERATION | FORM;
// So that other forms show where bits of many entries are put together.
static_assertions::const_assert_eq!(UNIQUE, 0);
// So that a buffer that is received into is the word itself.
static_assertions::const_assert_eq!(Operation::Receive.code(), 0);
static_assertions::const_assert!(mem::align_of::<Descriptor>() > TAG);
static_assertions::const_assert!(mem::align_of::<ListInner>() > TAG);
static_assertions::const_assert!(mem::align_of::<WindowInner>() > TAG);
static_assertions::assert_eq_size!(Entry, Option<Entry>, u64);

// SAFETY: owns one of four kinds of memory (0), each of which is `Send`: see the assertions below.
unsafe impl Send for Entry {}
// SAFETY: a shared entry gives out shared references to that memory, and all four kinds are `Sync`. The one method that changes
// something, `fill`, stores atomics.
unsafe impl Sync for Entry {}
static_assertions::assert_impl_all!(Part: Send, Sync);
static_assertions::assert_impl_all!(BufferList<()>: Send, Sync);
static_assertions::assert_impl_all!(WindowInner: Send, Sync);

impl Entry {
    #[inline(always)]
    pub(crate) fn unique<B>(operation: Operation, buffer: Buffer<B>) -> Self {
        Self::tag(buffer.into_part(), operation.code() | UNIQUE)
    }

    #[inline(always)]
    pub(crate) fn shared<B>(operation: Operation, share: SharedBuffer<B>) -> Self {
        Self::tag(share.into_part(), operation.code() | SHARED)
    }

    #[inline(always)]
    pub(crate) fn list<B>(operation: Operation, list: BufferList<B>) -> Self {
        let tagged = list.into_raw().as_ptr().wrapping_byte_add(operation.code() | LIST).cast();
        // SAFETY: not null, since inside a list.
        Self { tagged: unsafe { NonNull::new_unchecked(tagged) } }
    }

    #[inline(always)]
    pub(crate) fn inline(operation: Operation) -> Self {
        let tagged = ptr::without_provenance_mut(operation.code() | INLINE);
        // SAFETY: not null: `INLINE` is not 0.
        Self { tagged: unsafe { NonNull::new_unchecked(tagged) } }
    }

    pub(crate) fn window(operation: Operation, window: Box<WindowInner>) -> Self {
        let tagged = window.into_raw().as_ptr().wrapping_byte_add(operation.code() | WINDOW).cast();
        // SAFETY: not null, since inside a window.
        Self { tagged: unsafe { NonNull::new_unchecked(tagged) } }
    }

    #[inline(always)]
    fn tag(part: Part, tag: usize) -> Self {
        // The bits are free, so to add is to set.
        let tagged = part.into_raw().as_ptr().wrapping_byte_add(tag);
        // SAFETY: not null, since inside a descriptor.
        Self { tagged: unsafe { NonNull::new_unchecked(tagged) } }
    }

    /// The word. Whoever has it owns the entry.
    #[inline(always)]
    pub(crate) fn into_raw(self) -> RawEntry {
        RawEntry(mem::ManuallyDrop::new(self).tagged)
    }

    /// The entry again.
    ///
    /// # Safety
    ///
    /// `raw` came from [`into_raw`](Self::into_raw), and is used once.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(raw: RawEntry) -> Self {
        Self { tagged: raw.0 }
    }

    /// What [`are_buffers`](Self::are_buffers) takes.
    #[inline(always)]
    pub(crate) fn bits(&self) -> usize {
        self.tagged.addr().get()
    }

    /// Whether entries are buffers, of which these are all [`bits`](Self::bits) that any has.
    #[inline(always)]
    pub(crate) fn are_buffers(bits: usize) -> bool {
        bits & FORM == UNIQUE
    }

    #[inline(always)]
    fn form(&self) -> usize {
        self.tagged.addr().get() & FORM
    }

    /// Where its descriptor is, if it has one.
    #[inline(always)]
    fn part_ptr(&self) -> NonNull<Descriptor> {
        let untagged = self.tagged.as_ptr().map_addr(|address| address & !TAG);
        // SAFETY: the callers have seen that it has one (0).
        unsafe { NonNull::new_unchecked(untagged) }
    }

    /// The descriptor of its memory, if it has one.
    #[inline(always)]
    pub(crate) fn part(&self) -> Option<&Descriptor> {
        // SAFETY: a reference that we own (0).
        matches!(self.form(), UNIQUE | SHARED).then(|| unsafe { self.part_ptr().as_ref() })
    }

    /// Its list, if it has one.
    pub(crate) fn as_list(&self) -> Option<&ListInner> {
        // SAFETY: ours (0).
        (self.form() == LIST).then(|| unsafe { self.part_ptr().cast::<ListInner>().as_ref() })
    }

    /// The list, if it is one.
    pub(crate) fn into_list<B>(self) -> Option<BufferList<B>> {
        // SAFETY: from `into_raw` (0); given up here.
        (self.form() == LIST).then(|| unsafe { BufferList::from_raw(mem::ManuallyDrop::new(self).part_ptr().cast()) })
    }

    /// The window, if it is one.
    #[cold]
    pub(crate) fn into_window(self) -> Option<Box<WindowInner>> {
        // SAFETY: from `into_raw` (0); given up here.
        (self.form() == WINDOW)
            .then(|| unsafe { WindowInner::from_raw(mem::ManuallyDrop::new(self).part_ptr().cast()) })
    }

    /// Lets `len_bytes` count as filled, if so many fit.
    #[inline(always)]
    pub(crate) fn fill(&self, len_bytes: usize) -> bool {
        if self.bits() & TAG == 0 {
            // SAFETY: a buffer of a receive (0), whose tag is all zeros.
            return unsafe { self.tagged.as_ref() }.fill(len_bytes);
        }
        match self.as_list() {
            Some(list) if len_bytes <= list.capacity() => list.fill(len_bytes),
            _ => return false,
        }
        true
    }

    /// The reference to the descriptor, given up.
    ///
    /// # Safety
    ///
    /// The form is one that has it.
    #[inline(always)]
    unsafe fn into_part(self) -> Part {
        // SAFETY: from `into_raw` (0, caller); given up here.
        unsafe { Part::from_raw(mem::ManuallyDrop::new(self).part_ptr()) }
    }

    /// What it does, on a queue of `kind`.
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

    /// The memory. `B` is the brand of the queue that the request was posted to, and so of what was posted.
    #[inline(always)]
    pub(crate) fn into_memory<B>(self) -> PostedMemory<B> {
        match self.form() {
            // SAFETY: this form has one, the only one.
            UNIQUE => PostedMemory::Unique(Buffer::new(unsafe { self.into_part() })),
            // SAFETY: this form has one.
            SHARED => PostedMemory::Shared(SharedBuffer::new(unsafe { self.into_part() })),
            form if form & LIST == 0 => {
                // Has nothing to drop.
                mem::forget(self);
                PostedMemory::Inline
            }
            // SAFETY: from `into_raw` (0); given up here.
            LIST => PostedMemory::List(unsafe { BufferList::from_raw(mem::ManuallyDrop::new(self).part_ptr().cast()) }),
            _ => self.into_unsettled(),
        }
    }

    #[cold]
    #[inline(never)]
    fn into_unsettled<B>(self) -> PostedMemory<B> {
        self.into_window().map_or(PostedMemory::Inline, |inner| PostedMemory::Window(UnsettledWindow::of(inner)))
    }

    /// The buffer, if it is one.
    #[inline(always)]
    pub(crate) fn into_buffer<B>(self) -> Option<Buffer<B>> {
        if self.form() != UNIQUE {
            self.give_up();
            return None;
        }
        // SAFETY: this form has one, the only one.
        Some(Buffer::new(unsafe { self.into_part() }))
    }

    /// The buffer; or the entry again, if it is none.
    #[inline(always)]
    pub(crate) fn try_into_buffer<B>(self) -> Result<Buffer<B>, Self> {
        if self.form() != UNIQUE {
            return Err(self);
        }
        // SAFETY: this form has one, the only one.
        Ok(Buffer::new(unsafe { self.into_part() }))
    }

    /// The buffer that it is.
    ///
    /// # Safety
    ///
    /// It is one, or what comes out is not used.
    #[inline(always)]
    pub(crate) unsafe fn assume_buffer<B>(self) -> MaybeUninit<Buffer<B>> {
        // Null, where there is no memory.
        let descriptor = mem::ManuallyDrop::new(self).tagged.as_ptr().map_addr(|address| address & !TAG);
        // SAFETY: a buffer is one word, a pointer to its descriptor; ours, if it is one (caller).
        unsafe { mem::transmute_copy(&descriptor) }
    }

    /// Drops it, out of the way.
    #[cold]
    #[inline(never)]
    fn give_up(self) {}
}

impl Drop for Entry {
    #[inline]
    fn drop(&mut self) {
        match self.form() {
            // SAFETY: from `into_raw` (0); given up here.
            UNIQUE | SHARED => drop(unsafe { Part::from_raw(self.part_ptr()) }),
            form if form & LIST == 0 => (),
            // SAFETY: as above.
            LIST => unsafe { ListInner::drop_raw(self.part_ptr().cast()) },
            // SAFETY: as above.
            _ => unsafe { WindowInner::drop_raw(self.part_ptr().cast()) },
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("part", &self.part()).finish_non_exhaustive()
    }
}
