//! The results of requests that succeeded, with their memory.

use crate::domain::DomainId;
use crate::inflight::{HEADER_BYTES, Operation, PostedMemory};
use crate::memory::{
    BoundWindow, Buffer, BufferList, Revoked, Settled, SharedBuffer, Succeeded, Type1, Type2, UnsettledWindow, Window,
};
use crate::sys::ibv_wc_status;
use crate::types::{Gid, Qpn, Rkey};
use std::fmt;

/// The result of a request that succeeded, with its memory.
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
    /// The peer wrote to memory of this side with an immediate, which took a receive.
    WrittenWithImmediate(WrittenWithImmediate<B>),
    /// A receive into a list of buffers has ended.
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
    /// The buffer; its filled part is the message.
    pub buffer: Buffer<B>,
    /// The immediate of the message, in host byte order.
    #[doc(alias = "imm_data")]
    #[doc(alias = "IBV_WC_WITH_IMM")]
    pub immediate: Option<u32>,
    /// The key of the memory window that the message has invalidated: compare it with
    /// [`BoundWindow::rkey`](crate::window::BoundWindow::rkey). The handle of the window does not learn of it: call
    /// [`dealloc`](crate::window::BoundWindow::dealloc) on the handle.
    #[doc(alias = "invalidated_rkey")]
    #[doc(alias = "IBV_WC_WITH_INV")]
    pub invalidated: Option<Rkey>,
}

/// A receive into a list of buffers.
#[non_exhaustive]
pub struct Scattered<B> {
    /// The list. The filled parts of its buffers, in order, are the message. A datagram starts with 40 bytes of header.
    pub list: BufferList<B>,
    /// If a write with immediate took the receive: how many bytes the peer wrote to its target. The filled parts are
    /// then empty.
    pub written_bytes: Option<u32>,
    /// The immediate of the message, in host byte order.
    pub immediate: Option<u32>,
    /// The key of the memory window that the message has invalidated: see [`Received::invalidated`].
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

/// A datagram that was received, with its sender.
#[non_exhaustive]
pub struct Datagram<B> {
    /// The queue pair that sent it.
    #[doc(alias = "src_qp")]
    pub sender: Qpn,
    /// The local identifier of the port that sent it; 0 on Ethernet.
    #[doc(alias = "slid")]
    pub lid: u16,
    /// The service level that it was sent with.
    #[doc(alias = "sl")]
    pub service_level: u8,
    /// The immediate of the message, in host byte order.
    pub immediate: Option<u32>,
    pub(super) with_header: bool,
    /// 40 bytes of header, then the message.
    pub(super) buffer: Buffer<B>,
}

/// Whether the sender of a datagram with this header has an IPv4 address.
fn is_v4(header: &[u8; HEADER_BYTES]) -> bool {
    // An IPv4 header is the last 20 of the 40 bytes. Its first byte is 0x45: version 4, and a length of 5 words. Byte
    // 20 of a global routing header (GRH) can have that value, too, but the first nibble of a GRH is a 6. In front of
    // an IPv4 header the bytes are undefined, and the nibble may be a 6 as well. Then the checksum decides, as in
    // `ibv_init_ah_from_wc` of rdma-core.
    header[20] == 0x45 && (header[0] >> 4 != 6 || has_valid_checksum(&header[20..]))
}

/// Whether the sum of the 16-bit words of this IPv4 header is what a correct checksum makes it.
fn has_valid_checksum(ipv4: &[u8]) -> bool {
    let (words, _) = ipv4.as_chunks();
    let sum = words.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum::<u32>();
    // The carries are added to the lower half. There are few words, so the second addition has no carry.
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded & 0xffff) + (folded >> 16) == 0xffff
}

impl<B> Datagram<B> {
    /// Whether the buffer belongs to that domain.
    pub(crate) fn is_of(&self, domain: DomainId) -> bool {
        self.buffer.descriptor().is_of(domain)
    }

    /// The message.
    pub fn message(&self) -> &[u8] {
        self.buffer.get(HEADER_BYTES..).unwrap_or_default()
    }

    /// The 40 bytes of the global routing header, if the device wrote one; on Ethernet it always does. For an IPv4
    /// sender the last 20 bytes are the IPv4 header.
    #[doc(alias = "ibv_grh")]
    pub fn header(&self) -> Option<&[u8; HEADER_BYTES]> {
        self.buffer.first_chunk().filter(|_| self.with_header)
    }

    /// The GID of the port that sent it, if there is a header.
    pub fn sender_gid(&self) -> Option<Gid> {
        let header = self.header()?;
        Some(if is_v4(header) {
            Gid::from(std::net::IpAddr::from(<[u8; 4]>::try_from(&header[32..36]).ok()?))
        } else {
            Gid(header[8..24].try_into().ok()?)
        })
    }

    /// The traffic class that it was sent with; 0 without a header. On RoCE v2 it is the DSCP and ECN byte of the IP
    /// header.
    pub fn traffic_class(&self) -> u8 {
        match self.header() {
            Some(header) if is_v4(header) => header[21],
            Some(&[first, second, ..]) => first << 4 | second >> 4,
            None => 0,
        }
    }

    /// The buffer: 40 bytes of header, then the message. Without a [header](Self::header) the 40 bytes may hold
    /// anything.
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

/// A write with immediate of the peer, which took a receive.
#[non_exhaustive]
#[doc(alias = "IBV_WC_RECV_RDMA_WITH_IMM")]
pub struct WrittenWithImmediate<B> {
    /// The buffer of the receive, into which nothing was written.
    pub buffer: Buffer<B>,
    /// How many bytes the peer wrote to its target.
    #[doc(alias = "byte_len")]
    pub written_bytes: u32,
    /// The immediate, in host byte order.
    pub immediate: u32,
}

impl<B> Work<B> {
    /// The work of a request that this side posted and that succeeded. `status` is the status of its completion.
    #[inline(always)]
    pub(super) fn of(operation: Operation, memory: PostedMemory<B>, status: ibv_wc_status) -> Self {
        match (operation, memory) {
            (Operation::Read, PostedMemory::Unique(buffer)) => Self::Read(buffer),
            (Operation::CompareAndSwap | Operation::FetchAndAdd, PostedMemory::Unique(buffer)) => {
                let original = buffer.first_chunk::<8>().map_or(0, |word| u64::from_ne_bytes(*word));
                Self::Atomic { original, buffer }
            }
            (Operation::Read, PostedMemory::List(list)) => Self::ReadScattered(list),
            (_, PostedMemory::Window(window)) => Self::of_window(window, status),
            (Operation::Write | Operation::AtomicWrite, memory) => Self::Written(memory),
            (_, memory) => Self::Sent(memory),
        }
    }

    /// The work of a request about a memory window that succeeded.
    #[cold]
    #[inline(never)]
    fn of_window(window: UnsettledWindow<B>, status: ibv_wc_status) -> Self {
        // `Succeeded::of` never returns `None` here: a `Work` is made only of a successful completion.
        let Some(proof) = Succeeded::of(status) else { return Self::Sent(PostedMemory::Window(window)) };
        match window.settle(proof) {
            Settled::Bound(inner) if inner.is_type_1() => Self::BoundType1(BoundWindow::of(inner)),
            Settled::Bound(inner) => Self::Bound(BoundWindow::of(inner)),
            Settled::Revoked(inner, memory) if inner.is_type_1() => {
                Self::RevokedType1(Revoked { window: Window::of(inner), memory })
            }
            Settled::Revoked(inner, memory) => Self::Revoked(Revoked { window: Window::of(inner), memory }),
        }
    }

    /// The buffer of the request, if it had one. Other memory is dropped.
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

    /// The share of a buffer, if the request had one. Other memory is dropped.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Byte 20 is the beginning of an IPv4 header, or a byte of an IPv6 address. What stands before an IPv4 header is
    /// undefined, and may look like the beginning of an IPv6 header.
    #[test]
    fn an_ipv4_header_is_told_from_an_ipv6_header() {
        let mut header = [0; HEADER_BYTES];
        let ipv4 = [0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0x26, 0xaf, 10, 0, 0, 1, 10, 0, 0, 2];
        header[20..].copy_from_slice(&ipv4);
        for first in [0, 0x45, 0x60, 0xff] {
            header[0] = first;
            assert!(is_v4(&header), "{first}");
        }
        // In an IPv6 header, these 20 bytes hardly ever have a valid IPv4 checksum. So break it here.
        header[30] ^= 1;
        header[0] = 0x60;
        assert!(!is_v4(&header));
        // Without the beginning of an IPv6 header, the checksum does not matter.
        header[0] = 0;
        assert!(is_v4(&header));
        header[20] = 0x44;
        assert!(!is_v4(&header));
    }

    #[test]
    fn the_carries_of_a_checksum_are_added() {
        assert!(has_valid_checksum(&[0xff, 0xff, 0xff, 0xff]) && has_valid_checksum(&[0x80, 0, 0x7f, 0xff]));
        assert!(has_valid_checksum(&[0xff, 0xfe, 0, 1]) && !has_valid_checksum(&[0xff, 0xfe, 0, 2]));
        assert!(!has_valid_checksum(&[0; 20]));
    }
}
