//! How the device touches memory.
//!
//! Memory of a region without remote rights is *private*: its owner has given up access until the completion is polled,
//! and the fabric's lock orders the device's plain copies against the owner's accesses.
//!
//! Memory of a region with any remote right, or behind a window, is *exposed*: the program may access it at any time through relaxed
//! `AtomicU64` of aligned words. Accesses of another size, or plain ones, would be data races, so the device does the
//! same, also for single bytes. That works because exposed regions and windows begin and end on 8-byte boundaries.
//!
//! Addresses are numbers, as they are in `ibv_sge`; their provenance has been exposed by whoever registered or posted
//! them.
#![allow(unsafe_code, reason = "the device reads and writes memory by address")]

use std::{
    ptr,
    sync::atomic::{AtomicU64, Ordering, fence},
};

/// Bytes of an aligned word.
const WORD: usize = size_of::<u64>();
/// Bytes on the stack between two exposed places.
const BOUNCE: usize = 512;

/// A piece of registered memory, already checked against its region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    addr: usize,
    len: usize,
    exposed: bool,
}

impl Span {
    /// # Safety
    ///
    /// While the span is in use, `len` bytes at `addr` are memory with exposed provenance that the device may access:
    /// if `exposed`, they lie in whole aligned words that nobody accesses but by atomics of such words; if not, nobody
    /// else accesses them.
    pub(super) unsafe fn new(addr: usize, len: usize, exposed: bool) -> Self {
        Self { addr, len, exposed }
    }

    /// Bytes of the device's own, to be read only.
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        Self { addr: bytes.as_ptr().expose_provenance(), len: bytes.len(), exposed: false }
    }

    /// Bytes of the device's own, to be written. They are borrowed for as long as the span is in use.
    pub(super) fn of_bytes_mut(bytes: &mut [u8]) -> Self {
        Self { addr: bytes.as_mut_ptr().expose_provenance(), len: bytes.len(), exposed: false }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn start(&self) -> u64 {
        self.addr as u64
    }

    fn cut(&mut self, len: usize) {
        self.addr = self.addr.wrapping_add(len);
        self.len -= len;
    }
}

/// Copies bytes from the spans of `from` to those of `to` until either ends.
///
/// # Safety
///
/// The promise of [`Span::new`] holds for all of them, and those of `to` may be written.
pub(super) unsafe fn copy(from: &[Span], to: &[Span]) {
    let (mut sources, mut targets) = (from.iter().copied(), to.iter().copied());
    let (mut source, mut target) = (sources.next(), targets.next());
    while let (Some(s), Some(t)) = (&mut source, &mut target) {
        let len = s.len.min(t.len);
        // SAFETY: `len` bytes lie in both (caller).
        unsafe { transfer(*s, *t, len) };
        s.cut(len);
        t.cut(len);
        if s.len == 0 {
            source = sources.next();
        }
        if t.len == 0 {
            target = targets.next();
        }
    }
}

/// Copies `len` bytes.
///
/// # Safety
///
/// As [`copy`], and neither span is shorter than `len`.
unsafe fn transfer(from: Span, to: Span, len: usize) {
    let source = ptr::with_exposed_provenance::<u8>(from.addr);
    let target = ptr::with_exposed_provenance_mut::<u8>(to.addr);
    match (from.exposed, to.exposed) {
        // SAFETY: both are ours alone (caller); they may overlap, when a queue pair sends to itself.
        (false, false) => unsafe { ptr::copy(source, target, len) },
        // SAFETY: the caller's promise.
        (true, false) => unsafe { load(from.addr, target, len) },
        // SAFETY: the caller's promise.
        (false, true) => unsafe { store(source, to.addr, len) },
        (true, true) => {
            let mut bounce = [0_u8; BOUNCE];
            let mut done = 0;
            while done < len {
                let part = (len - done).min(BOUNCE);
                // SAFETY: `part` bytes of the source; the array has room for them.
                unsafe { load(from.addr + done, bounce.as_mut_ptr(), part) };
                // SAFETY: `part` bytes of the array and of the target.
                unsafe { store(bounce.as_ptr(), to.addr + done, part) };
                done += part;
            }
        }
    }
}

/// The aligned word that holds the byte at `addr`.
///
/// # Safety
///
/// The word is memory that nobody accesses but by such atomics.
unsafe fn word<'a>(addr: usize) -> &'a AtomicU64 {
    let word = ptr::with_exposed_provenance_mut::<u64>(addr - addr % WORD);
    // SAFETY: aligned by construction; the rest is the caller's promise.
    unsafe { AtomicU64::from_ptr(word) }
}

/// Reads exposed memory into plain memory.
///
/// # Safety
///
/// `len` bytes at `from` are exposed; `len` bytes at `to` may be written and are nobody else's.
unsafe fn load(from: usize, to: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        let addr = from + done;
        let offset = addr % WORD;
        let part = (WORD - offset).min(len - done);
        // SAFETY: a word of exposed memory (caller).
        let bytes = unsafe { word(addr) }.load(Ordering::Relaxed).to_ne_bytes();
        // SAFETY: `offset` is in the array.
        let source = unsafe { bytes.as_ptr().add(offset) };
        // SAFETY: `done` is less than `len`.
        let target = unsafe { to.add(done) };
        // SAFETY: `part` bytes from `offset` end with the array, and from `done` within `len`.
        unsafe { ptr::copy_nonoverlapping(source, target, part) };
        done += part;
    }
}

/// Writes plain memory into exposed memory.
///
/// # Safety
///
/// `len` bytes at `from` may be read and are nobody else's to write; `len` bytes at `to` are exposed and may be written.
unsafe fn store(from: *const u8, to: usize, len: usize) {
    // A message becomes visible after the messages before it, to who reads it relaxed and then fences.
    fence(Ordering::Release);
    let mut done = 0;
    while done < len {
        let addr = to + done;
        let offset = addr % WORD;
        let part = (WORD - offset).min(len - done);
        let mut bytes = [0_u8; WORD];
        // SAFETY: `done` is less than `len`.
        let source = unsafe { from.add(done) };
        // SAFETY: `offset` is in the array.
        let target = unsafe { bytes.as_mut_ptr().add(offset) };
        // SAFETY: `part` bytes from `done` lie within `len`, and from `offset` end with the array.
        unsafe { ptr::copy_nonoverlapping(source, target, part) };
        // SAFETY: a word of exposed memory (caller).
        let word = unsafe { word(addr) };
        let value = u64::from_ne_bytes(bytes);
        if part == WORD {
            word.store(value, Ordering::Relaxed);
        } else {
            let mask = mask(offset, part);
            // Always succeeds: the closure always gives a value.
            _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(old & !mask | value));
        }
        done += part;
    }
}

/// Ones in `len` bytes from byte `offset` of a word in memory order.
fn mask(offset: usize, len: usize) -> u64 {
    let mut bytes = [0_u8; WORD];
    for byte in bytes.iter_mut().skip(offset).take(len) {
        *byte = 0xff;
    }
    u64::from_ne_bytes(bytes)
}

/// What an atomic request does to the word it names.
#[derive(Clone, Copy, Debug)]
pub(super) enum AtomicOp {
    Add(u64),
    CompareAndSwap {
        compare: u64,
        swap: u64,
    },
    /// Of an atomic write; what was there before is of no interest.
    Write(u64),
}

/// Does `op` on the word at the beginning of `span`; what was there before. `None` if it is not aligned.
///
/// # Safety
///
/// `span` is exposed, has 8 bytes and may be written.
pub(super) unsafe fn atomic(span: Span, op: AtomicOp) -> Option<u64> {
    if !span.addr.is_multiple_of(WORD) {
        return None;
    }
    // SAFETY: exposed memory (caller).
    let word = unsafe { word(span.addr) };
    Some(match op {
        AtomicOp::Add(value) => word.fetch_add(value, Ordering::SeqCst),
        AtomicOp::CompareAndSwap { compare, swap } => {
            match word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(before) | Err(before) => before,
            }
        }
        AtomicOp::Write(value) => word.swap(value, Ordering::SeqCst),
    })
}
