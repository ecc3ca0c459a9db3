//! Work requests: what is asked of the device, with the memory that it works on.

use super::datagram::{Addressed, Recipient};
use super::post_error::RequestFlaw;
use super::session::Posting;
use crate::domain::{Brand, DomainId};
use crate::inflight::{Entry, Operation};
use crate::memory::{
    Buffer, BufferList, Descriptor, ListInner, MAX_MESSAGE_BYTES, PeerMayAtomic, PeerMayRead, PeerMayWrite,
    RemoteRegion, SharedBuffer,
};
use crate::seal::KEY;
use crate::seal::Key;
use crate::sys::{ibv_send_flags, ibv_wr_opcode};
use std::{fmt, marker::PhantomData};

/// Kind of a [`WorkRequest`]: sends a message.
#[derive(Debug)]
pub enum Send {}
/// Kind of a [`WorkRequest`]: writes to memory of the peer.
#[derive(Debug)]
pub enum Write {}
/// Kind of a [`WorkRequest`]: reads memory of the peer.
#[derive(Debug)]
pub enum Read {}
/// Kind of a [`WorkRequest`]: an atomic on a word of the peer.
#[derive(Debug)]
pub enum Atomic {}
/// Kind of a [`WorkRequest`]: writes a word of the peer in one piece.
#[derive(Debug)]
pub enum AtomicWrite {}
/// Kind of a [`WorkRequest`]: sends a datagram to a recipient.
#[derive(Debug)]
pub enum SendTo {}
/// Kind of a request: [binds](crate::QueuePair::post_bind) a memory window.
#[derive(Debug)]
pub enum BindWindow {}
/// Kind of a request: [ends](crate::QueuePair::post_revoke) a memory window of type `K`.
pub struct Revoke<K>(PhantomData<fn() -> K>);

impl<K> fmt::Debug for Revoke<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Revoke")
    }
}

/// Kind of a request: [sends](crate::QueuePair::post_send_invalidating) a message that ends a memory window of the peer.
#[derive(Debug)]
pub enum SendInvalidating {}
/// Kind of a [`WorkRequest`]: one of kind `K` that waits for earlier reads and atomics.
pub struct Fenced<K>(PhantomData<fn() -> K>);

impl<K> fmt::Debug for Fenced<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fenced")
    }
}

pub(super) mod sealed {
    use super::{Descriptor, DomainId, Entry, Key, Operation};

    #[allow(unnameable_types, reason = "seals `SendMemory`")]
    pub trait Stageable<B>: Sized {
        /// What the entry does not keep of the handle.
        type Rest;
        /// How many bytes are filled.
        fn filled(&self, key: Key) -> usize;
        /// The same where it is one element or inline, and 1 to what a message carries; else 0.
        fn message(&self, _: Key) -> u32 {
            0
        }
        /// What it points to, unless it is inline.
        fn part(&self, key: Key) -> Option<&Descriptor>;
        /// The list that it is.
        fn list(&mut self, _: Key) -> Option<&mut super::ListInner> {
            None
        }
        /// How many elements it has, 0 if it is inline, and how many bytes fit.
        fn extent(&self, key: Key) -> (usize, usize) {
            self.part(key).map_or((0, 0), |part| (1, part.capacity()))
        }
        /// The bytes of an inline one.
        fn bytes(&self, _: Key) -> &[u8] {
            &[]
        }
        /// Whether all of it, the recipient too, is of that domain. For brands that are checked at run time.
        fn is_of(&self, domain: DomainId, key: Key) -> bool;
        /// To whom it goes, if it is a datagram.
        fn recipient(&self, _: Key) -> Option<&super::Recipient<B>> {
            None
        }
        fn into_entry(self, operation: Operation, key: Key) -> (Entry, Self::Rest);
        /// The handle that was made into the entry.
        fn from_entry(entry: Entry, rest: Self::Rest, key: Key) -> Option<Self>;
    }
    /// Which memory of a domain a device fills: with the brand, so that a program's own brand opens nothing.
    #[allow(unnameable_types, reason = "seals `FillMemory`")]
    pub trait Fill<B> {}
    #[allow(unnameable_types, reason = "seals `CarriesImmediate`")]
    pub trait Carries {
        const WITH_IMMEDIATE: crate::sys::ibv_wr_opcode;
    }
    #[allow(unnameable_types, reason = "seals `RequestMemory`")]
    pub trait Request<B, K> {}
    /// Memory without a recipient.
    #[allow(unnameable_types, reason = "seals `SendMemory`")]
    pub trait Unaddressed: IntoMemory {}
    /// What a request gives back of its memory.
    #[allow(unnameable_types, reason = "of `WorkRequest::into_memory`")]
    pub trait IntoMemory {
        type Memory;
        fn into_memory(self, key: Key) -> Self::Memory;
    }
}

/// Memory that can be sent or written from: [`Buffer`] and [`SharedBuffer`] of the queue pair's own domain, and [`Inline`]
/// bytes. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not memory of the protection domain `{B}`",
    label = "not a buffer of this queue pair's domain",
    note = "post a `Buffer<{B}>` or a `SharedBuffer<{B}>`: memory of another domain, or that a peer may write, cannot be posted",
    note = "`buffer` and `buffers` of the domain make them, `split` and `share` of a region too; `BufferList::new` takes several",
    note = "a few bytes of any memory can be posted as `Inline(&bytes)`: they are copied; more are lent in a `scope`"
)]
pub trait SendMemory<B>: sealed::Stageable<B> + sealed::Unaddressed {}

/// Memory that a request of kind `K` can have, on a queue pair of domain `B`: any [`SendMemory`], and with a recipient for
/// [`SendTo`] alone. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not memory of the protection domain `{B}` for a request of kind `{K}`",
    label = "not memory of this queue pair's domain",
    note = "make the request of a `Buffer<{B}>`, a `SharedBuffer<{B}>`, a `BufferList<{B}>` or `Inline` bytes",
    note = "memory with a recipient is for `WorkRequest::send_to`, and goes out of datagram pairs alone"
)]
pub trait RequestMemory<B, K>: sealed::Stageable<B> + sealed::Request<B, K> {}
impl<B, K, M: SendMemory<B>> RequestMemory<B, K> for M {}
impl<B, K, M: SendMemory<B>> sealed::Request<B, K> for M {}

impl<B> SendMemory<B> for Buffer<B> {}
impl<B> sealed::Unaddressed for Buffer<B> {}
impl<B> sealed::IntoMemory for Buffer<B> {
    type Memory = Self;
    #[inline(always)]
    fn into_memory(self, _: Key) -> Self {
        self
    }
}
impl<B> sealed::Stageable<B> for Buffer<B> {
    type Rest = ();
    #[inline(always)]
    fn filled(&self, _: Key) -> usize {
        self.part().filled()
    }
    #[inline(always)]
    fn message(&self, _: Key) -> u32 {
        self.part().message()
    }
    #[inline(always)]
    fn is_of(&self, domain: DomainId, _: Key) -> bool {
        self.part().is_of(domain)
    }
    #[inline(always)]
    fn part(&self, _: Key) -> Option<&Descriptor> {
        Some(self.part())
    }
    #[inline(always)]
    fn into_entry(self, operation: Operation, _: Key) -> (Entry, ()) {
        (Entry::unique(operation, self), ())
    }
    fn from_entry(entry: Entry, (): (), _: Key) -> Option<Self> {
        entry.into_buffer()
    }
}

impl<B> SendMemory<B> for SharedBuffer<B> {}
impl<B> sealed::Unaddressed for SharedBuffer<B> {}
impl<B> sealed::IntoMemory for SharedBuffer<B> {
    type Memory = Self;
    #[inline(always)]
    fn into_memory(self, _: Key) -> Self {
        self
    }
}
impl<B> sealed::Stageable<B> for SharedBuffer<B> {
    type Rest = ();
    #[inline(always)]
    fn filled(&self, _: Key) -> usize {
        self.part().filled()
    }
    #[inline(always)]
    fn message(&self, _: Key) -> u32 {
        self.part().message()
    }
    #[inline(always)]
    fn is_of(&self, domain: DomainId, _: Key) -> bool {
        self.part().is_of(domain)
    }
    #[inline(always)]
    fn part(&self, _: Key) -> Option<&Descriptor> {
        Some(self.part())
    }
    #[inline(always)]
    fn into_entry(self, operation: Operation, _: Key) -> (Entry, ()) {
        (Entry::shared(operation, self), ())
    }
    fn from_entry(entry: Entry, (): (), _: Key) -> Option<Self> {
        entry.into_memory().into_shared()
    }
}

impl<B> SendMemory<B> for BufferList<B> {}
impl<B> sealed::Unaddressed for BufferList<B> {}
impl<B> sealed::IntoMemory for BufferList<B> {
    type Memory = Self;
    #[inline(always)]
    fn into_memory(self, _: Key) -> Self {
        self
    }
}
impl<B> sealed::Stageable<B> for BufferList<B> {
    type Rest = ();
    fn filled(&self, _: Key) -> usize {
        self.inner().filled()
    }
    /// Each buffer anew: they can be exchanged in place.
    fn is_of(&self, domain: DomainId, _: Key) -> bool {
        self.inner().is_of(domain)
    }
    fn part(&self, _: Key) -> Option<&Descriptor> {
        None
    }
    fn list(&mut self, _: Key) -> Option<&mut ListInner> {
        Some(self.inner_mut())
    }
    fn extent(&self, _: Key) -> (usize, usize) {
        (self.inner().len().max(1), self.inner().capacity())
    }
    fn into_entry(self, operation: Operation, _: Key) -> (Entry, ()) {
        (Entry::list(operation, self), ())
    }
    fn from_entry(entry: Entry, (): (), _: Key) -> Option<Self> {
        entry.into_list()
    }
}

/// Memory that a device fills: [`Buffer`] and [`BufferList`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "the device cannot fill `{Self}`",
    label = "not a buffer of this queue pair's domain",
    note = "receives and reads take a `Buffer<{B}>` or a `BufferList<{B}>`"
)]
pub trait FillMemory<B>: SendMemory<B> + sealed::Fill<B> {}
impl<B> FillMemory<B> for Buffer<B> {}
impl<B> sealed::Fill<B> for Buffer<B> {}
impl<B> FillMemory<B> for BufferList<B> {}
impl<B> sealed::Fill<B> for BufferList<B> {}

/// A few bytes that are copied when the request is posted, so that they stay with the program. They need no registration.
///
/// At most [`Limits::inline_bytes`](crate::Limits::inline_bytes) of them.
///
/// # Examples
///
/// An error gives the bytes back, so where they are not `'static` it is neither: [`into_cause`](crate::PostError::into_cause)
/// drops them for `?`.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # interlock::domain! { struct Docs; }
/// # let mut pair: interlock::QueuePair<Docs> = todo!();
/// use interlock::Inline;
///
/// pair.post_send(Inline(b"hello"))?;
/// let number = 7_u32.to_be_bytes();
/// pair.post_send(Inline(&number)).map_err(|error| error.into_cause())?;
/// # Ok(()) }
/// ```
#[doc(alias = "IBV_SEND_INLINE")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inline<'a>(pub &'a [u8]);

impl<B> SendMemory<B> for Inline<'_> {}
impl sealed::Unaddressed for Inline<'_> {}
impl sealed::IntoMemory for Inline<'_> {
    type Memory = Self;
    fn into_memory(self, _: Key) -> Self {
        self
    }
}
impl<B> sealed::Stageable<B> for Inline<'_> {
    type Rest = Self;
    #[inline(always)]
    fn bytes(&self, _: Key) -> &[u8] {
        self.0
    }
    #[inline(always)]
    fn filled(&self, _: Key) -> usize {
        self.0.len()
    }
    #[inline(always)]
    fn message(&self, _: Key) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(0)
    }
    #[inline(always)]
    fn is_of(&self, _: DomainId, _: Key) -> bool {
        true
    }
    #[inline(always)]
    fn part(&self, _: Key) -> Option<&Descriptor> {
        None
    }
    #[inline(always)]
    fn into_entry(self, operation: Operation, _: Key) -> (Entry, Self) {
        (Entry::inline(operation), self)
    }
    fn from_entry(_: Entry, rest: Self, _: Key) -> Option<Self> {
        Some(rest)
    }
}

/// Kinds that may carry an immediate: sends and writes. Sealed.
#[diagnostic::on_unimplemented(
    message = "a request of kind `{Self}` carries no immediate",
    label = "only sends and writes do"
)]
pub trait CarriesImmediate: sealed::Carries {}
impl CarriesImmediate for Send {}
impl sealed::Carries for Send {
    const WITH_IMMEDIATE: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
}
impl CarriesImmediate for Write {}
impl sealed::Carries for Write {
    const WITH_IMMEDIATE: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
}
impl CarriesImmediate for SendTo {}
impl sealed::Carries for SendTo {
    const WITH_IMMEDIATE: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
}
impl<K: CarriesImmediate> CarriesImmediate for Fenced<K> {}
impl<K: sealed::Carries> sealed::Carries for Fenced<K> {
    const WITH_IMMEDIATE: ibv_wr_opcode = K::WITH_IMMEDIATE;
}

/// A request of kind `K` with its memory `M`, to be [posted](crate::QueuePair::post).
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # interlock::domain! { struct Docs; }
/// # let (mut pair, buffer, other): (interlock::QueuePair<Docs>, interlock::Buffer<Docs>, interlock::Buffer<Docs>) = todo!();
/// use interlock::WorkRequest;
/// pair.post(WorkRequest::send(buffer).with_immediate(7).solicited())?;
/// pair.post(WorkRequest::send(other).unsignalled())?;
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_send_wr")]
#[must_use = "it does nothing until it is posted"]
pub struct WorkRequest<M, K> {
    pub(super) memory: M,
    pub(super) action: Action,
    kind: PhantomData<fn() -> K>,
}

/// What a request asks for, besides its memory.
#[derive(Clone, Copy)]
pub(super) struct Action {
    pub(super) operation: Operation,
    pub(super) opcode: ibv_wr_opcode,
    pub(super) flags: u32,
    pub(super) immediate_be: u32,
    pub(super) remote_addr: u64,
    /// Of the peer's memory; for a write, as much of it as one message reaches.
    pub(super) remote_len: u64,
    pub(super) rkey: u32,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
}

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;

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
    fn at<A>(mut self, remote: &RemoteRegion<A>) -> Self {
        (self.remote_addr, self.rkey) = (remote.address(), remote.rkey().0);
        self.remote_len = if let Operation::Write = self.operation { remote.fits() } else { remote.len() };
        self
    }

    /// Whether the opcode uses the immediate.
    #[inline(always)]
    pub(super) fn has_immediate(&self) -> bool {
        matches!(self.opcode, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM)
    }

    /// [`length`](Self::length) where the request is an ordinary one, which can go the short way: of some bytes, in one element
    /// or inline, without a recipient.
    #[inline(always)]
    pub(super) fn plain_length<B: Brand, M: sealed::Stageable<B>>(
        &self,
        memory: &M,
        domain: DomainId,
        most: Most,
    ) -> Option<u32> {
        if B::CHECKED && !memory.is_of(domain, KEY) {
            return None;
        }
        let (length, within) = match (self.operation, memory.part(KEY)) {
            _ if memory.recipient(KEY).is_some() => return None,
            (Operation::Send | Operation::Receive, Some(_)) => (memory.message(KEY), u64::from(u32::MAX)),
            (Operation::Send | Operation::Receive, None) => (memory.message(KEY), most.inline_bytes.into()),
            (Operation::Write, Some(_)) => (memory.message(KEY), self.remote_len),
            (Operation::Write, None) => (memory.message(KEY), self.remote_len.min(most.inline_bytes.into())),
            (Operation::Read | Operation::CompareAndSwap | Operation::FetchAndAdd, _) if !most.reads() => return None,
            (Operation::Read, Some(part)) => (u32::try_from(self.remote_len).unwrap_or(0), part.receives().into()),
            (Operation::CompareAndSwap | Operation::FetchAndAdd, Some(part)) => {
                let aligned = (self.remote_addr | part.device_addr()).is_multiple_of(8);
                (if aligned && self.remote_len >= 8 { 8 } else { 0 }, part.receives().into())
            }
            _ => return None,
        };
        // At once that it is not 0.
        (u64::from(length.wrapping_sub(1)) < within).then_some(length)
    }

    /// How many bytes the request moves from or to `memory`, on a queue of that domain; or why they do not go together.
    #[inline(always)]
    pub(super) fn length<B: Brand, M: sealed::Stageable<B>>(
        &self,
        memory: &M,
        domain: DomainId,
        most: Most,
    ) -> Result<u32, RequestFlaw> {
        if B::CHECKED && !memory.is_of(domain, KEY) {
            return Err(RequestFlaw::OtherDomain);
        }
        let reads = matches!(
            self.operation,
            Operation::Read | Operation::CompareAndSwap | Operation::FetchAndAdd | Operation::AtomicWrite
        );
        if reads && !most.reads() {
            return Err(RequestFlaw::NoReadDepth);
        }
        let (elements, capacity) = memory.extent(KEY);
        if elements > 1 && elements > usize::from(most.elements) {
            return Err(RequestFlaw::TooManyElements { elements, most: most.elements.into() });
        }
        let mut bytes = if elements == 0 { u64::from(most.inline_bytes) } else { MAX_MESSAGE_BYTES as u64 };
        if memory.recipient(KEY).is_some() {
            bytes = bytes.min(u64::from(most.datagram_bytes));
        }
        let (len, within) = match self.operation {
            // Windows are posted otherwise.
            Operation::Send | Operation::Receive | Operation::Bind | Operation::Revoke => {
                (memory.filled(KEY) as u64, bytes)
            }
            // What is remote is at most a message.
            Operation::Write if elements != 0 => (memory.filled(KEY) as u64, self.remote_len),
            Operation::Write => (memory.filled(KEY) as u64, self.remote_len.min(bytes)),
            Operation::Read => (self.remote_len, bytes.min(capacity as u64)),
            Operation::AtomicWrite => {
                let (address, len_bytes) = (self.remote_addr, self.remote_len);
                if most.posting != Posting::AtomicWrites {
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

/// What a pair takes at most.
#[derive(Clone, Copy)]
pub(super) struct Most {
    /// Of an inline request.
    pub(super) inline_bytes: u16,
    /// Of a datagram; an MTU is 4096 at most.
    pub(super) datagram_bytes: u16,
    /// Buffers of a list.
    pub(super) elements: u16,
    /// How its requests are posted, and whether atomic writes are among them.
    pub(super) posting: Posting,
    /// What it can do besides, in one byte, so that all of this is one word.
    pub(super) flags: u8,
}
static_assertions::assert_eq_size!(Most, u64);

impl Most {
    /// Windows are barriers on this device.
    pub(super) const BARRIER: u8 = 1;
    /// The pair may have reads and atomics outstanding. Where it may not, some devices wait with them, and with all that is behind
    /// them, for ever.
    pub(super) const READS: u8 = 2;

    pub(super) fn has_barrier(self) -> bool {
        self.flags & Self::BARRIER != 0
    }

    #[inline(always)]
    fn reads(self) -> bool {
        self.flags & Self::READS != 0
    }
}

impl<M> WorkRequest<M, Send> {
    /// Sends what is filled of `memory` to the next receive of the peer.
    #[doc(alias = "IBV_WR_SEND")]
    #[inline(always)]
    pub fn send(memory: M) -> Self {
        Self::new(memory, Action::new(Operation::Send, ibv_wr_opcode::IBV_WR_SEND))
    }
}

impl<B, M> WorkRequest<Addressed<B, M>, SendTo> {
    /// Sends what is filled of `memory` to `recipient`, as one datagram.
    #[doc(alias = "IBV_WR_SEND")]
    #[inline(always)]
    pub fn send_to(memory: M, recipient: &Recipient<B>) -> Self {
        let addressed = Addressed::new(memory, recipient.clone());
        Self::new(addressed, Action::new(Operation::Send, ibv_wr_opcode::IBV_WR_SEND))
    }
}

impl<M> WorkRequest<M, Write> {
    /// Writes what is filled of `memory` to the start of `target`.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[inline(always)]
    pub fn write<A: PeerMayWrite>(memory: M, target: &RemoteRegion<A>) -> Self {
        Self::new(memory, Action::new(Operation::Write, ibv_wr_opcode::IBV_WR_RDMA_WRITE).at(target))
    }
}

impl WorkRequest<Inline<'static>, AtomicWrite> {
    /// Writes `value` to the word at the start of `target`: whoever reads the word sees what was there or all of `value`,
    /// in the byte order of this machine. Needs no memory, and no receive of the peer.
    ///
    /// For queue pairs with [`Posting::AtomicWrites`](crate::Posting::AtomicWrites). The peer serves it as it serves reads: its
    /// responder depth is not 0.
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    #[doc(alias = "ibv_wr_atomic_write")]
    #[inline(always)]
    pub fn atomic_write<A: PeerMayWrite>(target: &impl AsRef<RemoteRegion<A>>, value: u64) -> Self {
        let mut action = Action::new(Operation::AtomicWrite, ibv_wr_opcode::IBV_WR_ATOMIC_WRITE).at(target.as_ref());
        action.compare_add = value;
        Self::new(Inline(&[]), action)
    }
}

impl<B> WorkRequest<BufferList<B>, Read> {
    /// Reads all of `source` into the buffers of `list`, one after the other.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline(always)]
    pub fn read_scattered<A: PeerMayRead>(list: BufferList<B>, source: &RemoteRegion<A>) -> Self {
        Self::new(list, Action::new(Operation::Read, ibv_wr_opcode::IBV_WR_RDMA_READ).at(source))
    }
}

impl<B> WorkRequest<Buffer<B>, Read> {
    /// Reads all of `source` into `buffer`.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline(always)]
    pub fn read<A: PeerMayRead>(buffer: Buffer<B>, source: &RemoteRegion<A>) -> Self {
        Self::new(buffer, Action::new(Operation::Read, ibv_wr_opcode::IBV_WR_RDMA_READ).at(source))
    }
}

impl<B> WorkRequest<Buffer<B>, Atomic> {
    /// Replaces the word at the start of `target` by `swap` if it is `compare`. What it was comes into `result`.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[inline(always)]
    pub fn compare_and_swap<A: PeerMayAtomic>(
        result: Buffer<B>,
        target: &impl AsRef<RemoteRegion<A>>,
        compare: u64,
        swap: u64,
    ) -> Self {
        let opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
        let mut action = Action::new(Operation::CompareAndSwap, opcode).at(target.as_ref());
        (action.compare_add, action.swap) = (compare, swap);
        Self::new(result, action)
    }

    /// Adds `addend` to the word at the start of `target`, wrapping. What it was comes into `result`.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline(always)]
    pub fn fetch_and_add<A: PeerMayAtomic>(
        result: Buffer<B>,
        target: &impl AsRef<RemoteRegion<A>>,
        addend: u64,
    ) -> Self {
        let opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
        let mut action = Action::new(Operation::FetchAndAdd, opcode).at(target.as_ref());
        action.compare_add = addend;
        Self::new(result, action)
    }
}

impl<M, K> WorkRequest<M, K> {
    #[inline(always)]
    pub(super) fn new(memory: M, action: Action) -> Self {
        Self { memory, action, kind: PhantomData }
    }

    #[inline(always)]
    pub(super) fn plain_length<B: Brand>(&self, domain: DomainId, most: Most) -> Option<u32>
    where
        M: sealed::Stageable<B>,
    {
        self.action.plain_length(&self.memory, domain, most)
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

    /// Without a completion of its own on success: it comes out before that of a later signalled request of the queue. It is
    /// signalled all the same where not [`sends_may_be_unsignalled`](crate::Promises::sends_may_be_unsignalled).
    ///
    /// The request that takes the last free slot is signalled all the same, so that the queue cannot lock up.
    #[doc(alias = "IBV_SEND_SIGNALED")]
    #[inline(always)]
    #[doc(alias = "sq_sig_all")]
    pub fn unsignalled(mut self) -> Self {
        self.action.flags &= !SIGNALED;
        self
    }

    /// Begins only when all earlier reads and atomics of the queue are done. Reliable connections only.
    #[doc(alias = "IBV_SEND_FENCE")]
    #[inline(always)]
    pub fn fenced(mut self) -> WorkRequest<M, Fenced<K>> {
        self.action.flags |= ibv_send_flags::IBV_SEND_FENCE.0;
        WorkRequest::new(self.memory, self.action)
    }

    /// With 4 bytes more, in host byte order. A write with an immediate takes a receive of the peer.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[inline(always)]
    pub fn with_immediate(mut self, immediate: u32) -> Self
    where
        K: CarriesImmediate,
    {
        self.action.opcode = K::WITH_IMMEDIATE;
        self.action.immediate_be = immediate.to_be();
        self
    }

    /// Wakes a peer that waits for solicited completions only.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    #[inline(always)]
    pub fn solicited(mut self) -> Self
    where
        K: CarriesImmediate,
    {
        self.action.flags |= ibv_send_flags::IBV_SEND_SOLICITED.0;
        self
    }

    /// The memory again; of a request to [`send_to`](WorkRequest::send_to) with its recipient, as [`AddressedParts`](crate::AddressedParts).
    #[allow(private_bounds, reason = "sealed")]
    pub fn into_memory(self) -> M::Memory
    where
        M: sealed::IntoMemory,
    {
        self.memory.into_memory(KEY)
    }

    /// What was made into the request.
    pub(super) fn into_inner(self) -> M {
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
