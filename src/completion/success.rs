//! Requests that succeeded.

use super::entry::Ended;
use crate::domain::brand::Branded;
use crate::memory::{Buffer, SharedBuffer};
use crate::queue::{Entry, Operation, PostedMemory, WorkId};
use crate::types::Qpn;
use std::{fmt, marker::PhantomData};

/// A request that succeeded. Dropping it drops the buffer.
pub struct Success<B> {
    ended: Ended,
    entry: Entry,
    brand: Branded<B>,
}

impl<B> Success<B> {
    #[inline(always)]
    pub(super) fn new(ended: Ended, entry: Entry) -> Self {
        Self { ended, entry, brand: PhantomData }
    }

    /// The id that posting gave.
    #[inline]
    pub fn id(&self) -> WorkId {
        self.ended.id
    }

    /// The queue pair that it was posted to; of a shared receive, the one that took it.
    #[inline]
    pub fn queue_pair(&self) -> Qpn {
        self.ended.qpn()
    }

    /// What it did.
    #[inline]
    pub fn operation(&self) -> Operation {
        self.entry.operation(self.ended.id.key().kind())
    }

    /// What it did, with its memory.
    #[inline]
    pub fn work(self) -> Work<B> {
        match self.operation() {
            Operation::Receive => self.into_receive(),
            operation => Work::of(operation, self.entry.into_memory()),
        }
    }

    #[inline]
    fn into_receive(self) -> Work<B> {
        let ended = self.ended;
        match self.entry.into_memory() {
            PostedMemory::Unique(buffer) if ended.is_with_write() => Work::WrittenWithImmediate(WrittenWithImmediate {
                buffer,
                written_bytes: ended.byte_len(),
                immediate: ended.immediate().unwrap_or(0),
            }),
            PostedMemory::Unique(buffer) => Work::Received(Received { buffer, immediate: ended.immediate() }),
            // Cannot be: only unique buffers are received into.
            memory => Work::Sent(memory),
        }
    }

    /// Its memory.
    #[inline]
    pub fn into_memory(self) -> PostedMemory<B> {
        self.entry.into_memory()
    }

    /// The buffer, if the request had one of its own.
    #[inline(always)]
    pub fn into_buffer(self) -> Option<Buffer<B>> {
        self.entry.into_buffer()
    }

    /// The buffer of a message that was received.
    #[inline]
    pub fn received(self) -> Option<Buffer<B>> {
        let is_message = self.operation() == Operation::Receive && !self.ended.is_with_write();
        if is_message { self.into_buffer() } else { None }
    }
}

impl<B> fmt::Debug for Success<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Success")
            .field("id", &self.ended.id)
            .field("queue_pair", &self.queue_pair())
            .field("operation", &self.operation())
            .finish_non_exhaustive()
    }
}

/// What a request did.
#[non_exhaustive]
pub enum Work<B> {
    /// A message was sent, and the peer's device has it.
    Sent(PostedMemory<B>),
    /// Memory of the peer was written.
    Written(PostedMemory<B>),
    /// Memory of the peer was read into the buffer.
    Read(Buffer<B>),
    /// A word of the peer was changed, or compared and found different.
    Atomic {
        /// The value that the word had before.
        original: u64,
        /// The buffer, whose first 8 bytes are that value in native byte order.
        buffer: Buffer<B>,
    },
    /// A message was received.
    Received(Received<B>),
    /// The peer wrote to memory of this side, and said so with an immediate.
    WrittenWithImmediate(WrittenWithImmediate<B>),
}

/// A message that was received.
#[non_exhaustive]
pub struct Received<B> {
    /// The buffer; what is filled is the message.
    pub buffer: Buffer<B>,
    /// The immediate that came with it, host byte order.
    pub immediate: Option<u32>,
}

/// A write of the peer that took a receive to announce itself.
#[non_exhaustive]
pub struct WrittenWithImmediate<B> {
    /// The buffer of the receive: nothing came into it.
    pub buffer: Buffer<B>,
    /// How many bytes the peer wrote to its target.
    pub written_bytes: u32,
    /// The immediate, host byte order.
    pub immediate: u32,
}

impl<B> Work<B> {
    #[inline(always)]
    fn of(operation: Operation, memory: PostedMemory<B>) -> Self {
        match (operation, memory) {
            (Operation::Read, PostedMemory::Unique(buffer)) => Self::Read(buffer),
            (Operation::CompareAndSwap | Operation::FetchAndAdd, PostedMemory::Unique(buffer)) => {
                let original = buffer.first_chunk::<8>().map_or(0, |word| u64::from_ne_bytes(*word));
                Self::Atomic { original, buffer }
            }
            (Operation::Write, memory) => Self::Written(memory),
            (_, memory) => Self::Sent(memory),
        }
    }

    /// The buffer, if the request had one of its own.
    #[inline]
    pub fn into_buffer(self) -> Option<Buffer<B>> {
        match self {
            Self::Sent(memory) | Self::Written(memory) => memory.into_buffer(),
            Self::Read(buffer) | Self::Atomic { buffer, .. } => Some(buffer),
            Self::Received(Received { buffer, .. })
            | Self::WrittenWithImmediate(WrittenWithImmediate { buffer, .. }) => Some(buffer),
        }
    }

    /// The share, if the request had one.
    pub fn into_shared(self) -> Option<SharedBuffer<B>> {
        match self {
            Self::Sent(memory) | Self::Written(memory) => memory.into_shared(),
            _ => None,
        }
    }
}

impl<B> fmt::Debug for Work<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sent(memory) => f.debug_tuple("Sent").field(memory).finish(),
            Self::Written(memory) => f.debug_tuple("Written").field(memory).finish(),
            Self::Read(buffer) => f.debug_tuple("Read").field(buffer).finish(),
            Self::Atomic { original, buffer } => {
                f.debug_struct("Atomic").field("original", original).field("buffer", buffer).finish()
            }
            Self::Received(received) => received.fmt(f),
            Self::WrittenWithImmediate(written) => written.fmt(f),
        }
    }
}

impl<B> fmt::Debug for Received<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received").field("buffer", &self.buffer).field("immediate", &self.immediate).finish()
    }
}

impl<B> fmt::Debug for WrittenWithImmediate<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrittenWithImmediate")
            .field("buffer", &self.buffer)
            .field("written_bytes", &self.written_bytes)
            .field("immediate", &self.immediate)
            .finish()
    }
}
