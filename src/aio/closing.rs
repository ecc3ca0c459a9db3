//! The end of a pair: every request comes out, and the pair is destroyed.

#![allow(clippy::result_large_err, reason = "an error gives both halves back")]

use super::connection::Bond;
use super::lane::Parked;
use super::lane_handle::LaneHandle;
use super::receiver::Receiver;
use super::sender::Sender;
use super::timer::Timer;
use crate::completion::{Completion, FLUSH_INTERVAL};
use crate::domain::Brand;
use crate::inflight::Status;
use crate::memory::Buffer;
use crate::queue::error::DestroyError;
use crate::queue::state::ReadyToSend;
use crate::queue::transport::{ReliableConnection, Transport};
use crate::queue::{Kicks, QueuePair};
use crate::trace;
use crate::verb_error::VerbError;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// A pair that is being closed. The future is ready when every request has come out and the pair is destroyed.
///
/// [`Sender::close`] and [`Connection::close`](super::Connection::close) move the pair to Error, which ends its
/// requests, and return this future. Dropping the future destroys the pair at once. Dropping or forgetting it is sound:
/// the memory of a request is freed only when the device is done with it.
///
/// The future has no deadline unless the program sets one: see [`within`](Self::within) and [`now`](Self::now). Some
/// requests come out only with the end of the pair: an unsignalled send of a datagram pair that no later request has
/// followed; a request whose post was [uncertain](crate::PostError::Uncertain); and on
/// [some devices](crate::device::Promises::late_posts_are_flushed) a request that was posted after the pair had failed.
/// If the pair may have one of these, and nothing has come out for about 0.2 s, the future stops waiting and destroys
/// the pair.
///
/// # Examples
///
/// ```
/// # use interlock::{Context, Limits};
/// # use interlock::aio::{SharedPoller, block_on};
/// # use std::time::Duration;
/// # interlock::domain! { struct Docs; }
/// # let domain = Context::open("soft0")?.named_domain(Docs)?;
/// # let port = domain.context().active_port()?;
/// # let (queue, poller) = domain.completion_queue(16)?;
/// # let pair = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
/// # let own = pair.endpoint();
/// # let pair = pair.connect(&own)?;
/// # let shared = SharedPoller::new(poller);
/// let (sender, mut receiver) = shared.split(pair)?;
/// receiver.post_receive(domain.buffer(64)?)?;
///
/// let closing = sender.close(receiver).expect("halves of one pair");
/// let closed = block_on(closing.within(Duration::from_secs(5)));
/// assert!(closed.has_drained);
/// assert_eq!(closed.into_buffers().len(), 1); // the receive that no message came for
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the pair is closed when the future is awaited"]
pub struct Closing<B: Brand, T: Transport = ReliableConnection> {
    /// `None` after the pair was closed.
    ending: Option<Ending<B, T>>,
    deadline: Option<Timer<B>>,
}

/// A pair in Error with requests in flight.
struct Ending<B: Brand, T: Transport> {
    // `pair` is declared before the lanes, so that it is dropped before them. The drop of `pair` sends mail to the
    // poller, and the drop of the lanes can then end the driver. In this order the driver reads the mail before it
    // ends, and can free what the pair had in flight.
    pair: Option<QueuePair<B, ReadyToSend, T>>,
    sends: LaneHandle<B>,
    receives: LaneHandle<B>,
    /// A receive that the receiver had taken from its lane, and not returned.
    kept: Option<Completion<B>>,
    first_failure: Option<Status>,
    next_kick: Timer<B>,
    kicks: Kicks,
    /// How the wait for the requests has ended, once it has.
    drained: Option<Drained>,
    /// The last field, so that the identifier of rdma_cm is dropped after the pair.
    _bond: Bond,
}

/// How the wait for the requests of a pair has ended. The pair was then destroyed, or leaked.
struct Drained {
    has_drained: bool,
    /// How many requests were in flight when the pair was destroyed.
    left: u32,
    not_destroyed: Option<VerbError>,
}

/// What is left of a pair that was closed.
///
/// The memory of a request whose future is still alive is not here: it comes out of that future.
pub struct Closed<B> {
    /// Why the pair failed, before or during the close. `None` if it did not fail, or if the device gave no reason.
    pub first_failure: Option<Status>,
    /// Receives that the program has not fetched, the oldest first. Those that no message came for are flushed.
    pub receives: Vec<Completion<B>>,
    /// Sends whose future was dropped and sends of [uncertain](crate::PostError::Uncertain) posts, the oldest first.
    pub strays: Vec<Completion<B>>,
    /// Whether every request had come out before the pair was destroyed. If not, the memory of the others is freed when
    /// the device is done with it, or comes out of their futures.
    pub has_drained: bool,
    /// Why the device did not destroy the pair. The pair was then leaked, with all that it needs.
    pub not_destroyed: Option<VerbError>,
}

impl<B> Closed<B> {
    /// All buffers. Memory of other kinds is dropped, such as lists and shares.
    pub fn into_buffers(self) -> Vec<Buffer<B>> {
        let all = self.receives.into_iter().chain(self.strays);
        all.filter_map(|completion| match completion.check() {
            Ok(success) => success.into_buffer(),
            Err(failure) => failure.into_buffer(),
        })
        .collect()
    }
}

impl<B> fmt::Debug for Closed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closed")
            .field("first_failure", &self.first_failure)
            .field("receives", &self.receives.len())
            .field("strays", &self.strays.len())
            .field("has_drained", &self.has_drained)
            .field("not_destroyed", &self.not_destroyed)
            .finish()
    }
}

/// A sender and a receiver of different pairs. Both come back.
#[derive(thiserror::Error)]
#[error(
    "the sender and the receiver belong to different queue pairs: close a sender with the receiver of its own pair"
)]
pub struct OfTwoPairsError<B, T = ReliableConnection> {
    /// The sender.
    pub sender: Sender<B, T>,
    /// The receiver.
    pub receiver: Receiver<B, T>,
}

impl<B, T> fmt::Debug for OfTwoPairsError<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfTwoPairsError").finish_non_exhaustive()
    }
}

impl<B: Brand, T: Transport> Sender<B, T> {
    /// Moves the pair to Error, waits until all its requests have come out, and destroys it. `receiver` is the other
    /// half of the pair.
    ///
    /// Sends that have not completed are flushed. A program that wants them to arrive awaits them first.
    ///
    /// # Errors
    ///
    /// [`OfTwoPairsError`]: `receiver` is of another pair. Both come back.
    pub fn close(self, receiver: Receiver<B, T>) -> Result<Closing<B, T>, OfTwoPairsError<B, T>> {
        Closing::new(self, receiver, Bond::None)
    }
}

impl<B: Brand, T: Transport> Closing<B, T> {
    pub(super) fn new(
        sender: Sender<B, T>,
        receiver: Receiver<B, T>,
        bond: Bond,
    ) -> Result<Self, OfTwoPairsError<B, T>> {
        let (send, sends) = sender.into_half();
        let (receive, receives, rest) = receiver.into_half();
        let mut pair = match send.join(receive) {
            Ok(pair) => pair,
            Err(error) => {
                let sender = Sender::of_half(error.send, sends);
                let receiver = Receiver::of_half(error.receive, receives, rest);
                return Err(OfTwoPairsError { sender, receiver });
            }
        };
        let first_failure = pair.first_failure();
        // A kick moves the pair to Error, which flushes its requests. An error is ignored: `poll_drained` kicks again,
        // and gives up if that fails too.
        let mut kicks = Kicks::default();
        let _ = kicks.kick(&mut pair);
        let next_kick = Timer::after(sends.poller(), FLUSH_INTERVAL);
        let (pair, drained, kept) = (Some(pair), None, rest.kept);
        let ending = Ending { pair, sends, receives, kept, first_failure, next_kick, kicks, drained, _bond: bond };
        Ok(Self { ending: Some(ending), deadline: None })
    }

    /// A closing that has no pair, because the pair is gone already.
    pub(super) fn of_nothing() -> Self {
        Self { ending: None, deadline: None }
    }

    /// Limits the wait to `deadline` from now. After that the future destroys the pair, as [`now`](Self::now) does. The
    /// deadline needs no runtime.
    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = self.ending.as_ref().map(|ending| Timer::after(ending.sends.poller(), deadline));
        self
    }

    /// Destroys the pair at once, without waiting for its requests.
    pub fn now(mut self) -> Closed<B> {
        let Some(mut ending) = self.ending.take() else { return nothing() };
        self.deadline = None;
        ending.destroy(false);
        ending.settle_left();
        ending.into_closed()
    }
}

impl<B: Brand, T: Transport> Future for Closing<B, T> {
    type Output = Closed<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Closed<B>> {
        let this = &mut *self;
        let Some(ending) = &mut this.ending else { return Poll::Ready(nothing()) };
        if ending.drained.is_none() {
            let has_drained = match ending.poll_drained(context) {
                Poll::Ready(has_drained) => has_drained,
                Poll::Pending => match &mut this.deadline {
                    Some(deadline) => {
                        ready!(deadline.poll(context));
                        false
                    }
                    None => return Poll::Pending,
                },
            };
            ending.destroy(has_drained);
        }
        // `settle_left` runs wakers, and a waker can panic. Then the next poll of this future calls `settle_left`
        // again. That poll does not wait again, because `drained` is already set.
        ending.settle_left();
        Poll::Ready(this.ending.take().map_or_else(nothing, Ending::into_closed))
    }
}

fn nothing<B>() -> Closed<B> {
    Closed { first_failure: None, receives: Vec::new(), strays: Vec::new(), has_drained: false, not_destroyed: None }
}

impl<B: Brand, T: Transport> Ending<B, T> {
    /// Ready with true when every request has come out. Ready with false where waiting does not help: if the pair is
    /// gone, if the device or the completion queue failed, or if the rest comes out only with the end of the pair.
    fn poll_drained(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let Some(pair) = &mut self.pair else { return Poll::Ready(false) };
        while self.next_kick.poll(context).is_ready() {
            match self.kicks.kick(pair) {
                Ok(None) => {}
                Ok(Some(marker)) => self.sends.note_next(marker.after(1)),
                Err(_) => return Poll::Ready(false),
            }
            // The interval starts after the kick. A kick may be slow, and the queue must be polled between two kicks.
            self.next_kick.restart(FLUSH_INTERVAL);
        }
        let slot = self.sends.slot();
        let sends = self.sends.desk().poll_for(
            context,
            |_| (pair.in_flight().0 == 0).then_some(()),
            |state, waker, mine, after| {
                let parked = state.lanes.with(slot, |lane, tally| lane.park_for_room(waker, mine, tally, after));
                parked.unwrap_or(Parked::Yes)
            },
        );
        let slot = self.receives.slot();
        let receives = self.receives.desk().poll_for(
            context,
            |_| (pair.in_flight().1 == 0).then_some(()),
            |state, waker, mine, after| {
                let parked = state.lanes.with(slot, |lane, tally| lane.park_reader(waker, mine, tally, after));
                parked.unwrap_or(Parked::Yes)
            },
        );
        match (sends, receives) {
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(true),
            (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) => Poll::Ready(false),
            // The poll of the receives has perhaps brought out the last send.
            _ if pair.in_flight() == (0, 0) => Poll::Ready(true),
            _ if self.kicks.are_hopeless(pair) => Poll::Ready(false),
            _ => Poll::Pending,
        }
    }

    /// Destroys the pair.
    fn destroy(&mut self, has_drained: bool) {
        let drained = self.drained.insert(Drained { has_drained, left: 0, not_destroyed: None });
        if let Some(pair) = self.pair.take() {
            let (sends, receives) = pair.in_flight();
            drained.left = sends.saturating_add(receives);
            self.first_failure = self.first_failure.or(pair.first_failure());
            if let Err(DestroyError { source, .. }) = pair.destroy() {
                drained.not_destroyed = Some(source);
            }
        }
    }

    /// Settles the completions of the requests of a pair that was destroyed. This runs wakers.
    fn settle_left(&self) {
        let left = self.drained.as_ref().map_or(0, |drained| drained.left);
        for lane in [&self.sends, &self.receives] {
            lane.desk().settle_up_to(left);
        }
    }

    /// Takes the completions that nobody else will take.
    fn into_closed(self) -> Closed<B> {
        if let Some(marker) = self.kicks.marker() {
            let slot = self.sends.slot();
            let marker =
                self.sends.desk().with(|state| state.lanes.with(slot, |lane, tally| lane.fetch(marker, tally)));
            drop(marker);
        }
        let strays = self.sends.end().map_or_else(Vec::new, |left| left.strays.into());
        let fetched = self.receives.end().into_iter().flat_map(|left| left.inbox);
        let receives = self.kept.into_iter().chain(fetched).collect();
        let (has_drained, not_destroyed) =
            self.drained.map_or((false, None), |drained| (drained.has_drained, drained.not_destroyed));
        let closed = Closed { first_failure: self.first_failure, receives, strays, has_drained, not_destroyed };
        trace::closed(closed.receives.len(), closed.strays.len(), has_drained);
        // Run these drops here, and not at the end of the function: they run code of the program. If that code panics
        // here, `closed` is dropped. At the end `closed` is already being returned, and a panic would leak `closed`.
        drop((self.pair, self.sends, self.receives, self.next_kick, self._bond));
        closed
    }
}

impl<B: Brand, T: Transport> fmt::Debug for Closing<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closing").finish_non_exhaustive()
    }
}
