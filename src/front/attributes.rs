//! Attributes of queue pairs: those that each transition needs, and those that a pair reports.
//!
//! `ibv_modify_qp(3)` takes one structure and a mask, and each transition needs its own part of that structure. Here
//! each transition has a struct with exactly its attributes, so that none can be forgotten. Numbers are checked when
//! they are made: see [`number`](crate::number). Each struct can be made with its usual values.
//! [`QueuePair::connect`](crate::QueuePair::connect) fills in most of them by itself.
//!
//! ```
//! use interlock::attributes::ConnectAttributes;
//! use interlock::number::RnrRetry;
//!
//! // Give up after three retries when the peer has no receive posted, instead of waiting for ever.
//! let attributes = ConnectAttributes { rnr_retry: RnrRetry::new(3)?, ..ConnectAttributes::default() };
//! # let _ = attributes;
//! # Ok::<(), interlock::error::OutOfRange>(())
//! ```

pub use crate::queue::alter::{QueuePairAttributes, SqdAttributes};
pub use crate::queue::attributes::{
    ConnectAttributes, DatagramInitAttributes, InitAttributes, PeerPath, PeerRights, RtrAttributes, RtsAttributes,
    UnreliableRtrAttributes,
};
