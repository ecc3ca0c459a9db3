//! Connections by address in an edge-triggered event loop of one thread: an event that is not taken after its edge
//! brings no further edge.
#![cfg(feature = "cm")]

use interlock::Checked;
use interlock::cm::{
    AcceptData, Accepting, Cause, Channel, ConnectData, Connecting, Connection, Idle, Listener, Parameters, Progress,
    Resolving,
};
use interlock::event::Readiness;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::collections::VecDeque;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;
use support::{PATIENCE, Side, address, context, message};

/// Longer than the device takes to answer all that was asked.
const A_WHILE: Duration = Duration::from_millis(300);

/// An edge-triggered epoll instance (`EPOLLET`) with one descriptor.
struct Edges {
    poll: Poll,
    events: Events,
    _readiness: Readiness,
}

impl Edges {
    fn of(channel: &Channel) -> Self {
        let readiness = channel.readiness().unwrap();
        let poll = Poll::new().unwrap();
        poll.registry().register(&mut SourceFd(&readiness.as_raw_fd()), Token(0), Interest::READABLE).unwrap();
        Self { poll, events: Events::with_capacity(8), _readiness: readiness }
    }

    /// Waits for an edge. Returns whether there was one.
    fn wait(&mut self, timeout: Duration) -> bool {
        self.poll.poll(&mut self.events, Some(timeout)).unwrap();
        !self.events.is_empty()
    }
}

fn bound_listener(channel: &Channel) -> (Listener, SocketAddr) {
    let bound = Idle::new(channel).unwrap().bind(SocketAddr::new(address(&context()), 0)).unwrap();
    let at = bound.local_address().unwrap();
    (bound.listen(0).unwrap(), at)
}

/// CM031: the channel has an event for each of two identifiers, and the loop polls only one identifier after each edge.
/// That poll takes both events from the channel, so another edge must come for the other identifier.
#[test]
fn one_edge_stands_for_the_events_of_two() {
    let [of_server, of_clients] = [(); 2].map(|()| Channel::open(&context()).unwrap());
    let (mut listener, at) = bound_listener(&of_server);
    let mut sides = [(); 2].map(|()| Side::new(context().checked_domain().unwrap()));
    let asking = sides.each_mut().map(|side| {
        let resolving = Idle::new(&of_clients).unwrap().resolve(at, PATIENCE).unwrap();
        let resolved = resolving.wait(PATIENCE).unwrap();
        resolved.connect(side.take(), &Parameters::default(), &ConnectData::none()).unwrap()
    });
    let mut edges = Edges::of(&of_clients);
    // Take the edge that came before the answers, if there was one.
    edges.wait(A_WHILE);
    drop([(); 2].map(|()| listener.next(PATIENCE).unwrap()));
    // Wait a while, so that both identifiers get their answers before the loop below.
    thread::sleep(A_WHILE);
    let mut waiting = VecDeque::from(asking);
    let mut count = 0;
    while let Some(connecting) = waiting.pop_front() {
        assert!(edges.wait(PATIENCE), "no edge, and {} wait", waiting.len() + 1);
        count += 1;
        match connecting.poll() {
            Ok(Progress::Pending(connecting)) => waiting.push_back(connecting),
            Ok(Progress::Done(_)) => panic!("connected"),
            Err(failed) => assert!(matches!(failed.cause, Cause::Rejected { .. }), "{failed:?}"),
        }
    }
    assert!(count <= 3, "{count} edges for two events");
    assert!(!edges.wait(A_WHILE), "an edge for nothing");
}

/// How far one side of a connection has come.
#[derive(Default)]
enum Way {
    #[default]
    Nowhere,
    Resolving(Resolving),
    Connecting(Connecting<Checked>),
    Accepting(Accepting<Checked>),
    Connected(Connection<Checked>),
}

struct End {
    side: Side<Checked>,
    way: Way,
}

impl End {
    fn new(way: impl FnOnce(&mut Side<Checked>) -> Way) -> Self {
        let mut side = Side::new(context().checked_domain().unwrap());
        let way = way(&mut side);
        Self { side, way }
    }

    /// Handles one event, if there is one. Returns whether there was one.
    fn go_on(&mut self) -> bool {
        let (way, went) = match mem::take(&mut self.way) {
            Way::Resolving(resolving) => match resolving.poll().unwrap() {
                Progress::Pending(resolving) => (Way::Resolving(resolving), false),
                Progress::Done(resolved) => {
                    let mut pair = self.side.take();
                    pair.post_receive(self.side.domain.buffer(64).unwrap()).unwrap();
                    let connecting = resolved.connect(pair, &Parameters::default(), &ConnectData::none());
                    (Way::Connecting(connecting.unwrap()), true)
                }
            },
            Way::Connecting(connecting) => match connecting.poll().unwrap() {
                Progress::Pending(connecting) => (Way::Connecting(connecting), false),
                Progress::Done(connection) => (Way::Connected(connection), true),
            },
            Way::Accepting(accepting) => match accepting.poll().unwrap() {
                Progress::Pending(accepting) => (Way::Accepting(accepting), false),
                Progress::Done(connection) => (Way::Connected(connection), true),
            },
            Way::Connected(mut connection) => {
                assert!(connection.poll_end().unwrap().is_none());
                (Way::Connected(connection), false)
            }
            Way::Nowhere => unreachable!(),
        };
        self.way = way;
        went
    }

    fn is_connected(&self) -> bool {
        matches!(self.way, Way::Connected(_))
    }
}

/// C186: a listener, its clients and its servers, all on one channel.
#[test]
fn one_loop_of_edges_makes_both_sides_of_three_connections() {
    let channel = Channel::open(&context()).unwrap();
    let (mut listener, at) = bound_listener(&channel);
    let mut edges = Edges::of(&channel);
    let mut ends: Vec<End> = (0..3)
        .map(|_| End::new(|_| Way::Resolving(Idle::new(&channel).unwrap().resolve(at, PATIENCE).unwrap())))
        .collect();
    while ends.len() < 6 || !ends.iter().all(End::is_connected) {
        let connected = ends.iter().filter(|end| end.is_connected()).count();
        assert!(edges.wait(PATIENCE), "no edge, {} ends, {connected} of them connected", ends.len());
        // After an edge, everything is polled until no poll finds an event.
        loop {
            let mut went = false;
            while let Some(request) = listener.poll().unwrap() {
                went = true;
                ends.push(End::new(|side| {
                    let mut pair = side.take();
                    pair.post_receive(side.domain.buffer(64).unwrap()).unwrap();
                    Way::Accepting(request.accept(pair, &Parameters::default(), &AcceptData::none()).unwrap())
                }));
            }
            for end in &mut ends {
                went |= end.go_on();
            }
            if !went {
                break;
            }
        }
    }
    for end in &mut ends {
        let Way::Connected(connection) = &mut end.way else { unreachable!() };
        connection.pair.post_send(message(&end.side.domain, b"hello")).unwrap();
    }
    for end in &mut ends {
        assert_eq!(&end.side.received()[..], b"hello");
    }
    // When one end of a connection is dropped, the other end gets an event, and the event loop gets an edge.
    let first = ends.remove(0);
    drop(first);
    assert!(edges.wait(PATIENCE), "no edge for the end of a connection");
    let ended = ends.iter_mut().any(|end| {
        let Way::Connected(connection) = &mut end.way else { unreachable!() };
        connection.poll_end().unwrap().is_some()
    });
    assert!(ended);
}
