//! What the poller gives back: completions, each either a success or a failure.

use crate::domain::brand::Branded;
use crate::memory::{Buffer, SharedBuffer};
use crate::queue::{Entry, Operation, PostedMemory, RawEntry, WorkId};
use crate::sys;
use crate::types::Qpn;
use std::{error, fmt, marker::PhantomData};

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
#[doc(alias = "ibv_wc")]
#[must_use = "it holds the buffer of the request"]
pub struct Completion<B> {
    ended: Ended,
    brand: Branded<B>,
}

/// What is known of a completion, before its status is looked at.
///
/// In whole words: two halves of a word, stored apart and loaded together, would wait for each other.
struct Ended {
    id: WorkId,
    entry: Entry,
    /// From the top: 32 bits of status, the device's or `IMPLIED` or `DESTROYED`; `WITH_WRITE`, `WITH_IMMEDIATE`; 24
    /// bits of queue pair number.
    head: u64,
    /// On success of a receive: above the immediate, big-endian; below the length. On failure: above the first failure
    /// of the pair plus 1, or 0; below the provider's code.
    detail: u64,
}

/// The same on its way from the poller, in plain words that move in registers. Whoever has it owns the entry.
#[derive(Clone, Copy)]
pub(super) struct RawCompletion {
    id: WorkId,
    entry: RawEntry,
    head: u64,
    detail: u64,
}

/// A later request of the queue completed, so this unsignalled one has succeeded before it.
const IMPLIED: u32 = u32::MAX;
/// The queue pair was destroyed or reset.
const DESTROYED: u32 = u32::MAX - 1;
/// A receive was taken by a write with immediate.
const WITH_WRITE: u64 = 1 << 25;
/// A receive came with an immediate.
const WITH_IMMEDIATE: u64 = 1 << 24;

fn words(above: u32, below: u32) -> u64 {
    u64::from(above) << 32 | u64::from(below)
}

impl RawCompletion {
    #[inline(always)]
    fn new(id: WorkId, entry: Entry, head: u64, detail: u64) -> Self {
        Self { id, entry: entry.into_raw(), head, detail }
    }

    #[inline(always)]
    pub(super) fn implied(id: WorkId, entry: Entry, qpn: u32) -> Self {
        Self::new(id, entry, words(IMPLIED, qpn), 0)
    }

    pub(super) fn destroyed(id: WorkId, entry: Entry, qpn: u32) -> Self {
        Self::new(id, entry, words(DESTROYED, qpn), 0)
    }

    #[inline(always)]
    pub(super) fn succeeded(id: WorkId, entry: Entry, qpn: u32, wc: &sys::ibv_wc) -> Self {
        // Only a receive has a length and flags.
        let (flags, detail) = if entry.operation() == Operation::Receive { receive(wc) } else { (0, 0) };
        Self::new(id, entry, u64::from(qpn) | flags, detail)
    }

    #[cold]
    pub(super) fn failed(id: WorkId, entry: Entry, qpn: u32, wc: &sys::ibv_wc, first: Option<Status>) -> Self {
        let first = first.and_then(Status::code).map_or(0, |code| code.saturating_add(1));
        // The library's own statuses are no device's.
        let status = wc.status.0.min(DESTROYED - 1);
        Self::new(id, entry, words(status, qpn), words(first, wc.vendor_err))
    }
}

/// What a receive adds to the head, and its detail.
#[inline(always)]
#[allow(unsafe_code, reason = "the immediate is in a union")]
fn receive(wc: &sys::ibv_wc) -> (u64, u64) {
    let with_write = wc.opcode == sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    let with_immediate = wc.wc_flags & sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
    let flags = if with_write { WITH_WRITE } else { 0 } | if with_immediate { WITH_IMMEDIATE } else { 0 };
    // SAFETY: the members of the union are numbers of 4 bytes.
    (flags, words(unsafe { wc.__bindgen_anon_1.imm_data }, wc.byte_len))
}

impl Ended {
    fn status(&self) -> u32 {
        (self.head >> 32) as u32
    }

    fn qpn(&self) -> Qpn {
        Qpn::from_device(self.head as u32)
    }
}

impl<B> Completion<B> {
    #[inline(always)]
    #[allow(unsafe_code, reason = "takes the entry over")]
    pub(super) fn new(raw: RawCompletion) -> Self {
        let RawCompletion { id, entry, head, detail } = raw;
        // SAFETY: the poller makes one completion of each.
        let entry = unsafe { Entry::from_raw(entry) };
        Self { ended: Ended { id, entry, head, detail }, brand: PhantomData }
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
    pub fn check(self) -> Result<Success<B>, Failure<B>> {
        let (id, queue_pair) = (self.ended.id, self.ended.qpn());
        match self.ended.succeed() {
            Ok(work) => Ok(Success { id, queue_pair, work }),
            Err(ended) => Err(ended.fail()),
        }
    }
}

impl Ended {
    /// What a request that succeeded did. A receive of more bytes than its buffer has is no success.
    #[inline(always)]
    fn succeed<B>(self) -> Result<Work<B>, Self> {
        if self.status() != 0 && self.status() != IMPLIED {
            return Err(self);
        }
        let operation = self.entry.operation();
        if operation != Operation::Receive {
            return Ok(Work::of(operation, self.entry.into_memory()));
        }
        let with_write = self.head & WITH_WRITE != 0;
        let byte_len = self.detail as u32;
        if !with_write && byte_len as usize > self.entry.part().capacity() {
            return Err(self);
        }
        let has_immediate = self.head & WITH_IMMEDIATE != 0;
        let immediate = has_immediate.then_some(u32::from_be((self.detail >> 32) as u32));
        self.entry.part().set_filled(if with_write { 0 } else { byte_len as usize });
        Ok(match self.entry.into_memory() {
            PostedMemory::Unique(buffer) if with_write => Work::WrittenWithImmediate(WrittenWithImmediate {
                buffer,
                written_bytes: byte_len,
                immediate: immediate.unwrap_or(0),
            }),
            PostedMemory::Unique(buffer) => Work::Received(Received { buffer, immediate }),
            // Cannot be: only unique buffers are received into.
            shared @ PostedMemory::Shared(_) => Work::Sent(shared),
        })
    }

    #[cold]
    fn fail<B>(self) -> Failure<B> {
        let status = match self.status() {
            // A success that cannot be.
            0 | IMPLIED => Status::ProviderFault,
            DESTROYED => Status::Destroyed,
            raw => Status::from_raw(raw),
        };
        let by_device = status.code().is_some();
        let first = Some((self.detail >> 32) as u32).filter(|&first| by_device && first != 0);
        Failure {
            id: self.id,
            queue_pair: self.qpn(),
            operation: self.entry.operation(),
            status,
            vendor_error: if by_device { self.detail as u32 } else { 0 },
            first_failure: first.map(|first| Status::from_raw(first.wrapping_sub(1))),
            memory: self.entry.into_memory(),
        }
    }
}

impl<B> fmt::Debug for Completion<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("id", &self.ended.id)
            .field("entry", &self.ended.entry)
            .finish_non_exhaustive()
    }
}

/// A request that succeeded.
#[non_exhaustive]
pub struct Success<B> {
    /// The id that posting gave.
    pub id: WorkId,
    /// The queue pair that it was posted to.
    pub queue_pair: Qpn,
    /// What it did, with its memory.
    pub work: Work<B>,
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

impl<B> Success<B> {
    /// The buffer of a message that was received.
    #[inline]
    pub fn received(self) -> Option<Buffer<B>> {
        match self.work {
            Work::Received(received) => Some(received.buffer),
            _ => None,
        }
    }

    /// The buffer, if the request had one of its own.
    #[inline]
    pub fn into_buffer(self) -> Option<Buffer<B>> {
        self.work.into_buffer()
    }
}

impl error::Error for Status {}

impl<B> fmt::Debug for Success<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Success")
            .field("id", &self.id)
            .field("queue_pair", &self.queue_pair)
            .field("work", &self.work)
            .finish()
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

/// A request that did not succeed, with its memory.
///
/// What of it was done before is not known: a flushed or timed-out request may have been executed by the peer.
#[non_exhaustive]
pub struct Failure<B> {
    /// The id that posting gave.
    pub id: WorkId,
    /// The queue pair that it was posted to.
    pub queue_pair: Qpn,
    /// What it should have done.
    pub operation: Operation,
    /// Why it did not.
    pub status: Status,
    /// The provider's own code, for its vendor.
    pub vendor_error: u32,
    /// What broke the pair, where this is only what followed; `None` where this is the first or the first is unknown.
    pub first_failure: Option<Status>,
    /// The memory of the request. What counts as filled after a failed read or atomic is what it should have brought.
    pub memory: PostedMemory<B>,
}

/// What a [`Failure`] says, without the memory: it can leave a scoped domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FailureCause {
    /// The queue pair.
    pub queue_pair: Qpn,
    /// What the request should have done.
    pub operation: Operation,
    /// Why it did not.
    pub status: Status,
    /// The provider's own code, for its vendor.
    pub vendor_error: u32,
    /// What broke the pair, where this is only what followed.
    pub first_failure: Option<Status>,
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on queue pair {:#x} failed: {}", self.operation, self.queue_pair, self.status)?;
        if let Some(first) = self.first_failure {
            write!(f, " (after: {first})")?;
        }
        Ok(())
    }
}

impl error::Error for FailureCause {}

impl<B> From<Failure<B>> for FailureCause {
    fn from(failure: Failure<B>) -> Self {
        failure.cause()
    }
}

impl<B> Failure<B> {
    /// What it says, without the memory.
    pub fn cause(&self) -> FailureCause {
        let Self { queue_pair, operation, status, vendor_error, first_failure, .. } = *self;
        FailureCause { queue_pair, operation, status, vendor_error, first_failure }
    }

    /// The buffer, if the request had one of its own.
    #[inline]
    pub fn into_buffer(self) -> Option<Buffer<B>> {
        self.memory.into_buffer()
    }
}

impl<B> fmt::Display for Failure<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause().fmt(f)
    }
}

impl<B> fmt::Debug for Failure<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("id", &self.id)
            .field("queue_pair", &self.queue_pair)
            .field("operation", &self.operation)
            .field("status", &self.status)
            .field("vendor_error", &self.vendor_error)
            .field("first_failure", &self.first_failure)
            .field("memory", &self.memory)
            .finish()
    }
}

impl<B> error::Error for Failure<B> {}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:ident, $text:literal;)+) => {
        /// Why a request ended as it did.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        #[doc(alias = "ibv_wc_status")]
        pub enum Status {
            /// It succeeded.
            #[doc(alias = "IBV_WC_SUCCESS")]
            Success,
            $($(#[$doc])* $name,)+
            /// The library's own: the queue pair was destroyed or reset while the request was in flight.
            Destroyed,
            /// The library's own: the provider reported what cannot be, such as more bytes received than the buffer has.
            ProviderFault,
            /// A status that this library does not know.
            Unknown(u32),
        }

        impl Status {
            /// Reads what the device wrote.
            #[inline]
            pub(crate) fn from_raw(raw: u32) -> Self {
                match sys::ibv_wc_status(raw) {
                    sys::ibv_wc_status::IBV_WC_SUCCESS => Self::Success,
                    $(sys::ibv_wc_status::$code => Self::$name,)+
                    _ => Self::Unknown(raw),
                }
            }

            /// The number of the specification; `None` for the library's own.
            pub fn code(self) -> Option<u32> {
                Some(match self {
                    Self::Success => 0,
                    $(Self::$name => sys::ibv_wc_status::$code.0,)+
                    Self::Destroyed | Self::ProviderFault => return None,
                    Self::Unknown(code) => code,
                })
            }
        }

        impl fmt::Display for Status {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Self::Success => f.write_str("success"),
                    $(Self::$name => f.write_str($text),)+
                    Self::Destroyed => f.write_str("the queue pair was destroyed or reset with the request in flight"),
                    Self::ProviderFault => f.write_str("the provider reported a completion that cannot be"),
                    Self::Unknown(code) => write!(f, "status {code}, which the specification does not name"),
                }
            }
        }
    };
}

statuses! {
    /// A message longer than the receive buffer arrived here, or one longer than the device sends was posted.
    #[doc(alias = "IBV_WC_LOC_LEN_ERR")]
    LocalLength = IBV_WC_LOC_LEN_ERR,
        "local length error: the message does not fit (here: is the receive buffer as long as the peer's message?)";
    /// The queue pair cannot do what was asked.
    #[doc(alias = "IBV_WC_LOC_QP_OP_ERR")]
    LocalQueuePairOperation = IBV_WC_LOC_QP_OP_ERR,
        "local queue pair operation error: this side's request and queue pair do not go together (soft-RoCE says this \
         also of a message longer than its receive buffer)";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_LOC_EEC_OP_ERR")]
    LocalEecOperation = IBV_WC_LOC_EEC_OP_ERR, "local end-to-end context operation error";
    /// The memory of the request is not what its key stands for.
    #[doc(alias = "IBV_WC_LOC_PROT_ERR")]
    LocalProtection = IBV_WC_LOC_PROT_ERR,
        "local protection error: this side's memory, its key or its rights do not fit the request";
    /// The queue pair was in Error, so the request was not executed, or not to its end.
    #[doc(alias = "IBV_WC_WR_FLUSH_ERR")]
    Flushed = IBV_WC_WR_FLUSH_ERR, "flushed: the queue pair was in Error (look for the failure before it)";
    /// A memory window was not bound.
    #[doc(alias = "IBV_WC_MW_BIND_ERR")]
    WindowBind = IBV_WC_MW_BIND_ERR, "memory window bind error: the window, its region and their rights do not fit";
    /// The peer's device answered with something malformed.
    #[doc(alias = "IBV_WC_BAD_RESP_ERR")]
    BadResponse = IBV_WC_BAD_RESP_ERR, "bad response: the peer's device sent what this one does not understand";
    /// The peer's write with immediate was not allowed here.
    #[doc(alias = "IBV_WC_LOC_ACCESS_ERR")]
    LocalAccess = IBV_WC_LOC_ACCESS_ERR, "local access error: the peer's write was not allowed on this side";
    /// The peer's device does not accept the request.
    #[doc(alias = "IBV_WC_REM_INV_REQ_ERR")]
    RemoteInvalidRequest = IBV_WC_REM_INV_REQ_ERR,
        "remote invalid request: the peer refused the operation (its receive is too short, its queue pair lacks the \
         right or read depth, or the MTUs differ)";
    /// The peer's memory is not what the remote key stands for.
    #[doc(alias = "IBV_WC_REM_ACCESS_ERR")]
    RemoteAccess = IBV_WC_REM_ACCESS_ERR,
        "remote access error: the peer's memory, its key or its rights do not allow it (was it deregistered?)";
    /// The peer could not finish the request.
    #[doc(alias = "IBV_WC_REM_OP_ERR")]
    RemoteOperation = IBV_WC_REM_OP_ERR,
        "remote operation error: the peer could not finish (often its receive buffer: length, key or rights)";
    /// The peer did not acknowledge.
    #[doc(alias = "IBV_WC_RETRY_EXC_ERR")]
    RetryExceeded = IBV_WC_RETRY_EXC_ERR,
        "retry count exceeded: the peer does not answer (is it up, connected to this queue pair, with matching PSNs?)";
    /// The peer had no receive posted for too long.
    #[doc(alias = "IBV_WC_RNR_RETRY_EXC_ERR")]
    RnrRetryExceeded = IBV_WC_RNR_RETRY_EXC_ERR,
        "receiver-not-ready retry count exceeded: the peer posted no receive in time";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_LOC_RDD_VIOL_ERR")]
    LocalRddViolation = IBV_WC_LOC_RDD_VIOL_ERR, "local reliable datagram domain violation";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_REM_INV_RD_REQ_ERR")]
    RemoteInvalidReadRequest = IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid reliable datagram request";
    /// The peer gave the operation up.
    #[doc(alias = "IBV_WC_REM_ABORT_ERR")]
    RemoteAborted = IBV_WC_REM_ABORT_ERR, "remote aborted: the peer gave the operation up";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_INV_EECN_ERR")]
    InvalidEecNumber = IBV_WC_INV_EECN_ERR, "invalid end-to-end context number";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_INV_EEC_STATE_ERR")]
    InvalidEecState = IBV_WC_INV_EEC_STATE_ERR, "invalid end-to-end context state";
    /// The device failed.
    #[doc(alias = "IBV_WC_FATAL_ERR")]
    Fatal = IBV_WC_FATAL_ERR, "fatal error of the device or the transport";
    /// A management response did not come.
    #[doc(alias = "IBV_WC_RESP_TIMEOUT_ERR")]
    ResponseTimeout = IBV_WC_RESP_TIMEOUT_ERR, "response timeout";
    /// Something else.
    #[doc(alias = "IBV_WC_GENERAL_ERR")]
    General = IBV_WC_GENERAL_ERR, "general error of the transport";
}
