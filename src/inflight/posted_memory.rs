//! The memory of a request that was posted.

use crate::memory::{Buffer, BufferList, SharedBuffer, UnsettledWindow};
use std::fmt;

/// The memory of a request. The program gives it away with the post, and gets it back with the completion.
#[non_exhaustive]
pub enum PostedMemory<B> {
    /// A buffer.
    Unique(Buffer<B>),
    /// A share of a read-only buffer.
    Shared(SharedBuffer<B>),
    /// A list of buffers.
    List(BufferList<B>),
    /// No memory: the request was [inline](crate::Inline).
    Inline,
    /// A memory window, with the memory behind it.
    Window(UnsettledWindow<B>),
}

impl<B> fmt::Debug for PostedMemory<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unique(buffer) => buffer.fmt(f),
            Self::Shared(share) => f.debug_tuple("Shared").field(share).finish(),
            Self::List(list) => list.fmt(f),
            Self::Inline => f.write_str("Inline"),
            Self::Window(window) => window.fmt(f),
        }
    }
}

impl<B> PostedMemory<B> {
    /// The buffer, if the request had one. Other memory is dropped.
    #[inline]
    pub fn into_buffer(self) -> Option<Buffer<B>> {
        match self {
            Self::Unique(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The share, if the request had one. Other memory is dropped.
    pub fn into_shared(self) -> Option<SharedBuffer<B>> {
        match self {
            Self::Shared(share) => Some(share),
            _ => None,
        }
    }

    /// The list, if the request had one. Other memory is dropped.
    pub fn into_list(self) -> Option<BufferList<B>> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }

    /// How many bytes the memory can hold; 0 for an inline request and for a window.
    pub fn capacity(&self) -> usize {
        match self {
            Self::Unique(buffer) => buffer.capacity(),
            Self::Shared(share) => share.len(),
            Self::List(list) => list.inner().capacity(),
            Self::Inline | Self::Window(_) => 0,
        }
    }
}
