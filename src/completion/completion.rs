//! Completions: that a posted request has ended, and how.

use super::failure::Failure;
use super::work::{Datagram, Received, Scattered, Work, WrittenWithImmediate};
use crate::domain::brand::Branded;
use crate::inflight::ledger::Origin;
use crate::inflight::{Entry, HEADER_BYTES, Operation, PostedMemory, RawEntry, Status, WorkId, immediate_or_key};
use crate::memory::{Buffer, Descriptor};
use crate::sys;
use crate::types::{Qpn, Rkey};
use std::{fmt, marker::PhantomData};

/// The end of one posted request. Every posted request has exactly one.
///
/// Only its id can be read until [`check`](Self::check) has told success from failure. Dropping it drops the buffer.
///
/// # Rules
///
/// The compiler enforces each rule; programs that break them are in `ui-tests/completion`.
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

impl<B> Completion<B> {
    #[inline(always)]
    pub(super) fn new(ended: Ended, entry: RawEntry) -> Self {
        Self { ended, entry: Entry::from_raw(entry), brand: PhantomData }
    }

    /// The success of a request without memory, for the models of loom.
    #[cfg(all(loom, feature = "aio"))]
    pub(crate) fn of_model(id: WorkId) -> Self {
        let ended = Ended { id, head: 0, detail: 0, sender: 0 };
        Self { ended, entry: Entry::inline(Operation::Send), brand: PhantomData }
    }

    /// The id that the post returned.
    pub fn id(&self) -> WorkId {
        self.ended.id
    }

    /// Whether its memory goes home to a pool when it is dropped.
    pub(crate) fn goes_home(&self) -> bool {
        self.entry.descriptor().is_some_and(Descriptor::has_home)
    }

    /// Whether the request succeeded.
    #[inline(always)]
    pub(crate) fn is_success(&self) -> bool {
        self.ended.is_success()
    }

    /// The number of the pair of the request.
    #[cfg(feature = "aio")]
    pub(crate) fn pair(&self) -> Qpn {
        self.ended.qpn()
    }

    /// Tells success from failure. Either result holds the memory of the request.
    ///
    /// # Errors
    ///
    /// [`Failure`]: the request failed, was flushed, or its queue pair was destroyed.
    #[inline(always)]
    pub fn check(self) -> Result<Success<B>, Failure<B>> {
        if self.ended.is_success() {
            return Ok(Success::new(self.ended, self.entry));
        }
        Err(self.ended.into_failure(self.entry))
    }
}

impl<B> fmt::Debug for Completion<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("id", &self.ended.id).field("entry", &self.entry).finish_non_exhaustive()
    }
}

/// A request that succeeded. Dropping it drops the buffer.
///
/// It is read by methods, because it is decoded only on demand. A [`Failure`] has fields, as other errors have, so that
/// a pattern takes it apart.
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

    /// The id that the post returned.
    #[inline]
    pub fn id(&self) -> WorkId {
        self.ended.id
    }

    /// The queue pair that the request was posted to; for a shared receive, the pair that took it.
    #[inline]
    pub fn queue_pair(&self) -> Qpn {
        self.ended.qpn()
    }

    /// The operation of the request.
    #[inline]
    pub fn operation(&self) -> Operation {
        self.entry.operation(self.ended.id.key().kind())
    }

    /// The immediate of a message that was received, in host byte order; `None` if it has none.
    pub fn immediate(&self) -> Option<u32> {
        if self.operation() == Operation::Receive { self.ended.immediate() } else { None }
    }

    /// The result of the request, with its memory.
    #[inline]
    pub fn into_work(self) -> Work<B> {
        match self.operation() {
            Operation::Receive => self.into_receive(),
            operation => Work::of(operation, self.entry.into_memory(), self.ended.device_status()),
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
            // Unreachable: the memory of a receive is a buffer or a list.
            memory => Work::Sent(memory),
        }
    }

    /// The memory of the request.
    #[inline]
    pub fn into_memory(self) -> PostedMemory<B> {
        self.entry.into_memory()
    }

    /// Gives `take` the entry of the request, with the memory that was posted. If `take` refuses it, the provider has
    /// reported a success that cannot be one.
    #[inline(always)]
    pub(crate) fn take_memory<R>(self, take: impl FnOnce(Entry) -> Result<R, Entry>) -> Result<R, Failure<B>> {
        let Self { ended, entry, .. } = self;
        take(entry).map_err(|entry| ended.into_impossible().into_failure(entry))
    }

    /// The buffer of the request, if it had one. Other memory is dropped.
    #[inline(always)]
    pub fn into_buffer(self) -> Option<Buffer<B>> {
        self.entry.into_buffer()
    }

    /// The buffer of a message that was received over a connection.
    ///
    /// # Errors
    ///
    /// This value, with its memory, if the request was anything else: a request of this side, a datagram, a receive
    /// into a list, or a receive that a write with immediate took.
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

/// The facts about a request that ended, besides its memory.
///
/// The fields are whole words, and each is written with one store: a load that covers two stores would wait for both.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    pub(super) id: WorkId,
    /// Upper half: the status, either the device's or `DESTROYED` or `IMPOSSIBLE`. Lower half: the flags `WITH_WRITE`
    /// to `WITH_HEADER`, and in the low 24 bits the queue pair number.
    head: u64,
    /// For a successful receive: the immediate (big-endian) or the invalidated key in the upper half, the length in the
    /// lower half. For a failure: in the upper half 0, or 1 plus the first failure of the pair; the provider's code in
    /// the lower half.
    detail: u64,
    /// For a received datagram: 16 bits of LID from bit 32 on, 8 bits of service level from bit 24 on, and in the low
    /// 24 bits the number of the queue pair that sent it.
    sender: u64,
}

/// A status of the library: the queue pair was destroyed or reset.
const DESTROYED: u32 = u32::MAX;
/// A status of the library: the provider reported a success that cannot be one.
const IMPOSSIBLE: u32 = u32::MAX - 1;
/// A write with immediate took the receive.
const WITH_WRITE: u64 = 1 << 25;
/// The message had an immediate.
const WITH_IMMEDIATE: u64 = 1 << 24;
/// The message has invalidated the key of a memory window.
const WITH_INVALIDATION: u64 = 1 << 26;
/// The receive is a datagram.
const DATAGRAM: u64 = 1 << 27;
/// The device wrote the 40 bytes of header in front of the datagram.
const WITH_HEADER: u64 = 1 << 28;
/// The two flags of a work completion that are copied into `head`, and by how many bits they are shifted to the left.
const EXTRAS: u32 = sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 | sys::ibv_wc_flags::IBV_WC_WITH_INV.0;
const EXTRAS_SHIFT: u32 = 23;
static_assertions::const_assert_eq!((sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 as u64) << EXTRAS_SHIFT, WITH_IMMEDIATE);
static_assertions::const_assert_eq!((sys::ibv_wc_flags::IBV_WC_WITH_INV.0 as u64) << EXTRAS_SHIFT, WITH_INVALIDATION);

fn word(upper: u32, lower: u32) -> u64 {
    u64::from(upper) << 32 | u64::from(lower)
}

impl Ended {
    /// An unsignalled request, which makes no completion: a later request of its queue succeeded, so this one did too.
    #[inline(always)]
    pub(super) fn implied(id: WorkId, qpn: u32) -> Self {
        Self { id, head: u64::from(qpn), detail: 0, sender: 0 }
    }

    pub(super) fn destroyed(id: WorkId, qpn: u32) -> Self {
        Self { id, head: word(DESTROYED, qpn), detail: 0, sender: 0 }
    }

    #[inline(always)]
    pub(super) fn succeeded(id: WorkId, entry: &Entry, origin: Origin, wc: &sys::ibv_wc) -> Self {
        // Neither the length nor the flags of a send's completion are needed.
        if id.key().is_send() {
            return Self { id, head: u64::from(origin.qpn()), detail: 0, sender: 0 };
        }
        Self::received(id, entry, origin, wc)
    }

    /// A successful receive: its buffer counts as filled by the message. If the device reports more bytes than the
    /// buffer has, the provider is wrong, and the receive counts as failed.
    #[inline(always)]
    fn received(id: WorkId, entry: &Entry, origin: Origin, wc: &sys::ibv_wc) -> Self {
        let (qpn, datagrams) = (origin.qpn(), origin.datagrams());
        let mut head = u64::from(qpn) | u64::from(wc.wc_flags & EXTRAS) << EXTRAS_SHIFT;
        let mut filled = wc.byte_len as usize;
        if wc.opcode == sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM {
            // The peer's bytes went to the memory that the peer addressed, and none to the buffer of the receive.
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
            return Self { id, head: u64::from(qpn), detail: 0, sender: 0 }.into_impossible();
        }
        Self { id, head, detail: word(immediate_or_key(wc), wc.byte_len), sender }
    }

    #[cold]
    pub(super) fn failed(id: WorkId, qpn: u32, wc: &sys::ibv_wc, first: Option<Status>) -> Self {
        let first = first.and_then(Status::code).map_or(0, |code| code.saturating_add(1));
        // The library defines statuses of its own, from `IMPOSSIBLE` on. `min` keeps a device from reporting one of
        // them.
        let status = wc.status.0.min(IMPOSSIBLE - 1);
        Self { id, head: word(status, qpn), detail: word(first, wc.vendor_err), sender: 0 }
    }

    /// The provider reported a success that cannot be one.
    #[inline(always)]
    fn into_impossible(self) -> Self {
        Self { head: word(IMPOSSIBLE, self.head as u32), detail: 0, ..self }
    }

    #[inline(always)]
    pub(super) fn is_success(self) -> bool {
        self.status() == 0
    }

    #[inline(always)]
    fn status(self) -> u32 {
        (self.head >> 32) as u32
    }

    /// The status as a number of the verbs. The library's own statuses are equal to no status of the verbs.
    #[inline(always)]
    pub(super) fn device_status(self) -> sys::ibv_wc_status {
        sys::ibv_wc_status(self.status())
    }

    pub(super) fn qpn(self) -> Qpn {
        Qpn::from_device(self.head as u32)
    }

    /// How many bytes the message has. This and the next four methods are only for successful receives.
    pub(super) fn byte_len(self) -> u32 {
        self.detail as u32
    }

    /// The immediate of the message, in host byte order.
    pub(super) fn immediate(self) -> Option<u32> {
        (self.head & WITH_IMMEDIATE != 0).then_some(u32::from_be((self.detail >> 32) as u32))
    }

    /// The key that the message has invalidated.
    pub(super) fn invalidated(self) -> Option<Rkey> {
        (self.head & WITH_INVALIDATION != 0).then_some(Rkey((self.detail >> 32) as u32))
    }

    /// For a datagram: whether its header was written, and its sender as LID, service level and queue pair number.
    pub(super) fn datagram(self) -> Option<(bool, u16, u8, Qpn)> {
        (self.head & DATAGRAM != 0).then(|| {
            let sender = self.sender;
            (self.head & WITH_HEADER != 0, (sender >> 32) as u16, (sender >> 24) as u8, Qpn::from_device(sender as u32))
        })
    }

    /// Whether a write with immediate took the receive.
    pub(super) fn is_with_write(self) -> bool {
        self.head & WITH_WRITE != 0
    }

    #[inline(always)]
    pub(super) fn into_failure<B>(self, entry: Entry) -> Failure<B> {
        let Self { id, head, detail, .. } = self;
        Self::failure_of(id, head, detail, entry.into_raw())
    }

    /// Takes separate words, which are passed in registers. A reference would make the compiler store every completion
    /// to memory, even the successful ones.
    #[cold]
    #[inline(never)]
    fn failure_of<B>(id: WorkId, head: u64, detail: u64, entry: RawEntry) -> Failure<B> {
        let this = Self { id, head, detail, sender: 0 };
        let entry = Entry::from_raw(entry);
        let status = match this.status() {
            DESTROYED => Status::Destroyed,
            IMPOSSIBLE => Status::ProviderFault,
            raw => Status::from_raw(raw),
        };
        let by_device = status.code().is_some();
        let first = Some((detail >> 32) as u32).filter(|&first| by_device && first != 0);
        let first = first.map(|first| Status::from_raw(first.wrapping_sub(1)));
        let failure = Failure {
            id,
            queue_pair: this.qpn(),
            operation: entry.operation(id.key().kind()),
            status,
            vendor_error: if by_device { detail as u32 } else { 0 },
            first_failure: first,
            memory: entry.into_memory(),
        };
        failure.trace();
        failure
    }
}
