//! What is known of those requests of one work queue whose completions no task has fetched yet.

use super::after::After;
use super::outcome::Counters;
use crate::completion::Completion;
use crate::inflight::WorkId;
use crate::types::Qpn;
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::task::Waker;

/// A table for a work queue: one place for each request that may be in flight.
///
/// The id of a request names its place, so nothing is searched and nothing is allocated. If two requests have the same
/// place, the older one moves to `displaced`. That happens if the program forgets a future, or does not poll it until
/// the ids have wrapped around the table.
pub(super) struct Lane<B> {
    places: Box<[Place<B>]>,
    displaced: HashMap<WorkId, Place<B>>,
    /// Completed receives that nobody has fetched, the oldest first.
    inbox: VecDeque<Completion<B>>,
    /// The task that waits for a receive in the inbox.
    reader: Option<Waker>,
    /// The task that waits for room in the work queue.
    for_room: Option<Waker>,
    /// The task that waits for the pair to break.
    watcher: Option<Waker>,
    /// Completions of requests that the program has abandoned, the oldest first.
    strays: VecDeque<Completion<B>>,
    pub(super) counters: Counters,
    /// Tells apart the work queues that have had this lane.
    pub(super) generation: u64,
    /// The first id of the work queue. Earlier ids belong to queues that had its slot before.
    pub(super) first: Option<WorkId>,
    /// The pair of the work queue. `None` for a shared receive queue.
    pub(super) pair: Option<Qpn>,
    /// Set when the sender or the receiver is gone: the id after its last request. From then on nobody takes strays or
    /// receives of the inbox.
    end: Option<WorkId>,
}

/// What a work queue left behind when its sender or receiver was gone: nobody will fetch it from the lane.
pub(super) struct Left<B> {
    pub(super) inbox: VecDeque<Completion<B>>,
    /// Receives of the next work queue in the same slot, which has no lane yet.
    pub(super) of_next: VecDeque<Completion<B>>,
    pub(super) strays: VecDeque<Completion<B>>,
    _wakers: [Option<Waker>; 3],
}

/// Counts over all lanes of a completion queue.
#[derive(Default)]
pub(super) struct Tally {
    /// How many waits there are. An abandoned request counts as a wait. While this is 0, nobody needs an event.
    pub(super) waits: usize,
    /// How many of these waits are for abandoned requests.
    pub(super) abandoned: usize,
    /// How many places are [`Done`](Place::Done), plus how many tasks wait for room. (A task that waits for room counts
    /// in `waits` too.)
    pub(super) kept: usize,
}

impl Tally {
    /// Whether nobody waits and no completed send is in its place.
    #[inline(always)]
    pub(super) fn is_zero(&self) -> bool {
        self.waits | self.kept == 0
    }

    /// Whether no future waits.
    pub(super) fn has_no_future(&self) -> bool {
        self.waits == self.abandoned
    }
}

/// What is known of one request.
enum Place<B> {
    /// Nothing is known: there is no request, or it is in flight and nobody has asked for it.
    Empty,
    /// Somebody waits for it.
    Waiting(WorkId, Waker),
    /// Nobody will ask for it any more.
    Abandoned(WorkId),
    /// It has completed, and nobody has fetched it yet.
    Done(Completion<B>),
}

impl<B> Place<B> {
    fn id(&self) -> Option<WorkId> {
        match self {
            Self::Empty => None,
            Self::Waiting(id, _) | Self::Abandoned(id) => Some(*id),
            Self::Done(completion) => Some(completion.id()),
        }
    }

    /// Whether this place holds the completion of the request.
    #[inline(always)]
    fn is_answer(&self, id: WorkId) -> bool {
        matches!(self, Self::Done(completion) if completion.id() == id)
    }

    /// Whether this counts as a wait in the [`Tally`]: somebody must poll until the request completes.
    fn is_wait(&self) -> bool {
        matches!(self, Self::Waiting(..) | Self::Abandoned(_))
    }
}

/// Whether the waker of a wait is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Parked {
    /// The waker is kept, or was there already.
    Yes,
    /// The waker is not kept. The caller must clone it without holding a lock, and park again.
    NeedsWaker,
    /// There is no waker to keep: the caller does not wait, or its wait is counted elsewhere.
    NoWait,
}

impl<B> Lane<B> {
    /// A lane for `depth` requests in flight.
    pub(super) fn new(depth: u32) -> Self {
        let depth = depth.max(1).next_power_of_two() as usize;
        Self {
            places: (0..depth).map(|_| Place::Empty).collect(),
            displaced: HashMap::new(),
            inbox: VecDeque::with_capacity(depth),
            reader: None,
            for_room: None,
            watcher: None,
            strays: VecDeque::with_capacity(depth),
            counters: Counters::default(),
            generation: 0,
            first: None,
            pair: None,
            end: None,
        }
    }

    /// Notes that the sender or the receiver is gone. `next` is the id after its last request. Returns what nobody will
    /// take any more, to be dropped without the lock. That includes the wakers of waits that were given up, so that
    /// these waits do not keep the driver from ending.
    pub(super) fn end(&mut self, next: WorkId, tally: &mut Tally) -> Left<B> {
        self.end = Some(next);
        tally.kept -= usize::from(self.for_room.is_some());
        let wakers = [self.reader.take(), self.for_room.take(), self.watcher.take()];
        tally.waits -= wakers.iter().flatten().count();
        let (inbox, of_next) = mem::take(&mut self.inbox).into_iter().partition(|found| found.id().is_before(next));
        Left { inbox, of_next, strays: mem::take(&mut self.strays), _wakers: wakers }
    }

    /// Makes the lane serve the next work queue in the same slot, whose first id is `first`. The tasks that wait for
    /// room, a receive or a failure are woken. Sends of the next work queue that have completed already go to `sends`.
    /// Returns what the last work queue left.
    #[must_use = "to be dropped without the lock"]
    pub(super) fn renew(
        &mut self,
        first: WorkId,
        depth: u32,
        sends: &mut Vec<Completion<B>>,
        tally: &mut Tally,
        after: &mut After<B>,
    ) -> Left<B> {
        let mut old = mem::replace(self, Self::new(depth));
        wake(&mut old.reader, tally, after);
        wake(&mut old.watcher, tally, after);
        old.end_wait_for_room(tally, after);
        for place in old.places.into_iter().chain(old.displaced.into_values()) {
            match place {
                Place::Done(completion) if !completion.id().is_before(first) => {
                    tally.kept -= 1;
                    sends.push(completion);
                }
                place => self.displaced.extend(place.id().map(|id| (id, place))),
            }
        }
        let (inbox, of_next) = old.inbox.into_iter().partition(|found| found.id().is_before(first));
        self.inbox = of_next;
        Left { inbox, of_next: VecDeque::new(), strays: old.strays, _wakers: [const { None }; 3] }
    }

    /// Whether the handle of the lane has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether the request belongs to a later work queue in the same slot, which has no lane yet.
    #[inline(always)]
    pub(super) fn is_past(&self, id: WorkId) -> bool {
        self.end.is_some_and(|end| !id.is_before(end))
    }

    #[inline(always)]
    fn index(&self, id: WorkId) -> usize {
        id.index() as usize & (self.places.len() - 1)
    }

    /// Whether nothing is known of this request and nobody waits for room.
    #[inline(always)]
    pub(super) fn is_unknown(&self, id: WorkId) -> bool {
        self.for_room.is_none()
            && self.displaced.is_empty()
            && matches!(self.places.get(self.index(id)), Some(Place::Empty))
    }

    /// Takes what is known of a request out of its place.
    fn remove(&mut self, id: WorkId) -> Place<B> {
        let index = self.index(id);
        match self.places.get_mut(index) {
            Some(place) if place.id() == Some(id) => mem::replace(place, Place::Empty),
            _ => self.displaced.remove(&id).unwrap_or(Place::Empty),
        }
    }

    /// Puts back what is known of the request `id`, after [`remove`](Self::remove). If another request is there, that
    /// one moves to `displaced`. An empty `place` changes nothing.
    fn insert(&mut self, id: WorkId, place: Place<B>) {
        if matches!(place, Place::Empty) {
            return;
        }
        let index = self.index(id);
        let Some(at) = self.places.get_mut(index) else { return };
        let before = mem::replace(at, place);
        if let Some(other) = before.id().filter(|&other| other != id) {
            self.displaced.insert(other, before);
        }
    }

    /// The completion of a request, if it has come.
    #[inline(always)]
    pub(super) fn fetch(&mut self, id: WorkId, tally: &mut Tally) -> Option<Completion<B>> {
        let index = self.index(id);
        let place = match self.places.get_mut(index) {
            Some(place) if place.is_answer(id) => mem::replace(place, Place::Empty),
            _ if self.displaced.get(&id)?.is_answer(id) => self.displaced.remove(&id)?,
            _ => return None,
        };
        let Place::Done(completion) = place else { return None };
        tally.kept -= 1;
        Some(completion)
    }

    /// Notes that a task waits for a request that has not completed. `mine` is a clone of the task's `waker`, if the
    /// caller has made one already.
    pub(super) fn park(
        &mut self,
        id: WorkId,
        waker: &Waker,
        mine: &mut Option<Waker>,
        tally: &mut Tally,
        after: &mut After<B>,
    ) -> Parked {
        let before = self.remove(id);
        let keeps = matches!(&before, Place::Waiting(_, old) if old.will_wake(waker));
        let new = if keeps { None } else { mine.take() };
        let Some(new) = new else {
            self.insert(id, before);
            return if keeps { Parked::Yes } else { Parked::NeedsWaker };
        };
        tally.waits += usize::from(!before.is_wait());
        if let Place::Waiting(_, old) = before {
            after.drop_waker(old);
        }
        self.insert(id, Place::Waiting(id, new));
        Parked::Yes
    }

    /// Notes that nobody will ask for a request any more.
    pub(super) fn abandon(&mut self, id: WorkId, tally: &mut Tally, after: &mut After<B>) {
        match self.remove(id) {
            Place::Done(completion) => {
                tally.kept -= 1;
                self.keep_stray(completion, after);
            }
            before => {
                tally.waits += usize::from(!before.is_wait());
                tally.abandoned += usize::from(!matches!(before, Place::Abandoned(_)));
                if let Place::Waiting(_, waker) = before {
                    after.drop_waker(waker);
                }
                self.insert(id, Place::Abandoned(id));
            }
        }
    }

    /// Puts the completion of a send in its place.
    #[inline]
    pub(super) fn settle(&mut self, completion: Completion<B>, tally: &mut Tally, after: &mut After<B>) {
        let index = self.index(completion.id());
        if self.is_unknown(completion.id())
            && let Some(place) = self.places.get_mut(index)
        {
            tally.kept += 1;
            *place = Place::Done(completion);
            return;
        }
        self.settle_any(completion, tally, after);
    }

    #[inline(never)]
    fn settle_any(&mut self, completion: Completion<B>, tally: &mut Tally, after: &mut After<B>) {
        self.end_wait_for_room(tally, after);
        let id = completion.id();
        let before = self.remove(id);
        tally.waits -= usize::from(before.is_wait());
        match before {
            Place::Abandoned(_) => {
                tally.abandoned -= 1;
                return self.keep_stray(completion, after);
            }
            Place::Waiting(_, waker) => after.wake(waker),
            // `Empty`: nobody has asked for this request yet. `Done` does not occur, since a request completes once.
            Place::Empty | Place::Done(_) => {}
        }
        tally.kept += 1;
        self.insert(id, Place::Done(completion));
    }

    /// Puts the completion of a receive into the inbox.
    #[inline]
    pub(super) fn receive(&mut self, completion: Completion<B>, tally: &mut Tally, after: &mut After<B>) {
        if self.end.is_some() {
            return after.drop_completion(completion);
        }
        self.inbox.push_back(completion);
        wake(&mut self.reader, tally, after);
    }

    /// Wakes the tasks that the end of the pair concerns: the one that waits for the end, the one that waits for a
    /// receive (perhaps none comes out any more), and the one that waits for room.
    pub(super) fn note_broken(&mut self, tally: &mut Tally, after: &mut After<B>) {
        wake(&mut self.watcher, tally, after);
        wake(&mut self.reader, tally, after);
        self.end_wait_for_room(tally, after);
    }

    /// Notes that a task waits for the pair to break.
    pub(super) fn park_watcher(
        &mut self,
        waker: &Waker,
        mine: &mut Option<Waker>,
        tally: &mut Tally,
        after: &mut After<B>,
    ) -> Parked {
        park(&mut self.watcher, waker, mine, tally, after)
    }

    /// The oldest receive that nobody has fetched.
    #[inline(always)]
    pub(super) fn next_received(&mut self) -> Option<Completion<B>> {
        self.inbox.pop_front()
    }

    /// How many receives there are that nobody has fetched.
    pub(super) fn received(&self) -> u32 {
        u32::try_from(self.inbox.len()).unwrap_or(u32::MAX)
    }

    /// Whether the inbox is empty.
    #[inline(always)]
    pub(super) fn has_received_nothing(&self) -> bool {
        self.inbox.is_empty()
    }

    /// Notes that a task waits for a receive in the inbox.
    pub(super) fn park_reader(
        &mut self,
        waker: &Waker,
        mine: &mut Option<Waker>,
        tally: &mut Tally,
        after: &mut After<B>,
    ) -> Parked {
        park(&mut self.reader, waker, mine, tally, after)
    }

    /// Notes that a task waits for room.
    pub(super) fn park_for_room(
        &mut self,
        waker: &Waker,
        mine: &mut Option<Waker>,
        tally: &mut Tally,
        after: &mut After<B>,
    ) -> Parked {
        let was_waiting = self.for_room.is_some();
        let parked = park(&mut self.for_room, waker, mine, tally, after);
        tally.kept += usize::from(self.for_room.is_some() && !was_waiting);
        parked
    }

    /// The task does not wait for room any more. Returns its waker, to be dropped without the lock.
    pub(super) fn stop_waiting_for_room(&mut self, tally: &mut Tally) -> Option<Waker> {
        let waker = self.for_room.take();
        tally.kept -= usize::from(waker.is_some());
        tally.waits -= usize::from(waker.is_some());
        waker
    }

    /// Wakes the task that waits for room: a request has left the work queue, or the pair is broken.
    fn end_wait_for_room(&mut self, tally: &mut Tally, after: &mut After<B>) {
        tally.kept -= usize::from(self.for_room.is_some());
        wake(&mut self.for_room, tally, after);
    }

    /// Keeps the completion of an abandoned request. Drops it instead if its memory goes home to a pool, or if nobody
    /// can take it any more. If there are too many strays, the oldest is dropped.
    pub(super) fn keep_stray(&mut self, completion: Completion<B>, after: &mut After<B>) {
        if self.first.is_some_and(|first| completion.id().is_before(first)) {
            return after.drop_completion(completion);
        }
        self.counters.strays += 1;
        if self.end.is_some() || completion.goes_home() {
            return after.drop_completion(completion);
        }
        if self.strays.len() >= self.places.len()
            && let Some(oldest) = self.strays.pop_front()
        {
            self.counters.dropped_strays += 1;
            after.drop_completion(oldest);
        }
        self.strays.push_back(completion);
    }

    /// The oldest completion of an abandoned request.
    pub(super) fn take_stray(&mut self) -> Option<Completion<B>> {
        self.strays.pop_front()
    }

    /// Takes the wakers of all tasks that wait, since the completion queue has failed or its driver is gone. The tasks
    /// will ask again.
    pub(super) fn take_wakers(&mut self, tally: &mut Tally, into: &mut Vec<Waker>) {
        let before = into.len();
        for place in self.places.iter_mut().chain(self.displaced.values_mut()) {
            if let Place::Waiting(..) = place
                && let Place::Waiting(_, waker) = mem::replace(place, Place::Empty)
            {
                into.push(waker);
            }
        }
        self.displaced.retain(|_, place| !matches!(place, Place::Empty));
        tally.kept -= usize::from(self.for_room.is_some());
        into.extend([self.reader.take(), self.for_room.take(), self.watcher.take()].into_iter().flatten());
        tally.waits -= into.len() - before;
    }
}

/// Wakes the task that waits, if there is one.
#[inline]
fn wake<B>(waiting: &mut Option<Waker>, tally: &mut Tally, after: &mut After<B>) {
    if let Some(waker) = waiting.take() {
        tally.waits -= 1;
        after.wake(waker);
    }
}

/// Keeps the waker of a task that waits.
pub(super) fn park<B>(
    waiting: &mut Option<Waker>,
    waker: &Waker,
    mine: &mut Option<Waker>,
    tally: &mut Tally,
    after: &mut After<B>,
) -> Parked {
    if waiting.as_ref().is_some_and(|old| old.will_wake(waker)) {
        return Parked::Yes;
    }
    let Some(new) = mine.take() else { return Parked::NeedsWaker };
    match waiting.replace(new) {
        None => tally.waits += 1,
        Some(old) => after.drop_waker(old),
    }
    Parked::Yes
}
