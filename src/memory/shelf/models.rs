//! Every interleaving of threads that take items, put them home, wait for them, remove them and close the shelf.
use super::*;
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::{cell, thread};
use std::task::Wake;

/// What the items point to: their numbers.
static NUMBERS: [u32; 3] = [0, 1, 2];

/// A shelf, and for each item a cell in which loom sees two owners at once.
struct World {
    shelf: Shelf<u32>,
    cells: [cell::UnsafeCell<()>; NUMBERS.len()],
}

/// An item that a thread owns.
#[derive(Debug)]
struct Owned(usize);

/// Remembers whether it was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn flag() -> (std::sync::Arc<Flag>, Waker) {
    let flag = std::sync::Arc::<Flag>::default();
    (std::sync::Arc::clone(&flag), flag.into())
}

impl World {
    /// A shelf with this many items, all at home. Item 0 is on top.
    fn new(items: u32) -> Arc<Self> {
        let world = Self { shelf: Shelf::new(1), cells: std::array::from_fn(|_| cell::UnsafeCell::new(())) };
        for spot in 0..items {
            assert!(world.shelf.assign(spot, NonNull::from(&NUMBERS[spot as usize])));
        }
        assert!(world.shelf.add(0..items).is_empty());
        Arc::new(world)
    }

    fn own(&self, taken: TakenItem<u32>) -> Owned {
        let number = (taken.into_pointer().addr().get() - NUMBERS.as_ptr().addr()) / size_of::<u32>();
        self.cells[number].with_mut(|_| ());
        Owned(number)
    }

    fn take(&self) -> Option<Owned> {
        self.shelf.take().map(|taken| self.own(taken))
    }

    /// Puts an item home, as the drop of a part does. Returns false if the shelf is closed.
    fn put(&self, Owned(number): Owned) -> bool {
        self.cells[number].with_mut(|_| ());
        let spot = number as u32;
        self.shelf.place(spot).unwrap().put() || self.shelf.put_in_turn(spot)
    }

    fn wait(&self, ticket: &mut Option<Ticket>, waker: &Waker) -> Option<Owned> {
        self.shelf.wait(ticket, waker).map(|taken| self.own(taken))
    }

    /// How many items are at home, found by taking them all.
    fn drain(&self) -> usize {
        iter::from_fn(|| self.take()).count()
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn no_item_has_two_owners_although_it_comes_back_in_between() {
    model(|| {
        let world = World::new(3);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            // Take the top two items and put the first one back. The top is the same as before, but another spot lies
            // below it.
            let (first, second) = (other.take(), other.take());
            if let Some(first) = first {
                assert!(other.put(first));
            }
            second
        });
        let mine = [world.take(), world.take()];
        let theirs = thread.join().unwrap();
        let owned = mine.iter().flatten().chain(&theirs).count();
        assert_eq!(owned + world.drain(), 3);
    });
}

#[test]
fn no_item_is_lost_that_two_threads_put_home() {
    model(|| {
        let world = World::new(2);
        let owned = [world.take().unwrap(), world.take().unwrap()];
        let threads = owned.map(|owned| {
            let world = Arc::clone(&world);
            thread::spawn(move || assert!(world.put(owned)))
        });
        let taken = usize::from(world.take().is_some());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(taken + world.drain(), 2);
    });
}

#[test]
fn no_wake_up_is_lost() {
    model(|| {
        let world = World::new(1);
        let owned = world.take().unwrap();
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || assert!(other.put(owned)));
        let ((flag, waker), mut ticket) = (flag(), None);
        let at_once = world.wait(&mut ticket, &waker);
        thread.join().unwrap();
        if at_once.is_none() {
            assert!(flag.0.load(Ordering::Relaxed), "woken");
            assert!(world.wait(&mut ticket, &waker).is_some());
        }
        assert!(ticket.is_none() && world.take().is_none());
        assert!(world.put(Owned(0)));
        assert_eq!(world.drain(), 1, "the shelf is not guarded any more");
    });
}

#[test]
fn a_wait_that_is_given_up_passes_its_item_on() {
    model(|| {
        let world = World::new(1);
        let owned = world.take().unwrap();
        let ((_, first), (flag, second)) = (flag(), flag());
        let (mut leaving, mut staying) = (None, None);
        assert!(world.wait(&mut leaving, &first).is_none() && world.wait(&mut staying, &second).is_none());
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || assert!(other.put(owned)));
        if let Some(taken) = world.shelf.leave(leaving.unwrap()) {
            let owned = world.own(taken);
            assert!(world.put(owned));
        }
        thread.join().unwrap();
        assert!(flag.0.load(Ordering::Relaxed), "woken");
        assert!(world.wait(&mut staying, &second).is_some());
    });
}

#[test]
fn nobody_overtakes_those_who_wait() {
    model(|| {
        let world = World::new(1);
        let owned = world.take().unwrap();
        let ((_, waker), mut ticket) = (flag(), None);
        assert!(world.wait(&mut ticket, &waker).is_none());
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            assert!(other.take().is_none() && other.shelf.take_in_turn().is_none());
        });
        assert!(world.put(owned));
        thread.join().unwrap();
        assert!(world.wait(&mut ticket, &waker).is_some());
    });
}

#[test]
fn an_item_is_freed_by_the_close_or_by_its_owner() {
    model(|| {
        let world = World::new(2);
        let owned = world.take().unwrap();
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || usize::from(!other.put(owned)));
        let closed = world.shelf.close().into_iter().map(|taken| world.own(taken)).count();
        assert_eq!(closed + thread.join().unwrap(), 2);
        assert!(world.take().is_none());
    });
}

#[test]
fn a_group_is_removed_as_a_whole_or_not_at_all() {
    model(|| {
        let world = World::new(3);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            let taken = other.take();
            let number = taken.as_ref().map(|owned| owned.0);
            taken.into_iter().for_each(|owned| assert!(other.put(owned)));
            number
        });
        // Spots 0 and 2 form group 7, which has 2 items. Spot 1 belongs to no group, so its item stays.
        let (groups, gone) = world.shelf.remove(|spot| (spot != 1).then_some((7, 2)));
        let gone: Vec<Owned> = gone.into_iter().map(|taken| world.own(taken)).collect();
        thread.join().unwrap();
        assert_eq!((groups.len(), gone.len()), if gone.is_empty() { (0, 0) } else { (1, 2) });
        assert_eq!(gone.len() + world.drain(), 3);
    });
}
