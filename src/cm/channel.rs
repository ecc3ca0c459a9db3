//! Event channels, shared by many identifiers and threads.

#[cfg(loom)]
mod models;

use super::error::CmError;
use crate::device::Context;
use crate::provider::{
    self,
    cm::{NewId, PortSpace, RawChannel, RawEvent, RawEventKind, RawId},
};
use crate::sync::{Condvar, Mutex, MutexGuard, lock};
use crate::verb_error::VerbError;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fmt};

#[cfg(not(loom))]
use crate::{
    inflight::Waker,
    provider::cm::descriptor,
    readiness::{Readiness, until_readable},
};
#[cfg(loom)]
use models::{Waker, descriptor, until_readable};

/// A channel of rdma_cm: brings the events of all identifiers that were made on it.
///
/// `rdma_create_event_channel(3)`. A handle: clones name the same channel, which ends with the last clone and the last
/// identifier. Identifiers of one channel may be used by different threads. A connection that a listener accepted
/// stays on the listener's channel.
///
/// Programs that wait with a timeout ([`Resolving::wait`](super::Resolving::wait) and its like) need nothing of the
/// channel itself. A program with an event loop watches the descriptor of [`readiness`](Self::readiness), and asks its
/// identifiers when that is readable.
#[derive(Clone)]
#[doc(alias = "rdma_event_channel")]
#[doc(alias = "rdma_create_event_channel")]
#[doc(alias = "rdma_destroy_event_channel")]
pub struct Channel(pub(super) Arc<Inbox>);

impl Channel {
    /// Opens a channel for identifiers on the device of `context`. Through librdmacm they may also be used for its
    /// other devices.
    ///
    /// # Errors
    ///
    /// [`CmError`]: librdmacm or its device node is missing, or the process has no descriptor left.
    pub fn open(context: &Context) -> Result<Self, CmError> {
        Self::over(context.0.open_cm()?)
    }

    /// Opens a channel of the machine's rdma_cm, for programs that learn from it which device to open:
    /// [`Resolved::device`](super::Resolved::device), [`Request::device`](super::Request::device). If the environment
    /// variable `INTERLOCK_DEVICE` names a device, the channel is one for that device, also for a soft one.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_default() -> Result<Self, CmError> {
        match env::var_os("INTERLOCK_DEVICE").filter(|name| !name.is_empty()) {
            Some(_) => Self::open(&Context::open_default().map_err(Box::new)?),
            None => Self::over(provider::cm::open()?),
        }
    }

    fn over(raw: Arc<dyn RawChannel>) -> Result<Self, CmError> {
        let sleeper = Waker::new()?;
        let mail = Mutex::new(Mail::default());
        Ok(Self(Arc::new(Inbox { raw, mail, turn: Condvar::new(), sleeper })))
    }

    /// A descriptor for an event loop. When it is readable, ask the identifiers of the channel by their `poll`.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    #[cfg(not(loom))]
    pub fn readiness(&self) -> Result<Readiness, VerbError> {
        let mut mail = self.0.lock();
        if mail.for_loop.is_none() {
            mail.for_loop = Some(Waker::new()?);
        }
        mail.tell_loop();
        let fd = descriptor(&*self.0.raw);
        Readiness::over(&[fd, mail.for_loop.as_ref().map_or(fd, Waker::fd)])
    }

    pub(super) fn identifier(&self, space: PortSpace) -> Result<Identifier, VerbError> {
        let key = self.0.lock().add();
        match Arc::clone(&self.0.raw).create_id(space, key) {
            Ok(raw) => Ok(Identifier { raw, key, inbox: Arc::clone(&self.0) }),
            Err(error) => {
                self.0.lock().boxes.remove(&key);
                Err(error)
            }
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("identifiers", &self.0.lock().boxes.len()).finish_non_exhaustive()
    }
}

/// The events of a channel, sorted by identifier.
///
/// Any thread may take events from the channel. It sorts all that there are, those of other identifiers too. Of the
/// threads that wait, one sleeps on the descriptor; the others wait for that one, which wakes them when it is back.
pub(super) struct Inbox {
    raw: Arc<dyn RawChannel>,
    mail: Mutex<Mail>,
    /// Notified when a thread has come back from the descriptor, or has brought events.
    turn: Condvar,
    /// Brings the thread that sleeps on the descriptor back, because another thread took its event.
    sleeper: Waker,
}

#[derive(Default)]
struct Mail {
    boxes: HashMap<u64, MailBox>,
    last_key: u64,
    /// A thread sleeps on the descriptor.
    has_sleeper: bool,
    /// Readable while any box has an event. There if an event loop watches the channel.
    for_loop: Option<Waker>,
}

/// The events of one identifier.
#[derive(Default)]
struct MailBox {
    events: VecDeque<RawEvent>,
    /// How many connect requests may wait; more are rejected. 0 for an identifier that does not listen.
    requests: usize,
}

impl Mail {
    /// A new key with its box.
    fn add(&mut self) -> u64 {
        self.last_key += 1;
        self.boxes.insert(self.last_key, MailBox::default());
        self.last_key
    }

    fn take(&mut self, key: u64) -> Option<RawEvent> {
        let event = self.boxes.get_mut(&key)?.events.pop_front()?;
        self.tell_loop();
        Some(event)
    }

    /// Puts an event into its box. Gives back what nobody takes: the event of an identifier that has ended, or a
    /// request too many.
    fn put(&mut self, event: RawEvent) -> Option<RawEvent> {
        let Some(found) = self.boxes.get_mut(&event.key) else { return Some(event) };
        let is_request = |event: &RawEvent| event.kind == RawEventKind::CONNECT_REQUEST;
        if is_request(&event) && found.events.iter().filter(|event| is_request(event)).count() >= found.requests {
            return Some(event);
        }
        found.events.push_back(event);
        None
    }

    fn tell_loop(&self) {
        if let Some(waker) = &self.for_loop {
            match self.boxes.values().any(|found| !found.events.is_empty()) {
                true => waker.wake(),
                false => waker.clear(),
            }
        }
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Mail> {
        lock(&self.mail)
    }

    /// Takes all events from the channel and sorts them. Returns what nobody takes, to be dropped without the lock.
    fn sort(&self, mail: &mut Mail) -> Result<Vec<RawEvent>, VerbError> {
        let mut strays = Vec::new();
        let mut any = false;
        let result = loop {
            match Arc::clone(&self.raw).take_event(mail.last_key + 1) {
                Ok(Some(event)) => {
                    any = true;
                    mail.last_key += u64::from(event.request.is_some());
                    strays.extend(mail.put(event));
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if any {
            mail.tell_loop();
            self.turn.notify_all();
            if mail.has_sleeper {
                self.sleeper.wake();
            }
        }
        result.map(|()| strays)
    }

    /// The oldest event of an identifier, if there is one.
    pub(super) fn poll(&self, key: u64) -> Result<Option<RawEvent>, VerbError> {
        let mut mail = self.lock();
        let strays = self.sort(&mut mail)?;
        let event = mail.take(key);
        drop(mail);
        drop(strays);
        Ok(event)
    }

    /// The oldest event of an identifier, waited for until `deadline`; `None` means for ever.
    pub(super) fn wait(&self, key: u64, deadline: Option<Instant>) -> Result<Option<RawEvent>, VerbError> {
        let mut mail = self.lock();
        loop {
            // A request that nobody takes is rejected by its end, which takes its time.
            let strays = self.sort(&mut mail)?;
            if !strays.is_empty() {
                drop(mail);
                drop(strays);
                mail = self.lock();
                continue;
            }
            if let Some(event) = mail.take(key) {
                return Ok(Some(event));
            }
            let left = deadline.map_or(LONG, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            if mail.has_sleeper {
                mail = self.turn.wait_timeout(mail, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            mail.has_sleeper = true;
            drop(mail);
            let at_most = self.raw.next_timer().map_or(left, |timer| left.min(timer));
            let slept = until_readable([descriptor(&*self.raw), self.sleeper.fd()], at_most);
            mail = self.lock();
            mail.has_sleeper = false;
            self.sleeper.clear();
            self.turn.notify_all();
            slept.map_err(|error| VerbError::new("poll", error.raw_os_error().unwrap_or(libc::EINVAL)))?;
        }
    }

    /// Throws the events of an identifier away. Later ones find no box.
    fn end(&self, key: u64) {
        let unread = self.lock().boxes.remove(&key);
        self.lock().tell_loop();
        drop(unread);
    }
}

/// The longest sleep of a thread that waits for ever. Then it looks again.
const LONG: Duration = Duration::from_secs(3600);

/// An identifier on its channel, in no particular state: the types around it say which.
pub(super) struct Identifier {
    pub(super) raw: Box<dyn RawId>,
    pub(super) key: u64,
    pub(super) inbox: Arc<Inbox>,
}

impl Identifier {
    /// The identifier that a connect request brought. (Its events begin with its accept, so nothing came before it had
    /// a box.)
    pub(super) fn of_request(new: NewId, inbox: &Arc<Inbox>) -> Self {
        let NewId { raw, key } = new;
        inbox.lock().boxes.insert(key, MailBox::default());
        Self { raw, key, inbox: Arc::clone(inbox) }
    }

    pub(super) fn poll(&self) -> Result<Option<RawEvent>, VerbError> {
        self.inbox.poll(self.key)
    }

    pub(super) fn wait(&self, deadline: Option<Instant>) -> Result<Option<RawEvent>, VerbError> {
        self.inbox.wait(self.key, deadline)
    }

    /// Lets up to `requests` connect requests wait to be taken.
    pub(super) fn hold_requests(&self, requests: usize) {
        if let Some(found) = self.inbox.lock().boxes.get_mut(&self.key) {
            found.requests = requests;
        }
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        self.inbox.end(self.key);
        // `raw` is destroyed after this. An event that comes until then finds no box, and is dropped.
    }
}

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}
