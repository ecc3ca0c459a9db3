//! Tests of the soft rdma_cm through its traits, on a manual fabric.

use super::*;
use crate::provider::soft::{Fabric, Fault};
use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, Ipv6Addr};

type Kind = RawEventKind;

const SECOND: Duration = Duration::from_secs(1);
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PORT: u16 = 7471;

/// A fabric of two devices, with one channel.
struct World {
    fabric: Fabric,
    channel: Arc<dyn RawChannel>,
    /// The addresses of the two devices.
    ips: [IpAddr; 2],
    last_key: Cell<u64>,
    /// Events that were taken while the test looked for another one.
    held: RefCell<VecDeque<RawEvent>>,
}

/// An identifier and its key.
struct Side {
    id: Box<dyn RawId>,
    key: u64,
}

impl std::ops::Deref for Side {
    type Target = dyn RawId;
    fn deref(&self) -> &Self::Target {
        &*self.id
    }
}

impl std::ops::DerefMut for Side {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.id
    }
}

fn parameters(data: &[u8]) -> Parameters<'_> {
    Parameters {
        private_data: data,
        responder_resources: 4,
        initiator_depth: 3,
        retry_count: 5,
        rnr_retry_count: 6,
        has_shared_receives: false,
        queue_pair: 77,
        qkey: 0,
    }
}

fn padded(data: &[u8], len: usize) -> Vec<u8> {
    let mut padded = data.to_vec();
    padded.resize(len, 0);
    padded
}

fn errno<T>(result: Result<T, VerbError>) -> i32 {
    result.map_or_else(|error| error.errno(), |_| 0)
}

impl World {
    fn new() -> Self {
        Self::on(Fabric::manual())
    }

    fn on(fabric: Fabric) -> Self {
        let channel = open(&fabric).unwrap();
        let mut state = fabric.lock();
        let ips = ["dev0", "dev1"].map(|name| {
            let device = state.device(name).unwrap();
            address::of_device(&state.devices[device])
        });
        drop(state);
        Self { fabric, channel, ips, last_key: 0.into(), held: RefCell::default() }
    }

    fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ips[0], port)
    }

    fn fresh_key(&self) -> u64 {
        self.last_key.set(self.last_key.get() + 1);
        self.last_key.get()
    }

    fn id_in(&self, space: PortSpace) -> Side {
        let key = self.fresh_key();
        Side { id: Arc::clone(&self.channel).create_id(space, key).unwrap(), key }
    }

    fn id(&self) -> Side {
        self.id_in(PortSpace::Tcp)
    }

    /// Does all work, and moves all events from the channel to `held`.
    fn hold(&self) {
        self.fabric.run();
        while let Some(event) = Arc::clone(&self.channel).take_event(self.fresh_key()).unwrap() {
            self.held.borrow_mut().push_back(event);
        }
    }

    fn take(&self) -> Option<RawEvent> {
        self.hold();
        self.held.borrow_mut().pop_front()
    }

    /// Takes the next event of an identifier, which must be of that kind.
    fn expect(&self, side: &Side, kind: Kind) -> RawEvent {
        self.hold();
        let mut held = self.held.borrow_mut();
        let index = held.iter().position(|event| event.key == side.key);
        let event = index.and_then(|index| held.remove(index)).expect("an event");
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }

    fn quiet(&self) {
        let event = self.take();
        assert!(event.is_none(), "{event:?}");
    }

    fn listener_in(&self, space: PortSpace, port: u16) -> Side {
        let mut listener = self.id_in(space);
        listener.bind(SocketAddr::new(ANY, port)).unwrap();
        listener.listen(0).unwrap();
        listener
    }

    fn listener(&self) -> Side {
        self.listener_in(PortSpace::Tcp, PORT)
    }

    /// An identifier that has resolved the route to `to`.
    fn resolved_in(&self, space: PortSpace, to: SocketAddr) -> Side {
        let mut side = self.id_in(space);
        side.resolve_addr(None, to, SECOND).unwrap();
        self.expect(&side, Kind::ADDR_RESOLVED);
        side.resolve_route(SECOND).unwrap();
        self.expect(&side, Kind::ROUTE_RESOLVED);
        side
    }

    /// Clients whose requests wait at the listener.
    fn unread<const N: usize>(&self) -> [Side; N] {
        let mut clients = [(); N].map(|()| self.resolved_in(PortSpace::Tcp, self.at(PORT)));
        for client in &mut clients {
            client.connect(&parameters(b"client")).unwrap();
        }
        self.fabric.run();
        clients
    }

    fn connecting(&self) -> Side {
        let mut side = self.resolved_in(PortSpace::Tcp, self.at(PORT));
        side.connect(&parameters(b"client")).unwrap();
        side
    }

    fn requested(&self, listener: &Side) -> (Side, Said) {
        let event = self.expect(listener, Kind::CONNECT_REQUEST);
        let NewId { raw, key } = event.request.expect("an identifier");
        (Side { id: raw, key }, event.said)
    }

    /// A client that has the answer of its server.
    fn responded(&self, listener: &Side) -> (Side, Side) {
        let client = self.connecting();
        let (mut server, _) = self.requested(listener);
        server.accept(&parameters(b"server")).unwrap();
        self.expect(&client, Kind::CONNECT_RESPONSE);
        (client, server)
    }

    fn connected(&self, listener: &Side) -> (Side, Side) {
        let (mut client, server) = self.responded(listener);
        client.establish().unwrap();
        self.expect(&server, Kind::ESTABLISHED);
        (client, server)
    }
}

/// The result of each call: `.` for success, `x` for `EINVAL`, `c` for `EISCONN`.
fn calls(side: &mut Side, world: &World) -> String {
    let to = world.at(PORT);
    let attributes = |side: &Side, state| errno(side.pair_attributes(state));
    let mut answers = vec![
        attributes(side, ibv_qp_state::IBV_QPS_INIT),
        attributes(side, ibv_qp_state::IBV_QPS_RTR),
        attributes(side, ibv_qp_state::IBV_QPS_ERR),
    ];
    // The order of these calls keeps the state unchanged until the first call that the state allows.
    answers.push(errno(side.accept(&parameters(b""))));
    answers.push(errno(side.reject(b"")));
    answers.push(errno(side.notify_established()));
    answers.push(errno(side.establish()));
    answers.push(errno(side.resolve_route(SECOND)));
    answers.push(errno(side.connect(&parameters(b""))));
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
    // Each letter is a call: attributes for Init, Ready To Receive, Error; accept, reject, notify, establish;
    // resolve_route, connect; disconnect; bind, listen, resolve_addr. If a call changes the state, the calls after it
    // run in the new state.
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
    // From the phase Connecting on, Linux returns 0 for a disconnect.
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
fn a_connection_is_made_by_messages_each_a_unit_of_work() {
    let world = World::new();
    let listener = world.listener();
    let mut client = world.connecting();
    assert!(world.fabric.step());
    let (mut server, said) = world.requested(&listener);
    assert_eq!(said.private_data, padded(b"client", 56));
    assert_eq!([said.responder_resources, said.initiator_depth], [3, 4], "swapped");
    assert_eq!((said.queue_pair, said.rnr_retry_count), (77, 6));
    assert_eq!(server.local_address(), Some(world.at(PORT)));
    assert_eq!(server.peer_address(), client.local_address());
    assert_eq!(client.peer_address(), Some(world.at(PORT)));
    server.accept(&Parameters { queue_pair: 78, ..parameters(b"server") }).unwrap();
    assert!(Arc::clone(&world.channel).take_event(0).unwrap().is_none(), "it is on its way");
    assert!(world.fabric.step());
    let said = world.expect(&client, Kind::CONNECT_RESPONSE).said;
    assert_eq!(said.private_data, padded(b"server", 196));
    assert_eq!((said.queue_pair, said.responder_resources, said.initiator_depth), (78, 3, 4));
    client.establish().unwrap();
    let said = world.expect(&server, Kind::ESTABLISHED).said;
    assert!(said.private_data.is_empty() && said.queue_pair == 0, "no parameters");
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
    client.connect(&parameters(b"")).unwrap();
    let (mut server, _) = world.requested(&listener);
    server.set_option(IdOption::AckTimeout(9)).unwrap();
    let (attributes, mask) = server.pair_attributes(init).unwrap();
    assert_eq!((mask.0, attributes.qp_access_flags), (0x39, 0x30e));
    // The server accepts less than was asked for, but its attributes stay those of the request.
    let less = Parameters { responder_resources: 2, initiator_depth: 1, rnr_retry_count: 2, ..parameters(b"") };
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
    let deep = |depth| Parameters { responder_resources: depth, ..parameters(b"") };
    assert_eq!(errno(client.connect(&deep(129))), libc::EINVAL);
    client.connect(&deep(255)).unwrap();
    let (mut server, said) = world.requested(&listener);
    assert_eq!(said.initiator_depth, 128);
    assert_eq!(errno(server.accept(&deep(129))), libc::EINVAL);
    server.accept(&deep(255)).unwrap();
    assert_eq!(world.expect(&client, Kind::CONNECT_RESPONSE).said.initiator_depth, 3);
}

#[test]
fn private_data_have_the_limits_of_their_calls() {
    let world = World::new();
    let listener = world.listener();
    let mut client = world.resolved_in(PortSpace::Tcp, world.at(PORT));
    assert_eq!(errno(client.connect(&parameters(&[1; 57]))), libc::EINVAL);
    client.connect(&parameters(&[1; 56])).unwrap();
    let (mut server, said) = world.requested(&listener);
    assert_eq!(said.private_data, [1; 56]);
    assert_eq!(errno(server.reject(&[2; 149])), libc::EINVAL);
    server.reject(&[2; 148]).unwrap();
    let event = world.expect(&client, Kind::REJECTED);
    assert_eq!((event.status, event.said.private_data), (28, vec![2; 148]));
    let client = world.connecting();
    let (mut server, _) = world.requested(&listener);
    assert_eq!(errno(server.accept(&parameters(&[3; 197]))), libc::EINVAL);
    let event = world.expect(&client, Kind::REJECTED);
    assert_eq!((event.status, event.said.private_data), (28, vec![0; 148]));
    assert_eq!(errno(server.accept(&parameters(b""))), libc::EINVAL, "used up");
    let client = world.connecting();
    let (mut server, _) = world.requested(&listener);
    server.accept(&parameters(&[3; 196])).unwrap();
    assert_eq!(world.expect(&client, Kind::CONNECT_RESPONSE).said.private_data, [3; 196]);
}

#[test]
fn where_nobody_listens_a_request_is_rejected() {
    let world = World::new();
    let mut client = world.connecting();
    assert_eq!(world.expect(&client, Kind::REJECTED).status, 8);
    assert_eq!(errno(client.connect(&parameters(b""))), libc::EINVAL);
    let _datagrams = world.listener_in(PortSpace::Udp, PORT);
    let client = world.connecting();
    assert_eq!(world.expect(&client, Kind::REJECTED).status, 8);
}

#[test]
fn silence_ends_after_78_seconds() {
    let world = World::new();
    let listener = world.listener();
    world.fabric.inject(Fault::ConnectRequestsLost { count: u32::MAX });
    let client = world.connecting();
    for _ in 0..15 {
        world.quiet();
        let next = world.fabric.next_timer().unwrap();
        assert!(next <= Duration::from_millis(4856), "{next:?}");
        world.fabric.advance(next);
    }
    world.quiet();
    world.fabric.advance(Duration::from_millis(4855));
    world.quiet();
    world.fabric.advance(Duration::from_millis(1));
    assert_eq!(world.expect(&client, Kind::UNREACHABLE).status, -libc::ETIMEDOUT);
    assert_eq!(world.fabric.next_timer(), None);
    drop(listener);
    world.quiet();
}

#[test]
fn a_lost_request_is_sent_again() {
    let world = World::new();
    let listener = world.listener();
    world.fabric.inject(Fault::ConnectRequestsLost { count: 1 });
    let _client = world.connecting();
    world.quiet();
    world.fabric.advance(Duration::from_millis(4856));
    let _server = world.requested(&listener);
    world.quiet();
    // The client waits for a slow server.
    world.fabric.advance(Duration::from_secs(300));
    world.quiet();
}

#[test]
fn requests_beyond_the_backlog_come_again() {
    let world = World::new();
    let mut listener = world.id();
    listener.bind(world.at(PORT)).unwrap();
    listener.listen(2).unwrap();
    let clients = world.unread::<3>();
    assert_eq!(world.fabric.lock().cm.waiting(listener.key), 2);
    let _servers = [world.requested(&listener), world.requested(&listener)];
    world.quiet();
    world.fabric.advance(Duration::from_millis(4856));
    let _server = world.requested(&listener);
    drop(clients);
}

#[test]
fn a_listener_that_ends_rejects_what_nobody_took() {
    let world = World::new();
    let listener = world.listener();
    let (mut connected, _server) = world.connected(&listener);
    let clients = world.unread::<2>();
    drop(listener);
    for client in &clients {
        assert_eq!(world.expect(client, Kind::REJECTED).status, 28);
    }
    world.quiet();
    connected.disconnect().unwrap();
    world.expect(&_server, Kind::DISCONNECTED);
}

#[test]
fn a_server_that_ends_rejects() {
    let world = World::new();
    let listener = world.listener();
    let client = world.connecting();
    drop(world.requested(&listener));
    assert_eq!(world.expect(&client, Kind::REJECTED).status, 28);
    let (mut client, server) = world.responded(&listener);
    drop(server);
    world.fabric.run();
    assert_eq!(errno(client.establish()), libc::EINVAL);
    assert_eq!(world.expect(&client, Kind::REJECTED).status, 28);
}

#[test]
fn a_request_whose_client_has_ended_looks_alive_until_it_is_accepted() {
    let world = World::new();
    let listener = world.listener();
    let client = world.connecting();
    world.fabric.run();
    drop(client);
    let (mut server, _) = world.requested(&listener);
    world.quiet();
    assert_eq!(errno(server.accept(&parameters(b""))), libc::EINVAL);
    let client = world.connecting();
    let (mut server, _) = world.requested(&listener);
    drop(client);
    world.fabric.run();
    assert_eq!(errno(server.reject(b"")), libc::EINVAL);
    // A client that ends before it sends its request leaves no trace.
    drop(world.resolved_in(PortSpace::Tcp, world.at(PORT)));
    world.quiet();
}

#[test]
fn a_client_that_ends_after_the_answer_rejects() {
    let world = World::new();
    let listener = world.listener();
    let (client, server) = world.responded(&listener);
    drop(client);
    assert_eq!(world.expect(&server, Kind::REJECTED).status, 28);
}

#[test]
fn both_sides_hear_of_a_disconnect_and_their_numbers_rest() {
    let world = World::new();
    let listener = world.listener();
    let (mut client, mut server) = world.connected(&listener);
    for _ in 0..3 {
        client.disconnect().unwrap();
    }
    world.expect(&server, Kind::DISCONNECTED);
    world.quiet();
    server.disconnect().unwrap();
    world.expect(&client, Kind::DISCONNECTED);
    world.quiet();
    world.fabric.advance(Duration::from_millis(1050));
    world.expect(&server, Kind::TIMEWAIT_EXIT);
    world.expect(&client, Kind::TIMEWAIT_EXIT);
    assert_eq!(world.fabric.next_timer(), None);
}

#[test]
fn two_that_disconnect_at_once_both_answer() {
    let world = World::new();
    let listener = world.listener();
    let (mut client, mut server) = world.connected(&listener);
    client.disconnect().unwrap();
    server.disconnect().unwrap();
    world.expect(&server, Kind::DISCONNECTED);
    world.expect(&client, Kind::DISCONNECTED);
    world.quiet();
    client.disconnect().unwrap();
    server.disconnect().unwrap();
    world.quiet();
    world.fabric.advance(SECOND * 2);
    world.expect(&client, Kind::TIMEWAIT_EXIT);
    world.expect(&server, Kind::TIMEWAIT_EXIT);
}

#[test]
fn the_end_of_one_side_is_a_disconnect_for_the_other() {
    let world = World::new();
    let listener = world.listener();
    let (client, mut server) = world.connected(&listener);
    drop(client);
    world.expect(&server, Kind::DISCONNECTED);
    server.disconnect().unwrap();
    world.fabric.advance(SECOND * 2);
    world.expect(&server, Kind::TIMEWAIT_EXIT);
    // The other way round: a side that waits for the answer to its disconnect gets it when the peer ends.
    let (mut client, server) = world.connected(&listener);
    client.disconnect().unwrap();
    world.expect(&server, Kind::DISCONNECTED);
    drop(server);
    world.expect(&client, Kind::DISCONNECTED);
}

#[test]
fn a_disconnect_that_nobody_answers_ends_too() {
    let world = World::new();
    let listener = world.listener();
    let (mut client, server) = world.connected(&listener);
    client.disconnect().unwrap();
    world.expect(&server, Kind::DISCONNECTED);
    for _ in 0..16 {
        world.quiet();
        world.fabric.advance(Duration::from_millis(4856));
    }
    assert_eq!(world.expect(&client, Kind::DISCONNECTED).status, -libc::ETIMEDOUT);
    world.fabric.advance(SECOND * 2);
    world.expect(&client, Kind::TIMEWAIT_EXIT);
}

#[test]
fn a_message_of_the_peer_can_stand_for_its_last_word() {
    let world = World::new();
    let listener = world.listener();
    let (mut client, mut server) = world.responded(&listener);
    server.notify_established().unwrap();
    world.expect(&server, Kind::ESTABLISHED);
    assert_eq!(errno(server.notify_established()), libc::EISCONN);
    client.establish().unwrap();
    world.quiet();
    assert_eq!(errno(client.establish()), libc::EINVAL);
}

#[test]
fn a_client_that_never_establishes_is_given_up() {
    let world = World::new();
    let listener = world.listener();
    let (_client, server) = world.responded(&listener);
    for _ in 0..16 {
        world.quiet();
        world.fabric.advance(Duration::from_millis(4856));
    }
    assert_eq!(world.expect(&server, Kind::UNREACHABLE).status, -libc::ETIMEDOUT);
}

#[test]
fn a_last_word_that_was_lost_is_said_again() {
    let world = World::new();
    let listener = world.listener();
    let (mut client, server) = world.responded(&listener);
    client.establish().unwrap();
    world.fabric.inject(Fault::PortDown { device: "dev0".into() });
    world.quiet();
    world.fabric.heal();
    world.quiet();
    world.fabric.advance(Duration::from_millis(4856));
    world.expect(&server, Kind::ESTABLISHED);
}

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
    client.connect(&parameters(b"")).unwrap();
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

#[test]
fn peers_vanish_on_demand() {
    let world = World::new();
    let listener = world.listener();
    world.fabric.inject(Fault::ClientsGone { count: 1 });
    let client = world.connecting();
    let (mut server, _) = world.requested(&listener);
    assert_eq!(errno(server.accept(&parameters(b""))), libc::EINVAL);
    world.quiet();
    drop(client);
    world.fabric.inject(Fault::ServersGone { count: 1 });
    let (mut client, server) = world.responded(&listener);
    world.fabric.run();
    assert_eq!(errno(client.establish()), libc::EINVAL);
    assert_eq!(world.expect(&client, Kind::REJECTED).status, 28);
    drop(server);
    world.quiet();
    let _pair = world.connected(&listener);
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
    assert_eq!(errno(client.connect(&parameters(b""))), libc::ENOMEM);
    client.connect(&parameters(b"")).unwrap();
    let (mut server, _) = world.requested(&listener);
    fails(Verb::RdmaAccept);
    assert_eq!(errno(server.accept(&parameters(b""))), libc::ENOMEM);
    fails(Verb::RdmaReject);
    assert_eq!(errno(server.reject(b"")), libc::ENOMEM);
    server.accept(&parameters(b"")).unwrap();
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
fn datagrams_look_up_their_peer() {
    let world = World::new();
    let listener = world.listener_in(PortSpace::Udp, PORT);
    let asking = |data: &[u8]| {
        let mut client = world.resolved_in(PortSpace::Udp, world.at(PORT));
        client.connect(&parameters(data)).unwrap();
        client
    };
    let mut client = world.resolved_in(PortSpace::Udp, world.at(PORT));
    let (attributes, mask) = client.pair_attributes(ibv_qp_state::IBV_QPS_RTR).unwrap();
    assert_eq!((mask.0, attributes.qkey), (0x71, 0x0123_4567));
    assert_eq!(errno(client.connect(&parameters(&[1; 181]))), libc::EINVAL);
    client.connect(&parameters(&[1; 180])).unwrap();
    let (mut server, said) = world.requested(&listener);
    assert_eq!(said.private_data, [1; 180]);
    server.accept(&Parameters { qkey: 0x55, queue_pair: 99, ..parameters(&[2; 136]) }).unwrap();
    let said = world.expect(&client, Kind::ESTABLISHED).said;
    assert_eq!((said.queue_pair, said.qkey, said.private_data), (99, 0x55, vec![2; 136]));
    assert_eq!(said.path.unwrap().grh.dgid.bytes(), world.fabric.lock().gid_of(0));
    drop((client, server));
    world.quiet();

    let client = asking(b"");
    let (mut server, said) = world.requested(&listener);
    assert_eq!(said.private_data, [0; 180]);
    assert_eq!(errno(server.reject(&[3; 137])), libc::EINVAL);
    server.reject(b"no").unwrap();
    let event = world.expect(&client, Kind::UNREACHABLE);
    assert_eq!((event.status, event.said.private_data), (2, padded(b"no", 136)));

    let client = asking(b"");
    let (mut server, _) = world.requested(&listener);
    assert_eq!(errno(server.accept(&parameters(&[3; 137]))), libc::EINVAL);
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
    assert_eq!((event.status, event.said.queue_pair, event.said.qkey), (0, 0xff_ffff, 0x0123_4567));
    assert_eq!(event.said.path.unwrap().grh.dgid.bytes()[12..], [239, 1, 2, 3]);
    id.leave_multicast(group).unwrap();
    assert_eq!(errno(id.leave_multicast(group)), libc::EADDRNOTAVAIL);
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
    client.connect(&parameters(b"")).unwrap();
    assert_eq!(take(), Some(Kind::CONNECT_REQUEST));
    assert_eq!(take(), Some(Kind::REJECTED), "the request was dropped with its event");
    assert!(world.channel.next_timer().is_none());
    drop(listener);
}
