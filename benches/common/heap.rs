//! An allocator that counts bytes and can tell the library's allocations from the soft device's.
//!
//! The library and the soft device share this allocator. An allocation belongs to the device if a function of
//! `interlock::provider::soft` is on the call stack. The allocator reads call stacks only inside [`attribute`], because
//! one capture takes some 0.1 ms.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};

pub(crate) struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// The bytes that this thread allocated, less the bytes that it freed.
    static MINE: Cell<i64> = const { Cell::new(0) };
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    static LEDGER: RefCell<Ledger> = RefCell::default();
}

#[derive(Default)]
struct Ledger {
    /// The live allocations made under watch: the length of each, and whether it belongs to the device.
    live: HashMap<usize, (usize, bool)>,
}

/// The allocated bytes of all threads.
pub(crate) fn live() -> i64 {
    LIVE.load(Ordering::Relaxed)
}

/// The bytes that this thread allocated, less the bytes that it freed. Other threads do not change the result.
pub(crate) fn mine() -> i64 {
    MINE.get()
}

/// The bytes that were allocated under watch and not freed.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Owned {
    pub(crate) library_bytes: usize,
    pub(crate) device_bytes: usize,
}

/// Runs `f`, and tells who owns the memory that `f` allocated and did not free.
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

/// Records an event. The allocations of the recording itself are not watched.
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

// SAFETY: each method calls the same method of the system's allocator, which keeps the contract of `GlobalAlloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for the system's allocator.
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            came(memory, layout.size());
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        goes(memory, layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same for the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same for the system's allocator.
        let memory = unsafe { System.alloc_zeroed(layout) };
        if !memory.is_null() {
            came(memory, layout.size());
        }
        memory
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `realloc`, which is the same for the system's allocator.
        let moved = unsafe { System.realloc(memory, layout, new_size) };
        if !moved.is_null() {
            goes(memory, layout.size());
            came(moved, new_size);
        }
        moved
    }
}
