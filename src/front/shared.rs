//! Shared receive queues: one stock of receives for many queue pairs.
//!
//! A server with a thousand connections need not keep a thousand times the receives of one.
//! [`ProtectionDomain::shared_receive_queue`](crate::ProtectionDomain::shared_receive_queue) makes a
//! [`SharedReceiveQueue`]; its own methods make the pairs that receive from it. Such a pair has the transport
//! [`OnShared`](crate::transport::OnShared), and no receives of its own. For datagrams the receives need room for a
//! header, so there are two kinds, [`Messages`] and [`Datagrams`].
//!
//! ```
//! use interlock::shared::SharedLimits;
//! use interlock::{Context, Limits};
//!
//! # interlock::domain! { struct Docs; }
//! # let domain = Context::open("soft0")?.named_domain(Docs)?;
//! let (queue, _poller) = domain.completion_queue(64)?;
//! let mut shared = domain.shared_receive_queue(&SharedLimits::default())?;
//! shared.post_receive(domain.buffer(64)?)?;
//! let one = shared.reliable(&queue, &Limits::default())?;
//! let other = shared.reliable(&queue, &Limits::default())?;
//! # drop((one, other));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use crate::queue::shared::{
    Arrivals, Datagrams, Messages, Serves, SharedAttributes, SharedLimits, SharedReceiveQueue,
};
