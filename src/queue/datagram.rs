//! The recipients of datagrams: address handles, and queue pairs behind them.

use super::attributes::PeerPath;
use super::request_kinds::{RequestMemory, SendMemory, SendTo, sealed};
use crate::completion::Datagram;
use crate::device::{LinkLayer, Port};
use crate::domain::brand::Branded;
use crate::domain::{Brand, DomainId, ProtectionDomain};
use crate::inflight::{Action, AhInner, Entry, Operation, Postable, To, WorkRequest};
use crate::memory::{Descriptor, ListInner};
use crate::queue::Endpoint;
use crate::seal::Key;
use crate::sys::ibv_ah_attr;
use crate::types::{Gid, OutOfRange, Qkey, Qpn};
use crate::verb_error::VerbError;
use std::{fmt, marker::PhantomData, sync::Arc};

/// How datagrams reach a port, resolved once: an address handle of domain `B`. Clones share one handle of the device.
///
/// With the number of a queue pair it makes a [`Recipient`].
///
/// The handle is destroyed with its last clone, and not while a request may use it: a queue keeps the handle of each
/// request until a later request takes the same slot, or until the queue pair is destroyed.
#[doc(alias = "ibv_ah")]
#[doc(alias = "ibv_destroy_ah")]
pub struct AddressHandle<B> {
    inner: Arc<AhInner>,
    brand: Branded<B>,
}

impl<B: Brand> AddressHandle<B> {
    pub(super) fn create(domain: &ProtectionDomain<B>, path: &mut ibv_ah_attr) -> Result<Self, VerbError> {
        Ok(Self { inner: AhInner::create(&domain.inner, path)?, brand: PhantomData })
    }
}

impl<B> Clone for AddressHandle<B> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), brand: PhantomData }
    }
}

impl<B> fmt::Debug for AddressHandle<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle").finish_non_exhaustive()
    }
}

/// Why an address handle was not created.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The port belongs to another device.
    #[error("the port belongs to another device: take a port from the domain's context")]
    OtherDevice,
    /// This port has no GID, without which it cannot send on Ethernet.
    #[error(
        "this port has no GID: check that its network interface is up and has an address (see docs/failures.md#no-gid)"
    )]
    NoGid,
    /// The peer has no GID, without which it cannot be reached on Ethernet.
    #[error(
        "the peer has no GID, without which it cannot be reached on Ethernet: give the peer's interface an address (see \
         docs/failures.md#no-gid)"
    )]
    NoPeerGid,
    /// The datagram came to another protection domain. Only domains of the brand [`Checked`](crate::Checked) get this
    /// far; others do not compile.
    #[error("the datagram arrived in another protection domain: use the domain of the queue pair that received it")]
    OtherDomain,
    /// A number of the path is out of range.
    #[error(transparent)]
    Path(#[from] OutOfRange),
    /// The device refused: `ENODATA` or `EINVAL` where the row of the port's GID is empty, `EHOSTUNREACH` or
    /// `ETIMEDOUT` where the peer's address does not resolve.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl<B: Brand> ProtectionDomain<B> {
    /// Resolves how datagrams get from `port` to the peer at `path`.
    ///
    /// `ibv_create_ah(3)`.
    ///
    /// # Errors
    ///
    /// [`AddressError`].
    #[doc(alias = "ibv_create_ah")]
    pub fn address_handle(&self, port: &Port, path: &PeerPath) -> Result<AddressHandle<B>, AddressError> {
        if !port.is_of(&self.inner.context) {
            return Err(AddressError::OtherDevice);
        }
        if port.link_layer() == LinkLayer::Ethernet {
            port.gid().ok_or(AddressError::NoGid)?;
            path.gid.ok_or(AddressError::NoPeerGid)?;
        }
        path.check()?;
        let mut attributes = path.to_sys(port.number(), port.gid().map_or(0, |row| row.index()));
        Ok(AddressHandle::create(self, &mut attributes)?)
    }

    /// The queue pair of `endpoint` as a recipient, reached from `port`.
    ///
    /// # Errors
    ///
    /// As [`address_handle`](Self::address_handle).
    pub fn recipient(&self, port: &Port, endpoint: &Endpoint, qkey: Qkey) -> Result<Recipient<B>, AddressError> {
        let path = PeerPath { gid: endpoint.gid(), lid: endpoint.lid(), ..PeerPath::to(Gid::default()) };
        Ok(Recipient::new(self.address_handle(port, &path)?, endpoint.queue_pair(), qkey))
    }

    /// The queue pair that sent `datagram` to `port`, as the recipient of an answer. The answer takes the path of the
    /// datagram, in reverse.
    ///
    /// Keep the recipient and use it again: each call creates an address handle of the device.
    ///
    /// # Errors
    ///
    /// As [`address_handle`](Self::address_handle).
    #[doc(alias = "ibv_create_ah_from_wc")]
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn sender(&self, port: &Port, datagram: &Datagram<B>, qkey: Qkey) -> Result<Recipient<B>, AddressError> {
        if B::CHECKED && !datagram.is_of(self.inner.id()) {
            return Err(AddressError::OtherDomain);
        }
        let path = PeerPath {
            gid: datagram.sender_gid(),
            lid: datagram.lid,
            // A service level has four bits, and `PeerPath::check` refuses greater numbers. So drop the upper bits of
            // the byte.
            service_level: datagram.service_level & 15,
            traffic_class: datagram.traffic_class(),
            ..PeerPath::to(Gid::default())
        };
        Ok(Recipient::new(self.address_handle(port, &path)?, datagram.sender, qkey))
    }
}

/// The recipient of a datagram: a queue pair at an address, with the Q_Key of that pair.
pub struct Recipient<B> {
    handle: AddressHandle<B>,
    queue_pair: Qpn,
    qkey: Qkey,
}

impl<B> Clone for Recipient<B> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone(), queue_pair: self.queue_pair, qkey: self.qkey }
    }
}

impl<B> Recipient<B> {
    /// The queue pair `queue_pair` at the address of `handle`. `qkey` must be the Q_Key of that pair, which drops
    /// datagrams with any other.
    pub fn new(handle: AddressHandle<B>, queue_pair: Qpn, qkey: Qkey) -> Self {
        Self { handle, queue_pair, qkey }
    }

    /// All members of the multicast group with the address of `handle`.
    pub fn group(handle: AddressHandle<B>, qkey: Qkey) -> Self {
        Self::new(handle, Qpn::MULTICAST, qkey)
    }

    /// The queue pair.
    pub fn queue_pair(&self) -> Qpn {
        self.queue_pair
    }

    /// The key.
    pub fn qkey(&self) -> Qkey {
        self.qkey
    }
}

impl<B> fmt::Debug for Recipient<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recipient")
            .field("queue_pair", &self.queue_pair)
            .field("qkey", &self.qkey)
            .finish_non_exhaustive()
    }
}

/// Memory with a recipient, which only a request [to send a datagram](WorkRequest::send_to) has.
/// [`WorkRequest::into_memory`] returns the two as [`AddressedParts`].
pub struct Addressed<B, M> {
    /// # Invariants
    ///
    /// 0. Is only in requests of kind [`SendTo`], which only datagram pairs carry.
    memory: M,
    recipient: Recipient<B>,
}

/// The memory and the recipient of a datagram that was not sent.
#[non_exhaustive]
pub struct AddressedParts<B, M> {
    /// The memory.
    pub memory: M,
    /// The recipient.
    pub recipient: Recipient<B>,
}

impl<B, M: fmt::Debug> fmt::Debug for AddressedParts<B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory, recipient } = self;
        f.debug_struct("AddressedParts").field("memory", memory).field("recipient", recipient).finish()
    }
}

impl<B, M> Addressed<B, M> {
    /// The caller uses the result only in requests of kind [`SendTo`] (0).
    #[inline(always)]
    pub(super) fn new(memory: M, recipient: Recipient<B>) -> Self {
        Self { memory, recipient }
    }
}

impl<B, M> WorkRequest<Addressed<B, M>, SendTo> {
    /// Sends the filled part of `memory` to `recipient`, as one datagram.
    #[doc(alias = "IBV_WR_SEND")]
    #[inline(always)]
    pub fn send_to(memory: M, recipient: &Recipient<B>) -> Self {
        Self::new(Addressed::new(memory, recipient.clone()), Action::send())
    }
}

impl<B, M: fmt::Debug> fmt::Debug for Addressed<B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Addressed")
            .field("memory", &self.memory)
            .field("recipient", &self.recipient.queue_pair)
            .finish()
    }
}

impl<B, M> sealed::IntoMemory for Addressed<B, M> {
    type Memory = AddressedParts<B, M>;
    fn into_memory(self, _: Key) -> AddressedParts<B, M> {
        AddressedParts { memory: self.memory, recipient: self.recipient }
    }
}

impl<B, M: SendMemory<B>> RequestMemory<B, SendTo> for Addressed<B, M> {}
impl<B, M: SendMemory<B>> sealed::Request<B, SendTo> for Addressed<B, M> {}
impl<B, M: SendMemory<B>> Postable<B> for Addressed<B, M> {
    type Rest = (Recipient<B>, M::Rest);
    fn filled(&self, key: Key) -> usize {
        self.memory.filled(key)
    }
    fn is_of(&self, domain: DomainId, key: Key) -> bool {
        self.memory.is_of(domain, key) && self.recipient.handle.inner.domain() == domain
    }
    fn descriptor(&self, key: Key) -> Option<&Descriptor> {
        self.memory.descriptor(key)
    }
    fn bytes(&self, key: Key) -> &[u8] {
        self.memory.bytes(key)
    }
    fn list(&mut self, key: Key) -> Option<&mut ListInner> {
        self.memory.list(key)
    }
    fn extent(&self, key: Key) -> (usize, usize) {
        self.memory.extent(key)
    }
    fn recipient(&self, _: Key) -> Option<To<'_>> {
        let Recipient { handle, queue_pair, qkey } = &self.recipient;
        Some(To { handle: &handle.inner, queue_pair: *queue_pair, qkey: *qkey })
    }
    fn into_entry(self, operation: Operation, key: Key) -> (Entry, Self::Rest) {
        let Self { memory, recipient } = self;
        let (entry, rest) = memory.into_entry(operation, key);
        (entry, (recipient, rest))
    }
    fn from_entry(entry: Entry, (recipient, rest): Self::Rest, key: Key) -> Option<Self> {
        M::from_entry(entry, rest, key).map(|memory| Self { memory, recipient })
    }
}
