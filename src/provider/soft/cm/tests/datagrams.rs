//! Lookups and multicast groups.

use super::*;

#[test]
fn datagrams_look_up_their_peer() {
    let world = World::new();
    let listener = world.listener_in(PortSpace::Udp, PORT);
    let asking = |data: &[u8]| {
        let mut client = world.resolved_in(PortSpace::Udp, world.at(PORT));
        client.connect(&offering(data)).unwrap();
        client
    };
    let mut client = world.resolved_in(PortSpace::Udp, world.at(PORT));
    let (attributes, mask) = client.pair_attributes(ibv_qp_state::IBV_QPS_RTR).unwrap();
    assert_eq!((mask.0, attributes.qkey), (0x71, 0x0123_4567));
    assert_eq!(errno(client.connect(&offering(&[1; 181]))), libc::EINVAL);
    client.connect(&offering(&[1; 180])).unwrap();
    let (mut server, parameters) = world.requested(&listener);
    assert_eq!(parameters.private_data, [1; 180]);
    server.accept(&Parameters { qkey: 0x55, queue_pair: 99, ..offering(&[2; 136]) }).unwrap();
    let parameters = world.expect(&client, Kind::ESTABLISHED).parameters;
    assert_eq!((parameters.queue_pair, parameters.qkey, parameters.private_data), (99, 0x55, vec![2; 136]));
    assert_eq!(parameters.path.unwrap().grh.dgid.bytes(), world.fabric.lock().gid_of(0));
    drop((client, server));
    world.quiet();

    let client = asking(b"");
    let (mut server, parameters) = world.requested(&listener);
    assert_eq!(parameters.private_data, [0; 180]);
    assert_eq!(errno(server.reject(&[3; 137])), libc::EINVAL);
    server.reject(b"no").unwrap();
    let event = world.expect(&client, Kind::UNREACHABLE);
    assert_eq!((event.status, event.parameters.private_data), (2, padded(b"no", 136)));

    let client = asking(b"");
    let (mut server, _) = world.requested(&listener);
    assert_eq!(errno(server.accept(&offering(&[3; 137]))), libc::EINVAL);
    assert_eq!(world.expect(&client, Kind::UNREACHABLE).status, 2);
    let client = asking(b"");
    drop(world.requested(&listener));
    assert_eq!(world.expect(&client, Kind::UNREACHABLE).status, 2);
    drop(listener);
    let client = asking(b"");
    assert_eq!(world.expect(&client, Kind::UNREACHABLE).status, 1);
}

#[test]
fn multicast_groups_are_joined_and_left() {
    let world = World::new();
    let group: SocketAddr = "239.1.2.3:0".parse().unwrap();
    let mut id = world.id_in(PortSpace::Udp);
    assert_eq!(errno(id.join_multicast(group)), libc::EINVAL, "no device");
    id.bind(world.at(0)).unwrap();
    assert_eq!(errno(id.join_multicast(world.at(0))), libc::EINVAL);
    id.join_multicast(group).unwrap();
    let event = world.expect(&id, Kind::MULTICAST_JOIN);
    assert_eq!((event.status, event.parameters.queue_pair, event.parameters.qkey), (0, 0xff_ffff, 0x0123_4567));
    assert_eq!(event.parameters.path.unwrap().grh.dgid.bytes()[12..], [239, 1, 2, 3]);
    id.leave_multicast(group).unwrap();
    assert_eq!(errno(id.leave_multicast(group)), libc::EADDRNOTAVAIL);
}
