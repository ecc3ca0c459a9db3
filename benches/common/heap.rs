//! An allocator that counts, and that can tell whose an allocation is.
//!
//! Objects of the library and of the soft device come from one allocator. They are told apart by the call stack: memory
//! is the device's if it was asked for while a function of `interlock::provider::soft` was running. Stacks are looked
//! at only inside [`attribute`], since a look takes some 0.1 ms.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};

pub(crate) struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// Of this thread: what it allocated less what it freed.
    static MINE: Cell<i64> = const { Cell::new(0) };
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    static LEDGER: RefCell<Ledger> = RefCell::default();
}

#[derive(Default)]
struct Ledger {
    /// What was asked for under watch and is still there: its bytes, and whether it is the device's.
    live: HashMap<usize, (usize, bool)>,
}

/// Bytes that are allocated, in all threads.
pub(crate) fn live() -> i64 {
    LIVE.load(Ordering::Relaxed)
}

/// Bytes that this thread allocated, less those that it freed: deterministic, whatever other threads do.
pub(crate) fn mine() -> i64 {
    MINE.get()
}

/// What is left of what was allocated under watch.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Owned {
    pub(crate) library_bytes: usize,
    pub(crate) device_bytes: usize,
}

/// Runs `f`, and tells whose the memory is that it allocated and did not free.
pub(crate) fn attribute<R>(f: impl FnOnce() -> R) -> (R, Owned) {
    WATCHING.set(true);
    let result = f();
    WATCHING.set(false);
    let mut owned = Owned::default();
    for (bytes, device) in LEDGER.take().live.into_values() {
        *(if device { &mut owned.device_bytes } else { &mut owned.library_bytes }) += bytes;
    }
    (result, owned)
}

fn is_device_at_work() -> bool {
    Backtrace::force_capture().to_string().contains("interlock::provider::soft")
}

/// Looks at an event without looking at the allocations that looking makes.
fn watch(f: impl FnOnce(&mut Ledger)) {
    if WATCHING.get() {
        WATCHING.set(false);
        LEDGER.with_borrow_mut(f);
        WATCHING.set(true);
    }
}

fn came(at: *mut u8, bytes: usize) {
    count(bytes as i64);
    watch(|ledger| {
        ledger.live.insert(at.addr(), (bytes, is_device_at_work()));
    });
}

fn goes(at: *mut u8, bytes: usize) {
    count(-(bytes as i64));
    watch(|ledger| {
        ledger.live.remove(&at.addr());
    });
}

fn count(bytes: i64) {
    LIVE.fetch_add(bytes, Ordering::Relaxed);
    MINE.set(MINE.get() + bytes);
}

// SAFETY: as the system's allocator, which does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            came(memory, layout.size());
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        goes(memory, layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let memory = unsafe { System.alloc_zeroed(layout) };
        if !memory.is_null() {
            came(memory, layout.size());
        }
        memory
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        let moved = unsafe { System.realloc(memory, layout, new_size) };
        if !moved.is_null() {
            goes(memory, layout.size());
            came(moved, new_size);
        }
        moved
    }
}
