//! How the program accesses memory that peers reach.
//!
//! A peer may read or write it at any moment, so nothing is ever borrowed: all access is by relaxed atomic loads and
//! stores of aligned 8-byte words, of one size only (mixed sizes would race). So a copy of several words may mix older
//! and newer ones. Words that must be seen together need a protocol, such as a completion or a version number.
//!
//! ASSUMPTION: a device's access to host memory interferes with such loads and stores no more than another thread's
//! relaxed atomic accesses would. No specification of Rust speaks of devices.

use super::registration::RegionInner;
use super::{Access, Exposed, Memory, MemoryRegion, PeerCannotWrite};
use crate::domain::Brand;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = 8;

/// A range that is not inside the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len_bytes} bytes at offset {offset} are not inside {within} bytes")]
pub struct OutOfBounds {
    /// Where it starts.
    pub offset: u64,
    /// How long it is.
    pub len_bytes: u64,
    /// What there is.
    pub within: u64,
}

impl OutOfBounds {
    /// Checks that `len_bytes` at `offset` are inside `within`.
    pub(super) fn check(offset: u64, len_bytes: u64, within: u64) -> Result<(), Self> {
        let inside = offset.checked_add(len_bytes).is_some_and(|end| end <= within);
        if inside { Ok(()) } else { Err(Self { offset, len_bytes, within }) }
    }
}

fn check(region: &RegionInner, offset: usize, len_bytes: usize) -> Result<(), OutOfBounds> {
    OutOfBounds::check(offset as u64, len_bytes as u64, region.len_bytes() as u64)
}

/// The words that `len_bytes` at `offset` touch: of each its number, which bytes of it are meant, and where they are in
/// the range.
fn words(offset: usize, len_bytes: usize) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (at, left) = (offset + done, len_bytes - done);
        let first = at % WORD;
        let take = (WORD - first).min(left);
        let range = done..done + take;
        done = range.end;
        (left != 0).then_some((at / WORD, first..first + take, range))
    })
}

/// Copies out of the words of a region that peers may reach.
pub(super) fn copy_out(region: &RegionInner, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
    check(region, offset, bytes.len())?;
    for (index, inside, range) in words(offset, bytes.len()) {
        let whole = word(region, index)?.load(Ordering::Relaxed).to_ne_bytes();
        bytes[range].copy_from_slice(&whole[inside]);
    }
    Ok(())
}

/// Copies into the words of a region that peers may reach.
pub(super) fn copy_in(region: &RegionInner, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
    check(region, offset, bytes.len())?;
    for (index, inside, range) in words(offset, bytes.len()) {
        let word = word(region, index)?;
        if inside.len() == WORD {
            let mut whole = [0; WORD];
            whole.copy_from_slice(&bytes[range]);
            word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        } else {
            // The rest of the word keeps its value, so it is read and written back as one atomic step.
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                let mut old = old.to_ne_bytes();
                old[inside.clone()].copy_from_slice(&bytes[range.clone()]);
                Some(u64::from_ne_bytes(old))
            });
        }
    }
    Ok(())
}

/// The word with this number.
fn word(region: &RegionInner, index: usize) -> Result<&AtomicU64, OutOfBounds> {
    let missing = || OutOfBounds {
        offset: (index as u64).saturating_mul(WORD as u64),
        len_bytes: WORD as u64,
        within: region.len_bytes() as u64,
    };
    region.word(index).ok_or_else(missing)
}

/// The word at `offset`, which must be a multiple of 8.
pub(super) fn whole_word(region: &RegionInner, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
    check(region, offset, WORD)?;
    if !offset.is_multiple_of(WORD) {
        let (offset, within) = (offset as u64, region.len_bytes() as u64);
        return Err(OutOfBounds { offset, len_bytes: WORD as u64, within });
    }
    word(region, offset / WORD)
}

impl<B: Brand, A: Access, M: Memory> MemoryRegion<B, A, M> {
    /// Copies the bytes at `offset` out, word by word.
    ///
    /// The bytes of one word are of one moment; different words may be of different moments, in any order. Words that
    /// belong together need a completion after them, or a version number before and behind them. Check the copy and not
    /// the memory, which a peer may have changed since.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn read_into(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds>
    where
        A: Exposed,
    {
        copy_out(self.inner(), offset, bytes)
    }

    /// Copies `bytes` in at `offset`, word by word.
    ///
    /// Where the range starts or ends inside a word, the rest of the word is written back unchanged, so a peer's write
    /// to that rest at the same time may be lost. A range of whole words has no such loss.
    ///
    /// It takes `&mut self`, because a region that peers may only read also gives out `&[u8]`.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn write_from(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds>
    where
        A: Exposed,
    {
        copy_in(self.inner(), offset, bytes)
    }

    /// Loads the word at `offset`, a multiple of 8; native byte order.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], also where `offset` is not a multiple of 8.
    pub fn load(&self, offset: usize) -> Result<u64, OutOfBounds>
    where
        A: Exposed,
    {
        Ok(whole_word(self.inner(), offset)?.load(Ordering::Relaxed))
    }

    /// Stores the word at `offset`, a multiple of 8; native byte order.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn store(&mut self, offset: usize, value: u64) -> Result<(), OutOfBounds>
    where
        A: Exposed,
    {
        whole_word(self.inner(), offset)?.store(value, Ordering::Relaxed);
        Ok(())
    }
}

/// `as_bytes` is sound beside reads of peers. `write_from` and `store` take `&mut self`, so they never run beside it.
const _: () = {
    const fn reads_only<A: PeerCannotWrite>() {}
    reads_only::<super::RemoteRead>();
};
