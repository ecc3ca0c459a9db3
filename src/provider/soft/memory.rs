//! The device's accesses to the memory of programs. No other file of the device accesses it.
//!
//! Memory of a region without remote rights is *private*. Its owner does not touch it until the completion is polled,
//! and the fabric's lock orders the device's plain copies against the owner's accesses.
//!
//! Memory of a region with any remote right, or behind a window, is *exposed*: the program may access it at any time,
//! through relaxed `AtomicU64` of aligned words. Plain accesses by the device, or atomics of another size, would be
//! data races. So the device uses the same atomics, even for single bytes. That works because exposed regions and
//! windows begin and end on 8-byte boundaries.
//!
//! Addresses are numbers, as in `ibv_sge`. Registration exposes the provenance of the memory, so that they can become
//! pointers again.
//!
//! A [`Span`] is a part of a region. It holds the [`Era`] in which it was found. When a region ends, a new era begins,
//! and spans of earlier eras are refused. So the safe code of this device cannot reach memory that is no longer
//! registered.
#![allow(unsafe_code, reason = "the device reads and writes memory by address")]

use crate::sys::ibv_access_flags;
use std::{
    iter,
    marker::PhantomData,
    ptr,
    sync::atomic::{AtomicU64, Ordering, fence},
};

/// Bytes of an aligned word.
const WORD: usize = size_of::<u64>();
/// The size of the buffer on the stack through which data goes from one exposed place to another.
const BOUNCE: usize = 512;

/// Memory to be registered.
#[derive(Clone, Copy)]
pub(super) struct Registration {
    /// # Invariants
    ///
    /// 0. From registration to deregistration, the device may access `len` bytes at `addr` as `access` permits. Bytes
    ///    are *exposed* if `access` has a remote right, or if a window covers them. The program accesses exposed bytes
    ///    only by relaxed atomics of whole aligned words. Other bytes that a request names belong to the device alone
    ///    until the request completes.
    addr: *mut u8,
    len: usize,
    /// The address of the first byte for requests that use the keys, if it is not the byte's own address.
    pub(super) iova: Option<u64>,
    pub(super) access: u32,
}

impl Registration {
    /// # Safety
    ///
    /// The same as for [`Provider::reg_mr`](crate::provider::Provider::reg_mr): the caller gives the device the memory
    /// (0).
    pub(super) unsafe fn new(addr: *mut u8, len: usize, iova: Option<u64>, access: ibv_access_flags) -> Self {
        Self { addr, len, iova, access: access.0 }
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        self.addr
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The memory of the registration, with its provenance exposed.
    pub(super) fn extent(&self) -> Extent {
        Extent { addr: self.addr.expose_provenance(), len: self.len }
    }
}

/// The memory of a region.
pub(super) struct Extent {
    /// # Invariants
    ///
    /// 0. The memory is that of a [`Registration`], whose invariant (0) holds until [`end`](Self::end).
    addr: usize,
    len: usize,
}

impl Extent {
    pub(super) fn start(&self) -> u64 {
        self.addr as u64
    }

    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }

    pub(super) fn covers(&self, memory: &Span) -> bool {
        (self.addr..self.addr + self.len).contains(&memory.addr)
    }

    /// The `len` bytes at `addr`, if all of them lie in the memory. The caller knows from the region, or from the
    /// window over it, whether they are exposed and whether they may be written.
    pub(super) fn span(&self, addr: u64, len: u64, exposed: bool, writable: bool, era: &Era) -> Option<Span> {
        let (addr, len) = (usize::try_from(addr).ok()?, usize::try_from(len).ok()?);
        let inside = addr >= self.addr && addr.checked_add(len)? <= self.addr + self.len;
        inside.then_some(Span { addr, len, exposed, writable, era: era.0 })
    }

    /// Ends the region, and with it the era.
    pub(super) fn end(self, era: &mut Era) {
        era.0 += 1;
    }
}

/// Counts the regions of a fabric that have ended. Each fabric has one such counter. No region can end while the
/// counter is borrowed, since [`Extent::end`] changes it.
#[derive(Debug, Default)]
pub(super) struct Era(u64);

/// A piece of registered memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// # Invariants
    ///
    /// 0. While the era lasts, `len` bytes at `addr` are registered memory: if `exposed`, they lie in whole aligned
    ///    words that everybody accesses by atomics of such words; if not, nobody else accesses them.
    addr: usize,
    len: usize,
    exposed: bool,
    writable: bool,
    era: u64,
}

impl Span {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// # Safety
    ///
    /// The era of the span lasts for as long as the result is used.
    unsafe fn piece<'a>(&self) -> Piece<'a> {
        Piece { addr: self.addr, len: self.len, exposed: self.exposed, marker: PhantomData }
    }

    /// # Safety
    ///
    /// The same as for [`piece`](Self::piece), and the span is writable.
    unsafe fn target<'a>(&self) -> Target<'a> {
        // SAFETY: the era of the span lasts for as long as the target is used (caller). The span is writable (caller),
        // and nobody else accesses the memory of the span without atomics (0 of `Span`). So the piece satisfies the
        // invariant of `Target` (0).
        Target(unsafe { self.piece() })
    }
}

/// The bytes of a message: the device's own bytes, then registered memory.
#[derive(Clone, Copy, Default)]
pub(super) struct Source<'a> {
    pub(super) header: &'a [u8],
    pub(super) inline: &'a [u8],
    pub(super) registered: &'a [Span],
}

/// Memory that a copy reads: a span, or bytes of the device itself.
#[derive(Clone, Copy)]
struct Piece<'a> {
    /// # Invariants
    ///
    /// 0. For `'a`, the `len` bytes at `addr` can be read. If `exposed`, everybody accesses them by atomics of the
    ///    aligned words that hold them. If not, plain reads are fine, since nobody else writes them.
    addr: usize,
    len: usize,
    exposed: bool,
    marker: PhantomData<&'a [u8]>,
}

/// Memory that a copy writes.
struct Target<'a>(
    /// # Invariants
    ///
    /// 0. For `'a`, the memory may be written. If it is exposed, everybody else accesses it by atomics of its words. If
    ///    not, nobody else accesses it.
    Piece<'a>,
);

impl<'a> Piece<'a> {
    fn of_bytes(bytes: &'a [u8]) -> Self {
        Self { addr: bytes.as_ptr().expose_provenance(), len: bytes.len(), exposed: false, marker: PhantomData }
    }

    /// The first `len` bytes of the piece, or all of it if it is shorter.
    fn first(&self, len: usize) -> Self {
        Self { len: len.min(self.len), ..*self }
    }

    fn cut(&mut self, len: usize) {
        self.addr = self.addr.wrapping_add(len);
        self.len -= len;
    }

    /// The aligned words that hold bytes of an exposed piece; for each word, the offset of the first such byte, and how
    /// many there are. Yields nothing if the piece is private.
    fn words(self) -> impl Iterator<Item = (&'a AtomicU64, usize, usize)> {
        let mut done = if self.exposed { 0 } else { self.len };
        std::iter::from_fn(move || {
            let addr = self.addr + done;
            let offset = addr % WORD;
            let part = (WORD - offset).min(self.len - done);
            done += part;
            let word = ptr::with_exposed_provenance_mut::<u64>(addr - offset);
            // SAFETY: `addr - offset` is aligned. In a private piece, `done` starts at `self.len`, and `part` is 0.
            // This code runs only if `part > 0`, so the piece is exposed. For `'a`, everybody accesses the words of an
            // exposed piece only by atomics of whole aligned words (0).
            (part > 0).then(|| (unsafe { AtomicU64::from_ptr(word) }, offset, part))
        })
    }
}

impl<'a> Target<'a> {
    fn of_bytes(bytes: &'a mut [u8]) -> Self {
        let (addr, len) = (bytes.as_mut_ptr().expose_provenance(), bytes.len());
        Self(Piece { addr, len, exposed: false, marker: PhantomData })
    }
}

impl<'a> Source<'a> {
    /// # Safety
    ///
    /// The era of the spans lasts for as long as the result is used.
    unsafe fn pieces(self) -> impl Iterator<Item = Piece<'a>> {
        let own = |bytes: &'a [u8]| (!bytes.is_empty()).then(|| Piece::of_bytes(bytes)).into_iter();
        // SAFETY: the era of the spans lasts for as long as the pieces are used (caller).
        own(self.header).chain(own(self.inline)).chain(self.registered.iter().map(|span| unsafe { span.piece() }))
    }
}

/// Copies bytes until `from` or `to` ends. Does nothing if a span is from an earlier era, or if a span of `to` is not
/// writable. A caller that found the spans under the same lock never meets these cases.
pub(super) fn copy(era: &Era, from: Source<'_>, to: &[Span]) {
    let readable = from.registered.iter().all(|span| span.era == era.0);
    let permitted = readable && to.iter().all(|span| span.era == era.0 && span.writable);
    debug_assert!(permitted, "memory was found under another lock, or to be read");
    if permitted {
        // SAFETY: the spans are of this era (checked above), and no region can end while the era is borrowed. So the
        // memory of the spans stays registered.
        let from = unsafe { from.pieces() };
        // SAFETY: the spans of `to` are of this era and writable (checked above), and no region can end while the era
        // is borrowed.
        carry(from, to.iter().map(|span| unsafe { span.target() }));
    }
}

/// Like [`copy`], but into bytes of the device itself.
pub(super) fn read(era: &Era, from: Source<'_>, to: &mut [u8]) {
    let current = from.registered.iter().all(|span| span.era == era.0);
    debug_assert!(current, "memory was found under another lock");
    if current {
        // SAFETY: the spans are of this era (checked above), and no region can end while the era is borrowed. So the
        // memory of the spans stays registered.
        carry(unsafe { from.pieces() }, iter::once(Target::of_bytes(to)));
    }
}

/// Payload that is written late: when its completion is polled, or after the end of its region.
pub(super) struct Late {
    bytes: Vec<u8>,
    to: Vec<Span>,
}

impl Late {
    pub(super) fn new(bytes: Vec<u8>, to: Vec<Span>) -> Self {
        Self { bytes, to }
    }

    pub(super) fn is_within(&self, memory: &Extent) -> bool {
        self.to.iter().any(|to| memory.covers(to))
    }

    /// Writes the payload to the memory that the request named, even if somebody else owns that memory by now.
    pub(super) fn write(&self) {
        // SAFETY: the spans are writable, because each of them was found for a write. But nothing here proves that the
        // memory is still registered: real providers write the payload without a check, and this device imitates them.
        // So the library must keep the memory until the completion of the request is polled. If a peer's write goes on
        // after the end of its region, the library must keep the memory until `finish_copies` has returned. The tests
        // under Miri and AddressSanitizer check that the library does.
        let to = self.to.iter().map(|span| unsafe { span.target() });
        carry(iter::once(Piece::of_bytes(&self.bytes)), to);
    }
}

/// Copies bytes until `from` or `to` ends.
fn carry<'a>(mut from: impl Iterator<Item = Piece<'a>>, mut to: impl Iterator<Item = Target<'a>>) {
    let (mut source, mut target) = (from.next(), to.next());
    while let (Some(s), Some(Target(t))) = (&mut source, &mut target) {
        let len = s.len.min(t.len);
        transfer(s.first(len), Target(t.first(len)));
        s.cut(len);
        t.cut(len);
        if s.len == 0 {
            source = from.next();
        }
        if t.len == 0 {
            target = to.next();
        }
    }
}

/// Copies a piece to a target of the same length.
fn transfer(mut from: Piece<'_>, Target(mut to): Target<'_>) {
    match (from.exposed, to.exposed) {
        (false, false) => {
            let source = ptr::with_exposed_provenance::<u8>(from.addr);
            let target = ptr::with_exposed_provenance_mut::<u8>(to.addr);
            // SAFETY: neither piece is exposed. So nobody else writes the source (0 of `Piece`), and nobody else
            // accesses the target (0 of `Target`). The pieces can overlap if a queue pair sends to itself, and
            // `ptr::copy` permits that.
            unsafe { ptr::copy(source, target, from.len.min(to.len)) }
        }
        (true, false) => load(from, Target(to)),
        (false, true) => store(from, Target(to)),
        (true, true) => {
            let mut bounce = [0_u8; BOUNCE];
            while from.len > 0 {
                let part = from.len.min(BOUNCE);
                load(from.first(part), Target::of_bytes(&mut bounce));
                store(Piece::of_bytes(&bounce).first(part), Target(to.first(part)));
                from.cut(part);
                to.cut(part);
            }
        }
    }
}

/// Reads an exposed piece into private memory of at least its length.
fn load(from: Piece<'_>, Target(to): Target<'_>) {
    let mut target = ptr::with_exposed_provenance_mut::<u8>(to.addr);
    for (word, offset, part) in from.first(to.len).words() {
        let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        // SAFETY: the loop covers at most `to.len` bytes, so the target has room for `part` more bytes, and only the
        // device accesses them. The `part` bytes from `offset` are inside `bytes`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().wrapping_add(offset), target, part) };
        target = target.wrapping_add(part);
    }
}

/// Writes a private piece into exposed memory of its length.
fn store(from: Piece<'_>, Target(to): Target<'_>) {
    let mut source = ptr::with_exposed_provenance::<u8>(from.addr);
    // A program loads the data with `Relaxed`, and then executes an acquire fence. That fence pairs with this release
    // fence: a program that sees the data of this message also sees all earlier messages.
    fence(Ordering::Release);
    for (word, offset, part) in to.first(from.len).words() {
        let mut bytes = [0_u8; WORD];
        // SAFETY: the loop covers at most `from.len` bytes, so the source has `part` more bytes, and nobody writes
        // them. The `part` bytes from `offset` are inside `bytes`.
        unsafe { ptr::copy_nonoverlapping(source, bytes.as_mut_ptr().wrapping_add(offset), part) };
        let value = u64::from_ne_bytes(bytes);
        if part == WORD {
            word.store(value, Ordering::Relaxed);
        } else {
            let mask = mask(offset, part);
            // `fetch_update` never fails, since the closure always returns `Some`.
            _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(old & !mask | value));
        }
        source = source.wrapping_add(part);
    }
}

/// A mask of the `len` bytes from byte `offset` of a word, in memory order.
fn mask(offset: usize, len: usize) -> u64 {
    let mut bytes = [0_u8; WORD];
    for byte in bytes.iter_mut().skip(offset).take(len) {
        *byte = 0xff;
    }
    u64::from_ne_bytes(bytes)
}

/// The operation of an atomic request.
#[derive(Clone, Copy, Debug)]
pub(super) enum AtomicOp {
    Add(u64),
    CompareAndSwap {
        compare: u64,
        swap: u64,
    },
    /// An atomic write. Its requester does not get the old value.
    Write(u64),
}

/// Executes `op` on the word at the start of `span`, and returns the old value. `None` unless the span starts with an
/// aligned word of exposed, writable memory.
pub(super) fn atomic(era: &Era, span: Span, op: AtomicOp) -> Option<u64> {
    if !(span.exposed && span.writable && span.era == era.0) {
        return None;
    }
    // SAFETY: the span is of this era (checked above), and no region can end while the era is borrowed. So the memory
    // of the span stays registered.
    let (word, _, _) = unsafe { span.piece() }.words().next().filter(|(_, _, bytes)| *bytes == WORD)?;
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
