//! Identifiers that the program has dropped before it took the peer's answer, and what destroys them in the end.
//!
//! The thread that takes the answer destroys the identifier. If the program has dropped the channel too, that is a
//! [thread](reap) of this library, which ends when no such identifier is left.
#![forbid(unsafe_code)]

use super::{Handle, Library, OwnedId};
use crate::provider::cm::RawEventKind;
use crate::sync::lock;
use crate::sys::rdmacm::rdma_cm_id;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{mem, thread};

/// The identifiers of one channel that the program has dropped, and that cannot be destroyed yet.
#[derive(Default)]
pub(super) struct Departing {
    ids: Mutex<Vec<DepartingId>>,
}

struct DepartingId {
    id: OwnedId,
    waiting: Waiting,
}

impl Departing {
    /// Keeps an identifier until its answer is taken. `is_removed`: this process already knows that the device was
    /// removed.
    pub(super) fn add(&self, id: OwnedId, is_removed: bool) {
        let waiting = Waiting { removed: is_removed.then(Instant::now), ..Waiting::default() };
        lock(&self.ids).push(DepartingId { id, waiting });
    }

    /// Notes an event that was taken and acknowledged. If it ends the wait of an identifier, destroys the identifier.
    pub(super) fn see(&self, id: *mut rdma_cm_id, event: RawEventKind, library: &Library) {
        let mut ids = lock(&self.ids);
        if let Some(found) = ids.iter_mut().find(|found| found.id.raw.0.as_ptr() == id) {
            found.waiting.see(event, Instant::now());
            destroy_answered(&mut ids, library);
        }
    }

    /// Destroys the identifiers that no longer wait for a peer.
    pub(super) fn destroy_answered(&self, library: &Library) {
        destroy_answered(&mut lock(&self.ids), library);
    }

    /// Leaves the identifiers to [`reap`], because the program drops the channel.
    pub(super) fn outlive_channel(&mut self, handle: &Arc<Handle>) {
        let departing = mem::take(self);
        if !lock(&departing.ids).is_empty() {
            lock(&ORPHANS).channels.push(Orphan { handle: Arc::clone(handle), departing });
            look_after_orphans();
        }
    }
}

fn destroy_answered(ids: &mut Vec<DepartingId>, library: &Library) {
    let now = Instant::now();
    while let Some(at) = ids.iter().position(|found| found.waiting.is_over(now)) {
        ids.swap_remove(at).id.destroy(library);
    }
}

/// What has happened to a departing identifier. This tells whether a destroy would still wait for the peer.
#[derive(Clone, Copy, Default)]
struct Waiting {
    is_answered: bool,
    /// When this process learned that the device was removed. After a removal, the kernel ends the identifier by
    /// itself, as soon as the device has released it. No event reports that.
    removed: Option<Instant>,
}

impl Waiting {
    fn see(&mut self, event: RawEventKind, now: Instant) {
        self.is_answered |= is_answer(event);
        if event == RawEventKind::DEVICE_REMOVAL {
            self.removed.get_or_insert(now);
        }
    }

    /// Whether a destroy no longer waits for the peer.
    fn is_over(&self, now: Instant) -> bool {
        self.is_answered || self.removed.is_some_and(|at| now.duration_since(at) >= REMOVED_FOR)
    }
}

/// Whether after this event no answer of the peer is awaited any more: the connect or the accept has ended, with or
/// without an answer, or the connection has ended.
pub(super) fn is_answer(event: RawEventKind) -> bool {
    (RawEventKind::CONNECT_RESPONSE.0..=RawEventKind::DISCONNECTED.0).contains(&event.0)
}

/// After this time, a removed device has released its connections: soft iWARP waits for an answer 10 s at most.
const REMOVED_FOR: Duration = Duration::from_secs(15);

/// A channel that the program has dropped, with its departing identifiers.
struct Orphan {
    handle: Arc<Handle>,
    departing: Departing,
}

impl Orphan {
    /// Takes events, and destroys the identifiers that no longer wait for a peer. Returns whether none is left.
    fn settle(&self) -> bool {
        while let Ok(Some(())) = self.handle.take(&self.departing, |_| ()) {}
        lock(&self.departing.ids).is_empty()
    }
}

/// Channels that the program has dropped while they had departing identifiers. Lock order: this before
/// [`LIBRARY`](super::LIBRARY).
static ORPHANS: Mutex<Orphans> = Mutex::new(Orphans { channels: Vec::new(), are_looked_after: false });

struct Orphans {
    channels: Vec<Orphan>,
    /// Whether the thread that runs [`reap`] is running.
    are_looked_after: bool,
}

/// Starts the thread that looks after orphans, if there are orphans and the thread is not running. If the thread does
/// not start, the next open or drop of a channel tries again.
pub(super) fn look_after_orphans() {
    let mut orphans = lock(&ORPHANS);
    if !orphans.channels.is_empty() && !orphans.are_looked_after {
        let name = "interlock-cm".to_owned();
        orphans.are_looked_after = thread::Builder::new().name(name).spawn(reap).is_ok();
    }
}

/// How long the thread sleeps between two checks of the channels: the shortest and the longest time.
const NAPS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// Destroys the identifiers of orphans that have had their answer, until no orphan is left.
fn reap() {
    let [shortest, longest] = NAPS;
    let mut nap = shortest;
    loop {
        thread::sleep(nap);
        let mut orphans = lock(&ORPHANS);
        let before = orphans.channels.len();
        orphans.channels.retain(|orphan| !orphan.settle());
        if orphans.channels.is_empty() {
            orphans.are_looked_after = false;
            return;
        }
        nap = if orphans.channels.len() < before { shortest } else { longest.min(2 * nap) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A removal that comes before the answer does not end the wait immediately: the destroy would still block.
    #[test]
    fn a_departing_identifier_waits_for_its_answer_or_for_some_time_after_a_removal() {
        let start = Instant::now();
        let [soon, later] = [REMOVED_FOR / 2, REMOVED_FOR].map(|time| start + time);
        let seen = |events: &[RawEventKind], now| {
            let mut waiting = Waiting::default();
            events.iter().for_each(|&event| waiting.see(event, start));
            waiting.is_over(now)
        };
        assert!(!seen(&[RawEventKind::ADDR_CHANGE, RawEventKind::ROUTE_RESOLVED], later));
        assert!(seen(&[RawEventKind::REJECTED], start) && seen(&[RawEventKind::ESTABLISHED], start));
        let removal = RawEventKind::DEVICE_REMOVAL;
        assert!(!seen(&[removal], soon) && seen(&[removal], later));
        assert!(seen(&[removal, RawEventKind::UNREACHABLE], start));
        // A second removal does not restart the timeout.
        let mut waiting = Waiting::default();
        waiting.see(removal, start);
        waiting.see(removal, soon);
        assert!(waiting.is_over(later));
    }
}
