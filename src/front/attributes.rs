//! Attributes of queue pairs: what each transition needs, and what a pair says of itself.
//!
//! `ibv_modify_qp(3)` takes one structure and a mask, and each transition needs its own part of it. Here each
//! transition has a struct with exactly its attributes, so that none can be forgotten. Numbers are checked when they
//! are made: see [`number`](crate::number). Each struct has a constructor with the usual values.
//! [`QueuePair::connect`](crate::QueuePair::connect) fills in most of them by itself.
//!
//! ```
//! use interlock::attributes::ConnectAttributes;
//! use interlock::number::RnrRetry;
//!
//! // Fail after three tries when the peer has no receive posted, rather than wait for it.
//! let attributes = ConnectAttributes { rnr_retry: RnrRetry::new(3)?, ..ConnectAttributes::default() };
//! # let _ = attributes;
//! # Ok::<(), interlock::error::OutOfRange>(())
//! ```

pub use crate::queue::alter::{QueuePairAttributes, SqdAttributes};
pub use crate::queue::attributes::{
    ConnectAttributes, DatagramInitAttributes, InitAttributes, PeerPath, PeerRights, RtrAttributes, RtsAttributes,
    UnreliableRtrAttributes,
};
