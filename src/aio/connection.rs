//! A connection: a sender, a receiver, and the link that tells when the connection ends.

use super::closing::{Closing, OfTwoPairsError};
#[cfg(feature = "cm")]
use super::cm::CmBond;
use super::outcome::RequestError;
use super::posted::{Posted, Returned};
use super::receiver::Receiver;
use super::refill::{Asking, Asks};
use super::sender::Sender;
use super::shared_poller::SharedPoller;
use super::split::OtherQueueError;
#[cfg(feature = "tokio")]
use super::tcp::TcpBond;
use super::timer::Timer;
use crate::completion::{FLUSH_INTERVAL, HOPELESS_FLUSHES, PollError, Success};
use crate::domain::Brand;
use crate::inflight::{PostError, Status, WorkId};
use crate::memory::{Buffer, PeerMayRead, PeerMayWrite, RemoteRegion, RemoteWrite};
use crate::queue::request_kinds::{self, FillMemory, Inline, Read, Write};
use crate::queue::state::ReadyToSend;
use crate::queue::transport::{Carries, OwnReceives, ReliableConnection, Transport};
use crate::queue::{QueuePair, SendMemory};
use crate::trace;
use crate::types::Qpn;
use crate::verb_error::VerbError;
use futures_core::Stream;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A pair that is connected to a peer, for tasks: [`cm`](super::cm) and [`tcp`](super::tcp) make it. Its sends and its
/// receives complete on one queue. For a pair with two queues there are only halves:
/// [`SharedPoller::split_on`].
///
/// The fields are public: a program takes the connection apart with a pattern, so that one task sends while another
/// receives. The program must then keep the link, since dropping the link ends the connection.
///
/// Dropping the connection destroys the pair. [`close`](Self::close) gives the memory of its requests back.
pub struct Connection<B: Brand, T: Transport = ReliableConnection> {
    /// The half that sends.
    pub sender: Sender<B, T>,
    /// The half that receives.
    pub receiver: Receiver<B, T>,
    /// Tells when the connection ends.
    pub link: Link<B>,
}

/// Tells when a connection ends, even if no request fails: by the identifier of rdma_cm, or by the TCP stream over
/// which the records were exchanged.
///
/// Dropping the link ends the connection, and the peer learns of that.
pub struct Link<B: Brand> {
    bond: Bond,
    end: Option<End>,
    /// Whether the connection has moved its pair to Error because of the end. A link by itself has no pair to move.
    has_moved_pair: bool,
    /// Whether the device refused the last move, as a removed device does.
    is_move_refused: bool,
    /// When to try a refused move of the pair again.
    next_move: Option<Timer<B>>,
    keep_alive: Option<KeepAlive<B>>,
    /// The wait for the receives after the end, if some of them may never come out.
    last_receives: Option<LastReceives<B>>,
}

/// A wait for receives of which some may never come out. It is given up after several looks in a row that have found
/// the same number.
struct LastReceives<B> {
    next_look: Timer<B>,
    in_flight: u32,
    looks: u32,
}

/// What tells each side that the other side has gone.
pub(super) enum Bond {
    /// Nothing: the pair was connected in another way.
    None,
    #[cfg(feature = "cm")]
    Cm(Box<CmBond>),
    #[cfg(feature = "tokio")]
    Tcp(TcpBond),
}

/// Probes a connection on which nothing is sent.
struct KeepAlive<B> {
    interval: Duration,
    timer: Timer<B>,
    /// The id that the next request had when the timer was last over.
    next_id: WorkId,
    /// The empty write that is in flight.
    probe: Option<Posted<B, ()>>,
}

/// Why a connection has ended, if this side did not end it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    /// The peer has closed the connection, or its process has ended. (If TCP made the connection: or the tokio runtime
    /// of its stream has ended.)
    #[error("the peer has closed the connection, or its process has ended (see docs/failures.md#disconnected)")]
    Disconnected,
    /// A request has failed, which ends a reliable connection. [`Status::RetryExceeded`]: the peer does not answer.
    /// [`Status::Flushed`]: the device moved the pair to Error and gave no reason, or a post was
    /// [uncertain](crate::PostError::Uncertain).
    #[error("a request failed: {0}")]
    Failed(Status),
    /// The device was removed.
    #[error("the device was removed: drop everything that was made from it")]
    DeviceRemoved,
    /// The completion queue failed.
    #[error(transparent)]
    Queue(PollError),
    /// rdma_cm failed.
    #[error("rdma_cm failed, which ends the connection: {0} (connect again)")]
    Channel(VerbError),
}

impl<B: Brand, T: Transport> Connection<B, T> {
    /// A connection over a pair that was connected in another way, for example with
    /// [`QueuePair::connect`](crate::QueuePair::connect). Only a failed request tells that this connection has ended.
    ///
    /// # Errors
    ///
    /// [`OtherQueueError`]: the pair completes on another queue. It comes back.
    pub fn new(
        poller: &SharedPoller<B>,
        pair: QueuePair<B, ReadyToSend, T>,
    ) -> Result<Self, OtherQueueError<QueuePair<B, ReadyToSend, T>>> {
        Self::bonded(poller, pair, Bond::None).map_err(|(error, _)| error)
    }

    #[allow(clippy::type_complexity, reason = "both come back")]
    pub(super) fn bonded(
        poller: &SharedPoller<B>,
        pair: QueuePair<B, ReadyToSend, T>,
        bond: Bond,
    ) -> Result<Self, (OtherQueueError<QueuePair<B, ReadyToSend, T>>, Bond)> {
        match poller.split(pair) {
            Ok((sender, receiver)) => {
                trace::connected(sender.number().value(), bond.addresses()[1]);
                let (next_move, last_receives, keep_alive) = (None, None, None);
                let (has_moved_pair, is_move_refused) = (false, false);
                let link =
                    Link { bond, end: None, has_moved_pair, is_move_refused, next_move, last_receives, keep_alive };
                Ok(Self { sender, receiver, link })
            }
            Err(error) => Err((error, bond)),
        }
    }

    /// Closes the connection: tells the peer, moves the pair to Error, waits until all its requests have come out, and
    /// destroys it. Sends that have not completed are flushed; a program that wants them to arrive awaits them first.
    ///
    /// If the program has exchanged `sender` or `receiver` for that of another connection, both are dropped, and
    /// nothing comes back. [`Sender::close`] gives them back in that case.
    pub fn close(self) -> Closing<B, T> {
        let Self { sender, receiver, link } = self;
        let Link { mut bond, keep_alive, next_move, last_receives, .. } = link;
        // Drop the timers here: the drop of a waker can panic, and at the end of the function that would leak the
        // result.
        drop((keep_alive, next_move, last_receives));
        bond.end();
        match Closing::new(sender, receiver, bond) {
            Ok(closing) => closing,
            Err(OfTwoPairsError { .. }) => Closing::of_nothing(),
        }
    }
}

/// Delegates to the halves.
impl<B: Brand, T: Transport> Connection<B, T> {
    /// Posts a receive: see [`Receiver::post_receive`].
    ///
    /// # Errors
    ///
    /// As [`Receiver::post_receive`].
    pub fn post_receive<M: FillMemory<B>>(&mut self, memory: M) -> Result<WorkId, PostError<M>>
    where
        T: OwnReceives,
    {
        self.receiver.post_receive(memory)
    }

    /// Sends the filled part of `memory`: see [`Sender::send`].
    ///
    /// # Errors
    ///
    /// As [`Sender::send`].
    pub fn send<M: SendMemory<B> + Returned<B>>(&mut self, memory: M) -> Result<Posted<B, M::Back>, PostError<M>>
    where
        T: Carries<request_kinds::Send>,
    {
        self.sender.send(memory)
    }

    /// Writes the filled part of `memory` to the peer: see [`Sender::write`].
    ///
    /// # Errors
    ///
    /// As [`Sender::write`].
    pub fn write<M: SendMemory<B> + Returned<B>, A: PeerMayWrite>(
        &mut self,
        memory: M,
        target: &RemoteRegion<A>,
    ) -> Result<Posted<B, M::Back>, PostError<M>>
    where
        T: Carries<Write>,
    {
        self.sender.write(memory, target)
    }

    /// Reads all of `source` into `buffer`: see [`Sender::read`].
    ///
    /// # Errors
    ///
    /// As [`Sender::read`].
    pub fn read<A: PeerMayRead>(
        &mut self,
        buffer: Buffer<B>,
        source: &RemoteRegion<A>,
    ) -> Result<Posted<B, Buffer<B>>, PostError<Buffer<B>>>
    where
        T: Carries<Read>,
    {
        self.sender.read(buffer, source)
    }
}

impl<B: Brand, T: Transport> Asks for Connection<B, T> {
    fn end_wait(&mut self) {
        self.receiver.end_wait();
    }
}

/// Receiving, and the end.
impl<B: Brand, T: Carries<Write>> Connection<B, T> {
    /// The next receive that completes: see [`Receiver::next`]. When the connection has ended, the posted receives come
    /// out as flushed, and then this returns `None`. It also returns `None` while no receive is posted, so `None` alone
    /// does not mean the end: ask [`closed`](Self::closed).
    ///
    /// A receive whose post was [uncertain](crate::PostError::Uncertain), and on
    /// [some devices](crate::device::Promises::late_posts_are_flushed) a receive that was posted after the pair had
    /// failed, may come out only when the connection is [closed](Self::close). After the removal of a device, perhaps
    /// no receive comes out. So if nothing has come out for about 0.2 s after the end, this returns `None`, too.
    ///
    /// While this waits, it watches for the end of the connection, and keeps the connection [alive](Self::keep_alive).
    ///
    /// # Errors
    ///
    /// As [`Receiver::next`].
    pub async fn next(&mut self) -> Option<Result<Success<B>, RequestError<B>>> {
        let asking = Asking { who: self };
        std::future::poll_fn(|context| asking.who.poll_next(context)).await
    }

    /// As [`next`](Self::next), for a future written by hand.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Success<B>, RequestError<B>>>> {
        if let found @ Poll::Ready(_) = self.receiver.poll_next(context) {
            return found;
        }
        // A pair that takes no more receives is broken, which ends the connection too. `poll_closed` finds this even if
        // a post of uncertain outcome broke the pair: after such a post, no completion reports the failure.
        let ended = if self.receiver.has_stopped() { self.poll_closed(context) } else { self.poll_link(context) };
        if ended.is_ready() {
            // The pair was moved to Error. That flushes the receives, so look for one again.
            let found = self.receiver.poll_next(context);
            if found.is_pending() && self.link.poll_given_up(&self.receiver, context) {
                return Poll::Ready(None);
            }
            return found;
        }
        Poll::Pending
    }

    /// Waits until the peer or the device has ended the connection, and says why.
    ///
    /// If the peer's process ends, the peer's kernel tells this side. If the peer's host or the network fails, nobody
    /// tells this side: only a request fails. A connection that only receives needs [`keep_alive`](Self::keep_alive) to
    /// notice that.
    ///
    /// After every end but [`End::Queue`] the pair is in Error, and its requests come out as [`next`](Self::next) says.
    /// (If the device refuses that move, this and `next` try it again.) Dropping the future loses nothing.
    pub async fn closed(&mut self) -> End {
        std::future::poll_fn(|context| self.poll_closed(context)).await
    }

    /// As [`closed`](Self::closed), for a future written by hand.
    pub fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<End> {
        if let found @ Poll::Ready(_) = self.poll_link(context) {
            return found;
        }
        let failed = match self.sender.poll_failure(context) {
            Poll::Pending => self.receiver.poll_failure(context),
            found => found,
        };
        failed.map(|failed| {
            let end = self.link.end_with(self.sender.number(), failed.map_or_else(End::Queue, End::Failed));
            self.link.move_pair(&end, &mut self.sender, context);
            end
        })
    }

    /// Posts an empty RDMA write whenever no request was posted for `interval`, to notice that the peer is gone. `None`
    /// stops that. The writes are posted only while a task waits in [`next`](Self::next) or [`closed`](Self::closed).
    ///
    /// The peer's device answers the write without the peer's program, if the peer's pair allows writes. It does by
    /// default ([`PeerRights::write`](crate::attributes::PeerRights::write)). If the device does not answer, the write
    /// fails after the retries of this pair, and the connection ends with [`End::Failed`].
    ///
    /// An `interval` below a millisecond counts as a millisecond.
    pub fn keep_alive(&mut self, interval: Option<Duration>) {
        let next_id = self.sender.next_id();
        self.link.keep_alive = interval.map(|interval| {
            // With an interval of 0 the timer would always be over, and the loop in `KeepAlive::poll` would never end.
            let interval = interval.max(Duration::from_millis(1));
            let timer = Timer::after(self.sender.poller(), interval);
            KeepAlive { interval, timer, next_id, probe: None }
        });
    }

    /// Looks whether the link has ended, and keeps the connection alive.
    fn poll_link(&mut self, context: &mut Context<'_>) -> Poll<End> {
        let Self { sender, link, .. } = self;
        if link.end.is_none()
            && let Poll::Ready(end) = link.bond.poll_end(context)
        {
            // Record the end before `move_pair` below moves the pair to Error. The move wakes tasks, and if a waker
            // panics, the end must not be lost.
            link.end_with(sender.number(), end);
        }
        if let Some(end) = link.end.clone() {
            link.move_pair(&end, sender, context);
            return Poll::Ready(end);
        }
        if let Some(keep_alive) = &mut link.keep_alive {
            keep_alive.poll(sender, context);
        }
        Poll::Pending
    }
}

impl<B: Brand> KeepAlive<B> {
    fn poll<T: Carries<Write>>(&mut self, sender: &mut Sender<B, T>, context: &mut Context<'_>) {
        if let Some(probe) = &mut self.probe
            && Pin::new(probe).poll(context).is_ready()
        {
            self.probe = None;
        }
        while self.timer.poll(context).is_ready() {
            self.timer.restart(self.interval);
            let is_quiet = self.next_id == sender.next_id() && self.probe.is_none();
            if is_quiet && let Ok(nowhere) = RemoteRegion::<RemoteWrite>::of_peer(0, 1, 0) {
                // No device looks at the address and the key of a write of no bytes. If the write cannot be posted, it
                // is not needed: the pair is broken, or the queue is full of requests that show whether the peer
                // answers.
                self.probe = sender.write(Inline(b""), &nowhere).ok();
                if let Some(probe) = &mut self.probe
                    && Pin::new(probe).poll(context).is_ready()
                {
                    self.probe = None;
                }
            }
            self.next_id = sender.next_id();
        }
    }
}

impl<B: Brand, T: Carries<Write>> Stream for Connection<B, T> {
    type Item = Result<Success<B>, RequestError<B>>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_next(context)
    }
}

impl<B: Brand> Link<B> {
    /// Notes why the connection has ended, unless a reason is noted already. Returns the noted reason.
    fn end_with(&mut self, pair: Qpn, end: End) -> End {
        self.end.get_or_insert_with(|| {
            trace::ended(pair.value(), &end);
            end
        });
        self.end.clone().unwrap_or(End::Disconnected)
    }

    /// Moves the pair to Error because of `end`, unless that was done before.
    fn move_pair<T: Transport>(&mut self, end: &End, sender: &mut Sender<B, T>, context: &mut Context<'_>) {
        // After `End::Queue` a move is of no use: no completion can come out of the queue any more.
        while !matches!(end, End::Queue(_)) && !self.has_moved_pair {
            if let Some(timer) = &mut self.next_move
                && timer.poll(context).is_pending()
            {
                return;
            }
            // Without `abort` the receives would never come out: neither the end of a link nor a post of uncertain
            // outcome moves the pair to Error. If `abort` fails, the timer wakes the task for another try. A removed
            // device cannot move the pair, so there is no other try.
            let moved = sender.abort();
            self.is_move_refused = moved.is_err();
            self.has_moved_pair = moved.is_ok() || matches!(end, End::DeviceRemoved);
            let timer = || Timer::after(sender.poller(), FLUSH_INTERVAL);
            self.next_move = (!self.has_moved_pair).then(timer);
        }
    }

    /// Whether to wait no longer for the receives of a link that has ended.
    fn poll_given_up<T: Transport>(&mut self, receiver: &Receiver<B, T>, context: &mut Context<'_>) -> bool {
        let is_removed = self.is_move_refused || matches!(self.end, Some(End::DeviceRemoved));
        if !(receiver.may_keep_receives() || is_removed) {
            return false;
        }
        let now = receiver.in_flight();
        let wait = self.last_receives.get_or_insert_with(|| LastReceives {
            next_look: Timer::after(receiver.poller(), FLUSH_INTERVAL),
            in_flight: now,
            looks: 0,
        });
        if wait.in_flight != now {
            (wait.in_flight, wait.looks) = (now, 0);
        }
        while wait.looks < HOPELESS_FLUSHES && wait.next_look.poll(context).is_ready() {
            wait.looks += 1;
            wait.next_look.restart(FLUSH_INTERVAL);
        }
        wait.looks >= HOPELESS_FLUSHES
    }

    /// The bytes that the peer's program sent along when the two sides connected. Untrusted input.
    pub fn peer_data(&self) -> &[u8] {
        self.bond.data()
    }

    /// The address of this side, if the connection was made by address.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.bond.addresses()[0]
    }

    /// The address of the peer, if the connection was made by address.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.bond.addresses()[1]
    }

    /// Waits until rdma_cm or the TCP stream tells that the connection has ended. If the connection has neither, this
    /// waits for ever.
    ///
    /// This is for connections that were taken apart. When it is ready, call [`Sender::abort`], so that the receives
    /// come out.
    pub async fn closed(&mut self) -> End {
        std::future::poll_fn(|context| self.poll_closed(context)).await
    }

    /// As [`closed`](Self::closed), for a future written by hand.
    pub fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<End> {
        if let Some(end) = &self.end {
            return Poll::Ready(end.clone());
        }
        self.bond.poll_end(context).map(|end| self.end.insert(end).clone())
    }
}

impl Bond {
    /// Tells the peer that the connection ends.
    fn end(&mut self) {
        match self {
            Self::None => {}
            #[cfg(feature = "cm")]
            Self::Cm(bond) => bond.end(),
            #[cfg(feature = "tokio")]
            Self::Tcp(_) => *self = Self::None,
        }
    }

    #[cfg_attr(not(any(feature = "cm", feature = "tokio")), allow(unused_variables, reason = "nothing ends"))]
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<End> {
        match self {
            Self::None => Poll::Pending,
            #[cfg(feature = "cm")]
            Self::Cm(bond) => bond.poll_end(context),
            #[cfg(feature = "tokio")]
            Self::Tcp(bond) => bond.poll_end(context),
        }
    }

    fn data(&self) -> &[u8] {
        match self {
            Self::None => &[],
            #[cfg(feature = "cm")]
            Self::Cm(bond) => bond.data(),
            #[cfg(feature = "tokio")]
            Self::Tcp(bond) => bond.data(),
        }
    }

    fn addresses(&self) -> [Option<SocketAddr>; 2] {
        match self {
            Self::None => [None, None],
            #[cfg(feature = "cm")]
            Self::Cm(bond) => bond.addresses(),
            #[cfg(feature = "tokio")]
            Self::Tcp(bond) => bond.addresses(),
        }
    }
}

impl<B: Brand, T: Transport> fmt::Debug for Connection<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("sender", &self.sender).field("link", &self.link).finish_non_exhaustive()
    }
}

impl<B: Brand> fmt::Debug for Link<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("end", &self.end).finish_non_exhaustive()
    }
}
