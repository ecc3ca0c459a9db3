//! Connections, and what their two sides agree on.

use super::*;

#[test]
fn a_connection_is_made_by_messages_each_a_unit_of_work() {
    let world = World::new();
    let listener = world.listener();
    let mut client = world.connecting();
    assert!(world.fabric.step());
    let (mut server, parameters) = world.requested(&listener);
    assert_eq!(parameters.private_data, padded(b"client", 56));
    assert_eq!([parameters.responder_resources, parameters.initiator_depth], [3, 4], "swapped");
    assert_eq!((parameters.queue_pair, parameters.rnr_retry_count), (77, 6));
    assert_eq!(server.local_address(), Some(world.at(PORT)));
    assert_eq!(server.peer_address(), client.local_address());
    assert_eq!(client.peer_address(), Some(world.at(PORT)));
    server.accept(&Parameters { queue_pair: 78, ..offering(b"server") }).unwrap();
    assert!(Arc::clone(&world.channel).take_event(0).unwrap().is_none(), "it is on its way");
    assert!(world.fabric.step());
    let parameters = world.expect(&client, Kind::CONNECT_RESPONSE).parameters;
    assert_eq!(parameters.private_data, padded(b"server", 196));
    assert_eq!((parameters.queue_pair, parameters.responder_resources, parameters.initiator_depth), (78, 3, 4));
    client.establish().unwrap();
    let parameters = world.expect(&server, Kind::ESTABLISHED).parameters;
    assert!(parameters.private_data.is_empty() && parameters.queue_pair == 0, "no parameters");
    world.quiet();
    assert!(!world.fabric.step());
}

#[test]
fn attributes_are_those_of_linux() {
    let world = World::new();
    let mut listener = world.id();
    listener.bind(SocketAddr::new(ANY, PORT)).unwrap();
    listener.listen(0).unwrap();
    let mut client = world.resolved_in(PortSpace::Tcp, world.at(PORT));
    let [init, rtr, rts] = [ibv_qp_state::IBV_QPS_INIT, ibv_qp_state::IBV_QPS_RTR, ibv_qp_state::IBV_QPS_RTS];
    for state in [init, rtr, rts] {
        let (attributes, mask) = client.pair_attributes(state).unwrap();
        assert_eq!((attributes.qp_state, mask.0, attributes.qp_access_flags), (state, 0x39, 0));
        assert_eq!((attributes.port_num, attributes.pkey_index), (1, 0));
    }
    client.set_option(IdOption::TypeOfService(0x20)).unwrap();
    client.connect(&offering(b"")).unwrap();
    let (mut server, _) = world.requested(&listener);
    server.set_option(IdOption::AckTimeout(9)).unwrap();
    let (attributes, mask) = server.pair_attributes(init).unwrap();
    assert_eq!((mask.0, attributes.qp_access_flags), (0x39, 0x30e));
    // The server accepts with smaller values than those of the request. The attributes of the server's pair still have
    // the values of the request.
    let less = Parameters { responder_resources: 2, initiator_depth: 1, rnr_retry_count: 2, ..offering(b"") };
    server.accept(&Parameters { queue_pair: 78, ..less }).unwrap();
    world.expect(&client, Kind::CONNECT_RESPONSE);
    let (server_rtr, mask) = server.pair_attributes(rtr).unwrap();
    assert_eq!((mask.0, server_rtr.max_dest_rd_atomic, server_rtr.dest_qp_num), (0x12_9181, 3, 77));
    let (server_rts, mask) = server.pair_attributes(rts).unwrap();
    assert_eq!((mask.0, server_rts.max_rd_atomic), (0x1_2e01, 4));
    assert_eq!((server_rts.timeout, server_rts.retry_cnt, server_rts.rnr_retry), (9, 5, 6));
    let (client_rtr, mask) = client.pair_attributes(rtr).unwrap();
    assert_eq!((mask.0, client_rtr.max_dest_rd_atomic, client_rtr.dest_qp_num), (0x12_9181, 1, 78));
    assert_eq!((client_rtr.path_mtu.0, client_rtr.min_rnr_timer), (5, 0));
    let (client_rts, mask) = client.pair_attributes(rts).unwrap();
    assert_eq!((mask.0, client_rts.max_rd_atomic), (0x1_2e01, 2));
    assert_eq!((client_rts.timeout, client_rts.retry_cnt, client_rts.rnr_retry), (17, 5, 2));
    assert_eq!((client_rtr.rq_psn, server_rtr.rq_psn), (server_rts.sq_psn, client_rts.sq_psn));
    let way = client_rtr.ah_attr;
    assert_eq!((way.is_global, way.grh.sgid_index, way.grh.hop_limit, way.grh.traffic_class), (1, 1, 64, 0x20));
    assert_eq!(IpAddr::from(Ipv6Addr::from(way.grh.dgid.bytes())).to_canonical(), world.ips[0]);
}

#[test]
fn depths_of_255_are_the_most_and_larger_ones_than_the_device_has_are_refused() {
    let world = World::new();
    let listener = world.listener();
    let mut client = world.resolved_in(PortSpace::Tcp, world.at(PORT));
    let deep = |depth| Parameters { responder_resources: depth, ..offering(b"") };
    assert_eq!(errno(client.connect(&deep(129))), libc::EINVAL);
    client.connect(&deep(255)).unwrap();
    let (mut server, parameters) = world.requested(&listener);
    assert_eq!(parameters.initiator_depth, 128);
    assert_eq!(errno(server.accept(&deep(129))), libc::EINVAL);
    server.accept(&deep(255)).unwrap();
    assert_eq!(world.expect(&client, Kind::CONNECT_RESPONSE).parameters.initiator_depth, 3);
}

#[test]
fn private_data_have_the_limits_of_their_calls() {
    let world = World::new();
    let listener = world.listener();
    let mut client = world.resolved_in(PortSpace::Tcp, world.at(PORT));
    assert_eq!(errno(client.connect(&offering(&[1; 57]))), libc::EINVAL);
    client.connect(&offering(&[1; 56])).unwrap();
    let (mut server, parameters) = world.requested(&listener);
    assert_eq!(parameters.private_data, [1; 56]);
    assert_eq!(errno(server.reject(&[2; 149])), libc::EINVAL);
    server.reject(&[2; 148]).unwrap();
    let event = world.expect(&client, Kind::REJECTED);
    assert_eq!((event.status, event.parameters.private_data), (28, vec![2; 148]));
    let client = world.connecting();
    let (mut server, _) = world.requested(&listener);
    assert_eq!(errno(server.accept(&offering(&[3; 197]))), libc::EINVAL);
    let event = world.expect(&client, Kind::REJECTED);
    assert_eq!((event.status, event.parameters.private_data), (28, vec![0; 148]));
    assert_eq!(errno(server.accept(&offering(b""))), libc::EINVAL, "used up");
    let client = world.connecting();
    let (mut server, _) = world.requested(&listener);
    server.accept(&offering(&[3; 196])).unwrap();
    assert_eq!(world.expect(&client, Kind::CONNECT_RESPONSE).parameters.private_data, [3; 196]);
}

#[test]
fn where_nobody_listens_a_request_is_rejected() {
    let world = World::new();
    let mut client = world.connecting();
    assert_eq!(world.expect(&client, Kind::REJECTED).status, 8);
    assert_eq!(errno(client.connect(&offering(b""))), libc::EINVAL);
    let _datagrams = world.listener_in(PortSpace::Udp, PORT);
    let client = world.connecting();
    assert_eq!(world.expect(&client, Kind::REJECTED).status, 8);
}
