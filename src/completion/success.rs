//! Requests that succeeded.

use super::completion::Ended;
use crate::domain::DomainId;
use crate::domain::brand::Branded;
use crate::inflight::{Entry, HEADER_BYTES, Operation, PostedMemory, WorkId};
use crate::memory::{BoundWindow, Buffer, BufferList, Revoked, SharedBuffer, Type1, Type2, UnsettledWindow, Window};
use crate::types::{Gid, Qpn, Rkey};
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
            PostedMemory::Unique(buffer) => match ended.datagram() {
                None => {
                    Work::Received(Received { buffer, immediate: ended.immediate(), invalidated: ended.invalidated() })
                }
                Some((with_header, lid, service_level, sender)) => Work::Datagram(Datagram {
                    sender,
                    lid,
                    service_level,
                    immediate: ended.immediate(),
                    with_header,
                    buffer,
                }),
            },
            PostedMemory::List(list) => Work::Scattered(Scattered {
                list,
                written_bytes: ended.is_with_write().then_some(ended.byte_len()),
                immediate: ended.immediate(),
                invalidated: ended.invalidated(),
            }),
            // Cannot be: only these are received into.
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

    /// The buffer of a message that was received; or this again, for all else: sends and their like, datagrams, what was
    /// scattered over a list, and a receive that a write with immediate took.
    ///
    /// # Errors
    ///
    /// The request was no such receive. It comes back with its memory.
    ///
    /// # Examples
    ///
    /// A loop that takes messages, and keeps the buffers of its sends for the next ones:
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # interlock::domain! { struct Docs; }
    /// # let (mut poller, mut free): (interlock::Poller<Docs>, Vec<interlock::Buffer<Docs>>) = todo!();
    /// # use std::time::Duration;
    /// let message = loop {
    ///     match poller.wait(Duration::from_secs(1))?.check()?.into_received() {
    ///         Ok(message) => break message,
    ///         Err(other) => free.extend(other.into_buffer()),
    ///     }
    /// };
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn into_received(self) -> Result<Buffer<B>, Self> {
        let is_message =
            self.operation() == Operation::Receive && !self.ended.is_with_write() && self.ended.datagram().is_none();
        if !is_message {
            return Err(self);
        }
        let Self { ended, entry, brand } = self;
        match entry.try_into_buffer() {
            Ok(buffer) => Ok(buffer),
            Err(entry) => Err(Self { ended, entry, brand }),
        }
    }

    /// The buffer of a message that was received; `None` of all else, of which the memory is dropped:
    /// [`into_received`](Self::into_received) gives it back.
    #[inline]
    pub fn received(self) -> Option<Buffer<B>> {
        self.into_received().ok()
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
    /// A datagram was received.
    Datagram(Datagram<B>),
    /// The peer wrote to memory of this side, and said so with an immediate.
    WrittenWithImmediate(WrittenWithImmediate<B>),
    /// A receive into a list ended.
    Scattered(Scattered<B>),
    /// Memory of the peer was read into a list.
    ReadScattered(BufferList<B>),
    /// A memory window was bound.
    Bound(BoundWindow<B, Type2>),
    /// A memory window of type 1 was bound.
    BoundType1(BoundWindow<B, Type1>),
    /// A memory window was invalidated.
    Revoked(Revoked<B, Type2>),
    /// A memory window of type 1 was unbound.
    RevokedType1(Revoked<B, Type1>),
}

/// A message that was received.
#[non_exhaustive]
pub struct Received<B> {
    /// The buffer; what is filled is the message.
    pub buffer: Buffer<B>,
    /// The immediate that came with it, host byte order.
    #[doc(alias = "imm_data")]
    #[doc(alias = "IBV_WC_WITH_IMM")]
    pub immediate: Option<u32>,
    /// The key of the memory window that it has invalidated: compare [`BoundWindow::rkey`](crate::BoundWindow::rkey). The peer said
    /// so, and the device did it; the program's own handle does not know. [`dealloc`](crate::BoundWindow::dealloc) that.
    #[doc(alias = "invalidated_rkey")]
    #[doc(alias = "IBV_WC_WITH_INV")]
    pub invalidated: Option<Rkey>,
}

/// What came of a receive into a list of buffers.
#[non_exhaustive]
pub struct Scattered<B> {
    /// The list; what is filled of its buffers, one after the other, is the message. A datagram starts with 40 bytes of
    /// header.
    pub list: BufferList<B>,
    /// Where a write of the peer took the receive: how many bytes it wrote to its target. Nothing came into the list then.
    pub written_bytes: Option<u32>,
    /// The immediate that came with it, host byte order.
    pub immediate: Option<u32>,
    /// The key of the memory window that it has invalidated: see [`Received::invalidated`].
    pub invalidated: Option<Rkey>,
}

impl<B> fmt::Debug for Scattered<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scattered")
            .field("list", &self.list)
            .field("written_bytes", &self.written_bytes)
            .field("immediate", &self.immediate)
            .finish()
    }
}

/// A datagram that was received, and who sent it.
#[non_exhaustive]
pub struct Datagram<B> {
    /// The queue pair that sent it.
    #[doc(alias = "src_qp")]
    pub sender: Qpn,
    /// The local identifier of the port that sent it; 0 on Ethernet.
    #[doc(alias = "slid")]
    pub lid: u16,
    /// Its service level.
    #[doc(alias = "sl")]
    pub service_level: u8,
    /// The immediate that came with it, host byte order.
    pub immediate: Option<u32>,
    with_header: bool,
    /// 40 bytes of header, then the message.
    buffer: Buffer<B>,
}

/// Whether the header is that of a datagram from an IPv4 sender.
fn is_v4(header: &[u8; HEADER_BYTES]) -> bool {
    // An IPv4 header starts with its version and its length in words, which a routing header has no room for there: the
    // first nibble of that is a 6.
    header[20] == 0x45 && header[0] >> 4 != 6
}

impl<B> Datagram<B> {
    /// Whether its memory is of that domain.
    pub(crate) fn is_of(&self, domain: DomainId) -> bool {
        self.buffer.part().is_of(domain)
    }

    /// The message.
    pub fn message(&self) -> &[u8] {
        self.buffer.get(HEADER_BYTES..).unwrap_or_default()
    }

    /// The 40 bytes of the global routing header, if it is there: always on Ethernet. With an IPv4 sender, the last 20 are
    /// the IP header.
    #[doc(alias = "ibv_grh")]
    pub fn header(&self) -> Option<&[u8; HEADER_BYTES]> {
        self.buffer.first_chunk().filter(|_| self.with_header)
    }

    /// The GID of the port that sent it, if the header is there.
    pub fn sender_gid(&self) -> Option<Gid> {
        let header = self.header()?;
        Some(if is_v4(header) {
            Gid::from(std::net::IpAddr::from(<[u8; 4]>::try_from(&header[32..36]).ok()?))
        } else {
            Gid(header[8..24].try_into().ok()?)
        })
    }

    /// The traffic class that it came with (on RoCE v2 the DSCP and ECN byte of the IP header), 0 without a header.
    pub fn traffic_class(&self) -> u8 {
        match self.header() {
            Some(header) if is_v4(header) => header[21],
            Some(&[first, second, ..]) => first << 4 | second >> 4,
            None => 0,
        }
    }

    /// The buffer: 40 bytes of header, which may hold anything if there is [none](Self::header), then the message.
    pub fn into_buffer(self) -> Buffer<B> {
        self.buffer
    }
}

impl<B> fmt::Debug for Datagram<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagram")
            .field("sender", &self.sender)
            .field("sender_gid", &self.sender_gid())
            .field("immediate", &self.immediate)
            .field("len", &self.message().len())
            .finish_non_exhaustive()
    }
}

/// A write of the peer that took a receive to announce itself.
#[non_exhaustive]
#[doc(alias = "IBV_WC_RECV_RDMA_WITH_IMM")]
pub struct WrittenWithImmediate<B> {
    /// The buffer of the receive: nothing came into it.
    pub buffer: Buffer<B>,
    /// How many bytes the peer wrote to its target.
    #[doc(alias = "byte_len")]
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
            (Operation::Read, PostedMemory::List(list)) => Self::ReadScattered(list),
            (operation, PostedMemory::Window(window)) => Self::of_window(operation, window),
            (Operation::Write | Operation::AtomicWrite, memory) => Self::Written(memory),
            (_, memory) => Self::Sent(memory),
        }
    }

    /// A request about a window, which is known to have been done.
    #[cold]
    #[inline(never)]
    fn of_window(operation: Operation, window: UnsettledWindow<B>) -> Self {
        let mut inner = window.into_inner();
        let one = inner.is_type_1();
        if operation == Operation::Bind {
            return if one { Self::BoundType1(BoundWindow::of(inner)) } else { Self::Bound(BoundWindow::of(inner)) };
        }
        match inner.take_memory() {
            Some(memory) if one => Self::RevokedType1(Revoked { window: Window::of(inner), memory }),
            Some(memory) => Self::Revoked(Revoked { window: Window::of(inner), memory }),
            // Cannot be: one that was bound has memory.
            None => Self::Sent(PostedMemory::Inline),
        }
    }

    /// The buffer, if the request had one of its own.
    #[inline]
    pub fn into_buffer(self) -> Option<Buffer<B>> {
        match self {
            Self::Sent(memory) | Self::Written(memory) => memory.into_buffer(),
            Self::Read(buffer) | Self::Atomic { buffer, .. } => Some(buffer),
            Self::Received(Received { buffer, .. })
            | Self::Datagram(Datagram { buffer, .. })
            | Self::WrittenWithImmediate(WrittenWithImmediate { buffer, .. }) => Some(buffer),
            _ => None,
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
            Self::Datagram(datagram) => datagram.fmt(f),
            Self::WrittenWithImmediate(written) => written.fmt(f),
            Self::Scattered(scattered) => scattered.fmt(f),
            Self::ReadScattered(list) => f.debug_tuple("ReadScattered").field(list).finish(),
            Self::Bound(window) => f.debug_tuple("Bound").field(window).finish(),
            Self::BoundType1(window) => f.debug_tuple("BoundType1").field(window).finish(),
            Self::Revoked(revoked) => revoked.fmt(f),
            Self::RevokedType1(revoked) => revoked.fmt(f),
        }
    }
}

impl<B> fmt::Debug for Received<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("buffer", &self.buffer)
            .field("immediate", &self.immediate)
            .field("invalidated", &self.invalidated)
            .finish()
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
