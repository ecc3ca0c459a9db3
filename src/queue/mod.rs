//! Queue pairs: their states, their transitions, and posting.

mod all;
mod alter;
mod any;
mod attr;
mod batch;
mod core;
mod datagram;
mod error;
mod half;
pub(crate) mod ledger;
mod pair;
mod post;
mod post_error;
mod posting;
pub mod request;
pub mod scope;
mod session;
mod shared;
mod slab;
mod staged;
mod state;
mod transport;
mod unreliable;
mod window;
mod work;
mod work_id;

pub use all::{PostAllCause, PostAllError};
pub use alter::{QueuePairAttributes, SqdAttributes};
pub use any::{AdvanceError, AnyQueuePair, Halted};
pub use attr::{
    ConnectAttributes, DatagramInitAttributes, InitAttributes, Limits, PeerPath, PeerRights, RtrAttributes,
    RtsAttributes, UnreliableRtrAttributes,
};
pub use batch::{Batch, BatchCause, BatchError};
pub use datagram::{AddressError, AddressHandle, Addressed, AddressedParts, Recipient};
pub(crate) use datagram::{HEADER_BYTES, Peers};
pub use error::{CreateError, DestroyError, DrainFailure, TransitionError, TransitionFailure, Undrained};
pub use half::{JoinHalvesError, OfDifferentPairs, ReceiveHalf, SendHalf};
pub use pair::QueuePair;
pub use post_error::{PostError, RequestFlaw};
pub use request::{CarriesImmediate, FillMemory, Inline, RequestMemory, SendMemory, WorkRequest};
pub use session::Posting;
pub(crate) use shared::SharedLedger;
pub use shared::{
    Arrivals, Datagrams, DestroySharedError, Messages, Serves, SharedAttributes, SharedLimits, SharedReceiveQueue,
};
#[cfg(all(test, not(loom)))]
pub(crate) use slab::{SlabPoster, slab};
pub use state::{
    Alterable, AlterableWhileDraining, DeviceState, Errored, GoesTo, Init, OnPort, PostReceive, PostSend,
    ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError, State,
};
pub use transport::{
    Carries, Connected, Connectionless, OnShared, OwnReceives, Reliable, ReliableConnection, Transport, Unreliable,
    UnreliableConnection, UnreliableDatagram,
};
pub(crate) use work::{Entry, RawEntry};
pub use work::{Operation, PostedMemory};
pub use work_id::WorkId;
pub(crate) use work_id::{MAX_SLOTS, QueueKey, QueueKind};

/// Says that its caller is rarely where it calls this. Nothing is left of the call.
#[cold]
#[inline(never)]
fn unlikely() {}
