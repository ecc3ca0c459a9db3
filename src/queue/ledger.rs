//! The ledger: who owns what a work queue has in flight.
//!
//! One ring per work queue, made with the queue's depth. The [`Poster`] (with the queue pair) puts a value in when it posts;
//! the [`Retirer`] (with the poller of the completion queue) takes it out when its completion came, or when the queue
//! was proved quiescent. The two may be on two threads; neither locks nor allocates.
//!
//! ```text
//!            retired                 posted
//!               |                       |
//!   ....free....|....in flight..........|....free....      both counters only grow (mod 2^32)
//!               ^ Retirer takes here    ^ Poster puts here
//! ```
//!
//! A value that nobody takes out is leaked with the ledger, never dropped: only completion or quiescence proves that
//! the device is done with it, and only the retirer learns of either.
#![allow(unsafe_code, reason = "a ring of cells with two owners")]

use crate::sync::{Arc, AtomicU32, Ordering, UnsafeCell};
use core::mem::MaybeUninit;

/// The most requests that one work queue may have in flight: an index must not come round within the 24 bits that a
/// work id has for it.
pub(crate) const MAX_DEPTH: u32 = 1 << 22;
const INDEX_MASK: u32 = (1 << 24) - 1;

/// The ring. Each side touches its own line.
pub(crate) struct Ledger<T> {
    /// # Invariants
    ///
    /// 0. A power of two of them. Those from `retired` to `posted` hold a value; the retirer alone touches them, the
    ///    poster all others. (A poster that takes its newest value back lowers `posted` first.)
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    posted: Line<AtomicU32>,
    retired: Line<AtomicU32>,
}

#[repr(align(64))]
struct Line<T>(T);

// SAFETY: a slot is touched by one side at a time (0), and counters hand it over with release and acquire.
unsafe impl<T: Send> Send for Ledger<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Ledger<T> {}

/// The cells of a ledger, looked up without going through the ledger.
struct Cells<T> {
    /// # Invariants
    ///
    /// 0. The first of `mask + 1` cells, a power of two, of a ledger that whoever holds this keeps alive.
    first: *const UnsafeCell<MaybeUninit<T>>,
    mask: u32,
}

impl<T> Cells<T> {
    fn of(ledger: &Ledger<T>) -> Self {
        Self { first: ledger.slots.as_ptr(), mask: ledger.slots.len() as u32 - 1 }
    }

    #[inline(always)]
    fn cell(&self, number: u32) -> &UnsafeCell<MaybeUninit<T>> {
        let cell = self.first.wrapping_add((number & self.mask) as usize);
        // SAFETY: masked, so one of the cells, which are alive (0).
        unsafe { &*cell }
    }

    /// Moves the value out of a cell.
    ///
    /// # Safety
    ///
    /// It holds one, which is the caller's (ledger 0), and is not used there any more.
    #[inline(always)]
    unsafe fn read(&self, number: u32) -> T {
        // SAFETY: the caller's promise; `MaybeUninit<T>` and `T` have one layout.
        self.cell(number).with_mut(|slot| unsafe { slot.cast::<T>().read() })
    }

    /// Moves a value into a cell.
    ///
    /// # Safety
    ///
    /// It holds none, and is the caller's (ledger 0).
    #[inline(always)]
    unsafe fn write(&self, number: u32, value: T) {
        // SAFETY: as above.
        self.cell(number).with_mut(|slot| unsafe { slot.cast::<T>().write(value) });
    }
}

/// A ledger for `depth` requests in flight, 1 to [`MAX_DEPTH`], as its two ends.
pub(crate) fn ledger<T>(depth: u32) -> (Poster<T>, Retirer<T>) {
    let depth = depth.clamp(1, MAX_DEPTH);
    let slots = (0..depth.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let ledger = Arc::new(Ledger { slots, posted: Line(AtomicU32::new(0)), retired: Line(AtomicU32::new(0)) });
    let poster = Poster { cells: Cells::of(&ledger), depth, posted: 0, retired_seen: 0, ledger: Arc::clone(&ledger) };
    (poster, Retirer { cells: Cells::of(&ledger), retired: 0, ledger })
}

/// The end of a ledger that posts.
pub(crate) struct Poster<T> {
    cells: Cells<T>,
    depth: u32,
    /// # Invariants
    ///
    /// 0. The ledger's `posted`, which nobody else writes.
    posted: u32,
    /// At most the ledger's `retired`: looked up again only when the queue seems full.
    retired_seen: u32,
    ledger: Arc<Ledger<T>>,
}

// SAFETY: the cells are the ledger's, which may be used from any thread.
unsafe impl<T: Send> Send for Poster<T> {}
// SAFETY: shared access reads numbers only.
unsafe impl<T: Send> Sync for Poster<T> {}

impl<T> Poster<T> {
    /// How many requests fit now.
    #[inline(always)]
    pub(crate) fn free(&mut self) -> u32 {
        let free = self.depth - self.posted.wrapping_sub(self.retired_seen);
        if free != 0 { free } else { self.free_now() }
    }

    #[inline(never)]
    fn free_now(&mut self) -> u32 {
        self.retired_seen = self.ledger.retired.0.load(Ordering::Acquire);
        self.depth - self.posted.wrapping_sub(self.retired_seen)
    }

    /// How many values are in flight.
    pub(crate) fn outstanding(&self) -> u32 {
        self.posted.wrapping_sub(self.ledger.retired.0.load(Ordering::Acquire))
    }

    /// The index of the value that comes `ahead` after the next one.
    #[inline(always)]
    pub(crate) fn next_index(&self, ahead: u32) -> u32 {
        self.posted.wrapping_add(ahead) & INDEX_MASK
    }

    /// Puts `value` in; it belongs to the device from here on. A full ledger gives it back.
    #[cfg(test)]
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        if self.free() == 0 {
            return Err(value);
        }
        // SAFETY: there is room.
        unsafe { self.write_ahead(0, value) };
        self.publish(1);
        Ok(())
    }

    /// Writes a value `ahead` of those in flight. Nobody sees it before it is [published](Self::publish).
    ///
    /// # Safety
    ///
    /// `ahead` is less than what is [free](Self::free), and nothing is written there.
    #[inline(always)]
    pub(crate) unsafe fn write_ahead(&self, ahead: u32, value: T) {
        // SAFETY: free, so ours (ledger 0), and empty (caller); the retirer left it before the `retired` that we acquired.
        unsafe { self.cells.write(self.posted.wrapping_add(ahead), value) };
    }

    /// Takes a value back that was written ahead.
    ///
    /// # Safety
    ///
    /// It was written there and neither published nor taken back since.
    pub(crate) unsafe fn read_ahead(&self, ahead: u32) -> T {
        // SAFETY: written, and still ours (caller).
        unsafe { self.cells.read(self.posted.wrapping_add(ahead)) }
    }

    /// Puts the next `count` values in, which were written ahead: they belong to the device from here on.
    #[inline(always)]
    pub(crate) fn publish(&mut self, count: u32) {
        self.posted = self.posted.wrapping_add(count);
        // Before the verb: the completion may be polled before the verb returns.
        self.ledger.posted.0.store(self.posted, Ordering::Release);
    }

    /// Takes the newest value back.
    ///
    /// # Safety
    ///
    /// The device was not given the request, so neither it nor a later one completes: the retirer does not reach it.
    pub(crate) unsafe fn take_back(&mut self) -> Option<T> {
        if self.outstanding() == 0 {
            return None;
        }
        self.posted = self.posted.wrapping_sub(1);
        self.ledger.posted.0.store(self.posted, Ordering::Release);
        // SAFETY: was in flight, so it holds a value; the retirer does not reach it (caller).
        Some(unsafe { self.cells.read(self.posted) })
    }
}

/// The end of a ledger that takes values out.
pub(crate) struct Retirer<T> {
    cells: Cells<T>,
    /// # Invariants
    ///
    /// 0. The ledger's `retired`, which nobody else writes.
    retired: u32,
    ledger: Arc<Ledger<T>>,
}

// SAFETY: the cells are the ledger's, which may be used from any thread.
unsafe impl<T: Send> Send for Retirer<T> {}
// SAFETY: shared access reads numbers only.
unsafe impl<T: Send> Sync for Retirer<T> {}

impl<T> Retirer<T> {
    /// How many values are in flight. Looked up each time: a poster that takes a value back lowers `posted`, and what
    /// it puts there next must be seen.
    #[inline(always)]
    fn in_flight(&self) -> u32 {
        self.ledger.posted.0.load(Ordering::Acquire).wrapping_sub(self.retired)
    }

    /// Takes the oldest value out, for the completion of the request with `index`. With it comes how many requests were
    /// ahead of that one, and so completed before it: 0 if the value is its own. `before` learns of that number before
    /// the poster sees the slot free.
    ///
    /// `None` if no such request is in flight.
    #[inline(always)]
    pub(crate) fn retire(&mut self, index: u32, before: impl FnOnce(u32)) -> Option<(T, u32)> {
        let ahead = index.wrapping_sub(self.retired) & INDEX_MASK;
        if ahead >= self.in_flight() {
            return None;
        }
        before(ahead);
        // SAFETY: more than `ahead` values are in flight.
        Some((unsafe { self.take_one() }, ahead))
    }

    /// Takes the oldest value out of a queue that is quiescent.
    pub(crate) fn take(&mut self) -> Option<T> {
        // SAFETY: at least one value is in flight.
        (self.in_flight() != 0).then(|| unsafe { self.take_one() })
    }

    /// # Safety
    ///
    /// At least one value is in flight.
    #[inline(always)]
    unsafe fn take_one(&mut self) -> T {
        // SAFETY: in flight, so it holds a value that is ours to take (ledger 0), written before the `posted` that we
        // acquired.
        let value = unsafe { self.cells.read(self.retired) };
        self.retired = self.retired.wrapping_add(1);
        self.ledger.retired.0.store(self.retired, Ordering::Release);
        value
    }

    /// The index of the value that was taken out last.
    #[inline(always)]
    pub(crate) fn last_index(&self) -> u32 {
        self.retired.wrapping_sub(1) & INDEX_MASK
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn values_come_out_in_the_order_in_which_they_went_in() {
        let (mut poster, mut retirer) = ledger(3);
        for value in 0..3 {
            poster.push(value).unwrap();
        }
        assert_eq!(poster.push(9), Err(9));
        assert_eq!((retirer.retire(1, drop), retirer.retire(1, drop)), (Some((0, 1)), Some((1, 0))));
        assert_eq!(poster.outstanding(), 1);
        poster.push(3).unwrap();
        assert_eq!(retirer.retire(1, drop), None, "retired already");
        assert_eq!(retirer.retire(4, drop), None, "not posted yet");
        assert_eq!((retirer.take(), retirer.take(), retirer.take()), (Some(2), Some(3), None));
    }

    #[test]
    fn a_value_that_the_device_never_got_is_taken_back() {
        let (mut poster, mut retirer) = ledger(2);
        poster.push("kept").unwrap();
        poster.push("refused").unwrap();
        // SAFETY: there is no device.
        assert_eq!(unsafe { poster.take_back() }, Some("refused"));
        assert_eq!((retirer.take(), retirer.take()), (Some("kept"), None));
        // SAFETY: there is no device.
        assert_eq!(unsafe { poster.take_back() }, None);
    }

    #[test]
    fn indices_come_round_without_confusion() {
        let (mut poster, mut retirer) = ledger(4);
        for round in 0..(1_u32 << 24) + 100 {
            if cfg!(miri) && round == 200 {
                return;
            }
            let index = poster.next_index(0);
            poster.push(round).unwrap();
            assert_eq!(retirer.retire(index, drop), Some((round, 0)));
            assert_eq!(retirer.retire(index, drop), None);
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    //! Every interleaving of a poster and a retirer on two threads.
    use super::*;
    use loom::thread;

    /// Polls until `wanted` values are out, and checks that they come in order.
    fn retire(retirer: &mut Retirer<u32>, wanted: u32) {
        let mut next = 0;
        while next < wanted {
            match retirer.take() {
                Some(value) => {
                    assert_eq!(value, next);
                    next += 1;
                }
                None => thread::yield_now(),
            }
        }
    }

    #[test]
    fn no_value_is_lost_or_taken_twice() {
        loom::model(|| {
            let (mut poster, mut retirer) = ledger(2);
            let posting = thread::spawn(move || {
                for value in 0..3 {
                    while poster.push(value).is_err() {
                        thread::yield_now();
                    }
                }
            });
            retire(&mut retirer, 3);
            posting.join().unwrap();
            assert_eq!(retirer.take(), None);
        });
    }

    #[test]
    fn a_value_taken_back_is_never_seen_by_the_retirer() {
        loom::model(|| {
            let (mut poster, mut retirer) = ledger(2);
            let (sent, completed) = (Arc::new(AtomicU32::new(0)), ());
            let device = Arc::clone(&sent);
            let posting = thread::spawn(move || {
                let () = completed;
                poster.push(0).unwrap();
                device.store(1, Ordering::Release);
                poster.push(7).unwrap();
                // SAFETY: this model's device completes the first request only.
                assert_eq!(unsafe { poster.take_back() }, Some(7));
                poster.push(1).unwrap();
                device.store(2, Ordering::Release);
            });
            for (count, index) in [(1, 0), (2, 1)] {
                while sent.load(Ordering::Acquire) < count {
                    thread::yield_now();
                }
                assert_eq!(retirer.retire(index, drop), Some((index, 0)));
            }
            posting.join().unwrap();
        });
    }

    /// A batch is staged and taken back while the poller looks; then the pair is destroyed. The poller must not find what
    /// was taken back.
    #[test]
    fn a_value_taken_back_is_never_an_orphan() {
        loom::model(|| {
            let (mut poster, mut retirer) = ledger(4);
            poster.push(0).unwrap();
            let destroyed = Arc::new(AtomicU32::new(0));
            let destroy = Arc::clone(&destroyed);
            let posting = thread::spawn(move || {
                poster.push(7).unwrap();
                // SAFETY: the device was not told of it.
                assert_eq!(unsafe { poster.take_back() }, Some(7));
                drop(poster);
                destroy.store(1, Ordering::Release);
            });
            assert_eq!(retirer.retire(0, drop), Some((0, 0)));
            while destroyed.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            assert_eq!(retirer.take(), None);
            posting.join().unwrap();
        });
    }

    #[test]
    fn a_completion_retires_the_unsignalled_before_it() {
        loom::model(|| {
            let (mut poster, mut retirer) = ledger(2);
            let rung = Arc::new(AtomicU32::new(0));
            let bell = Arc::clone(&rung);
            let posting = thread::spawn(move || {
                poster.push(0).unwrap();
                poster.push(1).unwrap();
                bell.store(1, Ordering::Release);
            });
            while rung.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            assert_eq!((retirer.retire(1, drop), retirer.retire(1, drop)), (Some((0, 1)), Some((1, 0))));
            posting.join().unwrap();
        });
    }
}
