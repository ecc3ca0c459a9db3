//! Queue pairs: their states, their transitions, and posting.

mod all;
mod alter;
mod any;
mod attr;
mod batch;
mod core;
mod create;
mod datagram;
mod endpoint;
mod error;
mod half;
mod pair;
mod post;
mod post_error;
mod posting;
pub mod request;
mod session;
mod shared;
mod staged;
mod state;
mod transport;
mod unreliable;
mod window;

pub use all::{PostAllCause, PostAllError};
pub use alter::{QueuePairAttributes, SqdAttributes};
pub use any::{AdvanceError, AnyQueuePair, Halted};
pub use attr::{
    ConnectAttributes, DatagramInitAttributes, InitAttributes, Limits, PeerPath, PeerRights, RtrAttributes,
    RtsAttributes, UnreliableRtrAttributes,
};
pub use batch::{Batch, BatchCause, BatchError};
pub use datagram::{AddressError, AddressHandle, Addressed, AddressedParts, Recipient};
pub use endpoint::Endpoint;
pub use error::{CreateError, DestroyError, DrainFailure, TransitionError, TransitionFailure, Undrained};
pub use half::{JoinHalvesError, OfDifferentPairs, ReceiveHalf, SendHalf};
pub use pair::QueuePair;
pub use post_error::{PostError, RequestFlaw};
pub use request::{CarriesImmediate, FillMemory, Inline, RequestMemory, SendMemory, WorkRequest};
pub use session::Posting;
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
