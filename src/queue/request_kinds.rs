//! Work requests: their kinds, the memory that each kind takes, and how they are made.

use crate::domain::DomainId;
pub use crate::inflight::WorkRequest;
use crate::inflight::{Action, Entry, Operation, Postable};
use crate::memory::{
    Buffer, BufferList, Descriptor, PeerMayAtomic, PeerMayRead, PeerMayWrite, RemoteRegion, SharedBuffer,
};
use crate::seal::{KEY, Key};
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
/// Kind of a [`WorkRequest`]: writes a word of the peer so that no reader sees a half-written word.
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

/// Kind of a request: [sends](crate::QueuePair::post_send_invalidating) a message that ends a memory window of the
/// peer.
#[derive(Debug)]
pub enum SendInvalidating {}
/// Kind of a [`WorkRequest`]: a request of kind `K` that waits for earlier reads and atomics.
pub struct Fenced<K>(PhantomData<fn() -> K>);

impl<K> fmt::Debug for Fenced<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fenced")
    }
}

pub(super) mod sealed {
    use super::Key;

    /// Takes the brand as a parameter: otherwise a program could implement `FillMemory` with a brand of its own.
    #[allow(unnameable_types, reason = "seals `FillMemory`")]
    pub trait Fill<B> {}
    #[allow(unnameable_types, reason = "seals `CarriesImmediate`")]
    pub trait Carries {
        const WITH_IMMEDIATE: crate::sys::ibv_wr_opcode;
    }
    #[allow(unnameable_types, reason = "seals `RequestMemory`")]
    pub trait Request<B, K> {}
    /// Memory without a recipient, so every request but a datagram can have it.
    #[allow(unnameable_types, reason = "seals `SendMemory`")]
    pub trait Unaddressed: IntoMemory {}
    /// Memory in the form in which a request gives it back.
    #[allow(unnameable_types, reason = "of `WorkRequest::into_memory`")]
    pub trait IntoMemory {
        type Memory;
        fn into_memory(self, key: Key) -> Self::Memory;
    }
}

/// Memory that can be sent or written from: [`Buffer`] and [`SharedBuffer`] of the queue pair's own domain, and
/// [`Inline`] bytes. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not memory of the protection domain `{B}`",
    label = "not a buffer of this queue pair's domain",
    note = "post a `Buffer<{B}>` or a `SharedBuffer<{B}>`: memory of another domain, or that a peer may write, cannot be posted",
    note = "`buffer` and `buffers` of the domain make them, `split` and `share` of a region too; `BufferList::new` takes several",
    note = "a few bytes of any memory can be posted as `Inline(&bytes)`: they are copied; more are lent in a `scope`"
)]
pub trait SendMemory<B>: Postable<B> + sealed::Unaddressed {}

/// Memory that a request of kind `K` can have on a queue pair of domain `B`: any [`SendMemory`]; for [`SendTo`] also
/// memory with a recipient. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not memory of the protection domain `{B}` for a request of kind `{K}`",
    label = "not memory of this queue pair's domain",
    note = "make the request of a `Buffer<{B}>`, a `SharedBuffer<{B}>`, a `BufferList<{B}>` or `Inline` bytes",
    note = "memory with a recipient is for `WorkRequest::send_to`, and goes out of datagram pairs alone"
)]
pub trait RequestMemory<B, K>: Postable<B> + sealed::Request<B, K> {}
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

impl<B> SendMemory<B> for SharedBuffer<B> {}
impl<B> sealed::Unaddressed for SharedBuffer<B> {}
impl<B> sealed::IntoMemory for SharedBuffer<B> {
    type Memory = Self;
    #[inline(always)]
    fn into_memory(self, _: Key) -> Self {
        self
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

/// A few bytes that are copied when the request is posted, so that the program keeps them. They need no registration.
///
/// A request has at most [`Limits::inline_bytes`](crate::Limits::inline_bytes) of them.
///
/// # Examples
///
/// A post error carries the bytes, so it is `'static` only if the bytes are.
/// [`into_cause`](crate::PostError::into_cause) drops the bytes, so that `?` works.
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
impl<B> Postable<B> for Inline<'_> {
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
    fn message_bytes(&self, _: Key) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(0)
    }
    #[inline(always)]
    fn is_of(&self, _: DomainId, _: Key) -> bool {
        true
    }
    #[inline(always)]
    fn descriptor(&self, _: Key) -> Option<&Descriptor> {
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

impl<M> WorkRequest<M, Send> {
    /// Sends the filled part of `memory` to the next receive of the peer.
    #[doc(alias = "IBV_WR_SEND")]
    #[inline(always)]
    pub fn send(memory: M) -> Self {
        Self::new(memory, Action::send())
    }
}

impl<M> WorkRequest<M, Write> {
    /// Writes the filled part of `memory` to the start of `target`.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[inline(always)]
    pub fn write<A: PeerMayWrite>(memory: M, target: &RemoteRegion<A>) -> Self {
        Self::new(memory, Action::write(target))
    }
}

impl WorkRequest<Inline<'static>, AtomicWrite> {
    /// Writes `value` to the word at the start of `target`, in the byte order of this machine. A reader of the word
    /// sees the old value or all of `value`. The request needs no memory, and no receive of the peer.
    ///
    /// For queue pairs with [`Posting::AtomicWrites`](crate::queue::Posting::AtomicWrites). The peer serves an atomic
    /// write as it serves a read, so the peer's responder depth must not be 0.
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    #[doc(alias = "ibv_wr_atomic_write")]
    #[inline(always)]
    pub fn atomic_write<A: PeerMayWrite>(target: &impl AsRef<RemoteRegion<A>>, value: u64) -> Self {
        Self::new(Inline(&[]), Action::atomic_write(target.as_ref(), value))
    }
}

impl<B> WorkRequest<BufferList<B>, Read> {
    /// Reads all of `source` into the buffers of `list`, one after the other.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline(always)]
    pub fn read_scattered<A: PeerMayRead>(list: BufferList<B>, source: &RemoteRegion<A>) -> Self {
        Self::new(list, Action::read(source))
    }
}

impl<B> WorkRequest<Buffer<B>, Read> {
    /// Reads all of `source` into `buffer`.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline(always)]
    pub fn read<A: PeerMayRead>(buffer: Buffer<B>, source: &RemoteRegion<A>) -> Self {
        Self::new(buffer, Action::read(source))
    }
}

impl<B> WorkRequest<Buffer<B>, Atomic> {
    /// Replaces the word at the start of `target` by `swap` if it equals `compare`. The old value goes to `result`,
    /// which must be 8 bytes at a multiple of 8. All these numbers are in the byte order of this machine.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[inline(always)]
    pub fn compare_and_swap<A: PeerMayAtomic>(
        result: Buffer<B>,
        target: &impl AsRef<RemoteRegion<A>>,
        compare: u64,
        swap: u64,
    ) -> Self {
        Self::new(result, Action::compare_and_swap(target.as_ref(), compare, swap))
    }

    /// Adds `addend` to the word at the start of `target`, wrapping. The old value goes to `result`, which must be 8
    /// bytes at a multiple of 8. All these numbers are in the byte order of this machine.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline(always)]
    pub fn fetch_and_add<A: PeerMayAtomic>(
        result: Buffer<B>,
        target: &impl AsRef<RemoteRegion<A>>,
        addend: u64,
    ) -> Self {
        Self::new(result, Action::fetch_and_add(target.as_ref(), addend))
    }
}

impl<M, K> WorkRequest<M, K> {
    /// Makes no completion of its own on success: the request comes out just before the next signalled request of the
    /// queue.
    ///
    /// The request is signalled all the same if
    /// [`sends_may_be_unsignalled`](crate::device::Promises::sends_may_be_unsignalled) is false, or if it takes the
    /// last free slot: otherwise no completion could ever free a slot.
    #[doc(alias = "IBV_SEND_SIGNALED")]
    #[inline(always)]
    #[doc(alias = "sq_sig_all")]
    pub fn unsignalled(self) -> Self {
        self.without_signal()
    }

    /// Makes the request wait until all earlier reads and atomics of the queue are done. For reliable connections only.
    #[doc(alias = "IBV_SEND_FENCE")]
    #[inline(always)]
    pub fn fenced(self) -> WorkRequest<M, Fenced<K>> {
        let Self { memory, action, .. } = self.with_flags(ibv_send_flags::IBV_SEND_FENCE);
        WorkRequest::new(memory, action)
    }

    /// Makes the request carry 4 more bytes, in host byte order. A write with an immediate takes a receive of the peer.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[inline(always)]
    pub fn with_immediate(self, immediate: u32) -> Self
    where
        K: CarriesImmediate,
    {
        self.carrying(K::WITH_IMMEDIATE, immediate)
    }

    /// Wakes a peer that waits for solicited completions only.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    #[inline(always)]
    pub fn solicited(self) -> Self
    where
        K: CarriesImmediate,
    {
        self.with_flags(ibv_send_flags::IBV_SEND_SOLICITED)
    }

    /// The memory of the request. For a request made by [`send_to`](WorkRequest::send_to), the memory and the
    /// recipient, as [`AddressedParts`](crate::datagram::AddressedParts).
    #[allow(private_bounds, reason = "sealed")]
    pub fn into_memory(self) -> M::Memory
    where
        M: sealed::IntoMemory,
    {
        self.memory.into_memory(KEY)
    }
}
