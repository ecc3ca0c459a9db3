//! Connections by address on soft devices with injected faults, and with a clock that the test moves.
#![cfg(feature = "cm")]

use interlock::cm::{
    self, AcceptData, Advice, Cause, Channel, CmError, ConnectData, Connection, Failed, Idle, Listener, LookupData,
    Parameters, Progress, RejectData, RejectReason, Resolved,
};
use interlock::error::{CreateError, NotOnIwarp, RegisterFailure, RequestFlaw, TransitionFailure};
use interlock::memory::Foreign;
use interlock::number::AckTimeout;
use interlock::soft::{Fabric, Fault, Profile, Verb};
use interlock::state::DeviceState;
use interlock::{AnyQueuePair, Checked, Context, Limits, LocalWrite, PostError, RemoteAtomic, RemoteWrite};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use support::{Counted, PATIENCE, Side, address, eventually, message};

const SHORT: Duration = Duration::from_millis(50);
/// Half of this time is much more than a timer of [`SHORT`] usually takes.
const TOO_LONG: Duration = Duration::from_secs(3);

/// One device of a fabric of the test's own, with a listener.
struct World {
    fabric: Fabric,
    context: Context,
    listener: Listener,
    at: SocketAddr,
}

impl World {
    fn on(fabric: Fabric) -> Self {
        let context = Context::open_on(&fabric, "dev0").unwrap();
        let listener = cm::listen(&context, (address(&context), 0)).unwrap();
        let at = listener.local_address().unwrap();
        Self { fabric, context, listener, at }
    }

    fn side(&self) -> Side<Checked> {
        Side::new(self.context.checked_domain().unwrap())
    }

    fn resolved(&self) -> Resolved {
        let channel = Channel::open(&self.context).unwrap();
        let mut resolving = Idle::new(&channel).unwrap().resolve(self.at, PATIENCE).unwrap();
        loop {
            self.fabric.run();
            match resolving.poll().unwrap() {
                Progress::Pending(again) => resolving = again,
                Progress::Done(resolved) => return resolved,
            }
        }
    }

    fn connecting(&self, side: &mut Side<Checked>) -> cm::Connecting<Checked> {
        self.resolved().connect(side.take(), &Parameters::default(), &ConnectData::none()).unwrap()
    }

    fn accepting(&mut self, side: &mut Side<Checked>) -> Result<cm::Accepting<Checked>, Failed<AnyQueuePair<Checked>>> {
        let request = self.listener.next(PATIENCE).unwrap();
        request.accept(side.take(), &Parameters::default(), &AcceptData::none())
    }

    /// A client and its server.
    fn connected(&mut self) -> [(Side<Checked>, Connection<Checked>); 2] {
        let [mut client, mut server] = [self.side(), self.side()];
        let connecting = self.connecting(&mut client);
        let accepting = self.accepting(&mut server).unwrap();
        let of_client = connecting.wait(PATIENCE).unwrap();
        let of_server = accepting.wait(PATIENCE).unwrap();
        [(client, of_client), (server, of_server)]
    }

    /// Ends the listener, and checks that rdma_cm then has no identifier and no event left.
    fn ends_clean(self) {
        let Self { fabric, context, listener, .. } = self;
        drop(listener);
        // On iWARP a thread sometimes still has to drop an identifier, so this can take a moment.
        let is_clean = eventually(|| {
            fabric.run();
            format!("{fabric:?}").contains("cm_identifiers: 0, cm_events: 0")
        });
        assert!(is_clean, "{fabric:?}");
        drop(context);
    }
}

fn fails(verb: Verb) -> Fault {
    Fault::VerbFails { verb, after: 0, count: 1, errno: libc::ENOMEM }
}

fn is_refused(cause: &Cause) -> bool {
    matches!(cause, Cause::Rejected { reason: RejectReason::CONSUMER, .. })
}

/// CM005
#[test]
fn a_pair_of_another_device_comes_back() {
    let world = World::on(Fabric::new());
    let other = Context::open_on(&world.fabric, "dev1").unwrap();
    let mut stranger = Side::new(other.checked_domain().unwrap());
    let failed = world
        .resolved()
        .connect(stranger.take(), &Parameters::default(), &ConnectData::none())
        .expect_err("a pair of another device");
    let Cause::OtherDevice { wanted, found } = &failed.cause else { panic!("{failed:?}") };
    assert_eq!((wanted.as_str(), found.as_str()), ("dev0 port 1", "dev1 port 1"));
    let (resolved, _pair) = failed.value;
    let mut side = world.side();
    drop(resolved.connect(side.take(), &Parameters::default(), &ConnectData::none()).unwrap());
    world.ends_clean();
}

/// CM005, on the side that accepts: the request is rejected.
#[test]
fn a_request_is_rejected_when_the_pair_is_of_another_device() {
    let mut world = World::on(Fabric::new());
    let other = Context::open_on(&world.fabric, "dev1").unwrap();
    let (mut client, mut stranger) = (world.side(), Side::new(other.checked_domain().unwrap()));
    let connecting = world.connecting(&mut client);
    let failed = world.accepting(&mut stranger).unwrap_err();
    assert!(matches!(failed.cause, Cause::OtherDevice { .. }), "{failed:?}");
    assert!(matches!(failed.value, AnyQueuePair::Init(_)));
    assert!(is_refused(&connecting.wait(PATIENCE).unwrap_err().cause));
    world.ends_clean();
}

/// CM016
#[test]
fn a_host_that_does_not_answer_costs_no_more_than_the_timeout() {
    let world = World::on(Fabric::new());
    world.fabric.inject(Fault::ConnectRequestsLost { count: u32::MAX });
    let mut client = world.side();
    let start = Instant::now();
    let failed = world.connecting(&mut client).wait(SHORT).unwrap_err();
    assert!(matches!(failed.cause, Cause::TimedOut(_)), "{failed:?}");
    assert!(matches!(failed.value, AnyQueuePair::Init(_)));
    assert!(start.elapsed() >= SHORT && start.elapsed() < PATIENCE);
    world.ends_clean();
}

/// The sleeping thread chose its timeout before the other thread set a timer.
#[test]
fn a_timer_is_not_slept_over_while_another_thread_sleeps_on_the_channel() {
    let fabric = Fabric::new();
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let channel = Channel::open(&context).unwrap();
    let here = SocketAddr::new(address(&context), 0);
    let mut listener = Idle::new(&channel).unwrap().bind(here).unwrap().listen(0).unwrap();
    let IpAddr::V4(ip) = here.ip() else { panic!("not an address of IPv4") };
    let [a, b, c, _] = ip.octets();
    let nobody = SocketAddr::from(([a, b, c, 77], 7471));
    // A slow thread can be late in some attempts. A timer that is slept over is late in all of them.
    for _ in 0..5 {
        let is_in_time = thread::scope(|scope| {
            let sleeper = scope.spawn(|| listener.next(TOO_LONG).unwrap_err());
            thread::sleep(SHORT);
            let start = Instant::now();
            let resolving = Idle::new(&channel).unwrap().resolve(nobody, SHORT).unwrap();
            let failed = resolving.wait(TOO_LONG).unwrap_err();
            let is_in_time = start.elapsed() < TOO_LONG / 2;
            assert!(!is_in_time || matches!(failed.cause, Cause::Address(_)), "{failed:?}");
            assert!(matches!(sleeper.join().unwrap(), CmError::TimedOut(_)));
            is_in_time
        });
        if is_in_time {
            return;
        }
    }
    panic!("the timer is slept over");
}

/// CM017
#[test]
fn a_host_that_does_not_answer_is_given_up_after_78_seconds() {
    let world = World::on(Fabric::manual());
    world.fabric.inject(Fault::ConnectRequestsLost { count: u32::MAX });
    let mut client = world.side();
    let mut connecting = world.connecting(&mut client);
    let mut waited = Duration::ZERO;
    let failed = loop {
        world.fabric.run();
        match connecting.poll() {
            Ok(Progress::Pending(again)) => connecting = again,
            Ok(Progress::Done(_)) => panic!("connected"),
            Err(failed) => break failed,
        }
        let next = world.fabric.next_timer().expect("it asks again, or gives up");
        waited += next;
        world.fabric.advance(next);
    };
    assert!(matches!(failed.cause, Cause::Unreachable { status } if status == -libc::ETIMEDOUT), "{failed:?}");
    assert!(matches!(failed.value, AnyQueuePair::Init(_)));
    assert_eq!(waited.as_secs(), 77);
    world.ends_clean();
}

/// CM018
#[test]
fn a_client_that_vanishes_is_noticed_by_the_accept() {
    let mut world = World::on(Fabric::new());
    world.fabric.inject(Fault::ClientsGone { count: 1 });
    let [mut client, mut server] = [world.side(), world.side()];
    let connecting = world.connecting(&mut client);
    let failed = world.accepting(&mut server).unwrap_err();
    assert!(matches!(failed.cause, Cause::PeerGone(_)), "{failed:?}");
    assert!(matches!(failed.value, AnyQueuePair::Errored(_)));
    drop(connecting);
    world.ends_clean();
}

/// CM021
#[test]
fn a_server_that_vanishes_after_its_accept_is_one_error() {
    let mut world = World::on(Fabric::new());
    world.fabric.inject(Fault::ServersGone { count: 1 });
    let [mut client, mut server] = [world.side(), world.side()];
    let connecting = world.connecting(&mut client);
    let accepting = world.accepting(&mut server).unwrap();
    let failed = connecting.wait(PATIENCE).unwrap_err();
    assert!(is_refused(&failed.cause), "{failed:?}");
    assert!(matches!(accepting.wait(SHORT).unwrap_err().cause, Cause::TimedOut(_)));
    world.ends_clean();
}

/// CM021. The client is connected, and the server ends before it hears of that. The rejection ends the client's
/// connection.
#[test]
fn a_server_that_ends_before_it_hears_of_the_connection_rejects_it() {
    let mut world = World::on(Fabric::manual());
    let [mut client, mut server] = [world.side(), world.side()];
    let connecting = world.connecting(&mut client);
    world.fabric.run();
    let accepting = world.accepting(&mut server).unwrap();
    world.fabric.run();
    let Ok(Progress::Done(mut of_client)) = connecting.poll() else { panic!("the client has its answer") };
    of_client.pair.post_receive(client.domain.buffer(8).unwrap()).unwrap();
    drop(accepting);
    world.fabric.run();
    let end = of_client.poll_end().unwrap();
    assert!(end.as_ref().is_some_and(is_refused), "{end:?}");
    world.fabric.run();
    let failure = client.poller.poll().unwrap().expect("the receive").check().unwrap_err();
    assert!(failure.into_buffer().is_some());
    let mut ended = of_client.disconnect().unwrap();
    world.fabric.advance(2 * PATIENCE);
    world.fabric.run();
    assert!(ended.wait_for_number(Duration::ZERO).unwrap(), "its number has rested");
    drop((ended, server, client));
    world.ends_clean();
}

/// CM032
#[test]
fn clients_beyond_the_backlog_come_again() {
    let world = World::on(Fabric::manual());
    let channel = Channel::open(&world.context).unwrap();
    let bound = Idle::new(&channel).unwrap().bind(SocketAddr::new(world.at.ip(), 0)).unwrap();
    let World { fabric, context, listener, .. } = world;
    let at = bound.local_address().unwrap();
    let world = World { fabric, context, listener, at };
    let mut late = bound.listen(2).unwrap();
    let mut sides: Vec<_> = (0..6).map(|_| world.side()).collect();
    let clients: Vec<_> = sides.iter_mut().map(|side| world.connecting(side)).collect();
    let mut taken = Vec::new();
    for expected in [2, 4, 6] {
        world.fabric.run();
        while let Some(request) = late.poll().unwrap() {
            taken.push(request);
        }
        assert_eq!(taken.len(), expected);
        world.fabric.advance(Duration::from_secs(5));
    }
    drop((clients, taken, late));
    world.ends_clean();
}

/// CM033
#[test]
fn data_may_arrive_before_the_connection_is_established() {
    let mut world = World::on(Fabric::manual());
    let [mut client, mut server] = [world.side(), world.side()];
    let connecting = world.connecting(&mut client);
    world.fabric.run();
    let request = world.listener.poll().unwrap().unwrap();
    let mut pair = server.take();
    pair.post_receive(server.domain.buffer(64).unwrap()).unwrap();
    let accepting = request.accept(pair, &Parameters::default(), &AcceptData::none()).unwrap();
    world.fabric.run();
    let Progress::Done(mut of_client) = connecting.poll().unwrap() else { panic!("no answer") };
    // The client's last packet of the handshake is in flight, and the message overtakes it.
    of_client.pair.post_send(message(&client.domain, b"early")).unwrap();
    let received = loop {
        assert!(world.fabric.step());
        if let Some(completion) = server.poller.poll().unwrap() {
            break completion.check().unwrap().into_received().unwrap();
        }
    };
    assert_eq!(&received[..], b"early");
    let Progress::Pending(mut accepting) = accepting.poll().unwrap() else { panic!("established already") };
    accepting.message_arrived();
    let Progress::Done(_of_server) = accepting.poll().unwrap() else { panic!("not established") };
    world.fabric.run();
    assert!(of_client.poll_end().unwrap().is_none());
}

/// CM038
#[test]
fn a_removed_device_ends_everything_on_it() {
    let mut world = World::on(Fabric::new());
    let ends = world.connected();
    let mut waiting = world.side();
    let connecting = world.connecting(&mut waiting);
    let resolved = world.resolved();
    world.fabric.inject(Fault::DeviceRemoved { device: "dev0".into() });
    for (_, mut connection) in ends {
        for _ in 0..2 {
            let end = connection.wait_end(PATIENCE).unwrap();
            assert!(matches!(end, Some(Cause::DeviceRemoved)), "{end:?}");
        }
    }
    assert!(matches!(connecting.wait(PATIENCE).unwrap_err().cause, Cause::DeviceRemoved));
    // The request of `connecting` came before the removal, so the listener can still return it first.
    drop(world.listener.poll().unwrap());
    for _ in 0..2 {
        assert!(matches!(world.listener.poll(), Err(CmError::DeviceRemoved)));
        assert!(matches!(world.listener.next(PATIENCE), Err(CmError::DeviceRemoved)));
    }
    drop(resolved);
    // The device could not destroy some objects, which stay allocated, so this test does not call `ends_clean`.
    world.fabric.heal();
}

/// CM038: after the removal, each call of an identifier reports the removal, also when it is repeated, and gives
/// everything back.
#[test]
fn an_identifier_of_a_removed_device_says_so_in_every_call() {
    for profile in [Profile::Specification, Profile::Siw] {
        let world = World::on(Fabric::with_profile(profile));
        let channel = Channel::open(&world.context).unwrap();
        let bound = Idle::new(&channel).unwrap().bind((address(&world.context), 0).into()).unwrap();
        let mut resolved = world.resolved();
        let mut pair = world.side().take();
        world.fabric.inject(Fault::DeviceRemoved { device: "dev0".into() });
        for _ in 0..2 {
            let failed = resolved.connect(pair, &Parameters::default(), &ConnectData::none()).unwrap_err();
            assert!(matches!(failed.cause, Cause::DeviceRemoved), "{failed:?}");
            (resolved, pair) = failed.value;
        }
        let failed = bound.listen(0).unwrap_err();
        assert!(matches!(failed.cause, Cause::DeviceRemoved), "{failed:?}");
        drop((resolved, failed));
        world.fabric.heal();
    }
}

/// CM038, for datagrams.
#[test]
fn a_lookup_or_a_group_of_a_removed_device_says_so() {
    let fabric = Fabric::new();
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let channel = Channel::open(&context).unwrap();
    let new = || Idle::for_datagrams(&channel).unwrap();
    let at = SocketAddr::new(address(&context), 0);
    let listener = cm::serve(&context, at).unwrap();
    let at = listener.local_address().unwrap();
    let resolved = || new().resolve(at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
    let bound = || new().bind(SocketAddr::new(at.ip(), 0)).unwrap();
    let (resolved, bound, member) = (resolved(), bound(), bound().join(GROUP).unwrap().wait(PATIENCE).unwrap());
    fabric.inject(Fault::DeviceRemoved { device: "dev0".into() });
    let failed = resolved.look_up(&LookupData::none()).unwrap_err();
    assert!(matches!(failed.cause, Cause::DeviceRemoved), "{failed:?}");
    let failed = failed.value.look_up(&LookupData::none()).unwrap_err();
    assert!(matches!(failed.cause, Cause::DeviceRemoved), "{failed:?}");
    let failed = bound.join(GROUP).unwrap_err();
    assert!(matches!(failed.cause, Cause::DeviceRemoved), "{failed:?}");
    let failed = member.leave().unwrap_err();
    assert!(matches!(failed.cause, Cause::DeviceRemoved), "{failed:?}");
    fabric.heal();
}

const GROUP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(239, 7, 7, 9));

/// The network ends a membership, and the program leaves the group and joins it again. The event that ended the old
/// membership does not end the new one, whether [`Channel::poll`] has taken the event from the channel before or not.
#[test]
fn a_membership_that_was_lost_does_not_end_the_next_one() {
    let fabric = Fabric::new();
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let channel = Channel::open(&context).unwrap();
    let bound = Idle::for_datagrams(&channel).unwrap().bind((address(&context), 0).into()).unwrap();
    let mut member = bound.join(GROUP).unwrap().wait(PATIENCE).unwrap();
    let lose = || fabric.inject(Fault::GroupsLost { device: "dev0".into() });
    for is_taken in [true, false] {
        lose();
        if is_taken {
            channel.poll().unwrap();
        }
        member = member.leave().unwrap().join(GROUP).unwrap().wait(PATIENCE).unwrap();
    }
    // On this fabric a join is done at once.
    let bound = member.leave().unwrap();
    let joining = bound.join(GROUP).unwrap();
    let Progress::Done(member) = joining.poll().unwrap() else { panic!("not joined") };
    // On a manual fabric the join is still in progress when the network ends the membership, so the join fails.
    let manual = Fabric::manual();
    let context = Context::open_on(&manual, "dev0").unwrap();
    let channel = Channel::open(&context).unwrap();
    let bound = Idle::for_datagrams(&channel).unwrap().bind((address(&context), 0).into()).unwrap();
    let joining = bound.join(GROUP).unwrap();
    manual.inject(Fault::GroupsLost { device: "dev0".into() });
    let failed = joining.poll().unwrap_err();
    assert!(matches!(&failed, Cause::Failed(error) if error.errno() == libc::ENETRESET), "{failed:?}");
    drop(member);
}

/// The network ends a membership. The membership says so, once it is asked or while it waits, and goes on saying it.
#[test]
fn a_membership_says_that_the_network_has_ended_it() {
    let fabric = Fabric::new();
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let channel = Channel::open(&context).unwrap();
    let bound = Idle::for_datagrams(&channel).unwrap().bind((address(&context), 0).into()).unwrap();
    let mut member = bound.join(GROUP).unwrap().wait(PATIENCE).unwrap();
    for waits in [false, true] {
        assert!(member.poll_end().unwrap().is_none());
        assert!(member.wait_end(Duration::ZERO).unwrap().is_none());
        fabric.inject(Fault::GroupsLost { device: "dev0".into() });
        let end = if waits { member.wait_end(PATIENCE) } else { member.poll_end() };
        assert!(matches!(end, Ok(Some(Cause::Failed(error))) if error.errno() == libc::ENETRESET));
        assert!(matches!(member.poll_end(), Ok(Some(Cause::Failed(_)))));
        member = member.leave().unwrap().join(GROUP).unwrap().wait(PATIENCE).unwrap();
    }
    fabric.inject(Fault::DeviceRemoved { device: "dev0".into() });
    assert!(matches!(member.wait_end(PATIENCE), Ok(Some(Cause::DeviceRemoved))));
    fabric.heal();
}

/// The device refuses to move the pair when the end is seen. The call says so, and the next call tries again.
#[test]
fn a_pair_that_was_not_moved_at_its_end_is_moved_by_the_next_look() {
    let mut world = World::on(Fabric::with_profile(Profile::Rxe));
    let [(mut client, mut of_client), (server, of_server)] = world.connected();
    of_client.pair.post_receive(client.domain.buffer(64).unwrap()).unwrap();
    drop((of_server, server));
    world.fabric.inject(fails(Verb::ModifyQp));
    let refused = of_client.wait_end(PATIENCE).unwrap_err();
    assert_eq!(refused.verb(), "ibv_modify_qp", "{refused}");
    assert!(matches!(of_client.wait_end(PATIENCE).unwrap(), Some(Cause::Disconnected)));
    assert!(client.poller.wait(PATIENCE).unwrap().check().unwrap_err().into_buffer().is_some());
}

/// The peer goes, and then the device. Nobody has looked in between.
#[test]
fn the_end_of_a_connection_whose_device_is_gone_too_is_told() {
    let mut world = World::on(Fabric::new());
    let [(_client, mut of_client), (server, of_server)] = world.connected();
    drop((of_server, server));
    world.fabric.inject(Fault::DeviceRemoved { device: "dev0".to_owned() });
    for _ in 0..2 {
        let end = of_client.wait_end(PATIENCE).unwrap();
        assert!(matches!(end, Some(Cause::Disconnected | Cause::DeviceRemoved)), "{end:?}");
    }
}

/// CM044: the number of a pair comes free although the first disconnect failed.
#[test]
fn a_disconnect_that_failed_is_tried_again_by_the_wait_for_the_number() {
    let mut world = World::on(Fabric::new());
    let [(mut client, of_client), (_server, of_server)] = world.connected();
    let mut of_server = of_server;
    world.fabric.inject(Fault::VerbFails { verb: Verb::RdmaDisconnect, after: 0, count: 2, errno: libc::ENOMEM });
    let mut ended = of_client.disconnect().unwrap();
    ended.pair.drain(&mut client.poller, PATIENCE, drop).unwrap();
    assert!(of_server.poll_end().unwrap().is_none(), "nobody has told the peer");
    assert_eq!(ended.wait_for_number(PATIENCE).unwrap_err().errno(), libc::ENOMEM, "it failed again, and says so");
    let peer = thread::spawn(move || {
        assert!(matches!(of_server.wait_end(PATIENCE).unwrap(), Some(Cause::Disconnected)));
        drop(of_server.disconnect().unwrap());
    });
    assert!(ended.wait_for_number(PATIENCE).unwrap());
    peer.join().unwrap();
    drop(ended);
    world.ends_clean();
}

/// A failed disconnect on a device that was removed is no error: the number will not be used again.
#[test]
fn the_number_of_a_removed_device_is_not_waited_for() {
    let mut world = World::on(Fabric::new());
    let [(_client, of_client), (_server, _of_server)] = world.connected();
    world.fabric.inject(Fault::VerbFails { verb: Verb::RdmaDisconnect, after: 0, count: 2, errno: libc::ENODEV });
    let mut ended = of_client.disconnect().unwrap();
    world.fabric.inject(Fault::DeviceRemoved { device: "dev0".into() });
    assert!(!ended.wait_for_number(PATIENCE).unwrap());
    assert!(!ended.wait_for_number(Duration::MAX).unwrap(), "the event of the removal was taken before");
    drop(ended);
    world.fabric.heal();
}

/// CM038: rdma_cm returns the same error as for a client that has gone, but the cause is the removal.
#[test]
fn a_request_whose_device_was_removed_is_not_one_whose_client_has_gone() {
    for fabric in [Fabric::new(), Fabric::with_profile(Profile::Siw)] {
        let mut world = World::on(fabric);
        let [mut client, mut server] = [world.side(), world.side()];
        let _connecting = world.connecting(&mut client);
        let request = world.listener.next(PATIENCE).unwrap();
        world.fabric.inject(Fault::DeviceRemoved { device: "dev0".into() });
        let failed = request.accept(server.take(), &Parameters::default(), &AcceptData::none()).unwrap_err();
        assert!(matches!(failed.cause, Cause::DeviceRemoved), "{failed:?}");
        world.fabric.heal();
    }
}

/// rdma_cm chooses the first packet number of a pair, and the pair knows it.
#[test]
fn a_pair_knows_the_first_number_that_it_sends() {
    let mut world = World::on(Fabric::new());
    for (_, connection) in world.connected() {
        assert_eq!(connection.pair.psn(), connection.pair.query().unwrap().send_psn);
        assert_eq!(connection.pair.endpoint().psn(), connection.pair.psn());
    }
}

/// CM039
#[test]
fn a_changed_neighbour_does_not_end_a_connection() {
    let mut world = World::on(Fabric::new());
    let [(mut client, mut of_client), (mut server, mut of_server)] = world.connected();
    world.fabric.inject(Fault::NeighbourChanged { device: "dev0".into() });
    for end in [&mut of_client, &mut of_server] {
        assert_eq!(end.take_advice(), None);
        assert!(end.poll_end().unwrap().is_none());
        assert_eq!((end.take_advice(), end.take_advice()), (Some(Advice::NeighbourChanged), None));
    }
    of_server.pair.post_receive(server.domain.buffer(64).unwrap()).unwrap();
    of_client.pair.post_send(message(&client.domain, b"on")).unwrap();
    client.poller.wait(PATIENCE).unwrap().check().unwrap();
    assert_eq!(&server.received()[..], b"on");
    drop((of_client, of_server));
    world.ends_clean();
}

#[test]
fn a_call_that_fails_gives_back_what_it_took() {
    let mut world = World::on(Fabric::new());
    let mut client = world.side();
    world.fabric.inject(fails(Verb::RdmaConnect));
    let failed = world.resolved().connect(client.take(), &Parameters::default(), &ConnectData::none()).unwrap_err();
    assert!(matches!(&failed.cause, Cause::Call(error) if error.verb() == "rdma_connect"), "{failed:?}");
    let (resolved, pair) = failed.value;
    let connecting = resolved.connect(pair, &Parameters::default(), &ConnectData::none()).unwrap();
    // A failed accept consumes its request.
    world.fabric.inject(fails(Verb::RdmaAccept));
    let mut server = world.side();
    let failed = world.accepting(&mut server).unwrap_err();
    assert!(matches!(failed.value, AnyQueuePair::Errored(_)), "{failed:?}");
    // This side failed, so the cause is not `PeerGone`.
    assert!(matches!(failed.cause, Cause::Call(_)), "{failed:?}");
    let failed = connecting.wait(PATIENCE).unwrap_err();
    assert!(is_refused(&failed.cause));
    let AnyQueuePair::Init(pair) = failed.value else { panic!("not in Init") };
    // If `rdma_init_qp_attr` fails, the accept also ends its request, but the pair is unchanged.
    client.pair = Some(pair);
    server = world.side();
    let connecting = world.connecting(&mut client);
    world.fabric.inject(fails(Verb::RdmaInitQpAttr));
    let failed = world.accepting(&mut server).unwrap_err();
    assert!(matches!(failed.value, AnyQueuePair::Init(_)));
    assert!(matches!(failed.cause, Cause::Call(_)), "{failed:?}");
    assert!(is_refused(&connecting.wait(PATIENCE).unwrap_err().cause));
    // If the client's last step (`rdma_establish`) fails, the client ends the connection, and the server's accept is
    // rejected.
    let [mut client, mut server] = [world.side(), world.side()];
    let connecting = world.connecting(&mut client);
    let accepting = world.accepting(&mut server).unwrap();
    world.fabric.inject(fails(Verb::RdmaEstablish));
    let failed = connecting.wait(PATIENCE).unwrap_err();
    assert!(matches!(failed.value, AnyQueuePair::Errored(_)), "{failed:?}");
    assert!(is_refused(&accepting.wait(PATIENCE).unwrap_err().cause));
    world.ends_clean();
}

#[test]
fn a_channel_or_an_identifier_that_cannot_be_made_is_an_error() {
    let world = World::on(Fabric::new());
    world.fabric.inject(fails(Verb::RdmaCreateEventChannel));
    assert!(matches!(Channel::open(&world.context), Err(CmError::Call(_))));
    let channel = Channel::open(&world.context).unwrap();
    world.fabric.inject(fails(Verb::RdmaCreateId));
    assert!(matches!(Idle::new(&channel), Err(CmError::Call(_))));
    let idle = Idle::new(&channel).unwrap();
    world.fabric.inject(fails(Verb::RdmaResolveAddr));
    let idle = idle.resolve(world.at, PATIENCE).unwrap_err().value;
    let resolving = idle.resolve(world.at, PATIENCE).unwrap();
    world.fabric.inject(fails(Verb::RdmaResolveRoute));
    assert!(matches!(resolving.wait(PATIENCE).unwrap_err().cause, Cause::Call(_)));
    world.fabric.inject(fails(Verb::RdmaGetCmEvent));
    assert!(Idle::new(&channel).unwrap().resolve(world.at, PATIENCE).unwrap().poll().is_err());
    drop(channel);
    world.ends_clean();
}

#[test]
fn the_two_sides_may_be_on_two_devices() {
    let mut world = World::on(Fabric::new());
    let other = Context::open_on(&world.fabric, "dev1").unwrap();
    let channel = Channel::open(&other).unwrap();
    let source = SocketAddr::new(address(&other), 0);
    let resolving = Idle::new(&channel).unwrap().resolve_from(source, world.at, PATIENCE).unwrap();
    let resolved = resolving.wait(PATIENCE).unwrap();
    assert_eq!(resolved.device(), "dev1");
    let (mut client, mut server) = (Side::new(other.checked_domain().unwrap()), world.side());
    let connecting = resolved.connect(client.take(), &Parameters::default(), &ConnectData::none()).unwrap();
    let accepting = world.accepting(&mut server).unwrap();
    let mut of_client = connecting.wait(PATIENCE).unwrap();
    let mut of_server = accepting.wait(PATIENCE).unwrap();
    of_server.pair.post_receive(server.domain.buffer(64).unwrap()).unwrap();
    of_client.pair.post_send(message(&client.domain, b"across")).unwrap();
    assert_eq!(&server.received()[..], b"across");
}

/// On the profile of soft iWARP, the library refuses what such devices do not support. It does so before it calls a
/// verb, and gives the objects back.
#[test]
fn an_iwarp_device_refuses_what_it_does_not_do() {
    let mut world = World::on(Fabric::with_profile(Profile::Siw));
    assert!(world.context.is_iwarp());
    let domain = world.context.checked_domain().unwrap();
    let (queue, _poller) = domain.completion_queue(64).unwrap();
    let limits = Limits::default();
    for error in [domain.datagram(&queue, &limits).unwrap_err(), domain.unreliable(&queue, &limits).unwrap_err()] {
        assert!(matches!(error, CreateError::NotOnIwarp(NotOnIwarp::OtherTransports)), "{error:?}");
    }
    assert_eq!(domain.window().unwrap_err().errno(), libc::EOPNOTSUPP);
    let error = domain.register::<RemoteAtomic, _>(vec![7_u64; 4]).unwrap_err();
    assert!(matches!(error.source, RegisterFailure::NotOnIwarp(NotOnIwarp::Atomics)), "{error}");
    assert_eq!(error.memory, [7; 4]);
    let (pair, peer) = (world.side().take(), world.side().take());
    let error = pair.connect(&peer.endpoint()).unwrap_err();
    assert!(matches!(error.source, TransitionFailure::NotOnIwarp(NotOnIwarp::Records)), "{error:?}");
    assert!(error.to_string().contains("cm::connect"), "{error}");
    let AnyQueuePair::Init(pair) = error.queue_pair else { panic!("{:?}", error.queue_pair) };
    let error = pair.into_reset().unwrap_err();
    assert!(matches!(error.source, TransitionFailure::NotOnIwarp(NotOnIwarp::Reset)), "{error:?}");

    let [(side, client), _server] = world.connected();
    let mut pair = client.pair;
    let word = side.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap().remote();
    let error = pair.post_send_with_immediate(message(&side.domain, b"hello"), 7).unwrap_err();
    let PostError::Flawed { request, flaw } = error else { panic!("{error:?}") };
    assert_eq!((&request[..], flaw), (&b"hello"[..], RequestFlaw::NotOnIwarp(NotOnIwarp::Immediates)));
    let error = pair.post_write_with_immediate(request, &word, 7).unwrap_err();
    assert!(matches!(error, PostError::Flawed { flaw: RequestFlaw::NotOnIwarp(NotOnIwarp::Immediates), .. }));
    let other = Context::open_on(&Fabric::new(), "dev0").unwrap().checked_domain().unwrap();
    let region = other.register::<RemoteAtomic, _>(vec![0_u64; 1]).unwrap();
    let error = pair.post_fetch_and_add(side.domain.buffer(8).unwrap(), &region.remote(), 1).unwrap_err();
    assert!(matches!(error, PostError::Flawed { flaw: RequestFlaw::NotOnIwarp(NotOnIwarp::Atomics), .. }));
    let error = pair.into_sqd().unwrap_err();
    assert!(matches!(error.source, TransitionFailure::NotOnIwarp(NotOnIwarp::Drain)), "{error:?}");
}

/// Checks that a failed step gives its pair back in Error: the type says so, and so does the device.
fn assert_errored(failed: &Failed<AnyQueuePair<Checked>>) {
    let AnyQueuePair::Errored(pair) = &failed.value else { panic!("{failed:?} with {:?}", failed.value) };
    assert_eq!(pair.query_state().unwrap(), DeviceState::Error);
}

/// CM016 on iWARP, where `rdma_connect` blocks as long as TCP tries. The thread that makes the call keeps the pair.
#[test]
fn on_iwarp_a_silent_host_costs_no_more_than_the_timeout() {
    let world = World::on(Fabric::with_profile(Profile::Siw));
    world.fabric.inject(Fault::ConnectRequestsLost { count: u32::MAX });
    let freed = Arc::new(AtomicUsize::new(0));
    let [mut late, mut dropped, mut patient] = [(); 3].map(|()| world.side());
    for side in [&mut late, &mut dropped] {
        let memory = side.domain.register::<LocalWrite, _>(Foreign(Counted::new(8, &freed))).unwrap();
        side.pair.as_mut().unwrap().post_receive(memory.split().1).unwrap();
    }
    let start = Instant::now();
    let failed = world.connecting(&mut late).wait(SHORT).unwrap_err();
    assert!(matches!(failed.cause, Cause::TimedOut(SHORT)), "{failed:?}");
    assert!(matches!(failed.value, AnyQueuePair::Vacant), "{:?}", failed.value);
    assert!(start.elapsed() >= SHORT && start.elapsed() < PATIENCE);
    drop(world.connecting(&mut dropped));
    let channel = Channel::open(&world.context).unwrap();
    let resolved = Idle::new(&channel).unwrap().resolve(world.at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
    let connecting = resolved.connect(patient.take(), &Parameters::default(), &ConnectData::none()).unwrap();
    let Progress::Pending(connecting) = connecting.poll().unwrap() else { panic!("nobody answers") };
    let readiness = channel.readiness().unwrap();
    assert!(!readiness.wait(SHORT).unwrap());
    assert!(eventually(|| format!("{:?}", world.fabric).contains("cm_blocked: 3")), "{:?}", world.fabric);
    let mut poll_both = || [&mut late, &mut dropped].map(|side| drop(side.poller.poll().unwrap()));
    poll_both();
    assert_eq!(freed.load(Ordering::Relaxed), 0, "the device may still use the receives");
    // On iWARP, `heal` makes the blocked `rdma_connect` fail with `ETIMEDOUT`, as if TCP had given up.
    world.fabric.heal();
    assert!(readiness.wait(PATIENCE).unwrap(), "an event loop is woken");
    let failed = connecting.wait(PATIENCE).unwrap_err();
    assert!(matches!(&failed.cause, Cause::Call(error) if error.errno() == libc::ETIMEDOUT), "{failed:?}");
    let AnyQueuePair::Init(pair) = failed.value else { panic!("{:?}", failed.value) };
    assert!(eventually(|| {
        poll_both();
        freed.load(Ordering::Relaxed) == 2
    }));
    // `ECONNRESET` can come only after the TCP stream was connected. So the device has perhaps moved the pair to Error.
    world.fabric.inject(Fault::VerbFails { verb: Verb::RdmaConnect, after: 0, count: 1, errno: libc::ECONNRESET });
    let failed = world.connecting(&mut world.side()).wait(PATIENCE).unwrap_err();
    assert!(matches!(failed.cause, Cause::PeerGone(_)), "{failed:?}");
    assert_errored(&failed);
    // The `patient` pair came back unchanged, in Init, so it can be connected.
    patient.pair = Some(pair);
    let (mut world, mut server) = (world, Side::new(patient.domain.clone()));
    let connecting = world.connecting(&mut patient);
    let accepting = world.accepting(&mut server).unwrap();
    drop((connecting.wait(PATIENCE).unwrap(), accepting.wait(PATIENCE).unwrap()));
    drop((readiness, channel));
    world.ends_clean();
}

/// The kernel interrupts `rdma_connect` while TCP connects, if a signal of the program comes to the thread of the call.
#[test]
fn on_iwarp_a_signal_does_not_end_a_connect() {
    let mut world = World::on(Fabric::with_profile(Profile::Siw));
    let fault = Fault::VerbFails { verb: Verb::RdmaConnect, after: 0, count: 2, errno: libc::EINTR };
    world.fabric.inject(fault);
    let [mut client, mut server] = [world.side(), world.side()];
    let connecting = world.connecting(&mut client);
    let accepting = world.accepting(&mut server).unwrap();
    drop((connecting.wait(PATIENCE).unwrap(), accepting.wait(PATIENCE).unwrap()));
    world.ends_clean();
}

/// The attack: a program gives up or forgets a connect, and leaves the scope of its domain, while a thread is still in
/// `rdma_connect`. The device can still use the memory of the posted receives, so nobody may free it.
#[test]
fn on_iwarp_memory_of_a_connect_that_was_given_up_is_never_freed_early() {
    let world = World::on(Fabric::with_profile(Profile::Siw));
    world.fabric.inject(Fault::ConnectRequestsLost { count: u32::MAX });
    let [dropped, late, forgotten] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
    for (how, freed) in [&dropped, &late, &forgotten].into_iter().enumerate() {
        let left = world.context.with_domain(|domain| {
            let mut side = Side::new(domain.clone());
            let memory = domain.register::<LocalWrite, _>(Foreign(Counted::new(8, freed))).unwrap();
            side.pair.as_mut().unwrap().post_receive(memory.split().1).unwrap();
            let resolved = world.resolved();
            let connecting = resolved.connect(side.take(), &Parameters::default(), &ConnectData::none()).unwrap();
            match how {
                0 => drop(connecting),
                1 => drop(connecting.wait(Duration::ZERO).unwrap_err()),
                _ => std::mem::forget(connecting),
            }
        });
        left.unwrap();
    }
    thread::sleep(SHORT);
    let counts = || [&dropped, &late, &forgotten].map(|freed| freed.load(Ordering::Relaxed));
    assert_eq!(counts(), [0; 3], "the calls have not returned");
    world.fabric.heal();
    assert!(eventually(|| counts() == [1, 1, 0]), "{:?}", counts());
}

/// A thread is still in `rdma_connect` for an identifier whose connect was given up. Nobody polls that identifier any
/// more.
#[test]
fn on_iwarp_a_connect_that_was_given_up_wakes_no_event_loop() {
    let world = World::on(Fabric::with_profile(Profile::Siw));
    world.fabric.inject(Fault::ConnectRequestsLost { count: u32::MAX });
    let channel = Channel::open(&world.context).unwrap();
    let mut side = world.side();
    let resolved = Idle::new(&channel).unwrap().resolve(world.at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
    let connecting = resolved.connect(side.take(), &Parameters::default(), &ConnectData::none()).unwrap();
    let readiness = channel.readiness().unwrap();
    world.fabric.inject(Fault::DeviceRemoved { device: "dev0".into() });
    assert!(channel.poll().unwrap(), "the event of the removal");
    assert!(readiness.wait(PATIENCE).unwrap());
    drop(connecting);
    assert!(!channel.poll().unwrap());
    assert!(!readiness.wait(SHORT).unwrap());
    world.fabric.heal();
}

/// The thread that calls `rdma_connect` wakes the task, and the task's waker panics on that thread. The pair comes back
/// nevertheless.
#[test]
#[cfg(feature = "aio")]
fn on_iwarp_a_waker_that_panics_takes_no_pair_along() {
    use interlock::aio::{SharedPoller, cm::SharedChannel};
    use std::task::{Context, Poll, Wake, Waker};

    #[derive(Default)]
    struct Panicking(AtomicUsize);
    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("the waker's own fault");
        }
    }

    let world = World::on(Fabric::with_profile(Profile::Siw));
    world.fabric.inject(Fault::ConnectRequestsLost { count: u32::MAX });
    let domain = world.context.checked_domain().unwrap();
    let (queue, poller) = domain.completion_queue(16).unwrap();
    let limits = Limits { sends: 4, receives: 4, ..Limits::default() };
    let pair = domain.reliable(&queue, &limits).unwrap().into_init(&world.context.active_port().unwrap()).unwrap();
    let (poller, channel) = (SharedPoller::new(poller), SharedChannel::open(&world.context).unwrap());
    // The drivers never run. They must exist, because a wait without a driver does not keep its waker.
    let drivers = (channel.driver().unwrap(), poller.driver().unwrap());
    let data = ConnectData::none();
    let mut connecting = std::pin::pin!(channel.connect(&poller, world.at, pair, &data, PATIENCE));
    let (panicking, mut quiet) = (Arc::new(Panicking::default()), Context::from_waker(Waker::noop()));
    // The steps before `rdma_connect` need some time. Until then, poll with a waker that does nothing.
    assert!(eventually(|| {
        assert!(connecting.as_mut().poll(&mut quiet).is_pending());
        format!("{:?}", world.fabric).contains("cm_blocked: 1")
    }));
    let waker = Waker::from(Arc::clone(&panicking));
    assert!(connecting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    world.fabric.heal();
    assert!(eventually(|| panicking.0.load(Ordering::Relaxed) == 1));
    let mut found = None;
    assert!(eventually(|| {
        if let Poll::Ready(result) = connecting.as_mut().poll(&mut quiet) {
            found = Some(result);
        }
        found.is_some()
    }));
    let failed = found.unwrap().unwrap_err();
    assert!(matches!(&failed.cause, Cause::Call(error) if error.errno() == libc::ETIMEDOUT), "{failed:?}");
    assert!(matches!(failed.value, AnyQueuePair::Init(_)), "{:?}", failed.value);
    drop(drivers);
}

/// CM045. An iWARP device moves the pair by itself. So a failed step gives back a pair in Init only if no TCP stream
/// was connected.
#[test]
fn on_iwarp_a_pair_that_was_not_connected_is_in_error() {
    let mut world = World::on(Fabric::with_profile(Profile::Siw));
    let rejected = |world: &mut World| world.listener.next(PATIENCE).unwrap().reject(&RejectData::none()).unwrap();
    let mut client = world.side();
    let receive = client.domain.buffer(64).unwrap();
    client.pair.as_mut().unwrap().post_receive(receive).unwrap();
    let connecting = world.connecting(&mut client);
    rejected(&mut world);
    let failed = connecting.wait(PATIENCE).unwrap_err();
    assert!(matches!(failed.cause, Cause::Rejected { .. }), "{failed:?}");
    assert_errored(&failed);
    assert!(client.poller.wait(PATIENCE).unwrap().check().unwrap_err().into_buffer().is_some());
    // Next, the channel fails while the client waits.
    let mut client = world.side();
    let connecting = world.connecting(&mut client);
    world.fabric.inject(fails(Verb::RdmaGetCmEvent));
    let failed = connecting.wait(PATIENCE).unwrap_err();
    assert!(matches!(failed.cause, Cause::Call(_)), "{failed:?}");
    // The thread that calls `rdma_connect` perhaps still has the pair. Then the error is without the pair.
    if !matches!(failed.value, AnyQueuePair::Vacant) {
        assert_errored(&failed);
    }
    drop(world.listener.poll());
    // Next, the server accepts a client that is gone. The device moves the server's pair to Ready To Send, and then
    // cannot send its answer to the client.
    world.fabric.inject(Fault::ClientsGone { count: 1 });
    let [mut client, mut server] = [world.side(), world.side()];
    let connecting = world.connecting(&mut client);
    let failed = world.accepting(&mut server).unwrap_err();
    assert!(matches!(&failed.cause, Cause::PeerGone(error) if error.errno() == libc::ECONNRESET), "{failed:?}");
    assert_errored(&failed);
    drop(connecting);
    world.ends_clean();
}

/// CM045. Where the provider does not promise to spare the pair of a connect that finds no TCP stream, the device may
/// move the pair to Error, even after the call has failed. So such a pair never comes back in Init.
#[test]
fn on_iwarp_a_failed_connect_spares_its_pair_where_that_is_promised() {
    let adversaries = [0, 2, 8, 10].map(Profile::IwarpAdversary);
    for profile in [Profile::Siw].into_iter().chain(adversaries) {
        let mut world = World::on(Fabric::with_profile(profile));
        let is_spared = world.context.promises().failed_connects_spare_pairs();
        assert!(world.context.is_iwarp() && is_spared == (profile == Profile::Siw), "{profile:?}");
        let nobody = cm::listen(&world.context, (address(&world.context), 0)).unwrap().local_address().unwrap();
        let listener = world.at;
        // An adversary moves the pair to Error early or late, at random. So there are several rounds.
        for round in 0..8 {
            let is_silent = round % 2 == 1;
            let freed = Arc::new(AtomicUsize::new(0));
            let mut client = world.side();
            for _ in 0..3 {
                let memory = client.domain.register::<LocalWrite, _>(Foreign(Counted::new(8, &freed))).unwrap();
                client.pair.as_mut().unwrap().post_receive(memory.split().1).unwrap();
            }
            world.at = nobody;
            if is_silent {
                world.fabric.inject(Fault::ConnectRequestsLost { count: u32::MAX });
            }
            let connecting = world.connecting(&mut client);
            if is_silent {
                thread::sleep(SHORT);
                world.fabric.heal();
            }
            let failed = connecting.wait(PATIENCE).unwrap_err();
            match &failed.cause {
                Cause::Rejected { reason, .. } => assert_eq!(reason.0, -libc::ECONNREFUSED),
                // Only a silent round ends like this. On a slow machine a silent round can end as above instead: if the
                // thread calls `rdma_connect` only after `heal`, the call is refused.
                Cause::Call(error) => assert!(is_silent && error.errno() == libc::ETIMEDOUT, "{failed:?}"),
                _ => panic!("{failed:?}"),
            }
            if is_spared {
                let AnyQueuePair::Init(pair) = failed.value else { panic!("{:?}", failed.value) };
                assert_eq!(pair.query_state().unwrap(), DeviceState::Init);
                client.pair = Some(pair);
            } else {
                assert_errored(&failed);
                let AnyQueuePair::Errored(pair) = failed.value else { unreachable!() };
                let error = pair.into_reset().unwrap_err();
                assert!(matches!(error.source, TransitionFailure::NotOnIwarp(NotOnIwarp::Reset)), "{error:?}");
                let is_all_back = eventually(|| {
                    drop(client.poller.poll().unwrap());
                    freed.load(Ordering::Relaxed) == 3
                });
                assert!(is_all_back, "{profile:?}: {error:?}");
                client = world.side();
            }
            world.at = listener;
            let mut server = world.side();
            let connecting = world.connecting(&mut client);
            let accepting = world.accepting(&mut server).unwrap();
            let [mut of_client, of_server] = [connecting.wait(PATIENCE).unwrap(), accepting.wait(PATIENCE).unwrap()];
            let is_connected = |connection: &Connection<Checked>| connection.pair.query_state().unwrap();
            assert_eq!([&of_client, &of_server].map(is_connected), [DeviceState::ReadyToSend; 2], "{profile:?}");
            drop(of_server);
            assert!(matches!(of_client.wait_end(PATIENCE).unwrap(), Some(Cause::Disconnected)));
            drop(of_client);
            let is_all_back = eventually(|| {
                drop(client.poller.poll().unwrap());
                freed.load(Ordering::Relaxed) == 3
            });
            assert!(is_all_back, "{profile:?}");
        }
        assert_eq!(world.fabric.violations(), <Vec<String>>::new(), "{profile:?}");
        world.ends_clean();
    }
}

/// CM046. The device moves the pair to Error when the peer ends, perhaps before the program has polled its connection.
#[test]
fn on_iwarp_a_peer_that_ends_at_once_has_disconnected() {
    let mut world = World::on(Fabric::with_profile(Profile::Siw));
    let [mut client, mut server] = [world.side(), world.side()];
    let connecting = world.connecting(&mut client);
    drop(world.accepting(&mut server).unwrap());
    let failed = connecting.wait(PATIENCE).unwrap_err();
    assert!(matches!(failed.cause, Cause::Disconnected), "{failed:?}");
    assert_errored(&failed);
    let [mut client, mut server] = [world.side(), world.side()];
    let connecting = world.connecting(&mut client);
    let accepting = world.accepting(&mut server).unwrap();
    drop(connecting.wait(PATIENCE).unwrap());
    let failed = accepting.wait(PATIENCE).unwrap_err();
    assert!(matches!(failed.cause, Cause::Disconnected), "{failed:?}");
    assert_errored(&failed);
    world.ends_clean();
}

#[test]
fn an_iwarp_device_has_no_datagrams_by_address() {
    let world = World::on(Fabric::with_profile(Profile::Siw));
    let at = SocketAddr::new(world.at.ip(), 0);
    let is_refused = |cause: &Cause| matches!(cause, Cause::NotOnIwarp(NotOnIwarp::OtherTransports));
    let failed = cm::serve(&world.context, at).unwrap_err();
    assert!(matches!(failed, CmError::NotOnIwarp(NotOnIwarp::OtherTransports)), "{failed:?}");
    let channel = Channel::open(&world.context).unwrap();
    let bound = Idle::for_datagrams(&channel).unwrap().bind(at).unwrap();
    let failed = bound.join([239, 7, 7, 9].into()).unwrap_err();
    assert!(is_refused(&failed.cause), "{failed:?}");
    assert!(is_refused(&failed.value.listen(0).unwrap_err().cause));
    let failed = cm::look_up(&world.context, world.at, &LookupData::none(), PATIENCE).unwrap_err();
    assert!(is_refused(&failed), "{failed:?}");
    drop(channel);
    world.ends_clean();
}

/// CM016, in one call: the error has the whole timeout of the program, not the part that remained for the last step.
#[test]
fn what_took_too_long_in_one_call_names_the_whole_timeout() {
    let world = World::on(Fabric::new());
    world.fabric.inject(Fault::ConnectRequestsLost { count: u32::MAX });
    let failed = cm::connect(world.at, world.side().take(), &ConnectData::none(), SHORT).unwrap_err();
    assert!(matches!(failed.cause, Cause::TimedOut(SHORT)), "{failed:?}");
    let failed = cm::look_up(&world.context, world.at, &LookupData::none(), SHORT).unwrap_err();
    assert!(matches!(failed, Cause::TimedOut(SHORT)), "{failed:?}");
    let silent = SocketAddr::new([10, 73, 0, 77].into(), 1);
    let failed = cm::connect(silent, world.side().take(), &ConnectData::none(), Duration::ZERO).unwrap_err();
    assert!(matches!(failed.cause, Cause::TimedOut(Duration::ZERO) | Cause::Call(_)), "{failed:?}");
    world.ends_clean();
}

/// An error while a thread takes the events of other identifiers does not fail an identifier whose event has arrived.
#[test]
fn a_channel_that_fails_later_does_not_hide_an_event() {
    let world = World::on(Fabric::new());
    let channel = Channel::open(&world.context).unwrap();
    let resolving = Idle::new(&channel).unwrap().resolve(world.at, PATIENCE).unwrap();
    world.fabric.inject(Fault::VerbFails { verb: Verb::RdmaGetCmEvent, after: 1, count: 1, errno: libc::ENOMEM });
    drop(resolving.wait(PATIENCE).unwrap());
    drop(channel);
    world.ends_clean();
}

/// A descriptor that stays readable although no identifier can be polled keeps an event loop busy for ever.
#[test]
fn an_event_loop_is_not_woken_for_what_nobody_polls() {
    let mut world = World::on(Fabric::new());
    let channel = Channel::open(&world.context).unwrap();
    let readiness = channel.readiness().unwrap();
    let is_ready = || readiness.wait(SHORT).unwrap();
    let end = |world: &mut World| {
        let [mut client, mut server] = [world.side(), world.side()];
        let resolved = Idle::new(&channel).unwrap().resolve(world.at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
        let connecting = resolved.connect(client.take(), &Parameters::default(), &ConnectData::none()).unwrap();
        let accepting = world.accepting(&mut server).unwrap();
        (connecting.wait(PATIENCE).unwrap(), accepting.wait(PATIENCE).unwrap(), [client, server])
    };
    // `disconnect` consumes the connection, so the program can no longer poll it. After `channel.poll` has read an
    // event of the connection, that event must not wake an event loop. `wait_for_number` still finds the event.
    let (of_client, of_server, sides) = end(&mut world);
    let mut ended = of_client.disconnect().unwrap();
    drop(of_server);
    assert!(is_ready());
    // If this thread is slow, the channel may have one more event: the number is free. So poll until none is left.
    assert!(eventually(|| !channel.poll().unwrap() && !readiness.wait(Duration::ZERO).unwrap()));
    assert!(ended.wait_for_number(PATIENCE).unwrap());
    drop((ended, sides));
    // If only the peer has ended a connection, the program can still poll the connection. The channel stays ready until
    // `poll_end` has taken the events.
    let (mut of_client, of_server, sides) = end(&mut world);
    drop(of_server);
    assert!(is_ready());
    assert!(channel.poll().unwrap());
    assert!(is_ready());
    for _ in 0..2 {
        assert!(matches!(of_client.poll_end().unwrap(), Some(Cause::Disconnected)));
        assert!(!is_ready());
        world.fabric.inject(Fault::DeviceRemoved { device: "dev0".into() });
    }
    drop((of_client, sides));
}

/// A thread that takes events releases the lock between batches, and wakes the event loop if there are more events.
#[test]
fn a_flood_of_requests_is_taken_in_batches() {
    let world = World::on(Fabric::new());
    let channel = Channel::open(&world.context).unwrap();
    let bound = Idle::new(&channel).unwrap().bind(SocketAddr::new(world.at.ip(), 0)).unwrap();
    let World { fabric, context, listener, .. } = world;
    let at = bound.local_address().unwrap();
    let world = World { fabric, context, listener, at };
    let mut busy = bound.listen(0).unwrap();
    let mut sides: Vec<_> = (0..100).map(|_| world.side()).collect();
    let clients: Vec<_> = sides.iter_mut().map(|side| world.connecting(side)).collect();
    let readiness = channel.readiness().unwrap();
    let waiting = |events: usize| format!("{:?}", world.fabric).contains(&format!("cm_events: {events}"));
    assert!(waiting(100), "{:?}", world.fabric);
    assert!(channel.poll().unwrap());
    assert!(waiting(36), "{:?}", world.fabric);
    let mut taken = Vec::new();
    while readiness.wait(Duration::ZERO).unwrap() {
        taken.extend(busy.poll().unwrap());
    }
    assert_eq!(taken.len(), 100);
    drop((clients, taken, busy, channel));
    world.ends_clean();
}

#[test]
fn an_acknowledgement_timeout_for_ever_is_refused() {
    let world = World::on(Fabric::new());
    let channel = Channel::open(&world.context).unwrap();
    let mut idle = Idle::new(&channel).unwrap();
    let error = idle.set_ack_timeout(AckTimeout::new(0).unwrap()).unwrap_err();
    assert_eq!((error.verb(), error.errno()), ("rdma_set_option", libc::EINVAL));
    idle.set_ack_timeout(AckTimeout::new(1).unwrap()).unwrap();
}

/// A query of the pair that fails with `ENOMEM` does not prove that the device was removed.
#[test]
fn a_peer_that_is_gone_is_no_removed_device() {
    let mut world = World::on(Fabric::new());
    let [mut client, mut server] = [world.side(), world.side()];
    world.fabric.inject(Fault::ClientsGone { count: 1 });
    let connecting = world.connecting(&mut client);
    world.fabric.inject(fails(Verb::QueryQp));
    let failed = world.accepting(&mut server).map(drop).unwrap_err();
    assert!(matches!(failed.cause, Cause::PeerGone(_)), "{}", failed.cause);
    drop(connecting);
}

/// `disconnect` calls rdma_disconnect first. Then the device refuses to move the pair, so the program keeps the
/// connection. Meanwhile the number comes free, and `poll_end` takes the event that says so.
#[test]
fn a_number_that_came_free_before_the_pair_was_moved_stays_free() {
    let mut world = World::on(Fabric::new());
    let [(client, mut of_client), (server, mut of_server)] = world.connected();
    assert!(of_client.poll_end().unwrap().is_none());
    world.fabric.inject(fails(Verb::ModifyQp));
    let mut of_client = of_client.disconnect().unwrap_err().value;
    assert!(of_server.wait_end(PATIENCE).unwrap().is_some());
    let mut of_server = of_server.disconnect().unwrap();
    assert!(of_server.wait_for_number(PATIENCE).unwrap());
    assert!(of_client.wait_end(PATIENCE).unwrap().is_some());
    std::thread::sleep(Duration::from_millis(1500)); // until the client's number is free, too
    assert!(of_client.poll_end().unwrap().is_some());
    let mut of_client = of_client.disconnect().unwrap();
    assert!(of_client.wait_for_number(SHORT).unwrap());
    drop((of_client, of_server, client, server));
    world.ends_clean();
}
