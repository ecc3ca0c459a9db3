//! Connecting by address, for tasks: rdma_cm.
//!
//! A [`SharedChannel`] is to rdma_cm what a [`SharedPoller`] is to a completion queue: tasks share it, and its
//! [`ChannelDriver`] sleeps for all. Without a driver everything works too, but futures that wait poll again and again.
//!
//! A connection takes the same steps as in the [blocking interface](crate::cm). A future may be dropped at any time:
//! that withdraws its request and destroys the pair. If the timeout passes instead, the pair comes back in the error.
//!
//! # iWARP
//!
//! On iWARP, a connect that times out while TCP connects does not give the pair back: see [`cm::Connecting`]. If the
//! future of a connect is dropped, the drop may block for 10 s. Inside a tokio runtime (feature `tokio`) it blocks a
//! thread for blocking calls, and elsewhere the thread that drops the future. If a pair comes back after a timeout, the
//! program must drop it on a thread that may block.
#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "an error gives the pair back, and no step is on the data path")]

use super::after::wake_all;
use super::connection::{Bond, Connection, End};
use super::desk::Turn;
use super::driver::{Turns, run_on_thread};
use super::shared_poller::SharedPoller;
use super::timer::Timer;
use crate::cm::{
    self, AcceptData, Cause, Channel, CmError, ConnectData, Failed, Idle, Parameters, PeerData, Progress, RejectData,
    Step,
};
use crate::completion::WaitError;
use crate::device::Context;
use crate::domain::Brand;
use crate::queue::state::{Init, State};
use crate::queue::transport::{Reliable, ReliableConnection, Transport};
use crate::queue::{AnyQueuePair, QueuePair};
use crate::readiness::Readiness;
use crate::sync::{Mutex, lock};
use crate::verb_error::VerbError;
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
#[cfg(feature = "tokio")]
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{self, Poll, Waker};
use std::time::Duration;

#[cfg(feature = "tokio")]
pub use super::on_tokio::spawn_channel as spawn;

/// A channel of rdma_cm, shared by all tasks that connect, listen, or have a connection. A handle: clones name the same
/// channel.
///
/// # Examples
///
/// ```
/// use interlock::aio::{SharedPoller, block_on, cm::SharedChannel};
/// use interlock::cm::{AcceptData, ConnectData};
/// use interlock::{Context, Limits};
/// use std::time::Duration;
/// interlock::domain! { struct Docs; }
///
/// const WAIT: Duration = Duration::from_secs(5);
/// let context = Context::open("soft0")?;
/// let domain = context.named_domain(Docs)?;
/// let (queue, poller) = domain.completion_queue(64)?;
/// let pair = || -> Result<_, Box<dyn std::error::Error>> {
///     Ok(domain.reliable(&queue, &Limits::default())?.into_init(&context.active_port()?)?)
/// };
///
/// let poller = SharedPoller::new(poller);
/// let channel = SharedChannel::open(&context)?;
/// let (completions, events) = (poller.driver().unwrap(), channel.driver().unwrap());
/// std::thread::spawn(move || completions.run_on_thread());
/// std::thread::spawn(move || events.run_on_thread());
///
/// let mut listener = channel.listen("0.0.0.0:0".parse()?)?;
/// let at = ([127, 0, 0, 1], listener.local_address().map_or(0, |at| at.port())).into();
/// let (to_server, mut to_client) = (pair()?, pair()?);
/// to_client.post_receive(domain.buffer(64)?)?;
/// let server = std::thread::spawn({
///     let poller = poller.clone();
///     move || {
///         block_on(async {
///             let request = listener.accept().await.unwrap();
///             let mut client = request.accept(&poller, to_client, &AcceptData::none(), WAIT).await.unwrap();
///             client.next().await.unwrap().unwrap().into_buffer().unwrap().to_vec()
///         })
///     }
/// });
/// block_on(async {
///     let mut server = channel.connect(&poller, at, to_server, &ConnectData::none(), WAIT).await.unwrap();
///     let mut greeting = domain.buffer(64).unwrap();
///     greeting.write(b"hello").unwrap();
///     server.send(greeting).unwrap().await.unwrap();
///     assert!(server.close().within(WAIT).await.has_drained);
/// });
/// assert_eq!(server.join().unwrap(), b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedChannel {
    shared: Arc<Shared>,
}
static_assertions::assert_impl_all!(SharedChannel: Send, Sync);

struct Shared {
    channel: Channel,
    state: Mutex<DriverState>,
}

struct DriverState {
    has_driver: bool,
    /// The driver's task, once it has slept.
    driver: Option<Waker>,
    handles: usize,
}

impl SharedChannel {
    /// Opens a channel: see [`Channel::open`].
    ///
    /// # Errors
    ///
    /// As [`Channel::open`].
    pub fn open(context: &Context) -> Result<Self, CmError> {
        Ok(Self::new(Channel::open(context)?))
    }

    /// Shares `channel`. Its identifiers of the blocking interface go on working.
    pub fn new(channel: Channel) -> Self {
        let state = DriverState { has_driver: false, driver: None, handles: 1 };
        Self { shared: Arc::new(Shared { channel, state: Mutex::new(state) }) }
    }

    /// The driver of this channel; `None` if there is one already.
    pub fn driver(&self) -> Option<ChannelDriver> {
        let mut state = lock(&self.shared.state);
        let is_free = !state.has_driver;
        state.has_driver = true;
        is_free.then(|| ChannelDriver { shared: Arc::clone(&self.shared) })
    }

    fn is_driven(&self) -> bool {
        lock(&self.shared.state).has_driver
    }

    /// Registers the task to be woken by the next event of the identifier. False if there is an event already.
    fn sleep(&self, events: &crate::cm::Events, context: &task::Context<'_>) -> bool {
        if !events.wake_by_next(context.waker()) {
            return false;
        }
        let has_timer = self.shared.channel.next_timer().is_some();
        let mut state = lock(&self.shared.state);
        let (is_driven, driver) = (state.has_driver, if has_timer { state.driver.take() } else { None });
        drop(state);
        // A channel of soft devices can have a timer. The driver must poll the channel when the timer is over, even if
        // the descriptor is not readable then. Wake the driver, so that it reads the timer before it sleeps again.
        if let Some(driver) = driver {
            driver.wake();
        }
        if !is_driven {
            context.waker().wake_by_ref();
        }
        true
    }

    /// Waits until a step is done, has failed, or the timer is over.
    async fn go_on<S: Step + Send + 'static, B>(&self, step: S, off_loop: bool, timer: &mut Timer<B>) -> Went<S> {
        let mut held = Held { step: Some(step), off_loop };
        poll_fn(|context| {
            loop {
                let Some(step) = held.step.take() else { return Poll::Pending };
                match step.step() {
                    Ok(Progress::Done(next)) => return Poll::Ready(Went::Done(next)),
                    Err(error) => return Poll::Ready(Went::Failed(error)),
                    Ok(Progress::Pending(step)) => {
                        if timer.poll(context).is_ready() {
                            return Poll::Ready(Went::Late(step));
                        }
                        let sleeps = self.sleep(step.events(), context);
                        held.step = Some(step);
                        if sleeps {
                            return Poll::Pending;
                        }
                    }
                }
            }
        })
        .await
    }

    /// Connects the pair to whoever listens at `address`, within `timeout`. The peer reads `data` with
    /// [`Request::data`].
    ///
    /// The program must resolve host names itself, since that may block. If the peer sends first, post receives before
    /// this call.
    ///
    /// # Errors
    ///
    /// [`Cause`]. The pair comes back: in Init if certainly nothing was done to it, else in Error.
    pub async fn connect<B: Brand + 'static, T: Reliable + 'static>(
        &self,
        poller: &SharedPoller<B>,
        address: SocketAddr,
        pair: QueuePair<B, Init, T>,
        data: &ConnectData,
        timeout: Duration,
    ) -> Result<Connection<B, T>, Failed<AnyQueuePair<B, T>>> {
        self.connect_with(poller, address, pair, &Parameters::default(), data, timeout).await
    }

    /// As [`connect`](Self::connect), with parameters that the caller chooses.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub async fn connect_with<B: Brand + 'static, T: Reliable + 'static>(
        &self,
        poller: &SharedPoller<B>,
        address: SocketAddr,
        pair: QueuePair<B, Init, T>,
        parameters: &Parameters,
        data: &ConnectData,
        timeout: Duration,
    ) -> Result<Connection<B, T>, Failed<AnyQueuePair<B, T>>> {
        let pair = on_poller(poller, pair)?;
        let mut timer = Timer::after(poller, timeout);
        let resolving = Idle::new(&self.shared.channel).map_err(Cause::of).and_then(|idle| {
            let resolving = idle.resolve(address, timeout);
            resolving.map_err(Failed::into_cause)
        });
        let resolved = match resolving {
            Ok(resolving) => match self.go_on(resolving, false, &mut timer).await {
                Went::Done(resolved) => Ok(resolved),
                Went::Failed(cause) => Err(cause),
                Went::Late(_) => Err(Cause::TimedOut(timeout)),
            },
            Err(cause) => Err(cause),
        };
        let resolved = match resolved {
            Ok(resolved) => resolved,
            Err(cause) => return Err(Failed { value: pair.into(), cause: of_all(cause, timeout) }),
        };
        let is_iwarp = resolved.is_iwarp();
        let connecting =
            resolved.connect(pair, parameters, data).map_err(|failed| failed.map(|(_, pair)| pair.into()))?;
        let connected = match self.go_on(connecting, is_iwarp, &mut timer).await {
            Went::Done(connection) => self.connected(poller, connection),
            Went::Failed(failed) => Err(Failed { cause: of_all(failed.cause, timeout), value: failed.value }),
            Went::Late(connecting) => Err(connecting.give_up(Cause::TimedOut(timeout))),
        };
        // Drop `timer` here, and not at the end of the function: the timer perhaps has a waker, whose drop is code of
        // the program. If that code panics here, `connected` is dropped. At the end `connected` is already being
        // returned, and a panic would leak `connected`.
        drop(timer);
        connected
    }

    fn connected<B: Brand, T: Reliable>(
        &self,
        poller: &SharedPoller<B>,
        connection: cm::Connection<B, T>,
    ) -> Result<Connection<B, T>, Failed<AnyQueuePair<B, T>>> {
        let cm::Connection { pair, data, link } = connection;
        let bond = CmBond { link, data, channel: self.clone(), failures: 0 };
        Connection::bonded(poller, pair, Bond::Cm(Box::new(bond)))
            .map_err(|(error, _)| Failed { value: error.queue_pair.into(), cause: Cause::OtherQueue })
    }

    /// Listens at `address`, an address of this host with a port. Port 0 means any free port.
    ///
    /// # Errors
    ///
    /// As [`cm::listen`].
    pub fn listen(&self, address: SocketAddr) -> Result<Listener, Cause> {
        let bound = Idle::new(&self.shared.channel).map_err(Cause::of)?.bind(address).map_err(Failed::into_cause)?;
        let inner = bound.listen(0).map_err(Failed::into_cause)?;
        Ok(Listener { inner, channel: self.clone() })
    }
}

/// How a wait for a step ended.
enum Went<S: Step> {
    Done(S::Next),
    Failed(S::Error),
    Late(S),
}

/// A step that waits. On iWARP the drop of a step may block, so a thread that runs tasks must not do it.
struct Held<S: Send + 'static> {
    step: Option<S>,
    off_loop: bool,
}

impl<S: Send + 'static> Drop for Held<S> {
    fn drop(&mut self) {
        let Some(step) = self.step.take() else { return };
        #[cfg(feature = "tokio")]
        if self.off_loop
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // tokio panics if the system has no thread left. The closure, which owns the step, then stays in the queue
            // of the runtime until a later thread runs it or the runtime ends. A drop must not panic, so the panic ends
            // here. (The value of the panic is forgotten: dropping it can panic, too.)
            let spawned = catch_unwind(AssertUnwindSafe(|| drop(runtime.spawn_blocking(move || drop(step)))));
            std::mem::forget(spawned);
            return;
        }
        let _ = self.off_loop;
        drop(step);
    }
}

/// The pair, if it completes on the queue of `poller`.
fn on_poller<B: Brand, S: State, T: Transport>(
    poller: &SharedPoller<B>,
    pair: QueuePair<B, S, T>,
) -> Result<QueuePair<B, S, T>, Failed<AnyQueuePair<B, T>>> {
    if pair.completes_on() == (poller.id(), poller.id()) {
        return Ok(pair);
    }
    Err(Failed { value: pair.into(), cause: Cause::OtherQueue })
}

/// Reports a timeout with `timeout`, the whole time that the program passed, and not with the time of one step.
fn of_all(cause: Cause, timeout: Duration) -> Cause {
    if matches!(cause, Cause::TimedOut(_)) { Cause::TimedOut(timeout) } else { cause }
}

/// Takes connect requests. Dropping the listener rejects the requests that were not taken. Accepted connections go on.
#[derive(Debug)]
pub struct Listener {
    inner: cm::Listener,
    channel: SharedChannel,
}

impl Listener {
    /// The address that the listener is bound to, with the actual port.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.inner.local_address()
    }

    /// The next request. Dropping the future loses no request.
    ///
    /// # Errors
    ///
    /// [`CmError::DeviceRemoved`], or the channel failed.
    pub async fn accept(&mut self) -> Result<Request, CmError> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    /// As [`accept`](Self::accept), for a future written by hand.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn poll_accept(&mut self, context: &mut task::Context<'_>) -> Poll<Result<Request, CmError>> {
        loop {
            match self.inner.poll() {
                Ok(Some(inner)) => return Poll::Ready(Ok(Request { inner, channel: self.channel.clone() })),
                Ok(None) if self.channel.sleep(self.inner.events(), context) => return Poll::Pending,
                Ok(None) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// A request of a peer for a connection. Dropping the request rejects it.
#[derive(Debug)]
pub struct Request {
    inner: cm::Request,
    channel: SharedChannel,
}

impl Request {
    /// The private data that the peer sent with its request.
    pub fn data(&self) -> &PeerData {
        self.inner.data()
    }

    /// The name of the device that received the request. The queue pair must be of that device.
    pub fn device(&self) -> &str {
        self.inner.device()
    }

    /// The port of the device that received the request. The first port is 1.
    pub fn port(&self) -> u8 {
        self.inner.port()
    }

    /// The address of this host that the peer sent its request to.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.inner.local_address()
    }

    /// The address of the peer.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.inner.peer_address()
    }

    /// Rejects the request, with data for the peer.
    ///
    /// # Errors
    ///
    /// The peer has already ended.
    pub fn reject(self, data: &RejectData) -> Result<(), VerbError> {
        self.inner.reject(data)
    }

    /// Accepts the request, and waits until both sides are connected, at most for `timeout`. If the peer sends first,
    /// post receives before this call.
    ///
    /// # Errors
    ///
    /// [`Cause`]. The pair comes back: in Init if nothing was done to it, else in Error.
    pub async fn accept<B: Brand + 'static, T: Reliable + 'static>(
        self,
        poller: &SharedPoller<B>,
        pair: QueuePair<B, Init, T>,
        data: &AcceptData,
        timeout: Duration,
    ) -> Result<Connection<B, T>, Failed<AnyQueuePair<B, T>>> {
        self.accept_with(poller, pair, &Parameters::default(), data, timeout).await
    }

    /// As [`accept`](Self::accept), with parameters that the caller chooses.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub async fn accept_with<B: Brand + 'static, T: Reliable + 'static>(
        self,
        poller: &SharedPoller<B>,
        pair: QueuePair<B, Init, T>,
        parameters: &Parameters,
        data: &AcceptData,
        timeout: Duration,
    ) -> Result<Connection<B, T>, Failed<AnyQueuePair<B, T>>> {
        let Self { inner, channel } = self;
        let pair = on_poller(poller, pair)?;
        let mut timer = Timer::after(poller, timeout);
        let accepting = inner.accept(pair, parameters, data)?;
        let connected = match channel.go_on(accepting, false, &mut timer).await {
            Went::Done(connection) => channel.connected(poller, connection),
            Went::Failed(failed) => Err(failed),
            Went::Late(accepting) => Err(accepting.give_up(Cause::TimedOut(timeout))),
        };
        // Drop both here, and not at the end of the function: the drops can run code of the program. If that code
        // panics here, `connected` is dropped. At the end `connected` is already being returned, and a panic would leak
        // `connected`.
        drop((timer, channel));
        connected
    }
}

/// rdma_cm's part of a connection.
pub(super) struct CmBond {
    link: cm::Link,
    data: PeerData,
    channel: SharedChannel,
    /// How many times in a row the channel has failed.
    failures: u32,
}

impl CmBond {
    pub(super) fn end(&mut self) {
        // An error is ignored: if the call fails, the drop of `link` still tells the peer that the connection ends.
        let _ = self.link.disconnect();
    }

    pub(super) fn poll_end(&mut self, context: &mut task::Context<'_>) -> Poll<End> {
        // If there is a driver, and the `MailBox` of this identifier is empty, this task sleeps without a system call.
        // The driver takes the next event from the kernel, and wakes this task.
        if self.channel.is_driven() && self.channel.sleep(self.link.events(), context) {
            return Poll::Pending;
        }
        loop {
            let found = self.link.poll_end();
            self.failures = if found.is_err() { self.failures.saturating_add(1) } else { 0 };
            match found {
                Ok(Some(cause)) => return Poll::Ready(of_cause(cause)),
                Ok(None) if self.channel.sleep(self.link.events(), context) => return Poll::Pending,
                Ok(None) => {}
                Err(error) if self.failures >= FAILURES => return Poll::Ready(End::Channel(error)),
                // The failure may be temporary, such as a lack of memory. So let other tasks run, and try again.
                Err(_) => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }

    pub(super) fn data(&self) -> &[u8] {
        self.data.framed().unwrap_or(self.data.padded())
    }

    pub(super) fn addresses(&self) -> [Option<SocketAddr>; 2] {
        [self.link.local_address(), self.link.peer_address()]
    }
}

fn of_cause(cause: Cause) -> End {
    match cause {
        Cause::DeviceRemoved => End::DeviceRemoved,
        Cause::Call(error) | Cause::Failed(error) => End::Channel(error),
        _ => End::Disconnected,
    }
}

/// Sleeps on the channel for all tasks that wait for its events.
///
/// Run it with [`run_on_thread`](Self::run_on_thread), or as a task with `interlock::aio::cm::spawn` (feature `tokio`).
/// The driver ends by itself when the last [`SharedChannel`], [`Listener`], [`Request`] and [`Connection`] of its
/// channel are gone. Dropping it early loses nothing: all who wait poll by themselves from then on.
#[must_use = "it does nothing until it is run"]
pub struct ChannelDriver {
    shared: Arc<Shared>,
}

/// After this many failures in a row the driver gives up, and so does a connection. A turn of the driver also takes
/// events at most this many times.
const FAILURES: u32 = 16;

impl ChannelDriver {
    /// Runs the driver on this thread until its work is over.
    ///
    /// # Errors
    ///
    /// [`WaitError`]: the channel failed many times in a row.
    pub fn run_on_thread(self) -> Result<(), WaitError> {
        run_on_thread(&self)
    }
}

impl Turns for ChannelDriver {
    fn readiness(&self) -> Result<Readiness, VerbError> {
        self.shared.channel.events()
    }

    fn poll_turn(&self, context: &mut task::Context<'_>) -> Poll<Result<Turn, WaitError>> {
        let waker = context.waker().clone();
        let mut state = lock(&self.shared.state);
        let is_over = state.handles == 0;
        let before = state.driver.replace(waker);
        drop(state);
        drop(before);
        if is_over {
            return Poll::Ready(Ok(Turn::Over));
        }
        let mut failures = 0;
        for _ in 0..FAILURES {
            match self.shared.channel.wake_tasks() {
                Ok(true) => {}
                Ok(false) => return Poll::Ready(Ok(Turn::Sleep(self.shared.channel.next_timer()))),
                Err(error) => {
                    failures += 1;
                    if failures == FAILURES {
                        return Poll::Ready(Err(error.into()));
                    }
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for ChannelDriver {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.has_driver = false;
        let driver = state.driver.take();
        drop(state);
        drop(driver);
        wake_all(self.shared.channel.take_tasks());
    }
}

impl Clone for SharedChannel {
    fn clone(&self) -> Self {
        lock(&self.shared.state).handles += 1;
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for SharedChannel {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.handles -= 1;
        let driver = if state.handles == 0 { state.driver.take() } else { None };
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

impl fmt::Debug for SharedChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedChannel").field("channel", &self.shared.channel).finish_non_exhaustive()
    }
}

impl fmt::Debug for ChannelDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelDriver").finish_non_exhaustive()
    }
}

#[allow(dead_code, reason = "a check for the compiler")]
fn is_send<B: Brand + 'static>(
    channel: &SharedChannel,
    poller: &SharedPoller<B>,
    pair: QueuePair<B, Init, ReliableConnection>,
    at: SocketAddr,
) -> impl Send {
    async move {
        drop(channel.connect(poller, at, pair, &ConnectData::none(), Duration::ZERO).await);
    }
}
