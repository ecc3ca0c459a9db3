//! Completions: the end of one posted request each.

use super::{Failure, Success};
use crate::domain::brand::Branded;
use crate::inflight::ledger::Origin;
use crate::inflight::{Entry, HEADER_BYTES, RawEntry, Status, WorkId};
use crate::sys;
use crate::types::{Qpn, Rkey};
use std::{fmt, marker::PhantomData};

/// The end of one posted request. Every posted request has exactly one.
///
/// Nothing of it can be read before it is known whether it succeeded: [`check`](Self::check) tells. Dropping it drops
/// the buffer.
///
/// # Rules
///
/// Each is kept by the compiler; programs that break them are in `ui-tests/completion`.
///
/// - C1: a completion says nothing before its status is checked.
/// - C2: a failure has no received message.
/// - C3: a completion comes from the poller, once.
/// - C4: a completion queue has one poller.
/// - C5: a completion channel waits for pollers of its own domain.
/// - C6: only a datagram names its sender.
#[doc(alias = "ibv_wc")]
#[must_use = "it holds the buffer of the request"]
pub struct Completion<B> {
    ended: Ended,
    entry: Entry,
    brand: Branded<B>,
}

/// What is known of a request that ended, besides its memory.
///
/// In whole words: two halves of a word, stored apart and loaded together, would wait for each other.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    pub(super) id: WorkId,
    /// From the top: 32 bits of status, the device's or `DESTROYED` or `IMPOSSIBLE`; `WITH_WRITE` and its like; 24
    /// bits of queue pair number.
    head: u64,
    /// On success of a receive: above the immediate, big-endian, or the invalidated key; below the length. On failure: above the first failure
    /// of the pair plus 1, or 0; below the provider's code.
    detail: u64,
    /// Of a datagram that was received: from the top 16 bits of LID, 8 of service level, and 24 of queue pair number.
    sender: u64,
}

/// The queue pair was destroyed or reset.
const DESTROYED: u32 = u32::MAX;
/// What the provider reported as a success cannot be one.
const IMPOSSIBLE: u32 = u32::MAX - 1;
/// A receive was taken by a write with immediate.
const WITH_WRITE: u64 = 1 << 25;
/// A receive came with an immediate.
const WITH_IMMEDIATE: u64 = 1 << 24;
/// A message has ended a window.
const WITH_INVALIDATION: u64 = 1 << 26;
/// A datagram.
const DATAGRAM: u64 = 1 << 27;
/// The header in front of a datagram is there.
const WITH_HEADER: u64 = 1 << 28;
/// The flags of a receive that say what the device put beside the length, and how far they are from where they are kept.
const EXTRAS: u32 = sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 | sys::ibv_wc_flags::IBV_WC_WITH_INV.0;
const EXTRAS_SHIFT: u32 = 23;
static_assertions::const_assert_eq!((sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 as u64) << EXTRAS_SHIFT, WITH_IMMEDIATE);
static_assertions::const_assert_eq!((sys::ibv_wc_flags::IBV_WC_WITH_INV.0 as u64) << EXTRAS_SHIFT, WITH_INVALIDATION);

fn words(above: u32, below: u32) -> u64 {
    u64::from(above) << 32 | u64::from(below)
}

impl Ended {
    /// A later request of the queue completed, so this unsignalled one has succeeded before it.
    #[inline(always)]
    pub(super) fn implied(id: WorkId, qpn: u32) -> Self {
        Self { id, head: u64::from(qpn), detail: 0, sender: 0 }
    }

    pub(super) fn destroyed(id: WorkId, qpn: u32) -> Self {
        Self { id, head: words(DESTROYED, qpn), detail: 0, sender: 0 }
    }

    #[inline(always)]
    pub(super) fn succeeded(id: WorkId, entry: &Entry, origin: Origin, wc: &sys::ibv_wc) -> Self {
        // Only a receive has a length and flags.
        if id.key().is_send() {
            return Self { id, head: u64::from(origin.qpn()), detail: 0, sender: 0 };
        }
        Self::received(id, entry, origin, wc)
    }

    /// A receive that succeeded: what came is what is filled. One of more bytes than its buffer has is no success.
    #[inline(always)]
    #[allow(unsafe_code, reason = "the immediate is in a union")]
    fn received(id: WorkId, entry: &Entry, origin: Origin, wc: &sys::ibv_wc) -> Self {
        let (qpn, datagrams) = (origin.qpn(), origin.datagrams());
        let mut head = u64::from(qpn) | u64::from(wc.wc_flags & EXTRAS) << EXTRAS_SHIFT;
        let mut filled = wc.byte_len as usize;
        if wc.opcode == sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM {
            // These bytes went to memory that the peer named.
            filled = 0;
            head |= WITH_WRITE;
        }
        let mut sender = 0;
        let mut least = 0;
        if datagrams {
            least = HEADER_BYTES;
            head |= DATAGRAM;
            if wc.wc_flags & sys::ibv_wc_flags::IBV_WC_GRH.0 != 0 {
                head |= WITH_HEADER;
            }
            sender = u64::from(wc.slid) << 32 | u64::from(wc.sl) << 24 | u64::from(wc.src_qp & 0xff_ffff);
        }
        if filled < least || !entry.fill(filled) {
            return Self { id, head: words(IMPOSSIBLE, qpn), detail: 0, sender: 0 };
        }
        // SAFETY: the members of the union are numbers of 4 bytes.
        Self { id, head, detail: words(unsafe { wc.__bindgen_anon_1.imm_data }, wc.byte_len), sender }
    }

    #[cold]
    pub(super) fn failed(id: WorkId, qpn: u32, wc: &sys::ibv_wc, first: Option<Status>) -> Self {
        let first = first.and_then(Status::code).map_or(0, |code| code.saturating_add(1));
        // The library's own statuses are no device's.
        let status = wc.status.0.min(IMPOSSIBLE - 1);
        Self { id, head: words(status, qpn), detail: words(first, wc.vendor_err), sender: 0 }
    }

    #[inline(always)]
    fn status(self) -> u32 {
        (self.head >> 32) as u32
    }

    pub(super) fn qpn(self) -> Qpn {
        Qpn::from_device(self.head as u32)
    }

    /// Of a receive that succeeded: how many bytes came.
    pub(super) fn byte_len(self) -> u32 {
        self.detail as u32
    }

    /// Of a receive that succeeded: the immediate, host byte order.
    pub(super) fn immediate(self) -> Option<u32> {
        (self.head & WITH_IMMEDIATE != 0).then_some(u32::from_be((self.detail >> 32) as u32))
    }

    /// Of a receive that succeeded: the key that its message has invalidated.
    pub(super) fn invalidated(self) -> Option<Rkey> {
        (self.head & WITH_INVALIDATION != 0).then_some(Rkey((self.detail >> 32) as u32))
    }

    /// Of a receive that succeeded: whether it is a datagram, and if so whether its header is there, and who sent it: LID,
    /// service level, queue pair.
    pub(super) fn datagram(self) -> Option<(bool, u16, u8, Qpn)> {
        (self.head & DATAGRAM != 0).then(|| {
            let sender = self.sender;
            (self.head & WITH_HEADER != 0, (sender >> 32) as u16, (sender >> 24) as u8, Qpn::from_device(sender as u32))
        })
    }

    /// Of a receive that succeeded: whether a write took it.
    pub(super) fn is_with_write(self) -> bool {
        self.head & WITH_WRITE != 0
    }

    /// In words, which pass in registers: so a completion that is a success need not be in memory.
    #[cold]
    #[inline(never)]
    #[allow(unsafe_code, reason = "takes the entry over")]
    unsafe fn into_failure<B>(id: WorkId, head: u64, detail: u64, entry: RawEntry) -> Failure<B> {
        let this = Self { id, head, detail, sender: 0 };
        // SAFETY: the caller's promise.
        let entry = unsafe { Entry::from_raw(entry) };
        let status = match this.status() {
            DESTROYED => Status::Destroyed,
            IMPOSSIBLE => Status::ProviderFault,
            raw => Status::from_raw(raw),
        };
        let by_device = status.code().is_some();
        let first = Some((detail >> 32) as u32).filter(|&first| by_device && first != 0);
        Failure {
            id,
            queue_pair: this.qpn(),
            operation: entry.operation(id.key().kind()),
            status,
            vendor_error: if by_device { detail as u32 } else { 0 },
            first_failure: first.map(|first| Status::from_raw(first.wrapping_sub(1))),
            memory: entry.into_memory(),
        }
    }
}

impl<B> Completion<B> {
    /// # Safety
    ///
    /// `entry` is used once.
    #[inline(always)]
    #[allow(unsafe_code, reason = "takes the entry over")]
    pub(super) unsafe fn new(ended: Ended, entry: RawEntry) -> Self {
        // SAFETY: the caller's promise.
        Self { ended, entry: unsafe { Entry::from_raw(entry) }, brand: PhantomData }
    }

    /// The id that posting gave.
    pub fn id(&self) -> WorkId {
        self.ended.id
    }

    /// Tells success from failure. Both have the memory of the request.
    ///
    /// # Errors
    ///
    /// [`Failure`]: the request failed, was flushed, or its queue pair was destroyed.
    #[inline(always)]
    #[allow(unsafe_code, reason = "hands the entry over")]
    pub fn check(self) -> Result<Success<B>, Failure<B>> {
        if self.ended.status() == 0 {
            return Ok(Success::new(self.ended, self.entry));
        }
        let Ended { id, head, detail, .. } = self.ended;
        // SAFETY: used once.
        Err(unsafe { Ended::into_failure(id, head, detail, self.entry.into_raw()) })
    }
}

impl<B> fmt::Debug for Completion<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("id", &self.ended.id).field("entry", &self.entry).finish_non_exhaustive()
    }
}
