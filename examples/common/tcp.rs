//! The TCP connections through which the two sides of an example find each other.

use super::fault::{Doing, Fault};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Listens for a client.
pub(crate) fn listen(port: u16) -> Result<TcpListener, Fault> {
    // `bind` uses the first address that works. If that is the IPv6 address, clients over IPv4 reach it as well.
    let addresses = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))];
    TcpListener::bind(&addresses[..]).doing(format_args!("cannot listen on TCP port {port}"))
}

/// Connects to a server, at the first of its addresses that answers.
pub(crate) fn connect(host: &str, port: u16, patience: Duration) -> Result<TcpStream, Fault> {
    let name = format!("cannot reach {host} on TCP port {port}");
    let mut last = Fault::new(format!("{name}: the name has no address"));
    for address in (host, port).to_socket_addrs().doing(&name)? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Fault::new(format!("{name}: {error}")),
        }
    }
    Err(last)
}
