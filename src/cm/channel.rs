//! Event channels, shared by many identifiers and threads.

#[cfg(loom)]
mod models;

use super::error::{Cause, CmError};
use crate::device::{Context, OpenError};
use crate::provider::environment::forbidden_variable;
use crate::provider::{
    self,
    cm::{EventParameters, NewId, PortSpace, RawChannel, RawEvent, RawEventKind, RawId},
};
use crate::sync::{Condvar, Mutex, MutexGuard, lock};
use crate::verb_error::VerbError;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::task::Waker as TaskWaker;
use std::time::{Duration, Instant};
use std::{env, fmt, mem, vec};

#[cfg(not(loom))]
use crate::{
    inflight::Waker,
    provider::cm::descriptor,
    readiness::{Readiness, until_readable},
};
#[cfg(loom)]
use models::{Waker, descriptor, until_readable};

/// A channel of rdma_cm: it delivers the events of all identifiers that were made on it.
///
/// `rdma_create_event_channel(3)`. This is a handle: clones name the same channel, which is closed when the last clone
/// and the last identifier are dropped. Identifiers of one channel may be used by different threads. A connection that
/// a listener accepted stays on the listener's channel.
///
/// Programs that wait with a timeout ([`Resolving::wait`](super::Resolving::wait) and the like) do not use the channel
/// itself. A program with an event loop watches the descriptor of [`readiness`](Self::readiness), and polls its
/// identifiers when the descriptor is readable.
#[derive(Clone)]
#[doc(alias = "rdma_event_channel")]
#[doc(alias = "rdma_create_event_channel")]
#[doc(alias = "rdma_destroy_event_channel")]
pub struct Channel(pub(super) Arc<Inbox>);

/// No channel is opened if a device would not be.
fn check_environment() -> Result<(), CmError> {
    forbidden_variable().map_or(Ok(()), |variable| Err(Box::new(OpenError::ForbiddenEnvironment { variable }).into()))
}

impl Channel {
    /// Opens a channel for identifiers on the device of `context`. If that is a real device, identifiers of the channel
    /// also reach the other devices of this host.
    ///
    /// # Errors
    ///
    /// [`CmError`]: librdmacm or its device node is missing, or the process has no descriptor left.
    /// [`CmError::Open`]: an environment variable is set, or was seen before, with which no device is opened.
    /// [`CmError::NoNodeGuid`]: librdmacm is older than release 56, and a device of this host has no node GUID. The
    /// release is read from the file name of librdmacm; if the name does not contain it, the release that the program
    /// was built with counts.
    pub fn open(context: &Context) -> Result<Self, CmError> {
        check_environment()?;
        Self::over(context.0.open_cm()?)
    }

    /// Opens a channel of the machine's rdma_cm, for programs that learn from rdma_cm which device to open:
    /// [`Resolved::device`](super::Resolved::device), [`Request::device`](super::Request::device). If the environment
    /// variable `INTERLOCK_DEVICE` names a device, the channel is opened for that device, which may also be a soft one.
    ///
    /// # Errors
    ///
    /// The same as those of [`open`](Self::open), and [`CmError::Open`]: the device that `INTERLOCK_DEVICE` names was
    /// not opened.
    pub fn open_default() -> Result<Self, CmError> {
        match env::var_os("INTERLOCK_DEVICE").filter(|name| !name.is_empty()) {
            Some(_) => Self::open(&Context::open_default().map_err(Box::new)?),
            None => {
                check_environment()?;
                Self::over(provider::cm::open()?)
            }
        }
    }

    fn over(raw: Arc<dyn RawChannel>) -> Result<Self, CmError> {
        let sleeper = Waker::new()?;
        let mail = Mutex::new(Mail::default());
        Ok(Self(Arc::new(Inbox { raw, mail, turn: Condvar::new(), sleeper })))
    }

    /// A descriptor for an event loop. When it is readable, poll the identifiers of the channel.
    ///
    /// The `poll` of any identifier takes the events of all identifiers from the kernel. In some states an identifier
    /// has no `poll`. While all identifiers of the channel are in such states, a level-triggered loop must call
    /// [`Channel::poll`] instead; otherwise the descriptor stays readable.
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

    /// Takes the events that have arrived, for all identifiers of the channel. Returns whether the `poll` of at least
    /// one identifier would find an event.
    ///
    /// # Errors
    ///
    /// The channel failed.
    pub fn poll(&self) -> Result<bool, VerbError> {
        let (mail, failed) = self.0.sort(self.0.lock());
        failed.map_or_else(|| Ok(mail.has_news()), Err)
    }

    /// A descriptor that is readable while the kernel has events of the channel.
    #[cfg(feature = "aio")]
    pub(crate) fn events(&self) -> Result<crate::readiness::Readiness, VerbError> {
        crate::readiness::Readiness::over(&[self.0.raw.fd()])
    }

    /// Takes events that have arrived, and wakes the tasks that wait for them. Returns whether the channel may hold
    /// more events.
    #[cfg(feature = "aio")]
    pub(crate) fn wake_tasks(&self) -> Result<bool, VerbError> {
        let (mail, failed) = self.0.sort(self.0.lock());
        failed.map_or(Ok(mail.may_have_more), Err)
    }

    /// The time after which somebody must take events again, even if the descriptor is not readable by then. Only soft
    /// devices have such a time.
    #[cfg(feature = "aio")]
    pub(crate) fn next_timer(&self) -> Option<Duration> {
        self.0.raw.next_timer()
    }

    /// Takes the wakers of all tasks that wait for events of the channel.
    #[cfg(feature = "aio")]
    pub(crate) fn take_tasks(&self) -> Vec<TaskWaker> {
        self.0.lock().boxes.values_mut().filter_map(|found| found.task.take()).collect()
    }

    pub(super) fn identifier(&self, space: PortSpace) -> Result<Identifier, VerbError> {
        let key = self.0.lock().add();
        match Arc::clone(&self.0.raw).create_id(space, key) {
            Ok(raw) => Ok(Identifier { raw, space, events: Events { key, inbox: Arc::clone(&self.0) } }),
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
/// Any thread may take events from the channel. A thread that does so takes all events that have arrived, and also
/// sorts those of other identifiers. Of the threads that wait, one sleeps on the descriptor and the others sleep on
/// `turn`. The thread on the descriptor wakes the others when it returns.
pub(super) struct Inbox {
    raw: Arc<dyn RawChannel>,
    mail: Mutex<Mail>,
    /// Notified when the thread that slept on the descriptor returns, or when a thread has sorted new events.
    turn: Condvar,
    /// Wakes the thread that sleeps on the descriptor: another thread may have taken that thread's event from the
    /// channel.
    sleeper: Waker,
}

#[derive(Default)]
struct Mail {
    boxes: HashMap<u64, MailBox>,
    last_key: u64,
    /// A thread sleeps on the descriptor.
    has_sleeper: bool,
    /// The last `sort` stopped at its limit, so the channel may hold more events.
    may_have_more: bool,
    /// Readable while the `poll` of at least one identifier would find an event, or while the channel may hold more
    /// events. `None` if no event loop watches the channel.
    for_loop: Option<Waker>,
}

/// The events of one identifier.
#[derive(Default)]
struct MailBox {
    events: VecDeque<RawEvent>,
    /// How many connect requests may wait; more are rejected. 0 for an identifier that does not listen.
    requests: usize,
    /// The identifier is in a state that has a `poll`. In other states nothing takes its events until the program's
    /// next step, so they must not wake an event loop.
    is_polled: bool,
    /// The device of the identifier was removed. This stays true after the event of the removal was taken.
    is_removed: bool,
    /// The number of the identifier's pair may be used again. This stays true after the event was taken.
    is_number_free: bool,
    /// The task that waits for an event.
    task: Option<TaskWaker>,
}

impl Mail {
    /// Adds a box under a new key, and returns the key.
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

    /// Puts an event into the box of its identifier, and moves the waker of the task that waits for it to `later`. If
    /// the identifier has ended, or if the event is a connect request beyond the limit, `later` gets the event instead.
    fn put(&mut self, event: RawEvent, later: &mut Later) {
        let Some(found) = self.boxes.get_mut(&event.key) else { return later.strays.push(event) };
        let is_request = |event: &RawEvent| event.kind == RawEventKind::CONNECT_REQUEST;
        if is_request(&event) && found.events.iter().filter(|event| is_request(event)).count() >= found.requests {
            return later.strays.push(event);
        }
        found.is_removed |= event.kind == RawEventKind::DEVICE_REMOVAL;
        found.is_number_free |= event.kind == RawEventKind::TIMEWAIT_EXIT;
        found.events.push_back(event);
        later.tasks.extend(found.task.take());
    }

    /// Whether the `poll` of at least one identifier would find an event.
    fn has_news(&self) -> bool {
        self.boxes.values().any(|found| found.is_polled && !found.events.is_empty())
    }

    fn tell_loop(&self) {
        if let Some(waker) = &self.for_loop {
            match self.may_have_more || self.has_news() {
                true => waker.wake(),
                false => waker.clear(),
            }
        }
    }
}

/// The most events that are taken under one hold of the lock.
const BATCH: usize = 64;
/// The most batches that one call of [`Inbox::poll`] or [`Inbox::knows`] takes. If the channel may hold more
/// events after that, `for_loop` stays readable, so the event loop calls again.
const BATCHES: usize = 16;

/// What is left to do after the lock is released.
#[derive(Default)]
struct Later {
    /// Events that no box takes. Dropping them may reject a connect request, which takes time.
    strays: Vec<RawEvent>,
    /// The wakers of tasks whose event has come. A waker runs code of the task's runtime.
    tasks: Vec<TaskWaker>,
}

impl Later {
    fn is_empty(&self) -> bool {
        self.strays.is_empty() && self.tasks.is_empty()
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let mut rest = Rest(mem::take(&mut self.tasks).into_iter());
        rest.0.by_ref().for_each(TaskWaker::wake);
    }
}

/// The tasks that are not woken yet. If a waker panics, the drop of this value wakes the remaining tasks.
struct Rest(vec::IntoIter<TaskWaker>);

impl Drop for Rest {
    fn drop(&mut self) {
        self.0.by_ref().for_each(TaskWaker::wake);
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Mail> {
        lock(&self.mail)
    }

    /// Takes at most [`BATCH`] events from the channel, and sorts them. Then wakes the tasks whose events have come;
    /// the lock is released for that. Stops at the first error of the channel, and returns that error. An event may be
    /// lost with the error, and nobody knows of which identifier.
    ///
    /// Callers take their own event after this call. So if a waker panics, that event is still in its box.
    fn sort<'m>(&'m self, mut mail: MutexGuard<'m, Mail>) -> (MutexGuard<'m, Mail>, Option<VerbError>) {
        let mut later = Later::default();
        let failed = self.sort_into(&mut mail, &mut later);
        if !later.is_empty() {
            drop(mail);
            drop(later);
            mail = self.lock();
        }
        (mail, failed)
    }

    /// Like [`sort`](Self::sort), but puts into `later` what must be done without the lock.
    fn sort_into(&self, mail: &mut Mail, later: &mut Later) -> Option<VerbError> {
        let (mut taken, mut failed) = (0, None);
        while taken < BATCH {
            match Arc::clone(&self.raw).take_event(mail.last_key + 1) {
                Ok(Some(event)) => {
                    taken += 1;
                    mail.last_key += u64::from(event.request.is_some());
                    mail.put(event, later);
                }
                Ok(None) => break,
                Err(error) => {
                    failed = Some(error);
                    // Perhaps an event was lost with the error. The identifier of that event is unknown, so wake all
                    // tasks: each of them polls again.
                    later.tasks.extend(mail.boxes.values_mut().filter_map(|found| found.task.take()));
                    break;
                }
            }
        }
        let had_more = mem::replace(&mut mail.may_have_more, taken == BATCH);
        if taken > 0 || had_more {
            mail.tell_loop();
        }
        if taken > 0 {
            self.wake_threads(mail);
        }
        failed
    }

    /// Adds an event that is not from the channel.
    fn add(&self, event: RawEvent) {
        let (mut mail, mut later) = (self.lock(), Later::default());
        mail.put(event, &mut later);
        mail.tell_loop();
        self.wake_threads(&mail);
        drop(mail);
        drop(later);
    }

    /// Wakes the threads that wait, so that each looks into its box.
    fn wake_threads(&self, mail: &Mail) {
        self.turn.notify_all();
        if mail.has_sleeper {
            self.sleeper.wake();
        }
    }

    /// The oldest event of an identifier, if there is one.
    pub(super) fn poll(&self, key: u64) -> Result<Option<RawEvent>, VerbError> {
        for _ in 0..BATCHES {
            let (mut mail, failed) = self.sort(self.lock());
            match (mail.take(key), failed) {
                // Return the event even if `sort` has failed. If the channel goes on failing, the next call returns the
                // error.
                (Some(event), _) => return Ok(Some(event)),
                (None, Some(error)) => return Err(error),
                (None, None) if mail.may_have_more => {}
                (None, None) => break,
            }
        }
        Ok(None)
    }

    /// Whether `is_so` is true for the box of an identifier, after the events that have arrived were sorted.
    fn knows(&self, key: u64, is_so: impl Fn(&MailBox) -> bool) -> bool {
        for _ in 0..BATCHES {
            // An error is ignored. If it lasts, the next `poll` or `wait` of an identifier returns it.
            let (mail, _) = self.sort(self.lock());
            let is_known = mail.boxes.get(&key).is_some_and(&is_so);
            if is_known || !mail.may_have_more {
                return is_known;
            }
        }
        false
    }

    /// The oldest event of an identifier. Waits for it until `deadline`; a deadline of `None` means for ever.
    pub(super) fn wait(&self, key: u64, deadline: Option<Instant>) -> Result<Option<RawEvent>, VerbError> {
        let left = || deadline.map_or(LONG, |deadline| deadline.saturating_duration_since(Instant::now()));
        let mut mail = self.lock();
        loop {
            let failed;
            (mail, failed) = self.sort(mail);
            match (mail.take(key), failed) {
                // Return the event even if `sort` has failed. If the channel goes on failing, the next call returns the
                // error.
                (Some(event), _) => return Ok(Some(event)),
                (None, Some(error)) => return Err(error),
                (None, None) => {}
            }
            let left = left();
            if left.is_zero() {
                return Ok(None);
            }
            if mail.may_have_more {
                // The channel perhaps holds more events, so `sort` is called again. Let other threads take the lock in
                // between.
                drop(mail);
                mail = self.lock();
                continue;
            }
            // This thread must wake at the next timer, even if it only sleeps on `turn`. It cannot rely on the thread
            // that sleeps on the descriptor. When a timer is set, the soft device makes the descriptor readable, to
            // wake that other thread. But `sort` in this thread can make the descriptor unreadable again before the
            // other thread wakes. Then the other thread does not learn of the timer.
            let at_most = self.raw.next_timer().map_or(left, |timer| left.min(timer));
            if mail.has_sleeper {
                mail = self.turn.wait_timeout(mail, at_most).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            mail.has_sleeper = true;
            drop(mail);
            let slept = until_readable([descriptor(&*self.raw), self.sleeper.fd()], at_most);
            mail = self.lock();
            mail.has_sleeper = false;
            self.sleeper.clear();
            self.turn.notify_all();
            slept.map_err(|error| VerbError::new("poll", error.raw_os_error().unwrap_or(libc::EINVAL)))?;
        }
    }

    /// Drops the events of an identifier that ends. Later events of that identifier find no box.
    fn end(&self, key: u64) {
        let unread = self.lock().boxes.remove(&key);
        self.lock().tell_loop();
        drop(unread);
    }
}

/// The longest sleep of a thread that waits for ever. It checks its box after each sleep.
const LONG: Duration = Duration::from_secs(3600);

/// The events of one identifier. A clone takes events of the same identifier, and finds none after the identifier has
/// ended.
#[derive(Clone)]
pub(crate) struct Events {
    key: u64,
    inbox: Arc<Inbox>,
}

impl Events {
    pub(super) fn poll(&self) -> Result<Option<RawEvent>, VerbError> {
        self.inbox.poll(self.key)
    }

    pub(super) fn wait(&self, deadline: Option<Instant>) -> Result<Option<RawEvent>, VerbError> {
        self.inbox.wait(self.key, deadline)
    }

    /// The cause of a failed call of this identifier: [`Cause::DeviceRemoved`] if its device was removed, otherwise
    /// `error`. After a removal, calls of rdma_cm fail with many different errors.
    pub(super) fn cause_of(&self, error: VerbError) -> Cause {
        if self.is_removed() { Cause::DeviceRemoved } else { Cause::Call(error) }
    }

    /// Whether rdma_cm has reported that the device of the identifier was removed.
    pub(super) fn is_removed(&self) -> bool {
        self.inbox.knows(self.key, |found| found.is_removed)
    }

    /// Whether rdma_cm has reported that the number of the identifier's pair may be used again.
    pub(super) fn is_number_free(&self) -> bool {
        self.inbox.knows(self.key, |found| found.is_number_free)
    }

    /// Adds an event that the library makes itself: a thread has made a call for the identifier, and the call failed.
    pub(super) fn add_failure(&self, error: &VerbError) {
        let (key, kind, status) = (self.key, RawEventKind::CALL_FAILED, -error.errno());
        self.inbox.add(RawEvent { key, kind, status, parameters: EventParameters::default(), request: None });
    }

    /// Drops the events of a multicast group that the identifier has left, so that they cannot end a later membership.
    pub(super) fn forget_group(&self) {
        let mut mail = self.inbox.lock();
        if let Some(found) = mail.boxes.get_mut(&self.key) {
            let kinds = [RawEventKind::MULTICAST_JOIN, RawEventKind::MULTICAST_ERROR];
            found.events.retain(|event| !kinds.contains(&event.kind));
            mail.tell_loop();
        }
    }

    /// Lets the next event of the identifier wake `task`. Returns false, and does not keep `task`, if an event is in
    /// the box already or if the identifier has ended.
    #[cfg(feature = "aio")]
    pub(crate) fn wake_by_next(&self, task: &TaskWaker) -> bool {
        let task = task.clone();
        let mut mail = self.inbox.lock();
        let Some(found) = mail.boxes.get_mut(&self.key) else { return false };
        if !found.events.is_empty() {
            return false;
        }
        let before = found.task.replace(task);
        drop(mail);
        drop(before);
        true
    }

    /// Sets whether the identifier is in a state that has a `poll`.
    pub(super) fn set_polled(&self, is_polled: bool) {
        let mut mail = self.inbox.lock();
        if let Some(found) = mail.boxes.get_mut(&self.key)
            && found.is_polled != is_polled
        {
            found.is_polled = is_polled;
            mail.tell_loop();
        }
    }

    /// Lets up to `requests` connect requests wait in the box of the identifier.
    pub(super) fn hold_requests(&self, requests: usize) {
        if let Some(found) = self.inbox.lock().boxes.get_mut(&self.key) {
            found.requests = requests;
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

/// An identifier on its channel. The type that holds it says which state it is in.
pub(crate) struct Identifier {
    pub(super) raw: Box<dyn RawId>,
    pub(super) space: PortSpace,
    pub(super) events: Events,
}

impl Identifier {
    /// The identifier that came with a connect request. Such an identifier gets no event before its accept, so no event
    /// was lost while it had no box.
    pub(super) fn of_request(new: NewId, listener: &Self) -> Self {
        let NewId { raw, key } = new;
        let inbox = Arc::clone(&listener.events.inbox);
        inbox.lock().boxes.insert(key, MailBox::default());
        Self { raw, space: listener.space, events: Events { key, inbox } }
    }
}

/// Ends the events of an identifier when it is dropped, even by a panic.
struct EndEvents<'e>(&'e Events);

impl Drop for EndEvents<'_> {
    fn drop(&mut self) {
        self.0.inbox.end(self.0.key);
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // `poll` below wakes tasks, and a waker may panic. Even then, the drop of `end` removes the `MailBox`.
        let end = EndEvents(&self.events);
        if self.raw.ends_with_event() {
            // The peer's answer to the connect or accept of this identifier is perhaps in the channel. If `poll` takes
            // the answer, the drop of `raw` destroys the identifier at once. Otherwise the provider destroys the
            // identifier later, once somebody has taken the answer. An error is ignored: if it lasts, the next `poll`
            // or `wait` of an identifier returns it.
            drop(self.events.poll());
        }
        drop(end);
        // The field `raw` is dropped after this function. Until then, another thread can take an event of this
        // identifier. Such an event is dropped, since `end` has removed the `MailBox`.
    }
}

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    /// A waker that counts its calls, and panics at the first.
    struct Fuse(AtomicUsize);

    impl Wake for Fuse {
        fn wake(self: Arc<Self>) {
            assert!(self.0.fetch_add(1, Ordering::Relaxed) > 0, "the waker's own fault");
        }
    }

    #[test]
    fn the_panic_of_one_waker_leaves_no_task_asleep() {
        let fuse = Arc::new(Fuse(AtomicUsize::new(0)));
        let tasks = (0..3).map(|_| Arc::clone(&fuse).into()).collect();
        let later = Later { tasks, strays: Vec::new() };
        assert!(catch_unwind(AssertUnwindSafe(|| drop(later))).is_err());
        assert_eq!(fuse.0.load(Ordering::Relaxed), 3);
    }

    /// An edge-triggered loop gets no further edge of the channel's descriptor for events that a `poll` has left there.
    #[test]
    fn an_event_loop_is_woken_again_for_what_a_batch_has_left() {
        let mut mail = Mail { for_loop: Some(Waker::new().unwrap()), ..Mail::default() };
        for may_have_more in [true, false] {
            mail.may_have_more = may_have_more;
            mail.tell_loop();
            let fd = mail.for_loop.as_ref().unwrap().fd();
            assert_eq!(until_readable([fd], Duration::ZERO).unwrap(), may_have_more);
        }
    }
}
