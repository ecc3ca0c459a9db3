//! The calls that each state allows, and what is left afterwards.

use super::*;

/// The result of each call: `.` for success, `x` for `EINVAL`, `c` for `EISCONN`.
fn calls(side: &mut Side, world: &World) -> String {
    let to = world.at(PORT);
    let attributes = |side: &Side, state| errno(side.pair_attributes(state));
    let mut answers = vec![
        attributes(side, ibv_qp_state::IBV_QPS_INIT),
        attributes(side, ibv_qp_state::IBV_QPS_RTR),
        attributes(side, ibv_qp_state::IBV_QPS_ERR),
    ];
    // A call that succeeds can change the state for the calls after it, so the order matters.
    answers.push(errno(side.accept(&offering(b""))));
    answers.push(errno(side.reject(b"")));
    answers.push(errno(side.notify_established()));
    answers.push(errno(side.establish()));
    answers.push(errno(side.resolve_route(SECOND)));
    answers.push(errno(side.connect(&offering(b""))));
    answers.push(errno(side.disconnect()));
    answers.push(errno(side.bind(SocketAddr::new(LOOPBACK, 0))));
    answers.push(errno(side.listen(0)));
    answers.push(errno(side.resolve_addr(None, to, SECOND)));
    let letter = |errno| match errno {
        0 => '.',
        libc::EINVAL => 'x',
        libc::EISCONN => 'c',
        other => panic!("{other}"),
    };
    answers.into_iter().map(letter).collect()
}

#[test]
fn each_state_allows_its_calls_and_refuses_the_others() {
    // Each string has one character for each of 13 calls: `.` for success, `x` for the error `EINVAL`, `c` for the
    // error `EISCONN`. The first three calls ask for the attributes of Init, of Ready To Receive and of Error. Then
    // come accept, reject, notify_established, establish, resolve_route, connect, disconnect, bind, listen and
    // resolve_addr. If a call changes the state, the calls after it run in the new state.
    let world = World::new();
    let listener = world.listener();
    let mut idle = world.id();
    assert_eq!(calls(&mut idle, &world), "xxxxxxxxxx..x", "idle");
    let mut bound = world.id();
    bound.bind(SocketAddr::new(ANY, 0)).unwrap();
    assert_eq!(calls(&mut bound, &world), "xxxxxxxxxxx.x", "bound to no device");
    let mut bound = world.id();
    bound.bind(world.at(0)).unwrap();
    assert_eq!(calls(&mut bound, &world), "..xxxxxxxxx.x", "bound to a device");
    let mut listening = world.listener_in(PortSpace::Tcp, PORT + 1);
    assert_eq!(calls(&mut listening, &world), "xxxxxxxxxxxxx", "listening");
    let mut resolving = world.id();
    resolving.resolve_addr(None, world.at(PORT), SECOND).unwrap();
    assert_eq!(calls(&mut resolving, &world), "xxxxxxxxxxxxx", "resolving the address");
    world.expect(&resolving, Kind::ADDR_RESOLVED);
    assert_eq!(calls(&mut resolving, &world), "..xxxxx.xxxxx", "address resolved");
    let mut resolved = world.resolved_in(PortSpace::Tcp, world.at(PORT));
    world.expect(&resolving, Kind::ROUTE_RESOLVED);
    assert_eq!(calls(&mut resolved, &world), "..xxxxxx..xxx", "route resolved");
    // From here on, each identifier has sent or received a connect request. A disconnect then always succeeds, as on
    // Linux, so the tenth character is always `.`.
    let (mut requested, _) = world.requested(&listener);
    assert_eq!(calls(&mut resolved, &world), ".xxxxxxxx.xxx", "connecting");
    assert_eq!(calls(&mut requested, &world), "..x.x.xxx.xxx", "requested");
    drop((resolved, requested));
    let (mut responded, mut accepted) = world.responded(&listener);
    assert_eq!(calls(&mut accepted, &world), "..xxx.xxx.xxx", "accepted");
    assert_eq!(calls(&mut responded, &world), "..xxxx.xx.xxx", "responded");
    drop((responded, accepted));
    while world.take().is_some() {}
    let (mut client, mut server) = world.connected(&listener);
    assert_eq!(calls(&mut client, &world), "..xxxcxxx.xxx", "connected");
    assert_eq!(calls(&mut client, &world), "xxxxxxxxx.xxx", "disconnecting");
    world.expect(&server, Kind::DISCONNECTED);
    assert_eq!(calls(&mut server, &world), "xxxxxxxxx.xxx", "the peer has disconnected");
    assert_eq!(calls(&mut server, &world), "xxxxxxxxx.xxx", "both have disconnected");
    drop((client, server));
    let mut rejected = world.connecting();
    let (server, _) = world.requested(&listener);
    drop(server);
    world.expect(&rejected, Kind::REJECTED);
    assert_eq!(calls(&mut rejected, &world), "xxxxxxxxx.xxx", "rejected");
}

#[test]
fn any_call_can_be_made_to_fail_and_then_does_nothing() {
    let world = World::new();
    let listener = world.listener();
    let fails = |verb| world.fabric.inject(Fault::VerbFails { verb, after: 0, count: 1, errno: libc::ENOMEM });
    fails(Verb::RdmaCreateEventChannel);
    assert_eq!(errno(open(&world.fabric)), libc::ENOMEM);
    fails(Verb::RdmaCreateId);
    assert_eq!(errno(Arc::clone(&world.channel).create_id(PortSpace::Tcp, 1)), libc::ENOMEM);
    let mut client = world.id();
    fails(Verb::RdmaResolveAddr);
    assert_eq!(errno(client.resolve_addr(None, world.at(PORT), SECOND)), libc::ENOMEM);
    client.resolve_addr(None, world.at(PORT), SECOND).unwrap();
    world.fabric.run();
    fails(Verb::RdmaGetCmEvent);
    assert_eq!(errno(Arc::clone(&world.channel).take_event(0)), libc::ENOMEM);
    world.expect(&client, Kind::ADDR_RESOLVED);
    fails(Verb::RdmaResolveRoute);
    assert_eq!(errno(client.resolve_route(SECOND)), libc::ENOMEM);
    client.resolve_route(SECOND).unwrap();
    world.expect(&client, Kind::ROUTE_RESOLVED);
    fails(Verb::RdmaConnect);
    assert_eq!(errno(client.connect(&offering(b""))), libc::ENOMEM);
    client.connect(&offering(b"")).unwrap();
    let (mut server, _) = world.requested(&listener);
    fails(Verb::RdmaAccept);
    assert_eq!(errno(server.accept(&offering(b""))), libc::ENOMEM);
    fails(Verb::RdmaReject);
    assert_eq!(errno(server.reject(b"")), libc::ENOMEM);
    server.accept(&offering(b"")).unwrap();
    world.expect(&client, Kind::CONNECT_RESPONSE);
    fails(Verb::RdmaInitQpAttr);
    assert_eq!(errno(client.pair_attributes(ibv_qp_state::IBV_QPS_RTR)), libc::ENOMEM);
    fails(Verb::RdmaEstablish);
    assert_eq!(errno(client.establish()), libc::ENOMEM);
    fails(Verb::RdmaNotify);
    assert_eq!(errno(server.notify_established()), libc::ENOMEM);
    client.establish().unwrap();
    world.expect(&server, Kind::ESTABLISHED);
    fails(Verb::RdmaDisconnect);
    assert_eq!(errno(client.disconnect()), libc::ENOMEM);
    world.quiet();
    let mut id = world.id();
    fails(Verb::RdmaBindAddr);
    assert_eq!(errno(id.bind(world.at(0))), libc::ENOMEM);
    id.bind(world.at(0)).unwrap();
    fails(Verb::RdmaListen);
    assert_eq!(errno(id.listen(0)), libc::ENOMEM);
    id.listen(0).unwrap();
    fails(Verb::RdmaSetOption);
    assert_eq!(errno(id.set_option(IdOption::TypeOfService(0))), libc::ENOMEM);
}

#[test]
fn nothing_is_left_when_all_identifiers_have_ended() {
    let world = World::new();
    let listener = world.listener();
    let connected = world.connected(&listener);
    let taken = (world.connecting(), world.requested(&listener));
    let clients = world.unread::<2>();
    assert_eq!(world.fabric.lock().cm.waiting(listener.key), 2);
    drop((connected, clients, taken, listener));
    world.fabric.run();
    assert_eq!(world.fabric.lock().cm.counts(), [0, 0]);
    world.quiet();
    assert_eq!(world.fabric.next_timer(), None);
    let World { fabric, channel, .. } = world;
    drop(channel);
    assert_eq!(fabric.lock().cm.channels.len(), 0);
}

#[test]
fn a_channel_lives_as_long_as_its_identifiers() {
    let world = World::new();
    let id = world.id();
    let World { fabric, channel, .. } = world;
    drop(channel);
    assert_eq!(fabric.lock().cm.channels.len(), 1);
    drop(id);
    assert_eq!(fabric.lock().cm.channels.len(), 0);
}

#[test]
fn an_automatic_fabric_needs_no_steps() {
    let world = World::on(Fabric::new());
    let listener = world.listener();
    let mut client = world.id();
    let key = || world.fresh_key();
    let take = || Arc::clone(&world.channel).take_event(key()).unwrap().map(|event| event.kind);
    client.resolve_addr(None, world.at(PORT), SECOND).unwrap();
    assert_eq!(take(), Some(Kind::ADDR_RESOLVED));
    client.resolve_route(SECOND).unwrap();
    assert_eq!(take(), Some(Kind::ROUTE_RESOLVED));
    client.connect(&offering(b"")).unwrap();
    assert_eq!(take(), Some(Kind::CONNECT_REQUEST));
    assert_eq!(take(), Some(Kind::REJECTED), "the request was dropped with its event");
    assert!(world.channel.next_timer().is_none());
    drop(listener);
}
