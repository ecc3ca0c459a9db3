//! The state that all handles of one [`Lending`](super::Lending) share: both sides, the messages to send, and the
//! wakers of waiting tasks.

use super::holder::{Holder, Reception};
use super::owner::{Ended, NotLent, Over, Owner, Quota};
use super::record::{CONTROL_BYTES, Control, GrantedRecord, Refusal};
use super::violation::Violation;
use crate::aio::after::wake_all;
use crate::sync::lock;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::num::NonZeroU64;
use std::sync::Mutex;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// How many replies may wait to be sent, besides one for each grant of the peer's quota. If there are as many, a
/// further request of the peer is a [`Violation::Flood`]. The program causes all other messages, so they do not count.
const MOST_REPLIES: usize = 64;

/// The state behind its lock. Nobody holds the lock while a waker runs or is dropped.
#[derive(Debug)]
pub(super) struct Shared {
    core: Mutex<Core>,
}

#[derive(Debug)]
pub(super) struct Core {
    pub(super) owner: Owner,
    pub(super) holder: Holder,
    outbox: VecDeque<Outgoing>,
    /// The requests of the peer that the program has not fetched.
    asked: VecDeque<Ask>,
    /// The grants that the peer gave without a request, and that the program has not fetched.
    offers: VecDeque<Grant>,
    /// The requests of this side whose futures wait, each with its answer once that has come.
    waits: BTreeMap<NonZeroU64, Option<Answer>>,
    /// The returned grants whose end a [`Returning`](super::Returning) waits for. Once the owner has ended one, whether
    /// it was returned by `PassOn`.
    returning: BTreeMap<NonZeroU64, Option<bool>>,
    /// How much earlier than the owner this side stops using a grant.
    margin: Duration,
    has_peer: bool,
    has_said_goodbye: bool,
    violations: u64,
    waiting: BTreeMap<u64, Waker>,
    next_ticket: u64,
    /// How many changes there were.
    changes: u64,
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    control: Control,
    /// The deadline of a grant. The message gives the time that is left of it when the message is posted.
    until: Option<Instant>,
    /// Whether it counts towards [`MOST_REPLIES`], because a message of the peer caused it.
    is_reply: bool,
}

impl Outgoing {
    /// Its bytes, for a post now.
    pub(super) fn to_bytes(self) -> [u8; CONTROL_BYTES] {
        let Self { mut control, until, .. } = self;
        if let (Control::Grant { duration, .. }, Some(until)) = (&mut control, until) {
            *duration = until.saturating_duration_since(Instant::now());
        }
        control.to_bytes()
    }

    /// Whether it must wait for earlier reads and atomics: after a return, the owner may deregister the memory.
    pub(super) fn is_fenced(&self) -> bool {
        matches!(self.control, Control::Return { .. } | Control::PassOn { .. })
    }
}

/// A request of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) nonce: NonZeroU64,
    pub(super) bytes: u64,
    pub(super) rights: u8,
    pub(super) duration: Duration,
}

/// A grant of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) id: NonZeroU64,
    pub(super) region: GrantedRecord,
    /// When this side stops using it; `None`: never.
    pub(super) until: Option<Instant>,
}

/// The answer to a request of this side.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Granted(Grant),
    TooLittle,
    Refused(Refusal),
}

impl Shared {
    pub(super) fn new(quota: Quota, most_held: usize, margin: Duration) -> Self {
        let core = Core {
            owner: Owner::new(quota),
            holder: Holder::new(most_held),
            outbox: VecDeque::new(),
            asked: VecDeque::new(),
            offers: VecDeque::new(),
            waits: BTreeMap::new(),
            returning: BTreeMap::new(),
            margin,
            has_peer: true,
            has_said_goodbye: false,
            violations: 0,
            waiting: BTreeMap::new(),
            next_ticket: 0,
            changes: 0,
        };
        Self { core: Mutex::new(core) }
    }

    /// Calls `f` with the state, and wakes nobody.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        f(&mut lock(&self.core))
    }

    /// Changes the state, and wakes all who wait for a change.
    pub(super) fn change(&self, f: impl FnOnce(&mut Core)) {
        let ((), wakes) = self.change_with(f);
        drop(wakes);
    }

    /// Changes the state. The drop of [`Wakes`] wakes all who wait for a change. A waker may panic, so the caller drops
    /// it only when the result is in its place: when nothing would be lost.
    pub(super) fn change_with<R>(&self, f: impl FnOnce(&mut Core) -> R) -> (R, Wakes) {
        let mut guard = lock(&self.core);
        let result = f(&mut guard);
        guard.changes += 1;
        let waiting = std::mem::take(&mut guard.waiting);
        (result, Wakes(waiting))
    }

    /// Waits until `ready` gives something.
    pub(super) async fn wait<R>(&self, mut ready: impl FnMut(&mut Core) -> Option<R>) -> R {
        let mut ticket = Ticket { shared: self, number: None };
        poll_fn(|context| {
            // The drop of a waker may panic, and then what `ready` has found would be lost. So the old waker is dropped
            // first, and the new one is cloned only when `ready` has found nothing.
            ticket.take_waker();
            loop {
                let (found, changes) = self.with(|core| (ready(core), core.changes));
                if let Some(found) = found {
                    return Poll::Ready(found);
                }
                let waker = context.waker().clone();
                // If there was a change meanwhile, the waker comes back, to be dropped without the lock.
                if let Ok(number) = self.with(|core| core.park(waker, changes)) {
                    ticket.number = Some(number);
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

/// Wakes all who wait for a change when it is dropped.
#[must_use = "its drop wakes, and runs code of the program"]
pub(super) struct Wakes(BTreeMap<u64, Waker>);

impl Drop for Wakes {
    fn drop(&mut self) {
        wake_all(std::mem::take(&mut self.0).into_values());
    }
}

/// A task that waits for a change. Dropping it removes the waker of the task.
struct Ticket<'s> {
    shared: &'s Shared,
    number: Option<u64>,
}

impl Ticket<'_> {
    fn take_waker(&self) -> Option<Waker> {
        self.shared.with(|core| core.waiting.remove(&self.number?))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.take_waker();
    }
}

impl Core {
    /// Keeps the waker of a task that has seen the state after so many changes, and returns the number of its ticket.
    /// Returns the waker if there was another change since.
    fn park(&mut self, waker: Waker, changes: u64) -> Result<u64, Waker> {
        if self.changes != changes {
            return Err(waker);
        }
        self.next_ticket += 1;
        self.waiting.insert(self.next_ticket, waker);
        Ok(self.next_ticket)
    }

    /// Whether neither side has said goodbye and the connection has not ended.
    pub(super) fn is_open(&self) -> bool {
        self.has_peer && !self.has_said_goodbye
    }

    pub(super) fn violations(&self) -> u64 {
        self.violations
    }

    fn send(&mut self, control: Control) {
        self.push(Outgoing { control, until: None, is_reply: false });
    }

    fn reply(&mut self, control: Control) {
        self.push(Outgoing { control, until: None, is_reply: true });
    }

    fn push(&mut self, message: Outgoing) {
        if !self.has_said_goodbye {
            self.outbox.push_back(message);
        }
    }

    /// Whether the peer may cause one more reply.
    fn room_for_a_reply(&self) -> Result<(), Violation> {
        let most = MOST_REPLIES + self.owner.quota().grants as usize;
        let replies = self.outbox.iter().filter(|message| message.is_reply).count();
        if replies < most { Ok(()) } else { Err(Violation::Flood) }
    }

    /// Takes the next message to send.
    pub(super) fn take_outgoing(&mut self) -> Option<Outgoing> {
        self.outbox.pop_front()
    }

    /// A message from [`take_outgoing`](Self::take_outgoing) was not posted, so it is the next one again.
    pub(super) fn put_back(&mut self, message: Outgoing) {
        self.outbox.push_front(message);
    }

    pub(super) fn has_outgoing(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// A control message has come.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let result =
            Control::parse(bytes).map_err(Violation::Control).and_then(|control| self.receive_control(control));
        self.violations += u64::from(result.is_err());
        result
    }

    fn receive_control(&mut self, control: Control) -> Result<(), Violation> {
        if !self.has_peer {
            return Err(Violation::AfterGoodbye);
        }
        match control {
            Control::Grant { id, answers, duration, region } => self.receive_grant(id, answers, duration, region),
            Control::Return { id } => self.owner.give_back(id, Over::Returned).map(drop),
            Control::PassOn { id, to } => self.owner.give_back(id, Over::PassedOn { to }).map(drop),
            Control::Returned { id, moved } => {
                self.holder.returned(id)?;
                self.offers.retain(|offer| offer.id != id);
                if let Some(place) = self.returning.get_mut(&id) {
                    *place = Some(moved);
                }
                Ok(())
            }
            Control::Ask { nonce, bytes, rights, duration } => {
                self.room_for_a_reply()?;
                match self.owner.ask(nonce, bytes.get())? {
                    Ok(()) => self.asked.push_back(Ask { nonce, bytes: bytes.get(), rights, duration }),
                    Err(why) => self.reply(Control::Refused { nonce, why }),
                }
                Ok(())
            }
            Control::Refused { nonce, why } => {
                if self.holder.refused(nonce)? {
                    self.waits.insert(nonce, Some(Answer::Refused(why)));
                }
                Ok(())
            }
            Control::Bye => {
                self.lose_peer();
                Ok(())
            }
        }
    }

    fn receive_grant(
        &mut self,
        id: NonZeroU64,
        answers: Option<NonZeroU64>,
        duration: Duration,
        region: GrantedRecord,
    ) -> Result<(), Violation> {
        let taken = self.holder.grant(id, answers, region.len_bytes(), region.rights())?;
        let now = Instant::now();
        let until = now.checked_add(duration).map(|until| until.checked_sub(self.margin).unwrap_or(now));
        let grant = Grant { id, region, until };
        if taken != Reception::Here {
            self.reply(Control::Return { id });
        }
        match (answers, taken) {
            (Some(nonce), Reception::Here) => drop(self.waits.insert(nonce, Some(Answer::Granted(grant)))),
            (Some(nonce), Reception::TooLittle) => drop(self.waits.insert(nonce, Some(Answer::TooLittle))),
            (None, Reception::Here) => self.offers.push_back(grant),
            (_, Reception::SendBack | Reception::TooLittle) => {}
        }
        Ok(())
    }

    /// The peer is gone, or has said goodbye.
    pub(super) fn lose_peer(&mut self) {
        self.has_peer = false;
        self.owner.close();
        self.holder.close();
        self.asked.clear();
        self.offers.clear();
    }

    /// This side says goodbye. Its grants go on until the program ends them.
    pub(super) fn say_goodbye(&mut self) {
        self.send(Control::Bye);
        self.has_said_goodbye = true;
    }

    /// Asks for memory. [`take_answer`](Self::take_answer) gives the answer. `None`: there are too many requests and
    /// grants.
    pub(super) fn ask(&mut self, bytes: NonZeroU64, rights: u8, duration: Duration) -> Option<NonZeroU64> {
        let nonce = self.holder.ask(bytes.get(), rights)?;
        self.waits.insert(nonce, None);
        self.send(Control::Ask { nonce, bytes, rights, duration });
        Some(nonce)
    }

    /// The answer to a request, if it has come.
    pub(super) fn take_answer(&mut self, nonce: NonZeroU64) -> Option<Answer> {
        let answer = self.waits.get_mut(&nonce)?.take()?;
        self.waits.remove(&nonce);
        Some(answer)
    }

    /// Nobody waits for the answer any more.
    pub(super) fn drop_answer(&mut self, nonce: NonZeroU64) {
        match self.waits.remove(&nonce) {
            Some(Some(Answer::Granted(grant))) => self.give_back(grant.id, None),
            Some(None) => self.holder.abandon(nonce),
            _ => {}
        }
    }

    pub(super) fn next_asked(&mut self) -> Option<Ask> {
        self.asked.pop_front()
    }

    pub(super) fn next_offer(&mut self) -> Option<Grant> {
        self.offers.pop_front()
    }

    /// Refuses a request of the peer.
    pub(super) fn refuse(&mut self, nonce: NonZeroU64) {
        if self.owner.refuse(nonce) {
            self.reply(Control::Refused { nonce, why: Refusal::Declined });
        }
    }

    /// Lends a region.
    pub(super) fn lend(
        &mut self,
        answers: Option<NonZeroU64>,
        region: GrantedRecord,
        until: Option<Instant>,
    ) -> Result<NonZeroU64, NotLent> {
        if !self.is_open() {
            return Err(NotLent::Closed);
        }
        let id = self.owner.lend(answers, region.len_bytes())?;
        let control = Control::Grant { id, answers, duration: Duration::MAX, region };
        self.push(Outgoing { control, until, is_reply: false });
        Ok(id)
    }

    /// The memory of a grant of this side was deregistered, and the peer can no longer access it.
    pub(super) fn end(&mut self, id: NonZeroU64) {
        let Ended { moved, was_asked_for } = self.owner.end(id);
        let is_grant = |message: &Outgoing| matches!(message.control, Control::Grant { id: other, .. } if other == id);
        let Some(at) = self.outbox.iter().position(is_grant) else {
            let control = Control::Returned { id, moved };
            return self.push(Outgoing { control, until: None, is_reply: was_asked_for });
        };
        // The message with the grant was not sent yet. Remove it, because the memory of the grant is gone. If the grant
        // is the answer to a request, refuse the request instead.
        if let Some(Outgoing { control: Control::Grant { answers: Some(nonce), .. }, .. }) = self.outbox.remove(at) {
            self.reply(Control::Refused { nonce, why: Refusal::Declined });
        }
    }

    /// Returns a grant to its owner, who may pass it on.
    pub(super) fn give_back(&mut self, id: NonZeroU64, pass_on_to: Option<u64>) {
        if self.holder.give_back(id) {
            self.send(match pass_on_to {
                Some(to) => Control::PassOn { id, to },
                None => Control::Return { id },
            });
        }
    }

    /// Keeps from now on how a grant ends, for [`watched`](Self::watched).
    pub(super) fn watch(&mut self, id: NonZeroU64) {
        // If the holder no longer has the grant, the owner has ended it or is gone. Then a `PassOn` comes too late, and
        // the result is false.
        let known = (!self.holder.has(id)).then_some(false);
        self.returning.insert(id, known);
    }

    /// Whether the owner ended a returned grant after it had received a `PassOn`. `None`: it has not ended the grant.
    pub(super) fn watched(&self, id: NonZeroU64) -> Option<bool> {
        match self.returning.get(&id) {
            Some(None) if self.is_open() => None,
            Some(moved) => Some(moved.unwrap_or(false)),
            None => Some(false),
        }
    }

    pub(super) fn unwatch(&mut self, id: NonZeroU64) {
        self.returning.remove(&id);
    }
}
