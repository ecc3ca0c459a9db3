//! Queue pairs: their states, their transitions, and posting.

mod any;
mod attr;
mod batch;
mod core;
mod error;
mod half;
pub(crate) mod ledger;
mod pair;
mod post;
pub mod request;
pub mod scope;
mod state;
mod transport;
mod work;

pub use any::{AdvanceError, AnyQueuePair, Halted};
pub use attr::{ConnectAttributes, InitAttributes, Limits, PeerPath, PeerRights, RtrAttributes, RtsAttributes};
pub use batch::{Batch, BatchError};
pub use error::{CreateError, DestroyError, DrainFailure, TransitionError, TransitionFailure, Undrained};
pub use half::{JoinHalvesError, ReceiveHalf, SendHalf};
pub use pair::QueuePair;
pub use post::PostError;
pub use request::{CarriesImmediate, Inline, RequestFlaw, SendMemory, WorkRequest};
pub use state::{
    DeviceState, Errored, GoesTo, Init, OnPort, PostReceive, PostSend, ReadyToReceive, ReadyToSend, Reset,
    SendQueueDrain, State,
};
pub use transport::{ReliableConnection, Transport};
pub(crate) use work::{Entry, MAX_SLOTS, QueueKey, QueueKind, RawEntry};
pub use work::{Operation, PostedMemory, WorkId};
