//! Queue pairs, split into a half that sends and a half that receives.

use super::lane_handle::LaneHandle;
use super::receiver::Receiver;
use super::sender::Sender;
use super::shared_poller::SharedPoller;
use crate::domain::Brand;
use crate::queue::QueuePair;
use crate::queue::state::ReadyToSend;
use crate::queue::transport::Transport;
use std::fmt;

/// A queue pair completes on another completion queue than that of the poller. The pair comes back.
#[derive(thiserror::Error)]
#[error("the queue pair completes on another completion queue: use that queue's poller, or `split_on` for two queues")]
pub struct OtherQueueError<P> {
    /// The queue pair.
    pub queue_pair: P,
}

impl<P> fmt::Debug for OtherQueueError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherQueueError").finish_non_exhaustive()
    }
}

/// The error of splitting a pair that is Ready To Send.
type SplitError<B, T> = OtherQueueError<QueuePair<B, ReadyToSend, T>>;

impl<B: Brand> SharedPoller<B> {
    /// Takes a queue pair apart into a half that sends and a half that receives. Both use this poller.
    ///
    /// # Errors
    ///
    /// [`OtherQueueError`]: the pair completes on another queue. It comes back.
    #[allow(clippy::type_complexity, reason = "two halves")]
    pub fn split<T: Transport>(
        &self,
        pair: QueuePair<B, ReadyToSend, T>,
    ) -> Result<(Sender<B, T>, Receiver<B, T>), SplitError<B, T>> {
        Self::split_on(self, self, pair)
    }

    /// As [`split`](Self::split), for a pair whose sends and receives complete on different queues.
    ///
    /// Either queue may be the first to show that the pair has broken. So both pollers need a driver, and neither
    /// driver ends before both halves are gone. Without a driver at either, a task that waits for room polls again and
    /// again.
    ///
    /// The halves cannot become a [`Connection`](super::Connection), which has one poller. To learn why the pair has
    /// broken, ask [`Sender::first_failure`].
    ///
    /// # Errors
    ///
    /// As [`split`](Self::split).
    ///
    /// # Examples
    ///
    /// ```
    /// # use interlock::{Context, Limits};
    /// # use interlock::aio::{SharedPoller, block_on};
    /// # interlock::domain! { struct Docs; }
    /// # let domain = Context::open("soft0")?.named_domain(Docs)?;
    /// # let port = domain.context().active_port()?;
    /// let (sends, poller_of_sends) = domain.completion_queue(16)?;
    /// let (receives, poller_of_receives) = domain.completion_queue(16)?;
    /// let pair = domain.reliable_on(&sends, &receives, &Limits::default())?.into_init(&port)?;
    /// # let own = pair.endpoint();
    /// # let pair = pair.connect(&own)?;
    /// let [of_sends, of_receives] = [poller_of_sends, poller_of_receives].map(SharedPoller::new);
    /// let (mut sender, mut receiver) = SharedPoller::split_on(&of_sends, &of_receives, pair)?;
    ///
    /// receiver.post_receive(domain.buffer(8)?)?;
    /// let mut text = domain.buffer(8)?;
    /// text.write(b"hello")?;
    /// let sent = sender.send(text)?; // the pair is its own peer
    /// let message = block_on(receiver.next()).expect("one is posted")?.into_received().expect("a message");
    /// assert_eq!(&message[..], b"hello");
    /// block_on(sent)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::type_complexity, reason = "two halves")]
    pub fn split_on<T: Transport>(
        sends: &Self,
        receives: &Self,
        pair: QueuePair<B, ReadyToSend, T>,
    ) -> Result<(Sender<B, T>, Receiver<B, T>), SplitError<B, T>> {
        if pair.completes_on() != (sends.id(), receives.id()) {
            return Err(OtherQueueError { queue_pair: pair });
        }
        let limits = pair.limits();
        let (send, receive) = pair.into_halves();
        let mut sender = Sender::new(send, sends.clone(), limits.sends);
        let mut receiver = Receiver::new(receive, receives.clone(), limits.receives);
        LaneHandle::join(sender.lane_mut(), receiver.lane_mut());
        Ok((sender, receiver))
    }
}
