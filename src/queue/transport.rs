//! Transports of a queue pair.

use crate::sys::ibv_qp_type;
use std::{convert::Infallible, marker::PhantomData};

mod sealed {
    #[allow(unnameable_types, reason = "seals `Transport`")]
    pub trait Sealed {
        const TYPE: crate::sys::ibv_qp_type;
    }
}

/// A transport. Sealed.
#[diagnostic::on_unimplemented(message = "`{Self}` is not a transport", note = "use `ReliableConnection`")]
#[doc(alias = "ibv_qp_type")]
pub trait Transport: sealed::Sealed + 'static {}

/// RC: one peer; every message arrives once and in order, or the pair breaks.
#[doc(alias = "IBV_QPT_RC")]
#[doc(alias = "RC")]
#[derive(Debug)]
pub enum ReliableConnection {}

impl sealed::Sealed for ReliableConnection {
    const TYPE: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;
}
impl Transport for ReliableConnection {}

/// The transport `T`, of a pair that has no receives of its own: it takes those of a
/// [`SharedReceiveQueue`](crate::SharedReceiveQueue), which makes such pairs.
#[derive(Debug)]
pub struct OnShared<T>(Infallible, PhantomData<fn() -> T>);

impl<T: OwnReceives> sealed::Sealed for OnShared<T> {
    const TYPE: ibv_qp_type = T::TYPE;
}
impl<T: OwnReceives> Transport for OnShared<T> {}

/// Transports whose pairs have a receive queue of their own: all but [`OnShared`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "a queue pair of transport `{Self}` has no receives of its own",
    label = "needs a pair with a receive queue of its own",
    note = "post to the `SharedReceiveQueue` that the pair was made with",
    note = "its receives are not the pair's to count, and a pair without them is not split: it only sends"
)]
pub trait OwnReceives: Transport {}
impl OwnReceives for ReliableConnection {}

/// Reliable connection, with receives of its own or shared ones. Sealed.
#[diagnostic::on_unimplemented(message = "`{Self}` is not a reliable connection", label = "not a reliable connection")]
pub trait Reliable: Transport {}
impl Reliable for ReliableConnection {}
impl<T: Reliable + OwnReceives> Reliable for OnShared<T> {}

/// The number of a transport, for the device.
pub(crate) fn code<T: Transport>() -> ibv_qp_type {
    <T as sealed::Sealed>::TYPE
}
