//! Identifiers end at once: nobody moves the clock here, so a drop that waited would never return.
#![cfg(feature = "cm")]

use interlock::cm::{AcceptData, Channel, ConnectData, Idle, Parameters, Progress};
use interlock::soft::Fabric;
use interlock::{Checked, Context};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use support::{PATIENCE, Side, address};

struct World {
    fabric: Fabric,
    context: Context,
    channel: Channel,
}

impl World {
    fn new() -> Self {
        let fabric = Fabric::manual();
        let context = Context::open_on(&fabric, "dev0").unwrap();
        let channel = Channel::open(&context).unwrap();
        Self { fabric, context, channel }
    }

    fn side(&self) -> Side<Checked> {
        Side::new(self.context.checked_domain().unwrap())
    }

    /// Drops the value. The fabric stands still, so a drop that waited for it would never return. Checks that no
    /// identifier of the value is left, that no timer runs for it, and that no event of it comes.
    fn drops_at_once(&self, what: &str, value: impl Sized) {
        drop(value);
        assert_eq!(self.fabric.next_timer(), None, "{what}");
        self.fabric.run();
        let left = format!("{:?}", self.fabric);
        assert!(left.contains("cm_identifiers: 0, cm_events: 0"), "{what}: {left}");
        assert!(!self.channel.readiness().unwrap().wait(Duration::ZERO).unwrap(), "{what}: an event");
    }
}

/// CM040
#[test]
fn what_resolves_ends_at_once() {
    let world = World::new();
    let here = SocketAddr::new(address(&world.context), 7471);
    let IpAddr::V4(ip) = here.ip() else { panic!("not an address of IPv4") };
    let [a, b, c, _] = ip.octets();
    let nobody = SocketAddr::from(([a, b, c, 77], here.port()));
    for to in [here, nobody] {
        let idle = Idle::new(&world.channel).unwrap();
        let resolving = idle.resolve(to, PATIENCE).unwrap();
        assert_eq!(world.fabric.next_timer().is_some(), to == nobody);
        world.drops_at_once("nothing has arrived", resolving);
    }
    let resolving = Idle::new(&world.channel).unwrap().resolve(here, PATIENCE).unwrap();
    world.fabric.run();
    world.drops_at_once("its event is in the channel", resolving);
}

/// CM026
#[test]
fn an_identifier_whose_event_was_taken_ends_at_once() {
    let world = World::new();
    let here = SocketAddr::new(address(&world.context), 7471);
    let resolving = Idle::new(&world.channel).unwrap().resolve(here, PATIENCE).unwrap();
    world.fabric.run();
    let Progress::Pending(resolving) = resolving.poll().unwrap() else { panic!("the route is not resolved yet") };
    world.drops_at_once("the address was taken", resolving);
    let resolving = Idle::new(&world.channel).unwrap().resolve(here, PATIENCE).unwrap();
    let other = Idle::new(&world.channel).unwrap().resolve(here, PATIENCE).unwrap();
    world.fabric.run();
    // This poll takes the events of both identifiers from the channel.
    let other = other.poll().unwrap();
    world.drops_at_once("another took its event", (resolving, other));
}

/// CM040, CM026: both sides, at each step of a connection.
#[test]
fn what_connects_or_accepts_ends_at_once() {
    for step in 0..5 {
        let world = World::new();
        let bound = Idle::new(&world.channel).unwrap().bind(SocketAddr::new(address(&world.context), 0)).unwrap();
        let at = bound.local_address().unwrap();
        let mut listener = bound.listen(0).unwrap();
        let mut resolving = Idle::new(&world.channel).unwrap().resolve(at, PATIENCE).unwrap();
        let resolved = loop {
            world.fabric.run();
            match resolving.poll().unwrap() {
                Progress::Pending(again) => resolving = again,
                Progress::Done(resolved) => break resolved,
            }
        };
        let [mut client, mut server] = [world.side(), world.side()];
        let connecting = resolved.connect(client.take(), &Parameters::default(), &ConnectData::none()).unwrap();
        if step == 0 {
            world.drops_at_once("the request is on its way", (connecting, listener));
            continue;
        }
        world.fabric.run();
        if step == 1 {
            world.drops_at_once("the request is in the channel", (connecting, listener));
            continue;
        }
        let request = listener.poll().unwrap().unwrap();
        if step == 2 {
            world.drops_at_once("the request was taken", (connecting, request, listener));
            continue;
        }
        let accepting = request.accept(server.take(), &Parameters::default(), &AcceptData::none()).unwrap();
        if step == 3 {
            world.drops_at_once("the answer is on its way", (accepting, connecting, listener));
            continue;
        }
        world.fabric.run();
        world.drops_at_once("the answer is in the channel", (connecting, accepting, listener));
    }
}
