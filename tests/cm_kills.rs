//! Processes that are killed at each step of a connection by address, and what happens to the other side.
//!
//! The process that is killed is this program again: the test [`victim`], with its step in the environment. It prints a
//! line when it has reached the step, and waits to be killed.
#![cfg(feature = "cm")]

use interlock::cm::{
    self, AcceptData, Accepting, Cause, Channel, ConnectData, Connecting, Connection, Failed, Idle, Listener,
    Parameters, RejectReason, Resolved,
};
use interlock::state::PostReceive;
use interlock::{AnyQueuePair, Checked, QueuePair, Work};
use std::env;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use support::victim::{Victim, assert_nothing_is_left_of, stop};
use support::{Need, PATIENCE, Side, address, context, eventually, lacks_need, message};

/// How many times each of the 12 cases kills a victim: about a hundred in all.
const ROUNDS: usize = 9;
const SHORT: Duration = Duration::from_millis(100);
/// A test checks what the kernel still has of this process, so the tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// How many servers did not learn in time that their client was killed.
static LOST: AtomicUsize = AtomicUsize::new(0);

/// The step at which the victim stops.
const STEP: &str = "INTERLOCK_KILL_STEP";
/// The address that a victim connects to.
const PEER: &str = "INTERLOCK_KILL_PEER";

/// Where a client stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ClientStep {
    Resolved,
    Asked,
    Connected,
    Talking,
}

/// Where a server stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ServerStep {
    Listening,
    Asked,
    Accepted,
    Connected,
    Talking,
}

/// A client process that connects to `of`, and stops at `step`.
fn client(step: ClientStep, of: SocketAddr) -> Victim {
    Victim::start(&[(STEP, &format!("Client{step:?}")), (PEER, &of.to_string())])
}

/// A server process that stops at `step`, and its address.
fn server(step: ServerStep) -> (Victim, SocketAddr) {
    let mut server = Victim::start(&[(STEP, &format!("Server{step:?}")), (PEER, "")]);
    let at = server.said("address").parse().unwrap();
    (server, at)
}

/// Not a test, but the process that the tests kill.
#[test]
#[ignore = "the tests of this program start it, to kill it"]
fn victim() {
    let step = env::var(STEP).expect("a step to stop at");
    let mut side = Player::new();
    let peer = env::var(PEER).unwrap_or_default();
    let connection = if let Ok(peer) = peer.parse() {
        let resolved = resolved(peer);
        if step == "ClientResolved" {
            stop();
        }
        let connecting = side.ask(resolved);
        if step == "ClientAsked" {
            if context().is_iwarp() {
                // A thread of the library calls `rdma_connect`. Give the thread time to send the request.
                std::thread::sleep(SHORT);
            }
            stop();
        }
        connecting.wait(PATIENCE).unwrap()
    } else {
        let (mut listener, at) = listener();
        println!("\naddress {at}");
        if step == "ServerListening" {
            stop();
        }
        let request = listener.next(PATIENCE).unwrap();
        if step == "ServerAsked" {
            stop();
        }
        let accepting = side.accept(request).unwrap();
        if step == "ServerAccepted" {
            stop();
        }
        accepting.wait(PATIENCE).unwrap()
    };
    if step.ends_with("Talking") {
        let mut connection = connection;
        side.talk(&mut connection, step.starts_with("Client"), |_| {});
        panic!("nobody killed this process");
    }
    assert!(step.ends_with("Connected"), "{step}");
    stop();
}

fn listener() -> (Listener, SocketAddr) {
    let context = context();
    let listener = cm::listen(&context, (address(&context), 0)).unwrap();
    let at = listener.local_address().unwrap();
    (listener, at)
}

fn resolved(to: SocketAddr) -> Resolved {
    let channel = Channel::open(&context()).unwrap();
    Idle::new(&channel).unwrap().resolve(to, PATIENCE).unwrap().wait(PATIENCE).unwrap()
}

/// One side of a connection, and how many of its buffers the device has.
struct Player {
    side: Side<Checked>,
    posted: usize,
}

impl Player {
    fn new() -> Self {
        Self { side: Side::new(context().checked_domain().unwrap()), posted: 0 }
    }

    /// The pair, full of receives.
    fn pair(&mut self) -> QueuePair<Checked, interlock::Init> {
        let mut pair = self.side.take();
        self.fill(&mut pair);
        pair
    }

    /// Posts as many receives as the pair takes.
    fn fill<S: PostReceive>(&mut self, pair: &mut QueuePair<Checked, S>) {
        while pair.post_receive(self.side.domain.buffer(64).unwrap()).is_ok() {
            self.posted += 1;
        }
    }

    fn ask(&mut self, resolved: Resolved) -> Connecting<Checked> {
        let pair = self.pair();
        resolved.connect(pair, &Parameters::default(), &ConnectData::none()).unwrap()
    }

    fn accept(&mut self, request: cm::Request) -> Result<Accepting<Checked>, Failed<AnyQueuePair<Checked>>> {
        let pair = self.pair();
        request.accept(pair, &Parameters::default(), &AcceptData::none())
    }

    /// Takes the completions from the queue. Returns how many messages have arrived and whether all requests have
    /// succeeded.
    fn take(&mut self) -> (usize, bool) {
        let (mut arrived, mut is_well) = (0, true);
        while let Some(completion) = self.side.poller.poll().unwrap() {
            self.posted -= 1;
            match completion.check() {
                Ok(success) => arrived += usize::from(matches!(success.into_work(), Work::Received(_))),
                Err(failure) => {
                    is_well = false;
                    assert!(failure.into_buffer().is_some(), "a failure without its buffer");
                }
            }
        }
        (arrived, is_well)
    }

    /// Answers each message that arrives, until the peer ends the connection. The client also sends the first two
    /// messages. iWARP demands that the client sends first, and that the peer has a receive for each message in flight.
    /// Calls `so_far` with the number of messages that have arrived.
    fn talk(&mut self, connection: &mut Connection<Checked>, is_client: bool, mut so_far: impl FnMut(usize)) {
        let (mut arrived, mut owed, mut is_well) = (0, if is_client { 2 } else { 0 }, true);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (more, still_well) = self.take();
            arrived += more;
            owed += more;
            is_well &= still_well;
            so_far(arrived);
            match connection.poll_end().unwrap() {
                Some(end) => return assert!(matches!(end, Cause::Disconnected), "{end:?}"),
                None => assert!(Instant::now() < deadline, "the connection does not end"),
            }
            if is_well {
                self.fill(&mut connection.pair);
            }
            while is_well && owed > 0 && connection.pair.post_send(message(&self.side.domain, b"hello")).is_ok() {
                self.posted += 1;
                owed -= 1;
            }
        }
    }

    /// The peer of a connection has been killed: the connection ends, and every buffer comes back. The end is a
    /// rejection if the peer had accepted, but did not know yet that this side was connected.
    fn outlives(mut self, mut connection: Connection<Checked>) {
        let end = connection.wait_end(PATIENCE).unwrap();
        assert!(matches!(end, Some(Cause::Disconnected | Cause::Rejected { .. })), "{end:?}");
        self.has_all_back();
        drop(connection);
    }

    /// The connection was not made, for an expected cause. Every buffer comes back after the drop of the pair.
    fn goes_on_without(mut self, failed: Failed<AnyQueuePair<Checked>>, is_expected: impl Fn(&Cause) -> bool) {
        assert!(is_expected(&failed.cause), "{failed:?}");
        drop(failed.value);
        self.has_all_back();
    }

    fn has_all_back(&mut self) {
        let is_so = eventually(|| {
            self.take();
            self.posted == 0
        });
        assert!(is_so, "{} buffers are still out", self.posted);
    }
}

/// Whether a server may get this cause if its client was killed before the two were connected.
fn client_is_gone(cause: &Cause) -> bool {
    matches!(cause, Cause::PeerGone(_) | Cause::Rejected { .. }) || is_broken_by_iwarp(cause)
}

/// Whether a client may get this cause if its server was killed, or if nobody listens.
fn server_is_gone(cause: &Cause) -> bool {
    let is_number = |reason: &RejectReason| {
        [RejectReason::CONSUMER, RejectReason::NO_SUCH_SERVICE].contains(reason) || reason.0 < 0
    };
    match cause {
        Cause::Rejected { reason, .. } => is_number(reason),
        // The rejection came while the client established the connection.
        Cause::PeerGone(_) => true,
        _ => is_broken_by_iwarp(cause),
    }
}

/// Whether this is a cause that only iWARP gives. Either the device has connected the pair by itself, and disconnects
/// it when the peer's stream ends; or the stream of the killed peer stays silent until the device gives up.
fn is_broken_by_iwarp(cause: &Cause) -> bool {
    context().is_iwarp() && matches!(cause, Cause::Disconnected | Cause::Unreachable { .. } | Cause::PeerGone(_))
}

/// Kills a client at its step. The listener must stay usable.
fn outlive_a_client(step: ClientStep, round: usize, listener: &mut Listener, at: SocketAddr) -> u32 {
    let mut client = client(step, at);
    let mut server = Player::new();
    match step {
        ClientStep::Resolved => {
            let killed = client.kill_at_its_step();
            assert!(matches!(listener.next(SHORT), Err(cm::CmError::TimedOut(_))));
            return killed;
        }
        // Three variants take turns. When the client is killed, nobody has read its request, or the server has read it,
        // or the server has answered it.
        ClientStep::Asked if round.is_multiple_of(3) => {
            let killed = client.kill_at_its_step();
            // On iWARP, the end of the client's TCP stream can remove a request that nobody has read. If it does not,
            // the request may be late.
            match listener.next(if context().is_iwarp() { 20 * SHORT } else { PATIENCE }) {
                Ok(request) => server.accepts_in_vain(request),
                Err(error) => assert!(context().is_iwarp(), "{error}"),
            }
            return killed;
        }
        ClientStep::Asked if round % 3 == 1 => {
            let request = listener.next(PATIENCE).unwrap();
            let killed = client.kill_at_its_step();
            server.accepts_in_vain(request);
            return killed;
        }
        ClientStep::Asked => {
            let request = listener.next(PATIENCE).unwrap();
            client.said("stopped");
            let accepting = server.accept(request).unwrap();
            let killed = client.kill();
            server.waits_in_vain(accepting);
            return killed;
        }
        ClientStep::Connected | ClientStep::Talking => {}
    }
    let request = listener.next(PATIENCE).unwrap();
    let connection = server.accept(request).unwrap().wait(PATIENCE).unwrap();
    if step == ClientStep::Connected {
        let killed = client.kill_at_its_step();
        server.outlives(connection);
        killed
    } else {
        server.outlives_under_load(connection, false, client, round)
    }
}

/// Kills a server at its step.
fn outlive_a_server(step: ServerStep, round: usize) -> u32 {
    let (mut server, at) = server(step);
    let mut client = Player::new();
    if step == ServerStep::Listening {
        server.said("stopped");
        let resolved = resolved(at);
        // Two variants take turns: the server is killed before the client sends its request, or before the server reads
        // it.
        if round.is_multiple_of(2) {
            let killed = server.kill();
            let connecting = client.ask(resolved);
            client.goes_on_without(connecting.wait(PATIENCE).unwrap_err(), server_is_gone);
            return killed;
        }
        let connecting = client.ask(resolved);
        let killed = server.kill();
        client.goes_on_without(connecting.wait(PATIENCE).unwrap_err(), server_is_gone);
        return killed;
    }
    let connecting = client.ask(resolved(at));
    match step {
        ServerStep::Listening | ServerStep::Asked => {
            let killed = server.kill_at_its_step();
            client.goes_on_without(connecting.wait(PATIENCE).unwrap_err(), server_is_gone);
            killed
        }
        ServerStep::Accepted => {
            let killed = server.kill_at_its_step();
            match connecting.wait(PATIENCE) {
                Ok(connection) => client.outlives(connection),
                Err(failed) => client.goes_on_without(failed, server_is_gone),
            }
            killed
        }
        ServerStep::Connected => {
            let connection = connecting.wait(PATIENCE).unwrap();
            let killed = server.kill_at_its_step();
            client.outlives(connection);
            killed
        }
        ServerStep::Talking => {
            let connection = connecting.wait(PATIENCE).unwrap();
            client.outlives_under_load(connection, true, server, round)
        }
    }
}

impl Player {
    /// The client of the request was killed: this side learns that in its accept, or right after it.
    fn accepts_in_vain(mut self, request: cm::Request) {
        match self.accept(request) {
            Ok(accepting) => self.waits_in_vain(accepting),
            Err(failed) => self.goes_on_without(failed, client_is_gone),
        }
    }

    /// The client was killed after it had sent its request: this side learns that when it waits after its accept. On
    /// iWARP the accept may have connected the two sides before.
    ///
    /// The client's kernel reports only once that the client has ended. If that message is lost, the accept times out.
    fn waits_in_vain(self, accepting: Accepting<Checked>) {
        match accepting.wait(Duration::from_secs(3)) {
            Ok(connection) => self.outlives(connection),
            Err(failed) if matches!(failed.cause, Cause::TimedOut(_)) => {
                LOST.fetch_add(1, Ordering::Relaxed);
                self.goes_on_without(failed, |_| true);
            }
            Err(failed) => self.goes_on_without(failed, client_is_gone),
        }
    }

    /// Kills the peer while messages go both ways.
    fn outlives_under_load(
        mut self,
        mut connection: Connection<Checked>,
        is_client: bool,
        peer: Victim,
        round: usize,
    ) -> u32 {
        let (mut peer, mut killed) = (Some(peer), 0);
        self.talk(&mut connection, is_client, |arrived| {
            if arrived > round
                && let Some(peer) = peer.take()
            {
                killed = peer.kill();
            }
        });
        if context().is_iwarp() {
            // Destroy the pair before the wait below. A receive that was posted while the device moved the pair to
            // Error perhaps comes back only after the destroy.
            drop(connection);
        }
        self.has_all_back();
        assert_ne!(killed, 0, "the peer has ended by itself");
        killed
    }
}

/// CM018, CM019, CM022
#[test]
fn a_server_outlives_clients_that_are_killed_at_any_step() {
    if lacks_need(Need::OtherProcesses) {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut killed = Vec::new();
    {
        let (mut listener, at) = listener();
        for round in 0..ROUNDS {
            for step in [
                ClientStep::Resolved,
                ClientStep::Asked,
                ClientStep::Asked,
                ClientStep::Asked,
                ClientStep::Connected,
                ClientStep::Talking,
            ] {
                let start = Instant::now();
                // On iWARP the kernel keeps the connection of a killed client for 10 seconds, unless the server has
                // answered the client. So the variants without an answer run only in the first two rounds.
                let answered = context().is_iwarp() && round >= 2 && step == ClientStep::Asked;
                let kind = if answered { 2 } else { killed.len() };
                killed.push(outlive_a_client(step, kind, &mut listener, at));
                println!("{step:?}: {:?}", start.elapsed());
                assert!(listener.poll().unwrap().is_none(), "a request of {step:?} is left");
            }
        }
    }
    let lost = LOST.load(Ordering::Relaxed);
    assert!(lost <= ROUNDS, "{lost} of {} servers did not hear in time of the end of their clients", 3 * ROUNDS);
    assert_nothing_is_left_of(&killed);
    assert_nothing_is_left_of(&[std::process::id()]);
}

/// CM008, CM020, CM021, CM022
#[test]
fn a_client_outlives_servers_that_are_killed_at_any_step() {
    if lacks_need(Need::OtherProcesses) {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut killed = Vec::new();
    for _ in 0..ROUNDS {
        for step in [
            ServerStep::Listening,
            ServerStep::Listening,
            ServerStep::Asked,
            ServerStep::Accepted,
            ServerStep::Connected,
            ServerStep::Talking,
        ] {
            let start = Instant::now();
            killed.push(outlive_a_server(step, killed.len()));
            println!("{step:?}: {:?}", start.elapsed());
        }
    }
    assert_nothing_is_left_of(&killed);
    assert_nothing_is_left_of(&[std::process::id()]);
}
