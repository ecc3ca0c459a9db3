//! Work requests in the form that the layers pass on: the action, its memory, and the checks before a post. Programs
//! make them with the constructors in `queue/request_kinds.rs`.

use super::entry::sealed::Postable;
use super::peers::To;
use super::post_error::RequestFlaw;
use super::{Operation, Posting};
use crate::device::iwarp::NotOnIwarp;
use crate::domain::{Brand, DomainId};
use crate::memory::{Descriptor, MAX_MESSAGE_BYTES, RemoteRegion};
use crate::seal::KEY;
use crate::sys::{ibv_send_flags, ibv_wr_opcode};
use std::{fmt, hint, marker::PhantomData};

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

/// The action of a request: everything but its memory. The constructors of [`WorkRequest`] combine an action only with
/// memory that fits: an operation that makes the device write gets memory that a device may fill.
#[derive(Clone, Copy)]
pub(crate) struct Action {
    pub(super) operation: Operation,
    pub(super) opcode: ibv_wr_opcode,
    pub(super) flags: u32,
    /// In network byte order.
    pub(super) immediate_be: u32,
    pub(super) remote_addr: u64,
    /// The length of the peer's memory in bytes. For a write it is cut to the longest message.
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

    #[inline(always)]
    pub(super) fn is_signalled(&self) -> bool {
        self.flags & SIGNALED != 0
    }

    /// Whether the opcode carries the immediate.
    #[inline(always)]
    pub(super) fn has_immediate(&self) -> bool {
        matches!(self.opcode, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM)
    }

    /// The [`length`](Self::length) of a *plain* request; `None` for any other request. A plain request has at least
    /// one byte, in one buffer or inline, and no recipient. Plain requests are checked here with one compare; the
    /// others go through `length`.
    #[inline(always)]
    fn plain_length<B: Brand, M: Postable<B>>(&self, memory: &M, domain: DomainId, limits: PostLimits) -> Option<u32> {
        if B::CHECKED && !memory.is_of(domain, KEY) {
            return None;
        }
        // On iWARP, which has no immediates, a request with an immediate is not plain: `length` refuses it. (The opcode
        // is a compile-time constant where the request is made, so this test costs nothing for a request without an
        // immediate.)
        if self.has_immediate() && limits.is_iwarp() {
            return None;
        }
        let (length, within) = match (self.operation, memory.descriptor(KEY)) {
            _ if memory.recipient(KEY).is_some() => return None,
            (Operation::Send | Operation::Receive, Some(_)) => (memory.message_bytes(KEY), u64::from(u32::MAX)),
            (Operation::Send | Operation::Receive, None) => (memory.message_bytes(KEY), limits.inline_bytes.into()),
            (Operation::Write, Some(_)) => (memory.message_bytes(KEY), self.remote_len),
            (Operation::Write, None) => (memory.message_bytes(KEY), self.remote_len.min(limits.inline_bytes.into())),
            (Operation::Read, _) if !limits.reads() => return None,
            (Operation::CompareAndSwap | Operation::FetchAndAdd, _) if !limits.atomics() => return None,
            (Operation::Read, Some(part)) => {
                (u32::try_from(self.remote_len).unwrap_or(0), part.receive_capacity().into())
            }
            (Operation::CompareAndSwap | Operation::FetchAndAdd, Some(part)) => {
                let aligned = (self.remote_addr | part.device_addr()).is_multiple_of(8);
                (if aligned && self.remote_len >= 8 { 8 } else { 0 }, part.receive_capacity().into())
            }
            _ => return None,
        };
        // The subtraction wraps around for a length of 0, so one compare checks that the length is at least 1 and at
        // most `within`.
        (u64::from(length.wrapping_sub(1)) < within).then_some(length)
    }

    /// How many bytes the request moves from or to `memory` on a queue of `domain`, or the reason why it cannot be
    /// posted there.
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
        if limits.is_iwarp() {
            if self.has_immediate() {
                return Err(RequestFlaw::NotOnIwarp(NotOnIwarp::Immediates));
            }
            if reads && self.operation != Operation::Read {
                return Err(RequestFlaw::NotOnIwarp(NotOnIwarp::Atomics));
            }
        }
        if reads && !limits.reads() {
            return Err(RequestFlaw::NoReadDepth);
        }
        let (elements, capacity) = memory.extent(KEY);
        if elements > 1 && elements > usize::from(limits.elements) {
            return Err(RequestFlaw::TooManyElements { elements, most: limits.elements.into() });
        }
        if elements > 1 && reads && limits.flags & PostLimits::ONE_PER_READ != 0 {
            return Err(RequestFlaw::OneBufferPerRead { elements });
        }
        let mut bytes = if elements == 0 { u64::from(limits.inline_bytes) } else { MAX_MESSAGE_BYTES as u64 };
        if memory.recipient(KEY).is_some() {
            bytes = bytes.min(u64::from(limits.datagram_bytes));
        }
        let (len, within) = match self.operation {
            // Binds and revokes never come here: they have checks of their own.
            Operation::Send | Operation::Receive | Operation::Bind | Operation::Revoke => {
                (memory.filled(KEY) as u64, bytes)
            }
            // The `remote_len` of a write is at most the length of the longest message. So for registered memory,
            // `bytes` is no further limit.
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
                let address = memory.descriptor(KEY).map_or(0, Descriptor::device_addr);
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

/// The limits of a queue pair's requests.
#[derive(Clone, Copy)]
pub(crate) struct PostLimits {
    /// The most bytes of an inline request.
    pub(crate) inline_bytes: u16,
    /// The most bytes of a datagram. An MTU is at most 4096, so `u16` is wide enough.
    pub(crate) datagram_bytes: u16,
    /// The most buffers of a list.
    pub(crate) elements: u16,
    /// How requests are handed to the device. It also says whether atomic writes are allowed.
    pub(crate) posting: Posting,
    /// [`BARRIER`](Self::BARRIER), [`READS`](Self::READS) and the other flags share one byte, so that the limits fit in
    /// one word.
    pub(crate) flags: u8,
}
static_assertions::assert_eq_size!(PostLimits, u64);

impl PostLimits {
    /// Set if windows are barriers on this device: the end of a window ends all access through it.
    pub(crate) const BARRIER: u8 = 1;
    /// Set if the pair may have reads outstanding. On other pairs some devices would never finish a read, nor any
    /// request behind it.
    pub(crate) const READS: u8 = 2;

    /// Set if the pair may have atomics outstanding: set together with [`READS`](Self::READS), but not on iWARP.
    const ATOMICS: u8 = 4;
    /// Set if the device is one for iWARP, which has neither atomics nor immediates.
    pub(crate) const IWARP: u8 = 8;
    /// Set if the device reads into one buffer only.
    pub(crate) const ONE_PER_READ: u8 = 16;

    /// The same limits for a pair that may, or may not, have reads outstanding.
    pub(crate) fn with_reads(mut self, may_read: bool) -> Self {
        let reads = if self.is_iwarp() { Self::READS } else { Self::READS | Self::ATOMICS };
        self.flags &= !(Self::READS | Self::ATOMICS);
        if may_read {
            self.flags |= reads;
        }
        self
    }

    #[inline(always)]
    fn is_iwarp(self) -> bool {
        self.flags & Self::IWARP != 0
    }

    #[inline(always)]
    fn atomics(self) -> bool {
        self.flags & Self::ATOMICS != 0
    }

    pub(super) fn has_barrier(self) -> bool {
        self.flags & Self::BARRIER != 0
    }

    #[inline(always)]
    fn reads(self) -> bool {
        self.flags & Self::READS != 0
    }
}

/// The domain and the limits of a queue, which requests are checked against.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) domain: DomainId,
    pub(super) limits: PostLimits,
}

/// A request that passed the check, with the length that the check found. If `PLAIN` is true, the request is also
/// [plain](Action::plain_length).
pub(super) struct Accepted<M, const PLAIN: bool> {
    memory: M,
    action: Action,
    /// # Invariants
    ///
    /// 0. How many bytes this action moves from or to this memory, which has that many bytes. If the action names
    ///    memory of the peer (a write, a read or an atomic), that memory has them too. If the request is plain, the
    ///    length is not 0.
    length: u32,
}

impl<M, const PLAIN: bool> Accepted<M, PLAIN> {
    #[inline(always)]
    pub(super) fn action(&self) -> &Action {
        &self.action
    }

    /// The recipient of a datagram. Plain requests have none.
    #[inline(always)]
    pub(super) fn recipient<B>(&self) -> Option<To<'_>>
    where
        M: Postable<B>,
    {
        if PLAIN { None } else { self.memory.recipient(KEY) }
    }

    /// The same request, with the peer's address and key in memory instead of in registers.
    #[inline(always)]
    pub(super) fn out_of_registers(mut self) -> Self {
        if !matches!(self.action.operation, Operation::Send) {
            let Action { remote_addr, rkey, .. } = self.action;
            (self.action.remote_addr, self.action.rkey) = hint::black_box((remote_addr, rkey));
        }
        self
    }

    /// The memory, the action and the length.
    #[inline(always)]
    pub(super) fn into_parts(self) -> (M, Action, u32) {
        (self.memory, self.action, self.length)
    }

    /// The request as it was before the check.
    #[inline(always)]
    pub(super) fn into_request<K>(self) -> WorkRequest<M, K> {
        WorkRequest::new(self.memory, self.action)
    }
}

impl<M, K> WorkRequest<M, K> {
    #[inline(always)]
    pub(crate) fn new(memory: M, action: Action) -> Self {
        Self { memory, action, kind: PhantomData }
    }

    /// Accepts the request for a queue with these `bounds` if it is *plain*: see [`Action::plain_length`].
    #[inline(always)]
    pub(super) fn plain<B: Brand>(self, bounds: Bounds) -> Result<Accepted<M, true>, Self>
    where
        M: Postable<B>,
    {
        match self.action.plain_length(&self.memory, bounds.domain, bounds.limits) {
            Some(length) => Ok(Accepted { memory: self.memory, action: self.action, length }),
            None => Err(self),
        }
    }

    /// Accepts the request for a queue with these `bounds`, or says why it does not fit there.
    #[inline(always)]
    pub(super) fn check<B: Brand>(self, bounds: Bounds) -> Result<Accepted<M, false>, (Self, RequestFlaw)>
    where
        M: Postable<B>,
    {
        match self.action.length(&self.memory, bounds.domain, bounds.limits) {
            Ok(length) => Ok(Accepted { memory: self.memory, action: self.action, length }),
            Err(flaw) => Err((self, flaw)),
        }
    }

    /// Adds these `flags`.
    #[inline(always)]
    pub(crate) fn with_flags(mut self, flags: ibv_send_flags) -> Self {
        self.action.flags |= flags.0;
        self
    }

    /// Replaces the opcode by `opcode`, which is the same operation with an `immediate`.
    #[inline(always)]
    pub(crate) fn carrying(mut self, opcode: ibv_wr_opcode, immediate: u32) -> Self {
        self.action.opcode = opcode;
        self.action.immediate_be = immediate.to_be();
        self
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

    /// The memory, as the caller passed it.
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
