//! Messages that are lost, and sent again.

use super::*;

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
    // The server does not accept for 300 s. The client still waits.
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
