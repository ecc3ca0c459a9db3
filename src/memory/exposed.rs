//! How the program accesses memory that peers reach.
//!
//! A peer may access such memory at any moment, so the program borrows it only where no peer may write. All other
//! access is by relaxed atomic loads and stores of aligned 8-byte words, and of no other size (mixed sizes would race).
//! So a copy of several words may mix older and newer ones. Words that must be seen together need a protocol, such as a
//! completion or a version number.
//!
//! ASSUMPTION: a device's access to host memory interferes with such loads and stores no more than another thread's
//! relaxed atomic accesses would. No specification of Rust speaks of devices.

use super::error::OutOfBounds;
use super::registration::RegionInner;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = 8;

fn check(region: &RegionInner, offset: usize, len_bytes: usize) -> Result<(), OutOfBounds> {
    OutOfBounds::check(offset as u64, len_bytes as u64, region.len_bytes() as u64)
}

/// The words that `len_bytes` at `offset` touch. For each word: its index, the range of touched bytes inside the word,
/// and the place of these bytes in the whole range.
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
            // The other bytes of the word keep their values, so the word is read and written back in one atomic step.
            // `fetch_update` never fails: the closure always returns a value.
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                let mut old = old.to_ne_bytes();
                old[inside.clone()].copy_from_slice(&bytes[range.clone()]);
                Some(u64::from_ne_bytes(old))
            });
        }
    }
    Ok(())
}

/// The word with this index.
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
