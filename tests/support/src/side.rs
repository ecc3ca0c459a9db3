//! One side of a connection by address, with every object except the connection.

use crate::device::PATIENCE;
use interlock::number::Gid;
use interlock::{Brand, Buffer, Context, Init, Limits, Poller, ProtectionDomain, QueuePair};
use std::net::{IpAddr, Ipv6Addr};

/// The IPv4 address that leads to the device. For the device under test, `INTERLOCK_ADDRESS` may name another one.
pub fn address(context: &Context) -> IpAddr {
    if context.name() == crate::context().name()
        && let Ok(address) = std::env::var("INTERLOCK_ADDRESS")
    {
        return address.parse().expect("an address");
    }
    let mapped = |gid: Gid| Ipv6Addr::from(gid.0).to_ipv4_mapped();
    let ports = context.ports().unwrap();
    let found = ports.iter().flat_map(|port| port.gids()).find_map(|row| mapped(row.gid));
    found.expect("a GID that is an IPv4 address").into()
}

/// A domain with a poller, and a pair in Init that waits to be connected.
#[derive(Debug)]
pub struct Side<B> {
    pub domain: ProtectionDomain<B>,
    pub poller: Poller<B>,
    pub pair: Option<QueuePair<B, Init>>,
}

impl<B: Brand> Side<B> {
    pub fn new(domain: ProtectionDomain<B>) -> Self {
        let limits = Limits::default();
        let (queue, poller) = domain.completion_queue(limits.completions()).unwrap();
        let port = domain.context().active_port().unwrap();
        let pair = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        Self { domain, poller, pair: Some(pair) }
    }

    pub fn take(&mut self) -> QueuePair<B, Init> {
        self.pair.take().unwrap()
    }

    /// The next message; other completions must be successes.
    pub fn received(&mut self) -> Buffer<B> {
        loop {
            if let Ok(buffer) = self.poller.wait(PATIENCE).unwrap().check().unwrap().into_received() {
                return buffer;
            }
        }
    }
}
