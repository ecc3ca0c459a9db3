//! A device that is removed, or whose neighbour changes.

use super::*;

#[test]
fn a_device_that_is_removed_tells_each_of_its_identifiers() {
    let world = World::new();
    let everywhere = world.listener();
    let mut listener = world.id();
    listener.bind(world.at(PORT + 1)).unwrap();
    listener.listen(0).unwrap();
    let (client, server) = world.connected(&everywhere);
    let elsewhere = world.resolved_in(PortSpace::Tcp, SocketAddr::new(world.ips[1], PORT));
    let unread = world.unread::<1>();
    world.fabric.inject(Fault::DeviceRemoved { device: "dev0".into() });
    world.expect(&listener, Kind::DEVICE_REMOVAL);
    world.expect(&client, Kind::DEVICE_REMOVAL);
    world.expect(&server, Kind::DEVICE_REMOVAL);
    world.expect(&unread[0], Kind::DEVICE_REMOVAL);
    drop(world.requested(&everywhere));
    world.quiet();
    assert_eq!(errno(world.id().bind(world.at(0))), libc::ENODEV);
    let mut id = world.id();
    id.resolve_addr(None, world.at(0), SECOND).unwrap();
    assert_eq!(world.expect(&id, Kind::ADDR_ERROR).status, -libc::ENODEV);
    drop((client, server, listener));
    world.quiet();
    drop(elsewhere);
}

#[test]
fn a_neighbour_that_changes_is_an_advice() {
    let world = World::new();
    let listener = world.listener();
    let (mut client, server) = world.connected(&listener);
    world.fabric.inject(Fault::NeighbourChanged { device: "dev0".into() });
    assert_eq!(world.expect(&server, Kind::UNREACHABLE).status, -libc::ETIMEDOUT);
    world.expect(&client, Kind::UNREACHABLE);
    client.disconnect().unwrap();
    world.expect(&server, Kind::DISCONNECTED);
}
