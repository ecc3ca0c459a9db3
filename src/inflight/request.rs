//! Work requests as the layers pass them on: what is asked of the device, the memory that it works on, and the checks
//! before a post.

use super::post_error::RequestFlaw;
use super::{AhInner, Entry, Operation, Posting};
use crate::domain::{Brand, DomainId};
use crate::memory::{Descriptor, ListInner, MAX_MESSAGE_BYTES, RemoteRegion};
use crate::seal::{KEY, Key};
use crate::sys::{ibv_send_flags, ibv_wr_opcode};
use crate::types::{Qkey, Qpn};
use std::{fmt, marker::PhantomData, sync::Arc};

pub(crate) use sealed::Postable;

mod sealed {
    use super::{Descriptor, DomainId, Entry, Key, ListInner, Operation, To};

    /// Memory that a request can have: it can be taken apart into what the device reads and what the ledger keeps.
    #[allow(unnameable_types, reason = "seals `SendMemory`")]
    pub trait Postable<B>: Sized {
        /// What the entry does not keep of the handle.
        type Rest;
        /// How many bytes are filled.
        fn filled(&self, key: Key) -> usize;
        /// The filled bytes of one buffer or of inline bytes, if they are not empty and fit in one message; otherwise
        /// 0.
        fn message(&self, _: Key) -> u32 {
            0
        }
        /// The descriptor of one buffer; `None` for a list and for inline bytes.
        fn part(&self, key: Key) -> Option<&Descriptor>;
        /// The list; `None` if the memory is not a list.
        fn list(&mut self, _: Key) -> Option<&mut ListInner> {
            None
        }
        /// The number of scatter/gather elements (0 for inline bytes), and how many bytes fit in them.
        fn extent(&self, key: Key) -> (usize, usize) {
            self.part(key).map_or((0, 0), |part| (1, part.capacity()))
        }
        /// The inline bytes; empty for registered memory.
        fn bytes(&self, _: Key) -> &[u8] {
            &[]
        }
        /// Whether all of it, the recipient included, belongs to `domain`. Asked for brands that are checked at run
        /// time.
        fn is_of(&self, domain: DomainId, key: Key) -> bool;
        /// The recipient of a datagram.
        fn recipient(&self, _: Key) -> Option<To<'_>> {
            None
        }
        fn into_entry(self, operation: Operation, key: Key) -> (Entry, Self::Rest);
        /// The handle that became `entry` and `rest`.
        fn from_entry(entry: Entry, rest: Self::Rest, key: Key) -> Option<Self>;
    }
}

/// The recipient of a datagram, without its brand.
#[derive(Clone, Copy)]
#[allow(unnameable_types, missing_debug_implementations, reason = "in a sealed trait")]
pub struct To<'r> {
    pub(crate) handle: &'r Arc<AhInner>,
    pub(crate) queue_pair: Qpn,
    pub(crate) qkey: Qkey,
}

/// A request of kind `K` with its memory `M`, to be [posted](crate::QueuePair::post).
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # interlock::domain! { struct Docs; }
/// # let mut pair: interlock::QueuePair<Docs> = todo!();
/// # let (buffer, other): (interlock::Buffer<Docs>, interlock::Buffer<Docs>) = todo!();
/// use interlock::WorkRequest;
/// pair.post(WorkRequest::send(buffer).with_immediate(7).solicited())?;
/// pair.post(WorkRequest::send(other).unsignalled())?;
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_send_wr")]
#[must_use = "it does nothing until it is posted"]
pub struct WorkRequest<M, K> {
    pub(crate) memory: M,
    pub(crate) action: Action,
    kind: PhantomData<fn() -> K>,
}

/// What a request asks for, besides its memory. The constructors of [`WorkRequest`] pair it with memory that fits: only
/// memory that a device may fill goes with an operation that fills.
#[derive(Clone, Copy)]
pub(crate) struct Action {
    pub(super) operation: Operation,
    pub(super) opcode: ibv_wr_opcode,
    pub(super) flags: u32,
    /// In network byte order.
    pub(super) immediate_be: u32,
    pub(super) remote_addr: u64,
    /// Bytes of the peer's memory; for a write, at most as many as one message has.
    remote_len: u64,
    pub(super) rkey: u32,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
}

pub(super) const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;

impl Action {
    #[inline(always)]
    fn new(operation: Operation, opcode: ibv_wr_opcode) -> Self {
        Self {
            operation,
            opcode,
            flags: SIGNALED,
            immediate_be: 0,
            remote_addr: 0,
            remote_len: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn send() -> Self {
        Self::new(Operation::Send, ibv_wr_opcode::IBV_WR_SEND)
    }

    #[inline(always)]
    pub(crate) fn write<A>(target: &RemoteRegion<A>) -> Self {
        Self::new(Operation::Write, ibv_wr_opcode::IBV_WR_RDMA_WRITE).on(target)
    }

    #[inline(always)]
    pub(crate) fn atomic_write<A>(target: &RemoteRegion<A>, value: u64) -> Self {
        let compare_add = value;
        Self { compare_add, ..Self::new(Operation::AtomicWrite, ibv_wr_opcode::IBV_WR_ATOMIC_WRITE).on(target) }
    }

    #[inline(always)]
    pub(crate) fn read<A>(source: &RemoteRegion<A>) -> Self {
        Self::new(Operation::Read, ibv_wr_opcode::IBV_WR_RDMA_READ).on(source)
    }

    #[inline(always)]
    pub(crate) fn compare_and_swap<A>(target: &RemoteRegion<A>, compare: u64, swap: u64) -> Self {
        let new = Self::new(Operation::CompareAndSwap, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP).on(target);
        Self { compare_add: compare, swap, ..new }
    }

    #[inline(always)]
    pub(crate) fn fetch_and_add<A>(target: &RemoteRegion<A>, addend: u64) -> Self {
        let new = Self::new(Operation::FetchAndAdd, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD).on(target);
        Self { compare_add: addend, ..new }
    }

    #[inline(always)]
    fn on<A>(mut self, remote: &RemoteRegion<A>) -> Self {
        (self.remote_addr, self.rkey) = (remote.address(), remote.rkey().0);
        self.remote_len = if let Operation::Write = self.operation { remote.fits() } else { remote.len() };
        self
    }

    /// Whether the opcode uses the immediate.
    #[inline(always)]
    pub(super) fn has_immediate(&self) -> bool {
        matches!(self.opcode, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM)
    }

    /// The [`length`](Self::length) of a *plain* request: at least one byte, in one buffer or inline, without a
    /// recipient. `None` for all others. Plain requests take the short way.
    #[inline(always)]
    fn plain_length<B: Brand, M: Postable<B>>(&self, memory: &M, domain: DomainId, limits: PostLimits) -> Option<u32> {
        if B::CHECKED && !memory.is_of(domain, KEY) {
            return None;
        }
        let (length, within) = match (self.operation, memory.part(KEY)) {
            _ if memory.recipient(KEY).is_some() => return None,
            (Operation::Send | Operation::Receive, Some(_)) => (memory.message(KEY), u64::from(u32::MAX)),
            (Operation::Send | Operation::Receive, None) => (memory.message(KEY), limits.inline_bytes.into()),
            (Operation::Write, Some(_)) => (memory.message(KEY), self.remote_len),
            (Operation::Write, None) => (memory.message(KEY), self.remote_len.min(limits.inline_bytes.into())),
            (Operation::Read | Operation::CompareAndSwap | Operation::FetchAndAdd, _) if !limits.reads() => {
                return None;
            }
            (Operation::Read, Some(part)) => (u32::try_from(self.remote_len).unwrap_or(0), part.receives().into()),
            (Operation::CompareAndSwap | Operation::FetchAndAdd, Some(part)) => {
                let aligned = (self.remote_addr | part.device_addr()).is_multiple_of(8);
                (if aligned && self.remote_len >= 8 { 8 } else { 0 }, part.receives().into())
            }
            _ => return None,
        };
        // The subtraction wraps for a length of 0, so one compare covers both limits.
        (u64::from(length.wrapping_sub(1)) < within).then_some(length)
    }

    /// How many bytes the request moves from or to `memory` on a queue of `domain`, or why the two do not fit together.
    #[inline(always)]
    fn length<B: Brand, M: Postable<B>>(
        &self,
        memory: &M,
        domain: DomainId,
        limits: PostLimits,
    ) -> Result<u32, RequestFlaw> {
        if B::CHECKED && !memory.is_of(domain, KEY) {
            return Err(RequestFlaw::OtherDomain);
        }
        let reads = matches!(
            self.operation,
            Operation::Read | Operation::CompareAndSwap | Operation::FetchAndAdd | Operation::AtomicWrite
        );
        if reads && !limits.reads() {
            return Err(RequestFlaw::NoReadDepth);
        }
        let (elements, capacity) = memory.extent(KEY);
        if elements > 1 && elements > usize::from(limits.elements) {
            return Err(RequestFlaw::TooManyElements { elements, most: limits.elements.into() });
        }
        let mut bytes = if elements == 0 { u64::from(limits.inline_bytes) } else { MAX_MESSAGE_BYTES as u64 };
        if memory.recipient(KEY).is_some() {
            bytes = bytes.min(u64::from(limits.datagram_bytes));
        }
        let (len, within) = match self.operation {
            // Requests about windows do not come here.
            Operation::Send | Operation::Receive | Operation::Bind | Operation::Revoke => {
                (memory.filled(KEY) as u64, bytes)
            }
            // `remote_len` is at most one message.
            Operation::Write if elements != 0 => (memory.filled(KEY) as u64, self.remote_len),
            Operation::Write => (memory.filled(KEY) as u64, self.remote_len.min(bytes)),
            Operation::Read => (self.remote_len, bytes.min(capacity as u64)),
            Operation::AtomicWrite => {
                let (address, len_bytes) = (self.remote_addr, self.remote_len);
                if limits.posting != Posting::AtomicWrites {
                    return Err(RequestFlaw::NoAtomicWrites);
                }
                if len_bytes < 8 || !address.is_multiple_of(8) {
                    return Err(RequestFlaw::NotAWord { address, len_bytes });
                }
                (8, 8)
            }
            Operation::CompareAndSwap | Operation::FetchAndAdd => {
                let address = memory.part(KEY).map_or(0, Descriptor::device_addr);
                for (address, len_bytes) in [(self.remote_addr, self.remote_len), (address, capacity as u64)] {
                    if len_bytes < 8 || !address.is_multiple_of(8) {
                        return Err(RequestFlaw::NotAWord { address, len_bytes });
                    }
                }
                (8, 8)
            }
        };
        if len <= within { Ok(len as u32) } else { Err(RequestFlaw::of(len, within)) }
    }
}

/// The limits that a queue pair has for its requests.
#[derive(Clone, Copy)]
pub(crate) struct PostLimits {
    /// Bytes of an inline request.
    pub(crate) inline_bytes: u16,
    /// Bytes of a datagram. An MTU is 4096 at most.
    pub(crate) datagram_bytes: u16,
    /// Buffers of a list.
    pub(crate) elements: u16,
    /// How requests are handed to the device, and whether atomic writes are allowed.
    pub(crate) posting: Posting,
    /// [`BARRIER`](Self::BARRIER) and [`READS`](Self::READS), in one byte, so that the limits fit in one word.
    pub(crate) flags: u8,
}
static_assertions::assert_eq_size!(PostLimits, u64);

impl PostLimits {
    /// Windows are barriers on this device.
    pub(crate) const BARRIER: u8 = 1;
    /// The pair may have reads and atomics outstanding. On a pair that may not, some devices would wait for ever with a
    /// read and with all requests behind it.
    pub(crate) const READS: u8 = 2;

    pub(super) fn has_barrier(self) -> bool {
        self.flags & Self::BARRIER != 0
    }

    #[inline(always)]
    fn reads(self) -> bool {
        self.flags & Self::READS != 0
    }
}

impl<M, K> WorkRequest<M, K> {
    #[inline(always)]
    pub(crate) fn new(memory: M, action: Action) -> Self {
        Self { memory, action, kind: PhantomData }
    }

    /// See [`Action::plain_length`].
    #[inline(always)]
    pub(super) fn plain_length<B: Brand>(&self, domain: DomainId, limits: PostLimits) -> Option<u32>
    where
        M: Postable<B>,
    {
        self.action.plain_length(&self.memory, domain, limits)
    }

    /// See [`Action::length`].
    #[inline(always)]
    pub(super) fn length<B: Brand>(&self, domain: DomainId, limits: PostLimits) -> Result<u32, RequestFlaw>
    where
        M: Postable<B>,
    {
        self.action.length(&self.memory, domain, limits)
    }

    /// Adds these `flags`.
    #[inline(always)]
    pub(crate) fn with_flags(mut self, flags: ibv_send_flags) -> Self {
        self.action.flags |= flags.0;
        self
    }

    /// Asks by `opcode` to carry `immediate` too. The opcode is that of the same operation.
    #[inline(always)]
    pub(crate) fn carrying(mut self, opcode: ibv_wr_opcode, immediate: u32) -> Self {
        self.action.opcode = opcode;
        self.action.immediate_be = immediate.to_be();
        self
    }

    #[inline(always)]
    pub(super) fn is_signalled(&self) -> bool {
        self.action.flags & SIGNALED != 0
    }

    #[inline(always)]
    pub(super) fn signalled(mut self) -> Self {
        self.action.flags |= SIGNALED;
        self
    }

    #[inline(always)]
    pub(crate) fn without_signal(mut self) -> Self {
        self.action.flags &= !SIGNALED;
        self
    }

    /// What the request was made from.
    pub(crate) fn into_inner(self) -> M {
        self.memory
    }
}

impl<M: fmt::Debug, K> fmt::Debug for WorkRequest<M, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkRequest")
            .field("operation", &self.action.operation)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}
