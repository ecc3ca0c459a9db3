//! Addresses and ports.

use super::*;

#[test]
fn a_port_belongs_to_one_identifier_of_its_space() {
    let world = World::new();
    let bound = |at| {
        let mut id = world.id();
        id.bind(at).map(|()| id)
    };
    let _first = bound(world.at(PORT)).unwrap();
    assert_eq!(errno(bound(world.at(PORT))), libc::EADDRINUSE);
    assert_eq!(errno(bound(SocketAddr::new(ANY, PORT))), libc::EADDRNOTAVAIL);
    let _other_address = bound(SocketAddr::new(world.ips[1], PORT)).unwrap();
    let _other_space = world.listener_in(PortSpace::Udp, PORT);
    let [one, two] = [0; 2].map(|port| bound(world.at(port)).unwrap());
    assert_ne!(one.local_address(), two.local_address());
    assert_ne!(one.local_address().unwrap().port(), 0);
    let reused = || {
        let mut id = world.id();
        id.set_option(IdOption::ReuseAddress(true)).unwrap();
        id.bind(world.at(PORT + 1)).unwrap();
        id
    };
    let mut sharing = [reused(), reused()];
    for id in &mut sharing {
        assert_eq!(errno(id.listen(0)), libc::EADDRINUSE);
    }
    let [one, mut two] = sharing;
    drop(one);
    two.listen(0).unwrap();
    assert_eq!(errno(bound("198.51.100.1:0".parse().unwrap())), libc::EADDRNOTAVAIL);
}

#[test]
fn addresses_lead_to_devices() {
    let world = World::new();
    let name = |side: &Side| side.device().unwrap().name;
    let of_one = world.resolved_in(PortSpace::Tcp, SocketAddr::new(world.ips[1], PORT));
    assert_eq!(name(&of_one), "dev1");
    assert_eq!(of_one.local_address().unwrap().ip(), world.ips[1]);
    for ip in [ANY, LOOPBACK, Ipv6Addr::LOCALHOST.into()] {
        assert_eq!(name(&world.resolved_in(PortSpace::Tcp, SocketAddr::new(ip, PORT))), "dev0");
    }
    let mut from_other = world.id();
    from_other.resolve_addr(Some(SocketAddr::new(world.ips[1], 0)), world.at(PORT), SECOND).unwrap();
    world.expect(&from_other, Kind::ADDR_RESOLVED);
    assert_eq!(name(&from_other), "dev1");
    assert_eq!(from_other.local_address().unwrap().ip(), world.ips[1]);
    let mut id = world.id();
    for nowhere in ["198.51.100.1:1", "224.0.0.1:1", "255.255.255.255:1"] {
        assert_eq!(errno(id.resolve_addr(None, nowhere.parse().unwrap(), SECOND)), libc::ENETUNREACH);
    }
    let foreign = Some("198.51.100.1:0".parse().unwrap());
    assert_eq!(errno(world.id().resolve_addr(foreign, world.at(PORT), SECOND)), libc::EADDRNOTAVAIL);
    // The loopback address reaches a listener on the wildcard address.
    let listener = world.listener();
    let mut client = world.resolved_in(PortSpace::Tcp, SocketAddr::new(LOOPBACK, PORT));
    client.connect(&offering(b"")).unwrap();
    world.requested(&listener);
}

#[test]
fn an_address_that_nobody_has_is_given_up_after_the_timeout() {
    let world = World::new();
    let IpAddr::V4(ip) = world.ips[0] else { panic!() };
    let [a, b, c, _] = ip.octets();
    let nobody = SocketAddr::from(([a, b, c, 77], PORT));
    let mut id = world.id();
    id.resolve_addr(None, nobody, SECOND).unwrap();
    world.fabric.advance(SECOND - Duration::from_millis(1));
    world.quiet();
    world.fabric.advance(Duration::from_millis(1));
    assert_eq!(world.expect(&id, Kind::ADDR_ERROR).status, -libc::ETIMEDOUT);
    id.resolve_addr(None, world.at(PORT), SECOND).unwrap();
    world.expect(&id, Kind::ADDR_RESOLVED);
    id = world.id();
    id.resolve_addr(None, nobody, SECOND).unwrap();
    drop(id);
    world.fabric.advance(SECOND);
    world.quiet();
}
