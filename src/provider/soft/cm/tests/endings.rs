//! How a connection ends, or is not made.

use super::*;

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
    assert_eq!(errno(server.accept(&offering(b""))), libc::EINVAL);
    let client = world.connecting();
    let (mut server, _) = world.requested(&listener);
    drop(client);
    world.fabric.run();
    assert_eq!(errno(server.reject(b"")), libc::EINVAL);
    // A client that ends before it sends its request causes no event.
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
    // Now the client disconnects and waits for the answer of the server. The drop of the server sends that answer.
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
fn peers_vanish_on_demand() {
    let world = World::new();
    let listener = world.listener();
    world.fabric.inject(Fault::ClientsGone { count: 1 });
    let client = world.connecting();
    let (mut server, _) = world.requested(&listener);
    assert_eq!(errno(server.accept(&offering(b""))), libc::EINVAL);
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
