//! Shared receive queues: one stock of receives for many queue pairs.
//!
//! With a shared receive queue, a server with a thousand connections need not post receives for each of them.
//! [`ProtectionDomain::shared_receive_queue`](crate::ProtectionDomain::shared_receive_queue) makes a
//! [`SharedReceiveQueue`], whose methods make the pairs that receive from it. Such a pair has the transport
//! [`OnShared`](crate::transport::OnShared), and no receives of its own. Receives for datagrams need room for a header,
//! so there are two kinds, [`Messages`] and [`Datagrams`].
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
