//! Queue pairs: their states, their transitions, and posting.

mod alter;
mod any;
mod attributes;
mod batch;
mod create;
mod datagram;
mod departing_pair;
mod endpoint;
mod error;
mod halves;
mod local_port;
mod pair;
mod pair_post;
pub mod request;
mod session;
mod shared;
mod state;
mod transport;
mod unreliable;
mod untyped;
mod windows;

pub use crate::inflight::{BatchCause, BatchError, PostAllCause, PostAllError, PostError, Posting, RequestFlaw};
pub use alter::{QueuePairAttributes, SqdAttributes};
pub use any::{AdvanceError, AnyQueuePair, Halted};
pub use attributes::{
    ConnectAttributes, DatagramInitAttributes, InitAttributes, Limits, PeerPath, PeerRights, RtrAttributes,
    RtsAttributes, UnreliableRtrAttributes,
};
pub use batch::Batch;
pub use datagram::{AddressError, AddressHandle, Addressed, AddressedParts, Recipient};
pub use endpoint::Endpoint;
pub use error::{CreateError, DestroyError, DrainFailure, TransitionError, TransitionFailure, Undrained};
pub use halves::{JoinHalvesError, OfDifferentPairs, ReceiveHalf, SendHalf};
pub use pair::QueuePair;
pub use request::{CarriesImmediate, FillMemory, Inline, RequestMemory, SendMemory, WorkRequest};
pub use shared::{
    Arrivals, Datagrams, DestroySharedError, Messages, Serves, SharedAttributes, SharedLimits, SharedReceiveQueue,
};
pub use state::{
    Alterable, AlterableWhileDraining, DeviceState, Errored, GoesTo, Init, OnPort, PostReceive, PostSend,
    ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError, State,
};
pub use transport::{
    Carries, Connected, Connectionless, OnShared, OwnReceives, Reliable, ReliableConnection, Transport, Unreliable,
    UnreliableConnection, UnreliableDatagram,
};
