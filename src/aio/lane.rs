//! What is known of the requests of one work queue whose answers have not been fetched yet.

use super::after::After;
use super::outcome::Counters;
use crate::completion::Completion;
use crate::inflight::WorkId;
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::task::Waker;

/// The side table of a work queue: one place for each request that may be in flight.
///
/// A request has the place that its id names, so nothing is searched and nothing is allocated. If two requests would
/// have the same place, the older one moves to `displaced`. That happens if the program keeps a future for a whole turn
/// of the ring without polling it, or has forgotten it.
pub(super) struct Lane<B> {
    places: Box<[Place<B>]>,
    displaced: HashMap<WorkId, Place<B>>,
    /// Completed receives that nobody has fetched, the oldest first.
    inbox: VecDeque<Completion<B>>,
    /// Who waits for the inbox.
    reader: Option<Waker>,
    /// Who waits for room in the work queue.
    for_room: Option<Waker>,
    /// Who waits for a request to fail.
    watcher: Option<Waker>,
    /// Completions of requests that the program has abandoned, the oldest first.
    strays: VecDeque<Completion<B>>,
    pub(super) counters: Counters,
    /// Tells apart the work queues that have had this lane.
    pub(super) generation: u64,
    /// The first id of the work queue. Earlier ones are of queues that had its slot before.
    pub(super) first: Option<WorkId>,
    /// The first id that was not posted any more, once the sender or the receiver is gone. Nobody will take strays or
    /// what is in the inbox.
    end: Option<WorkId>,
}

/// What nobody will take any more.
pub(super) struct Left<B> {
    pub(super) inbox: VecDeque<Completion<B>>,
    /// Receives of the next work queue in the same slot, which has no lane yet.
    pub(super) of_next: VecDeque<Completion<B>>,
    pub(super) strays: VecDeque<Completion<B>>,
    _wakers: [Option<Waker>; 3],
}

/// What all lanes of a completion queue have together.
#[derive(Default)]
pub(super) struct Tally {
    /// How many waits there are, those for abandoned requests included. While it is 0, nobody needs an event.
    pub(super) waits: usize,
    /// How many of these waits are for abandoned requests.
    pub(super) abandoned: usize,
    /// How many completions of sends nobody has asked for yet, and how many wait for room.
    pub(super) kept: usize,
}

impl Tally {
    /// Whether nobody waits and no send is kept.
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
    /// Nothing: no request, or one that is in flight and that nobody has asked for.
    Empty,
    /// Somebody waits for it.
    Waiting(WorkId, Waker),
    /// Nobody will ask for it any more.
    Abandoned(WorkId),
    /// It has completed, and nobody has asked for it yet.
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

    /// Whether this is the completion of the request.
    #[inline(always)]
    fn is_answer(&self, id: WorkId) -> bool {
        matches!(self, Self::Done(completion) if completion.id() == id)
    }

    /// Whether somebody has to poll so that this gets on.
    fn is_wait(&self) -> bool {
        matches!(self, Self::Waiting(..) | Self::Abandoned(_))
    }
}

/// Whether the waker of a wait is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Parked {
    /// The waker is kept, or was there already.
    Yes,
    /// The caller must clone its waker first, without holding a lock.
    NeedsWaker,
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
            end: None,
        }
    }

    /// Notes that the sender or the receiver is gone. Returns what nobody will take any more, to be dropped without the
    /// lock: also the wakers of waits that were given up, which would keep the driver awake.
    pub(super) fn end(&mut self, next: WorkId, tally: &mut Tally) -> Left<B> {
        self.end = Some(next);
        tally.kept -= usize::from(self.for_room.is_some());
        let wakers = [self.reader.take(), self.for_room.take(), self.watcher.take()];
        tally.waits -= wakers.iter().flatten().count();
        let (inbox, of_next) = mem::take(&mut self.inbox).into_iter().partition(|found| found.id().is_before(next));
        Left { inbox, of_next, strays: mem::take(&mut self.strays), _wakers: wakers }
    }

    /// Makes the lane serve the next work queue in the same slot, whose ids go on counting from `first`. Who waits is
    /// woken. Sends of the next work queue that have completed already go to `sends`. Returns what the last one has
    /// left.
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

    /// Whether the request belongs to a later queue in the same slot, which has no lane yet.
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

    /// Puts `place` where `id` belongs, from where it was [removed](Self::remove). A request that is in the way moves
    /// aside. An empty place changes nothing.
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

    /// Notes that somebody waits for a request that has not completed. `mine` is a clone of `waker`, if there is one
    /// already.
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

    /// Takes in the completion of a request.
    #[inline]
    pub(super) fn settle(&mut self, completion: Completion<B>, tally: &mut Tally, after: &mut After<B>) {
        self.note(&completion, tally, after);
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
            // A completion in this place has another id, and `insert` moves it aside.
            Place::Empty | Place::Done(_) => {}
        }
        tally.kept += 1;
        self.insert(id, Place::Done(completion));
    }

    /// Takes in the completion of a receive.
    #[inline]
    pub(super) fn receive(&mut self, completion: Completion<B>, tally: &mut Tally, after: &mut After<B>) {
        self.note(&completion, tally, after);
        if self.end.is_some() {
            return after.drop_completion(completion);
        }
        self.inbox.push_back(completion);
        wake(&mut self.reader, tally, after);
    }

    /// If the completion failed, counts it and wakes the task that waits for a failure.
    #[inline(always)]
    pub(super) fn note(&mut self, completion: &Completion<B>, tally: &mut Tally, after: &mut After<B>) {
        if !completion.is_success() {
            self.note_failure(tally, after);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_failure(&mut self, tally: &mut Tally, after: &mut After<B>) {
        self.counters.failed += 1;
        wake(&mut self.watcher, tally, after);
    }

    /// Notes that somebody waits for a request to fail.
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

    /// Whether there is no receive that nobody has fetched.
    #[inline(always)]
    pub(super) fn has_received_nothing(&self) -> bool {
        self.inbox.is_empty()
    }

    /// Notes that somebody waits for the inbox.
    pub(super) fn park_reader(
        &mut self,
        waker: &Waker,
        mine: &mut Option<Waker>,
        tally: &mut Tally,
        after: &mut After<B>,
    ) -> Parked {
        park(&mut self.reader, waker, mine, tally, after)
    }

    /// Notes that somebody waits for room.
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

    /// Wakes who waits for room, since a request has left the queue.
    fn end_wait_for_room(&mut self, tally: &mut Tally, after: &mut After<B>) {
        tally.kept -= usize::from(self.for_room.is_some());
        wake(&mut self.for_room, tally, after);
    }

    /// Keeps the completion of an abandoned request, unless its memory goes home to a pool. If there are too many, the
    /// oldest is dropped.
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

    /// Takes the wakers of all who wait: the completion queue has failed, or its driver is gone. They will ask again.
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

/// Wakes whoever waits.
#[inline]
fn wake<B>(waiting: &mut Option<Waker>, tally: &mut Tally, after: &mut After<B>) {
    if let Some(waker) = waiting.take() {
        tally.waits -= 1;
        after.wake(waker);
    }
}

/// Keeps the waker of somebody who waits.
fn park<B>(
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
