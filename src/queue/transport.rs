//! Transports of a queue pair, and which operation exists on which.

use super::attributes::{DatagramInitAttributes, InitAttributes, ToInit};
use super::request_kinds::{
    Atomic, AtomicWrite, BindWindow, Fenced, Read, Revoke, Send, SendInvalidating, SendTo, Write,
};
use crate::inflight::HEADER_BYTES;
use crate::memory::{Type1, WindowType};
use crate::sys::ibv_qp_type;
use std::{convert::Infallible, marker::PhantomData};

mod sealed {
    use super::ibv_qp_type;

    #[allow(unnameable_types, reason = "seals `Transport`")]
    pub trait Sealed {
        const TYPE: ibv_qp_type;
    }

    #[allow(unnameable_types, reason = "seals `Carries`")]
    pub trait Carries<K> {}
}

/// A transport. Sealed.
///
/// | | sends | writes | reads, atomics | one peer | in order, or the pair breaks |
/// |---|---|---|---|---|---|
/// | [`ReliableConnection`] | yes | yes | yes | yes | yes |
/// | [`UnreliableConnection`] | yes | yes | | yes | messages may be lost |
/// | [`UnreliableDatagram`] | to a [`Recipient`](crate::datagram::Recipient) | | | | messages may be lost |
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transport",
    note = "the transports are `ReliableConnection`, `UnreliableConnection` and `UnreliableDatagram`"
)]
#[doc(alias = "ibv_qp_type")]
pub trait Transport: sealed::Sealed + 'static {
    /// The attributes of the transition from Reset to Init.
    #[allow(private_bounds, reason = "sealed")]
    type InitAttributes: ToInit;
}

/// RC: one peer; every message arrives once and in order, or the pair breaks.
#[doc(alias = "IBV_QPT_RC")]
#[doc(alias = "RC")]
#[derive(Debug)]
pub enum ReliableConnection {}
impl Transport for ReliableConnection {
    type InitAttributes = InitAttributes;
}
impl sealed::Sealed for ReliableConnection {
    const TYPE: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;
}

/// UC: one peer; a message arrives once and in order, or is lost without an error on either side.
///
/// A send completes when it has left this side, which says nothing about the peer. The peer drops a message for which
/// it has no receive, and a message that it does not allow.
#[doc(alias = "IBV_QPT_UC")]
#[doc(alias = "UC")]
#[derive(Debug)]
pub enum UnreliableConnection {}
impl Transport for UnreliableConnection {
    type InitAttributes = InitAttributes;
}
impl sealed::Sealed for UnreliableConnection {
    const TYPE: ibv_qp_type = ibv_qp_type::IBV_QPT_UC;
}

/// UD: messages of at most one MTU, each to its own recipient, from anybody who knows the Q_Key. Any message may be
/// lost.
#[doc(alias = "IBV_QPT_UD")]
#[doc(alias = "UD")]
#[derive(Debug)]
pub enum UnreliableDatagram {}
impl Transport for UnreliableDatagram {
    type InitAttributes = DatagramInitAttributes;
}
impl sealed::Sealed for UnreliableDatagram {
    const TYPE: ibv_qp_type = ibv_qp_type::IBV_QPT_UD;
}

/// The transport `T`, of a pair that has no receive queue of its own. It receives from a
/// [`SharedReceiveQueue`](crate::shared::SharedReceiveQueue), which makes such pairs.
#[derive(Debug)]
pub struct OnShared<T>(Infallible, PhantomData<fn() -> T>);

impl<T: OwnReceives> sealed::Sealed for OnShared<T> {
    const TYPE: ibv_qp_type = T::TYPE;
}
impl<T: OwnReceives> Transport for OnShared<T> {
    type InitAttributes = T::InitAttributes;
}

/// Transports whose pairs have a receive queue of their own: all but [`OnShared`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "a queue pair of transport `{Self}` has no receives of its own",
    label = "needs a pair with a receive queue of its own",
    note = "post to the `SharedReceiveQueue` that the pair was made with",
    note = "its receives are not the pair's to count, and a pair without them is not split: it only sends"
)]
pub trait OwnReceives: Transport {}
impl OwnReceives for ReliableConnection {}
impl OwnReceives for UnreliableConnection {}
impl OwnReceives for UnreliableDatagram {}

/// Reliable connection, with receives of its own or shared ones. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a reliable connection",
    label = "not a reliable connection",
    note = "unreliable connections go up with `.connect(&endpoint)`, or with `.into_rtr(..)` and `.into_rts(..)`; datagrams with `.open()`"
)]
pub trait Reliable: Connected {}
impl Reliable for ReliableConnection {}
impl<T: Reliable + OwnReceives> Reliable for OnShared<T> {}

/// Transports with one peer: reliable and unreliable connections. Sealed.
#[diagnostic::on_unimplemented(
    message = "a queue pair of transport `{Self}` has no peer",
    label = "needs a reliable or unreliable connection",
    note = "datagrams go up with `.open()`, and each send names its recipient"
)]
pub trait Connected: Transport {}
impl Connected for ReliableConnection {}
impl Connected for UnreliableConnection {}
impl<T: Connected + OwnReceives> Connected for OnShared<T> {}

/// Transports without a peer: unreliable datagrams, with receives of their own or shared ones. Sealed.
#[diagnostic::on_unimplemented(
    message = "a queue pair of transport `{Self}` has a peer",
    label = "needs unreliable datagrams",
    note = "connections go up with `.connect(&endpoint)`"
)]
pub trait Connectionless: Transport {}
impl Connectionless for UnreliableDatagram {}
impl<T: Connectionless + OwnReceives> Connectionless for OnShared<T> {}

/// The code of a transport in the C interface.
pub(crate) const fn code<T: Transport>() -> ibv_qp_type {
    <T as sealed::Sealed>::TYPE
}

/// How many bytes at the start of each receive hold the header, not the message.
#[inline(always)]
pub(super) const fn header_bytes<T: Transport>() -> usize {
    if code::<T>().0 == ibv_qp_type::IBV_QPT_UD.0 { HEADER_BYTES } else { 0 }
}

/// Transports that lose messages without an error, and on which a failed send stops only the sends: UC and UD. Sealed.
#[diagnostic::on_unimplemented(
    message = "a failing send of `{Self}` breaks the whole queue pair",
    label = "only `UnreliableConnection` and `UnreliableDatagram` have the state `SendQueueError`"
)]
pub trait Unreliable: Transport {}
impl Unreliable for UnreliableConnection {}
impl Unreliable for UnreliableDatagram {}
impl<T: Unreliable + OwnReceives> Unreliable for OnShared<T> {}

/// Transports that carry requests of kind `K`. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not carry requests of kind `{K}`",
    label = "not on this transport",
    note = "reliable connections send, write, read and do atomics and atomic writes, fenced or not; unreliable connections send and write; \
            unreliable datagrams are sent to a recipient: `.post_send_to(memory, &recipient)`",
    note = "windows are bound on connections; those of type 2 are ended on reliable ones only"
)]
pub trait Carries<K>: Transport + sealed::Carries<K> {}
impl Carries<Send> for ReliableConnection {}
impl sealed::Carries<Send> for ReliableConnection {}
impl Carries<Write> for ReliableConnection {}
impl sealed::Carries<Write> for ReliableConnection {}
impl Carries<Read> for ReliableConnection {}
impl sealed::Carries<Read> for ReliableConnection {}
impl Carries<Atomic> for ReliableConnection {}
impl sealed::Carries<Atomic> for ReliableConnection {}
impl Carries<AtomicWrite> for ReliableConnection {}
impl sealed::Carries<AtomicWrite> for ReliableConnection {}
impl<K> Carries<Fenced<K>> for ReliableConnection where ReliableConnection: Carries<K> {}
impl<K> sealed::Carries<Fenced<K>> for ReliableConnection where ReliableConnection: sealed::Carries<K> {}
impl Carries<Send> for UnreliableConnection {}
impl sealed::Carries<Send> for UnreliableConnection {}
impl Carries<Write> for UnreliableConnection {}
impl sealed::Carries<Write> for UnreliableConnection {}
impl Carries<SendTo> for UnreliableDatagram {}
impl sealed::Carries<SendTo> for UnreliableDatagram {}
impl Carries<BindWindow> for ReliableConnection {}
impl sealed::Carries<BindWindow> for ReliableConnection {}
impl<K: WindowType> Carries<Revoke<K>> for ReliableConnection {}
impl<K: WindowType> sealed::Carries<Revoke<K>> for ReliableConnection {}
impl Carries<SendInvalidating> for ReliableConnection {}
impl sealed::Carries<SendInvalidating> for ReliableConnection {}
impl Carries<BindWindow> for UnreliableConnection {}
impl sealed::Carries<BindWindow> for UnreliableConnection {}
// An unreliable connection ends only windows of type 1: such a window is ended by a bind over no bytes. A window of
// type 2 is ended by an invalidate, which soft-RoCE has on reliable connections only.
impl Carries<Revoke<Type1>> for UnreliableConnection {}
impl sealed::Carries<Revoke<Type1>> for UnreliableConnection {}
impl<K, T: OwnReceives + Carries<K>> Carries<K> for OnShared<T> {}
impl<K, T: OwnReceives + sealed::Carries<K>> sealed::Carries<K> for OnShared<T> {}
