//! Calls over send and receive: a client and a server of one kind of connection.
//!
//! *Credits.* The server says with the connection how many requests it takes at a time, and has a receive for each. A
//! request takes a credit and its answer gives it back, so every message finds a receive. The client has a receive for
//! each answer, and one more for a [`Bye`](Kind::Bye). The server has one more, too: the request of a client that sends
//! without a credit arrives, and ends its connection with an error that says why.
//!
//! *Futures that are dropped.* A call is a message to the task of the client, so a timeout or a `select!` may drop its
//! future at any time. The task keeps the id. The answer comes late, gives the credit back, and is dropped.
//!
//! *Tasks.* Each connection belongs to one task, which waits for all that can happen to it in one `select!`. So nothing
//! is locked, and the task can close what it owns.

use crate::frame::{Frame, Kind, MOST_BODY, Violation};
use crate::place::{Arrival, Listener, Place};
use crate::wire::{Broken, Event, Wire, local};
use interlock::{Brand, Limits};
use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How many requests of a client the server takes at a time.
pub(crate) const CREDITS: usize = 8;
/// An answer may arrive before its request counts as sent. So there is room for twice as many sends as credits.
pub(crate) const SENDS: usize = 2 * CREDITS;
/// One more send is for a probe, and one more receive is for a message without a credit or for a bye.
pub(crate) const LIMITS: Limits = Limits { sends: SENDS as u32 + 1, receives: CREDITS as u32 + 1, ..Limits::DEFAULT };

/// How long the server waits for the first message of a client. When a client has been quiet for this long, the server
/// probes it with an empty write, which fails if the host of the client has failed. Nothing else would tell.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);
/// The most ended connections that a list of a report holds.
const MOST_NAMED: usize = 1000;
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

// The client.

/// A client, which connects again whenever its connection has ended. Dropping it is a crash: nothing is closed.
pub(crate) struct Client {
    calls: mpsc::Sender<Call>,
    report: Arc<Mutex<ClientReport>>,
    /// Dropping the set aborts the task.
    task: JoinSet<()>,
}

struct Call {
    body: Vec<u8>,
    reply: oneshot::Sender<Vec<u8>>,
}

/// What has happened to a client so far.
#[derive(Clone, Default, Debug)]
pub(crate) struct ClientReport {
    pub(crate) connects: u64,
    pub(crate) failed_connects: u64,
    /// Why the last attempt failed.
    pub(crate) last_failure: Option<String>,
    /// Answers that came after their call had given up.
    pub(crate) late: u64,
    /// Connections that ended because the server was about to.
    pub(crate) byes: u64,
    /// Why other connections ended: the first [`MOST_NAMED`].
    pub(crate) broken: Vec<Broken>,
    /// Connections that did not give all their buffers back in time.
    pub(crate) undrained: u64,
}

/// Why a call has no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("a request has at most {MOST_BODY} bytes, not {0}")]
    TooLong(usize),
    /// The server may execute the request or not.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The server may have executed the request or not.
    #[error("the connection ended before the answer came")]
    Lost,
}

impl Client {
    /// A client of the server at `server`. It connects by itself.
    pub(crate) fn start<B: Brand + 'static>(place: &Arc<Place<B>>, server: SocketAddr) -> Self {
        let (calls, queue) = mpsc::channel(CREDITS);
        let (report, mut task) = (Arc::default(), JoinSet::new());
        task.spawn(stay_connected(Arc::clone(place), server, queue, Arc::clone(&report)));
        Self { calls, report, task }
    }

    /// Sends a request, and waits for its answer. While the client is not connected, the call waits for that too.
    pub(crate) async fn call(&self, request: &[u8], within: Duration) -> Result<Vec<u8>, CallError> {
        if request.len() > MOST_BODY {
            return Err(CallError::TooLong(request.len()));
        }
        let (reply, answer) = oneshot::channel();
        let call = Call { body: request.to_vec(), reply };
        let answered = async {
            self.calls.send(call).await.map_err(|_| CallError::Lost)?;
            answer.await.map_err(|_| CallError::Lost)
        };
        timeout(within, answered).await.unwrap_or(Err(CallError::TimedOut(within)))
    }

    pub(crate) fn report(&self) -> ClientReport {
        lock(&self.report).clone()
    }

    /// Waits for the answers of requests that are in flight, and closes the connection. If that is not done `within`
    /// this time, the client is dropped.
    pub(crate) async fn close(self, within: Duration) -> ClientReport {
        let Self { calls, report, mut task } = self;
        drop(calls);
        _ = timeout(within, task.join_next()).await;
        lock(&report).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects and serves the calls, again and again until the client is closed. The pauses between two attempts become
/// longer until a server answers.
async fn stay_connected<B: Brand + 'static>(
    place: Arc<Place<B>>,
    server: SocketAddr,
    mut calls: mpsc::Receiver<Call>,
    report: Arc<Mutex<ClientReport>>,
) {
    let mut pause = SHORTEST_PAUSE;
    while !calls.is_closed() {
        match place.connect(server).await {
            Ok(connection) => {
                lock(&report).connects += 1;
                let mut wire = Wire::new(&place, connection);
                let mut answers = 0;
                let how = ask(&mut wire, &mut calls, &report, &mut answers).await;
                let drained = wire.close().await;
                let mut report = lock(&report);
                report.undrained += u64::from(!drained);
                match how {
                    Ok(server_leaves) => report.byes += u64::from(server_leaves),
                    Err(broken) if report.broken.len() < MOST_NAMED => report.broken.push(broken),
                    Err(_) => {}
                }
                if answers > 0 {
                    pause = SHORTEST_PAUSE;
                }
            }
            Err(error) => {
                let mut report = lock(&report);
                report.failed_connects += 1;
                report.last_failure = Some(format!("{error:#}"));
            }
        }
        if !calls.is_closed() {
            sleep(pause).await;
            pause = LONGEST_PAUSE.min(2 * pause);
        }
    }
}

/// Sends requests and takes answers. Returns whether the server wanted to end.
async fn ask<B: Brand + 'static>(
    wire: &mut Wire<B>,
    calls: &mut mpsc::Receiver<Call>,
    report: &Mutex<ClientReport>,
    answers: &mut u64,
) -> Result<bool, Broken> {
    let mut credits = match *wire.connection.link.peer_data() {
        [credits] if credits > 0 => CREDITS.min(credits.into()),
        ref other => return Err(Violation::Welcome(other.to_vec()).into()),
    };
    // The calls that wait for an answer, by id. The hello has the id 0 and belongs to no call.
    let mut waiting = HashMap::from([(0, None)]);
    let mut ids = 1..;
    wire.send(Kind::Hello, 0, &[])?;
    credits -= 1;
    let (mut server_leaves, mut client_leaves) = (false, false);
    while !waiting.is_empty() || !(server_leaves || client_leaves) {
        let may_ask = !server_leaves && !client_leaves && credits > 0 && wire.has_room();
        tokio::select! {
            biased;
            event = wire.next() => match event? {
                Event::Sent => {}
                Event::Frame(Frame { kind: Kind::Answer, id, body }) => {
                    let reply: Option<oneshot::Sender<_>> = waiting.remove(&id).ok_or(Violation::UnknownId(id))?;
                    credits += 1;
                    *answers += 1;
                    // `send` fails if the caller does not wait any more.
                    let is_late = reply.is_some_and(|reply| reply.send(body).is_err());
                    lock(report).late += u64::from(is_late);
                }
                Event::Frame(Frame { kind: Kind::Bye, .. }) => server_leaves = true,
                Event::Frame(Frame { kind, .. }) => return Err(Violation::Kind(kind as u8).into()),
            },
            call = calls.recv(), if may_ask => match call {
                None => client_leaves = true,
                // The caller stopped waiting before the request was sent.
                Some(call) if call.reply.is_closed() => {}
                Some(Call { body, reply }) => {
                    let Some(id) = ids.next() else { return Err(local("no id is left")) };
                    wire.send(Kind::Request, id, &body)?;
                    waiting.insert(id, Some(reply));
                    credits -= 1;
                }
            },
        }
    }
    Ok(server_leaves)
}

// The server.

/// What answers a request. Each request has a task of its own.
pub(crate) type Handler = Arc<dyn Fn(Vec<u8>) -> Pin<Box<dyn Future<Output = Vec<u8>> + Send>> + Send + Sync>;

/// A server. Dropping it is a crash: nothing is closed.
pub(crate) struct Server {
    /// When the server must have ended; `None` while it takes clients.
    stop: watch::Sender<Option<Instant>>,
    gone: watch::Receiver<usize>,
    task: JoinSet<ServerReport>,
}

#[derive(Debug, Default)]
pub(crate) struct ServerReport {
    /// How many clients were connected.
    pub(crate) served: usize,
    /// The first [`MOST_NAMED`] of them, in the order in which they went.
    pub(crate) clients: Vec<Served>,
    /// Clients that were not connected.
    pub(crate) not_connected: u64,
}

/// The results of one client.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) answered: u64,
    /// Requests that had arrived and had no answer.
    pub(crate) unanswered: usize,
    /// Why the connection ended, if the client did not leave in order.
    pub(crate) broken: Option<Broken>,
    /// Whether every buffer came back.
    pub(crate) has_drained: bool,
}

impl Server {
    /// Serves all clients that come to `listener`.
    pub(crate) fn start<B: Brand + 'static>(place: &Arc<Place<B>>, listener: Listener, handler: Handler) -> Self {
        let (stop, stopped) = watch::channel(None);
        let (count, gone) = watch::channel(0);
        let mut task = JoinSet::new();
        task.spawn(take_clients(Arc::clone(place), listener, handler, stopped, count));
        Self { stop, gone, task }
    }

    /// Waits until `count` clients have come and gone.
    pub(crate) async fn has_served(&mut self, count: usize) {
        // `wait_for` fails only after the server's task has ended, and that task runs until `shut_down`.
        _ = self.gone.wait_for(|gone| *gone >= count).await;
    }

    /// Takes no more clients, answers what is in flight, and ends when all clients have left. After `within` it ends
    /// the connections that are left.
    pub(crate) async fn shut_down(mut self, within: Duration) -> ServerReport {
        self.stop.send_replace(Some(Instant::now() + within));
        self.task.join_next().await.and_then(Result::ok).unwrap_or_default()
    }
}

async fn take_clients<B: Brand + 'static>(
    place: Arc<Place<B>>,
    mut listener: Listener,
    handler: Handler,
    mut stop: watch::Receiver<Option<Instant>>,
    gone: watch::Sender<usize>,
) -> ServerReport {
    let (mut report, mut clients) = (ServerReport::default(), JoinSet::new());
    let mut note = |ended: Result<Option<Served>, _>| {
        match ended {
            Ok(Some(served)) => {
                report.served += 1;
                if report.clients.len() < MOST_NAMED {
                    report.clients.push(served);
                }
            }
            _ => report.not_connected += 1,
        }
        gone.send_replace(report.served);
    };
    loop {
        tokio::select! {
            biased;
            _ = stop.changed() => break,
            // If there are `most_clients` clients already, the next one waits until one of them leaves.
            arrival = listener.accept(), if clients.len() < place.most_clients => match arrival {
                Ok(arrival) => {
                    clients.spawn(serve(Arc::clone(&place), arrival, Arc::clone(&handler), stop.clone()));
                }
                // Perhaps the system lacks a descriptor or memory for now. Try again after a pause.
                Err(_) => sleep(SHORTEST_PAUSE).await,
            },
            Some(ended) = clients.join_next() => note(ended),
        }
    }
    drop(listener);
    while let Some(ended) = clients.join_next().await {
        note(ended);
    }
    report
}

/// Serves one client to its end; `None` if it was not connected.
async fn serve<B: Brand + 'static>(
    place: Arc<Place<B>>,
    arrival: Arrival,
    handler: Handler,
    stop: watch::Receiver<Option<Instant>>,
) -> Option<Served> {
    let mut stopped = stop.clone();
    let connection = tokio::select! {
        accepted = place.accept(arrival, &[CREDITS as u8]) => accepted.ok()?,
        // A client that is not connected yet has nothing in flight, so the server ends without it.
        _ = stopped.wait_for(Option::is_some) => return None,
    };
    let mut wire = Wire::new(&place, connection);
    let (mut answered, mut open) = (0, HashSet::new());
    let how = answer(&mut wire, handler, stop, &mut open, &mut answered).await;
    let has_drained = wire.close().await;
    // The hello, which has the id 0, is not a request.
    let unanswered = open.iter().filter(|&&id| id != 0).count();
    let broken = match how {
        // A client that has all its answers is allowed to go at any time.
        Err(Broken::Ended(_)) if unanswered == 0 => None,
        how => how.err(),
    };
    Some(Served { answered, unanswered, broken, has_drained })
}

/// Takes requests and sends answers, until the connection ends. `open` has the requests that are not answered.
async fn answer<B: Brand + 'static>(
    wire: &mut Wire<B>,
    handler: Handler,
    mut stop: watch::Receiver<Option<Instant>>,
    open: &mut HashSet<u64>,
    answered: &mut u64,
) -> Result<(), Broken> {
    // If this function ends early, the drop of the set ends the handlers.
    let mut handlers = JoinSet::new();
    let (mut hello_by, mut said_bye) = (Some(Instant::now() + SILENCE), false);
    loop {
        let deadline = *stop.borrow_and_update();
        if deadline.is_some() && hello_by.is_none() && !said_bye && wire.has_room() {
            wire.send(Kind::Bye, 0, &[])?;
            said_bye = true;
        }
        tokio::select! {
            biased;
            // The deadline is checked first. Otherwise a client that is always busy could keep the server from ending.
            () = reached(deadline.into_iter().chain(hello_by).min()) => return Err(Broken::Deadline),
            event = wire.next() => {
                let Event::Frame(Frame { kind, id, body }) = event? else { continue };
                if hello_by.take().is_some() {
                    // The probes begin only now: on iWARP a server must not send before its client has sent.
                    wire.connection.keep_alive(Some(SILENCE));
                }
                if open.len() == CREDITS {
                    return Err(Violation::Credits(CREDITS).into());
                }
                if !open.insert(id) {
                    return Err(Violation::RepeatedId(id).into());
                }
                match kind {
                    Kind::Hello => drop(handlers.spawn(async move { (id, Vec::new()) })),
                    Kind::Request => {
                        let handler = handler(body);
                        handlers.spawn(async move { (id, handler.await) });
                    }
                    Kind::Answer | Kind::Bye => return Err(Violation::Kind(kind as u8).into()),
                }
            },
            Some(done) = handlers.join_next(), if wire.has_room() => {
                let (id, body) = done.map_err(local)?;
                wire.send(Kind::Answer, id, &body)?;
                // Remove the id now, and not when this send completes: as soon as the answer arrives, the client has
                // its credit back. Its next request can come before that completion, and would then be one too many in
                // `open`.
                open.remove(&id);
                *answered += u64::from(id != 0);
            },
            Ok(()) = stop.changed(), if deadline.is_none() => {}
        }
    }
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}
