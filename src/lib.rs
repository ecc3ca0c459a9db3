//! front page
#![deny(unsafe_code)]

mod completion;
mod connection;
mod device;
mod domain;
mod error;
mod memory;
mod provider;
mod queue;
mod seal;
mod sync;
mod sys;
mod types;

pub use completion::{
    Completion, CompletionQueue, Failure, NoRoom, PollError, Poller, Received, Status, Success, WaitError, Work,
    WrittenWithImmediate,
};
pub use connection::Endpoint;
pub use device::{
    Context, Device, DeviceAttributes, GidEntry, GidKind, LinkLayer, NoGid, OpenError, Port, PortState, devices,
};
pub use domain::{Brand, NamedDomainError, ProtectionDomain, Scoped};
pub use error::VerbError;
pub use memory::*;
pub use provider::soft;
pub use queue::*;
pub use types::{
    AckTimeout, Gid, Lkey, Mtu, OutOfRange, PortNumber, Psn, Qpn, ReadDepth, RetryCount, Rkey, RnrRetry, RnrTimer,
};

#[doc(hidden)]
pub mod __private {
    pub use crate::domain::brand::Named;
}
