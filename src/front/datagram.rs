//! Unreliable datagrams: to whom they go, and what arrives.
//!
//! A pair of transport [`UnreliableDatagram`](crate::UnreliableDatagram) talks to any number of peers. Each datagram
//! names its [`Recipient`]: a queue pair behind an [`AddressHandle`]. A datagram has at most the MTU of the port. The
//! receiver gets it as a [`Datagram`], which names its sender; 40 bytes of each receive are for the routing header.
//!
//! [`ProtectionDomain::datagram`](crate::ProtectionDomain::datagram) has an example with both ends.
//!
//! ```
//! use interlock::datagram::Recipient;
//! use interlock::number::Qkey;
//! use interlock::{Brand, Context, Endpoint, ProtectionDomain};
//!
//! /// Resolves the peer's endpoint, which came to us by some other way.
//! fn resolve<B: Brand>(
//!     domain: &ProtectionDomain<B>,
//!     peer: &Endpoint,
//! ) -> Result<Recipient<B>, Box<dyn std::error::Error>> {
//!     let port = domain.context().active_port()?;
//!     Ok(domain.recipient(&port, peer, Qkey::USUAL)?)
//! }
//! ```

pub use crate::completion::work::Datagram;
pub use crate::queue::datagram::{AddressHandle, Addressed, AddressedParts, Recipient};
