//! Work ids, and what the ledger keeps of a request.
#![allow(unsafe_code, reason = "a tagged pointer to a descriptor")]

use crate::memory::{Buffer, Descriptor, SharedBuffer};
use std::{fmt, mem, ptr::NonNull, sync::Arc};

/// Names a posted work request.
///
/// Having one tells you that the request was posted; not that it is still in flight, and nothing about who owns its
/// buffer: the ledger does, until the completion with this id gives it back.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[doc(alias = "wr_id")]
pub struct WorkId(u64);

/// What a work id has besides the index: which work queue, in which of its lives. Bits from the top: 2 kind, 20 slot,
/// 18 generation; then 24 index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueueKey(u64);

/// The kinds of work queue, as work ids tell them apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QueueKind {
    Send = 0,
    Receive = 1,
}

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 18;
const SLOT_BITS: u32 = 20;

/// The most work queues that one completion queue serves.
pub(crate) const MAX_SLOTS: u32 = 1 << SLOT_BITS;

impl QueueKey {
    /// `slot` is below [`MAX_SLOTS`]; generations come round.
    pub(crate) fn new(kind: QueueKind, slot: u32, generation: u32) -> Self {
        let generation = u64::from(generation & ((1 << GENERATION_BITS) - 1));
        Self((((kind as u64) << SLOT_BITS) | u64::from(slot & (MAX_SLOTS - 1))) << GENERATION_BITS | generation)
    }

    #[inline(always)]
    pub(crate) fn slot(self) -> usize {
        (self.0 >> GENERATION_BITS) as usize & (MAX_SLOTS as usize - 1)
    }

    #[inline(always)]
    pub(crate) fn id(self, index: u32) -> WorkId {
        WorkId(self.0 << INDEX_BITS | u64::from(index))
    }
}

impl WorkId {
    #[inline(always)]
    pub(crate) fn from_raw(wr_id: u64) -> Self {
        Self(wr_id)
    }

    #[inline(always)]
    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) fn key(self) -> QueueKey {
        QueueKey(self.0 >> INDEX_BITS)
    }

    /// The id of the request that was posted `count` before this one, to the same queue.
    #[inline(always)]
    pub(crate) fn before(self, count: u32) -> Self {
        self.key().id(self.index().wrapping_sub(count) & ((1 << INDEX_BITS) - 1))
    }

    #[inline(always)]
    pub(crate) fn index(self) -> u32 {
        self.0 as u32 & ((1 << INDEX_BITS) - 1)
    }
}

impl fmt::Debug for WorkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkId({:#x})", self.0)
    }
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u8)]
#[doc(alias = "ibv_wr_opcode")]
pub enum Operation {
    /// Sends a message to a receive of the peer.
    #[doc(alias = "IBV_WR_SEND")]
    Send = 0,
    /// Writes to memory of the peer.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    Write = 1,
    /// Reads memory of the peer.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    Read = 2,
    /// Compares a word of the peer and swaps it if equal.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    CompareAndSwap = 3,
    /// Adds to a word of the peer.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    FetchAndAdd = 4,
    /// Waits for a message.
    #[doc(alias = "ibv_post_recv")]
    Receive = 5,
}

/// The memory of a request: gone while it is in flight, here again with its completion.
pub enum PostedMemory<B> {
    /// A buffer.
    Unique(Buffer<B>),
    /// A share of a read-only buffer.
    Shared(SharedBuffer<B>),
}

impl<B> fmt::Debug for PostedMemory<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unique(buffer) => buffer.fmt(f),
            Self::Shared(share) => f.debug_tuple("Shared").field(share).finish(),
        }
    }
}

impl<B> PostedMemory<B> {
    /// The buffer, if it was one.
    #[inline]
    pub fn into_buffer(self) -> Option<Buffer<B>> {
        match self {
            Self::Unique(buffer) => Some(buffer),
            Self::Shared(_) => None,
        }
    }

    /// How many bytes fit.
    pub fn capacity(&self) -> usize {
        match self {
            Self::Unique(buffer) => buffer.capacity(),
            Self::Shared(share) => share.len(),
        }
    }

    /// The share, if it was one.
    pub fn into_shared(self) -> Option<SharedBuffer<B>> {
        match self {
            Self::Unique(_) => None,
            Self::Shared(share) => Some(share),
        }
    }
}

/// A request in the ledger: its memory and what it does, in one word.
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct Entry {
    /// # Invariants
    ///
    /// 0. From `Arc::into_raw`, with the operation in the low 3 bits and `SHARED` where the handle was a
    ///    [`SharedBuffer`]; the alignment of a descriptor keeps these bits free. Owns that reference.
    tagged: NonNull<Descriptor>,
}

/// An entry on its way, as a plain word that moves in a register.
#[derive(Clone, Copy)]
pub(crate) struct RawEntry(NonNull<Descriptor>);

const OPERATION: usize = 0b0111;
const SHARED: usize = 0b1000;
const TAG: usize = OPERATION | SHARED;
static_assertions::const_assert!(mem::align_of::<Descriptor>() > TAG);
static_assertions::assert_eq_size!(Entry, Option<Entry>, u64);

// SAFETY: an `Arc` of a descriptor, which is `Send` and `Sync`.
unsafe impl Send for Entry {}

impl Entry {
    #[inline(always)]
    pub(crate) fn unique<B>(operation: Operation, buffer: Buffer<B>) -> Self {
        Self::tag(buffer.into_part(), operation as usize)
    }

    #[inline(always)]
    pub(crate) fn shared<B>(operation: Operation, share: SharedBuffer<B>) -> Self {
        Self::tag(share.into_part(), operation as usize | SHARED)
    }

    #[inline(always)]
    fn tag(part: Arc<Descriptor>, tag: usize) -> Self {
        let part = Arc::into_raw(part).cast_mut().map_addr(|address| address | tag);
        // SAFETY: not null, since it points into an `Arc`.
        Self { tagged: unsafe { NonNull::new_unchecked(part) } }
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

    #[inline(always)]
    fn part_ptr(&self) -> *const Descriptor {
        self.tagged.as_ptr().cast_const().map_addr(|address| address & !TAG)
    }

    #[inline(always)]
    pub(crate) fn part(&self) -> &Descriptor {
        // SAFETY: a reference that we own (0).
        unsafe { &*self.part_ptr() }
    }

    #[inline(always)]
    pub(crate) fn operation(&self) -> Operation {
        match self.tagged.addr().get() & OPERATION {
            0 => Operation::Send,
            1 => Operation::Write,
            2 => Operation::Read,
            3 => Operation::CompareAndSwap,
            4 => Operation::FetchAndAdd,
            _ => Operation::Receive,
        }
    }

    /// The memory. `B` is the brand of the queue that the request was posted to, and so of what was posted.
    #[inline(always)]
    pub(crate) fn into_memory<B>(self) -> PostedMemory<B> {
        let shared = self.tagged.addr().get() & SHARED != 0;
        // SAFETY: from `Arc::into_raw` (0); given up here.
        let part = unsafe { Arc::from_raw(mem::ManuallyDrop::new(self).part_ptr()) };
        if shared { PostedMemory::Shared(SharedBuffer::new(part)) } else { PostedMemory::Unique(Buffer::new(part)) }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: from `Arc::into_raw` (0); given up here.
        drop(unsafe { Arc::from_raw(self.part_ptr()) });
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("operation", &self.operation()).field("part", self.part()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_id_keeps_its_parts_apart() {
        let key = QueueKey::new(QueueKind::Receive, MAX_SLOTS - 1, (1 << 18) - 1);
        let id = key.id((1 << 24) - 1);
        assert_eq!((id.key(), id.index(), id.key().slot()), (key, (1 << 24) - 1, MAX_SLOTS as usize - 1));
        assert_ne!(QueueKey::new(QueueKind::Send, 3, 0), QueueKey::new(QueueKind::Receive, 3, 0));
        assert_ne!(QueueKey::new(QueueKind::Send, 3, 0), QueueKey::new(QueueKind::Send, 3, 1));
        assert_eq!(QueueKey::new(QueueKind::Send, 3, 1 << 18), QueueKey::new(QueueKind::Send, 3, 0));
    }
}
