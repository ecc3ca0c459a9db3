//! Datagrams.

use interlock::Gid;
use interlock::attributes::PeerPath;
use interlock::error::AddressError;

/// On Ethernet a peer without a GID cannot be addressed.
#[test]
fn c160_an_address_on_ethernet_needs_a_gid() {
    let domain = domain!();
    let port = domain.context().active_port().unwrap();
    let path = PeerPath { gid: None, ..PeerPath::to(Gid::default()) };
    let error = domain.address_handle(&port, &path).unwrap_err();
    assert!(matches!(error, AddressError::NoPeerGid), "{error}");
    domain.address_handle(&port, &PeerPath::to(port.gid().unwrap().gid)).unwrap();
}
