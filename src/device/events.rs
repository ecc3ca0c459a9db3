//! Asynchronous events, which report what happens to a device and its objects without a completion.
//!
//! ASSUMPTION: where the provider has `events_change_nothing` (`provider/reviewed.rs`), `ibv_get_async_event` changes
//! nothing about the object that the event names.

use super::inner::ContextInner;
use super::objects::Object;
use super::{CompletionQueueId, Context, SharedReceiveQueueId};
use crate::provider::handles::{About, RawEvent};
use crate::readiness::{Readiness, until_readable};
use crate::sys::ibv_event_type as Kind;
use crate::types::{PortNumber, Qpn};
use crate::verb_error::VerbError;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// Something that happened to a device or to one of its objects. The text of an event says what to do.
///
/// `ibv_get_async_event(3)`. The library copies and acknowledges each event at once, so a destroy never waits until the
/// program has handled an event. Events about objects that are gone are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[doc(alias = "ibv_async_event")]
#[doc(alias = "ibv_event_type_str")]
pub enum AsyncEvent {
    /// About a queue pair, by its number on this device. The number may be used for another pair after this one is
    /// gone.
    OfQueuePair(Qpn, QueuePairEvent),
    /// A completion queue failed: it overran, or the device cannot write to it. Its poller reports the failure too, and
    /// its queue pairs are in Error or will be.
    #[doc(alias = "IBV_EVENT_CQ_ERR")]
    CompletionQueueError(CompletionQueueId),
    /// About a shared receive queue.
    OfSharedReceiveQueue(SharedReceiveQueueId, SharedReceiveQueueEvent),
    /// About a port.
    OfPort(PortNumber, PortEvent),
    /// The device has failed or was removed. No object of it recovers: drop everything that was made from this context,
    /// and open the device again when it is back. After the remaining events, [`AsyncEvents`] answers
    /// [`EventsError::DeviceGone`].
    #[doc(alias = "IBV_EVENT_DEVICE_FATAL")]
    DeviceFatal,
    /// An event of a kind that this library does not know.
    Unknown {
        /// The number of the kind, from `ibv_event_type`.
        code: u32,
    },
}

/// An event of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum QueuePairEvent {
    /// The pair failed in a way that no completion can report, and is in Error.
    #[doc(alias = "IBV_EVENT_QP_FATAL")]
    Fatal,
    /// The peer sent an invalid request (opcode, alignment, order, length); the pair is in Error.
    #[doc(alias = "IBV_EVENT_QP_REQ_ERR")]
    RequestError,
    /// The peer named memory that it may not use (key, range, rights, domain); the pair is in Error.
    #[doc(alias = "IBV_EVENT_QP_ACCESS_ERR")]
    AccessError,
    /// The first message arrived while the pair was in Ready To Receive. So the peer is connected: go to Ready To Send.
    #[doc(alias = "IBV_EVENT_COMM_EST")]
    ConnectionEstablished,
    /// The send queue is drained: all sends from before [`SendQueueDrain`](crate::state::SendQueueDrain) have
    /// completed.
    #[doc(alias = "IBV_EVENT_SQ_DRAINED")]
    SendQueueDrained,
    /// The pair is in Error, and takes no more receives from its shared receive queue: destroy it once its completions
    /// are polled.
    #[doc(alias = "IBV_EVENT_QP_LAST_WQE_REACHED")]
    LastRequestReached,
    /// The connection has moved to its alternate path.
    #[doc(alias = "IBV_EVENT_PATH_MIG")]
    PathMigrated,
    /// The connection could not move to its alternate path.
    #[doc(alias = "IBV_EVENT_PATH_MIG_ERR")]
    PathMigrationFailed,
}

/// An event of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SharedReceiveQueueEvent {
    /// Fewer receives are left than the limit that was set. The event comes once each time that the limit is set.
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    LimitReached,
    /// The queue failed. Its queue pairs get no more receives.
    #[doc(alias = "IBV_EVENT_SRQ_ERR")]
    Failed,
}

/// An event of a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PortEvent {
    /// The link is up.
    #[doc(alias = "IBV_EVENT_PORT_ACTIVE")]
    Active,
    /// The link is down. Queue pairs stay as they are, and retry.
    #[doc(alias = "IBV_EVENT_PORT_ERR")]
    Down,
    /// The subnet manager gave the port another LID.
    #[doc(alias = "IBV_EVENT_LID_CHANGE")]
    LidChanged,
    /// The table of partition keys changed.
    #[doc(alias = "IBV_EVENT_PKEY_CHANGE")]
    PartitionKeysChanged,
    /// There is another subnet manager.
    #[doc(alias = "IBV_EVENT_SM_CHANGE")]
    SubnetManagerChanged,
    /// The subnet manager asks that multicast groups be joined again and services registered again.
    #[doc(alias = "IBV_EVENT_CLIENT_REREGISTER")]
    ReregisterRequested,
    /// The GID table changed: an address came, went, or moved to another row.
    #[doc(alias = "IBV_EVENT_GID_CHANGE")]
    GidsChanged,
}

/// The asynchronous events of one open device. There is at most one such handle at a time.
///
/// Events wait until they are taken, and a program need not take them.
///
/// # Rules
///
/// The compiler enforces this rule; programs that break it are in `ui-tests/device`.
///
/// - E1: the events of a device are taken by one at a time.
pub struct AsyncEvents {
    context: Arc<ContextInner>,
}

/// Why a program cannot have the asynchronous events of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeEventsError {
    /// There is another handle.
    #[error(
        "another handle has the asynchronous events of this open device: use that one, drop it first, or open the \
         device once more"
    )]
    Taken,
    /// On this provider, [`Promises::has_events`](crate::device::Promises::has_events) is false.
    #[error(
        "asynchronous events are not available on this device, because taking one is not safe with its provider, or \
         because the provider was not reviewed: rely on completions, and query the port (see docs/providers.md)"
    )]
    NotOnThisProvider,
}

/// Why there is no event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventsError {
    /// The device has failed or was removed, and all its events were taken. No more will come.
    #[error(
        "the device is gone, and no more events will come: drop everything that was made from it, and open it again"
    )]
    DeviceGone,
    /// Taking an event failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// Waiting failed.
    #[error("cannot wait for asynchronous events: poll for them instead")]
    Io(#[from] io::Error),
}

impl Context {
    /// The asynchronous events of this open device.
    ///
    /// # Errors
    ///
    /// [`TakeEventsError::Taken`] while another handle exists, even if that handle came from a clone of this context.
    /// [`TakeEventsError::NotOnThisProvider`] if
    /// [`Promises::has_events`](crate::device::Promises::has_events) is false.
    ///
    /// # Examples
    ///
    /// ```
    /// use interlock::{Context, soft};
    /// use interlock::event::{AsyncEvent, PortEvent};
    ///
    /// let fabric = soft::Fabric::new();
    /// let context = Context::open_on(&fabric, "dev0")?;
    /// let mut events = context.events()?;
    /// fabric.inject(soft::Fault::PortDown { device: "dev0".into() });
    /// while let Some(event) = events.poll()? {
    ///     println!("{event}"); // port 1: the link is down; ...
    ///     assert!(matches!(event, AsyncEvent::OfPort(_, PortEvent::Down)));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_get_async_event")]
    pub fn events(&self) -> Result<AsyncEvents, TakeEventsError> {
        if !self.promises().has_events() {
            return Err(TakeEventsError::NotOnThisProvider);
        }
        if self.0.event_state.taken.swap(true, Ordering::Acquire) {
            return Err(TakeEventsError::Taken);
        }
        Ok(AsyncEvents { context: Arc::clone(&self.0) })
    }
}

impl AsyncEvents {
    /// The next event; `None` if there is none now.
    ///
    /// # Errors
    ///
    /// [`EventsError::DeviceGone`], after [`AsyncEvent::DeviceFatal`] and all other events; every later call fails in
    /// the same way.
    #[doc(alias = "ibv_ack_async_event")]
    pub fn poll(&mut self) -> Result<Option<AsyncEvent>, EventsError> {
        let fatal = &self.context.event_state.fatal;
        loop {
            let event = match self.take() {
                Ok(TakenEvent::Event(event)) => event,
                Ok(TakenEvent::OfNobody) => continue,
                Ok(TakenEvent::Nothing) if fatal.load(Ordering::Relaxed) => return Err(EventsError::DeviceGone),
                Ok(TakenEvent::Nothing) => return Ok(None),
                // The kernel answers `EIO` after the device was removed. If `DeviceFatal` was not reported yet, report
                // it now, instead of the `EIO`. After that, return `DeviceGone`.
                Err(error) if error.errno() == libc::EIO => {
                    if fatal.load(Ordering::Relaxed) {
                        return Err(EventsError::DeviceGone);
                    }
                    AsyncEvent::DeviceFatal
                }
                Err(error) => return Err(error.into()),
            };
            if event == AsyncEvent::DeviceFatal {
                fatal.store(true, Ordering::Relaxed);
            }
            return Ok(Some(event));
        }
    }

    /// Waits for the next event, at most for `timeout`; `None` if none came.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn next(&mut self, timeout: Duration) -> Result<Option<AsyncEvent>, EventsError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(event) = self.poll()? {
                return Ok(Some(event));
            }
            let left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            let left = self.next_timer().map_or(left, |timer| timer.min(left));
            until_readable([self.fd()], left)?;
        }
    }

    /// A descriptor for an event loop of the program's own: readable while events wait.
    ///
    /// Call [`poll`](Self::poll) until it returns `None`, then wait until the descriptor is readable.
    ///
    /// # Errors
    ///
    /// No more descriptors (`EMFILE`, `ENFILE`).
    pub fn readiness(&self) -> Result<Readiness, VerbError> {
        Readiness::over(&[self.fd()])
    }

    /// How long an event loop may wait before it must poll even if nothing is readable; `None` means for ever. Only an
    /// automatic soft device has timers, which it runs in calls of the program.
    pub fn next_timer(&self) -> Option<Duration> {
        self.context.next_timer()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.context.async_fd()
    }

    fn take(&self) -> Result<TakenEvent, VerbError> {
        let objects = self.context.objects.lock();
        let event = self.context.take_async_event()?;
        Ok(event.map_or(TakenEvent::Nothing, |event| TakenEvent::read(&event, &objects)))
    }
}

impl fmt::Debug for AsyncEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gone = self.context.event_state.fatal.load(Ordering::Relaxed);
        f.debug_struct("AsyncEvents").field("device_fatal", &gone).finish_non_exhaustive()
    }
}

impl Drop for AsyncEvents {
    fn drop(&mut self) {
        self.context.event_state.taken.store(false, Ordering::Release);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TakenEvent {
    Nothing,
    /// An event about an object that no longer exists.
    OfNobody,
    Event(AsyncEvent),
}

impl TakenEvent {
    fn read(event: &RawEvent, objects: &HashMap<usize, Object>) -> Self {
        use AsyncEvent as Event;
        let kind = event.kind;
        let object = || match event.about {
            About::Object(address) => objects.get(&address),
            About::Port(_) | About::Device => None,
        };
        let pair = |what| match object() {
            Some(&Object::QueuePair(qpn)) => Self::Event(Event::OfQueuePair(qpn, what)),
            _ => Self::OfNobody,
        };
        let shared = |what| match object() {
            Some(&Object::SharedReceiveQueue(id)) => Self::Event(Event::OfSharedReceiveQueue(id, what)),
            _ => Self::OfNobody,
        };
        let unknown = Self::Event(Event::Unknown { code: kind.0 });
        let port = |what| {
            let number = match event.about {
                About::Port(number) => u8::try_from(number).unwrap_or(0),
                About::Object(_) | About::Device => 0,
            };
            PortNumber::new(number).map_or(unknown, |port| Self::Event(Event::OfPort(port, what)))
        };
        match kind {
            Kind::IBV_EVENT_QP_FATAL => pair(QueuePairEvent::Fatal),
            Kind::IBV_EVENT_QP_REQ_ERR => pair(QueuePairEvent::RequestError),
            Kind::IBV_EVENT_QP_ACCESS_ERR => pair(QueuePairEvent::AccessError),
            Kind::IBV_EVENT_COMM_EST => pair(QueuePairEvent::ConnectionEstablished),
            Kind::IBV_EVENT_SQ_DRAINED => pair(QueuePairEvent::SendQueueDrained),
            Kind::IBV_EVENT_QP_LAST_WQE_REACHED => pair(QueuePairEvent::LastRequestReached),
            Kind::IBV_EVENT_PATH_MIG => pair(QueuePairEvent::PathMigrated),
            Kind::IBV_EVENT_PATH_MIG_ERR => pair(QueuePairEvent::PathMigrationFailed),
            Kind::IBV_EVENT_CQ_ERR => match object() {
                Some(&Object::CompletionQueue(id)) => Self::Event(Event::CompletionQueueError(id)),
                _ => Self::OfNobody,
            },
            Kind::IBV_EVENT_SRQ_LIMIT_REACHED => shared(SharedReceiveQueueEvent::LimitReached),
            Kind::IBV_EVENT_SRQ_ERR => shared(SharedReceiveQueueEvent::Failed),
            Kind::IBV_EVENT_PORT_ACTIVE => port(PortEvent::Active),
            Kind::IBV_EVENT_PORT_ERR => port(PortEvent::Down),
            Kind::IBV_EVENT_LID_CHANGE => port(PortEvent::LidChanged),
            Kind::IBV_EVENT_PKEY_CHANGE => port(PortEvent::PartitionKeysChanged),
            Kind::IBV_EVENT_SM_CHANGE => port(PortEvent::SubnetManagerChanged),
            Kind::IBV_EVENT_CLIENT_REREGISTER => port(PortEvent::ReregisterRequested),
            Kind::IBV_EVENT_GID_CHANGE => port(PortEvent::GidsChanged),
            Kind::IBV_EVENT_DEVICE_FATAL => Self::Event(Event::DeviceFatal),
            _ => unknown,
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OfQueuePair(qpn, what) => write!(f, "queue pair {qpn}: {what}"),
            Self::CompletionQueueError(id) => {
                write!(f, "{id} failed: destroy its queue pairs, then the queue, and make new ones")
            }
            Self::OfSharedReceiveQueue(id, what) => write!(f, "{id}: {what}"),
            Self::OfPort(port, what) => write!(f, "port {port}: {what}"),
            Self::DeviceFatal => f.write_str(
                "the device has failed or was removed: drop everything that was made from it, and open it again",
            ),
            Self::Unknown { code } => write!(f, "an event of unknown kind {code}"),
        }
    }
}

impl fmt::Display for QueuePairEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fatal => "it failed and is in Error: drain it, then destroy it, or reset it where that is allowed",
            Self::RequestError => {
                "the peer sent an invalid request, and the pair is in Error: look for the error at the peer, then connect again"
            }
            Self::AccessError => {
                "the peer named memory that it may not use, and the pair is in Error: check for a stale or forged key, and for a \
                 region of another domain; then connect again"
            }
            Self::ConnectionEstablished => "the first message has arrived: move to Ready To Send",
            Self::SendQueueDrained => "the send queue is drained: change attributes now, then resume the pair",
            Self::LastRequestReached => {
                "it takes no more receives from its shared receive queue: poll its completions, then destroy it"
            }
            Self::PathMigrated => "it moved to its alternate path: load another one",
            Self::PathMigrationFailed => "it could not move to its alternate path: load another one, or connect again",
        })
    }
}

impl fmt::Display for SharedReceiveQueueEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LimitReached => "fewer receives are left than its limit: post more, then set the limit again",
            Self::Failed => "it failed: destroy its queue pairs, then the queue, and make new ones",
        })
    }
}

impl fmt::Display for PortEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "the link is up",
            Self::Down => "the link is down; connections retry until their limit, so wait or give up",
            Self::LidChanged => "it has another LID: exchange endpoints again before connecting",
            Self::PartitionKeysChanged => "its table of partition keys changed: query the keys again",
            Self::SubnetManagerChanged => "another subnet manager has taken over",
            Self::ReregisterRequested => "join multicast groups and register services again",
            Self::GidsChanged => "its GID table changed: query the port and exchange endpoints again before connecting",
        })
    }
}

#[cfg(test)]
mod tests;
