//! The memory of ledgers. Blocks of one length lie side by side, in the order in which they were taken (unless some
//! were given back in between). A program that goes through many queue pairs touches their ledgers at a constant
//! distance. The processor recognises that, and fetches the next ledger in advance.
//!
//! Memory for blocks of one length goes back to the heap when none of them is taken any more. There are few lengths,
//! since depths are rounded to powers of two.
#![allow(unsafe_code, reason = "memory that is taken and given back in blocks")]

use crate::provider::handles::ObjectPtr;
use crate::sync::lock;
use core::mem::{self, MaybeUninit};
use core::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

/// A cache line. A block is a number of lines.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Line(#[expect(dead_code, reason = "never as such")] [u8; 64]);

/// The greatest length of a chunk, unless one block is longer. Under tools that detect use after free, each block has a
/// chunk of its own.
const CHUNK_LINES: usize = if cfg!(any(miri, loom, asan)) { 1 } else { 1024 };

/// The blocks of a protection domain.
#[derive(Debug, Default)]
pub(crate) struct Blocks(Mutex<Vec<Shelf>>);

/// The blocks of one length.
#[derive(Debug)]
struct Shelf {
    /// The length of a block, in lines.
    lines: usize,
    /// The blocks that nobody has taken, each with its index. The last one is taken next. The capacity is the number of
    /// all blocks, so that giving a block back does not allocate.
    free: Vec<(ObjectPtr<Line>, u32)>,
    /// # Invariants
    ///
    /// 0. The first line of each chunk holds a [`Header`], and the blocks follow it. The lines are used through
    ///    pointers only: the `Arc` never lends them as a slice, so it claims none of them.
    chunks: Vec<Arc<[MaybeUninit<Line>]>>,
    /// How many blocks there are in all chunks.
    blocks: usize,
}

/// The first line of a chunk.
struct Header {
    /// # Invariants
    ///
    /// 0. The pointer came from [`Arc::as_ptr`]. Each block that is taken owns a reference to the pool.
    pool: *const Blocks,
    /// 1. How many blocks the chunk has.
    blocks: u32,
}

/// The place of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) at: NonNull<Line>,
    /// How many blocks are before this one in its chunk.
    pub(crate) index: u32,
}

impl Blocks {
    fn shelves(&self) -> MutexGuard<'_, Vec<Shelf>> {
        lock(&self.0)
    }

    /// Takes a block of this many lines, at least one. Its content is undefined.
    pub(crate) fn take(self: &Arc<Self>, lines: usize) -> Block {
        let mut shelves = self.shelves();
        let at = shelves.iter().position(|shelf| shelf.lines == lines).unwrap_or_else(|| {
            shelves.reserve_exact(1);
            shelves.push(Shelf { lines, free: Vec::new(), chunks: Vec::new(), blocks: 0 });
            shelves.len() - 1
        });
        let shelf = &mut shelves[at];
        let block = loop {
            match shelf.free.pop() {
                Some((ObjectPtr(at), index)) => break Block { at, index },
                None => shelf.grow(Arc::as_ptr(self)),
            }
        };
        // The block owns this reference to the pool (`Header`, 0). `give_back` takes it over.
        mem::forget(Arc::clone(self));
        block
    }

    /// Gives a block back.
    ///
    /// # Safety
    ///
    /// The block was [taken](Self::take) with this many lines, and is not used any more.
    pub(crate) unsafe fn give_back(block: Block, lines: usize) {
        // In its chunk, `block.index` blocks and the line of the header lie before the block (`Shelf`, 0).
        let first = block.at.as_ptr().wrapping_sub(1 + block.index as usize * lines);
        // SAFETY: `first` is the first line of the block's chunk and holds a header (`Shelf`, 0). The chunk is not
        // freed before this block is given back, below.
        let Header { pool, blocks } = unsafe { first.cast::<Header>().read() };
        // SAFETY: `pool` came from `Arc::as_ptr`, and the block owns a reference to it (`Header`, 0). `from_raw` takes
        // over that reference.
        let pool = unsafe { Arc::from_raw(pool) };
        let mut shelves = pool.shelves();
        let Some(at) = shelves.iter().position(|shelf| shelf.lines == lines) else { return };
        let shelf = &mut shelves[at];
        if blocks == 1 {
            shelf.remove(first);
        } else {
            shelf.free.push((ObjectPtr(block.at), block.index));
        }
        if shelf.free.len() == shelf.blocks {
            drop(shelves.swap_remove(at));
            shelves.shrink_to_fit();
        }
    }
}

impl Shelf {
    /// Makes a chunk with as many blocks as there are already, up to [`CHUNK_LINES`]. So few pairs take little memory,
    /// and many pairs lie in few chunks.
    fn grow(&mut self, pool: *const Blocks) {
        let blocks = self.blocks.min(CHUNK_LINES / self.lines).max(1);
        self.free.reserve_exact(self.blocks + blocks);
        self.chunks.reserve_exact(1);
        let chunk = Arc::<[Line]>::new_uninit_slice(1 + blocks * self.lines);
        const { assert!(size_of::<Header>() <= size_of::<Line>() && align_of::<Header>() <= align_of::<Line>()) };
        let first = Arc::as_ptr(&chunk).cast_mut().cast::<Line>();
        // SAFETY: the chunk is new, so nobody else uses it. Its first line has room for a header, as asserted above.
        unsafe { first.cast::<Header>().write(Header { pool, blocks: blocks as u32 }) };
        self.chunks.push(chunk);
        self.blocks += blocks;
        self.free.extend((0..blocks as u32).rev().filter_map(|index| {
            let at = NonNull::new(first.wrapping_add(1 + index as usize * self.lines))?;
            Some((ObjectPtr(at), index))
        }));
    }

    /// Frees the chunk that begins with this line. The only block of the chunk is neither taken nor in `free`.
    fn remove(&mut self, first: *const Line) {
        if let Some(at) = self.chunks.iter().position(|chunk| Arc::as_ptr(chunk).cast() == first) {
            self.blocks -= 1;
            drop(self.chunks.swap_remove(at));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn blocks_of_one_length_lie_side_by_side_and_apart_from_others() {
        let pool = Arc::<Blocks>::default();
        let mut taken = Vec::new();
        let mut lines = HashSet::new();
        let mut last = None;
        let mut neighbours = 0;
        let (rounds, longest) = if cfg!(miri) { (10, 100) } else { (3000, 1500) };
        for round in 0..rounds {
            for length in [3, 2, longest] {
                if length == longest && round % 100 != 0 {
                    continue;
                }
                let block = pool.take(length);
                let first = block.at.addr().get();
                assert_eq!(first % 64, 0);
                assert!((0..length).all(|line| lines.insert(first + 64 * line)), "one that is taken");
                if length == 3 {
                    neighbours += u32::from(last.replace(first) == Some(first.wrapping_sub(3 * 64)));
                }
                taken.push((block, length));
            }
        }
        assert!(neighbours > rounds * 9 / 10 || CHUNK_LINES == 1, "{neighbours}");
        for (block, length) in taken {
            // SAFETY: the block was taken with this length, and is not used any more.
            unsafe { Blocks::give_back(block, length) };
        }
        assert_eq!((pool.shelves().len(), Arc::strong_count(&pool)), (0, 1), "all freed");
    }

    #[test]
    fn what_was_given_back_is_taken_again() {
        let pool = Arc::<Blocks>::default();
        let blocks = [(); 5].map(|()| pool.take(2));
        // SAFETY: the block was taken with this length, and is not used any more.
        unsafe { Blocks::give_back(blocks[3], 2) };
        let again = pool.take(2);
        assert!(again.at == blocks[3].at || CHUNK_LINES == 1);
        let blocks_of_all = pool.shelves()[0].blocks;
        for _ in 0..100 {
            let block = pool.take(2);
            // SAFETY: the block was taken with this length, and is not used any more.
            unsafe { Blocks::give_back(block, 2) };
        }
        assert_eq!(pool.shelves()[0].blocks, blocks_of_all);
        for block in [blocks[0], blocks[1], blocks[2], again, blocks[4]] {
            // SAFETY: the block was taken with this length, and is not used any more.
            unsafe { Blocks::give_back(block, 2) };
        }
    }

    #[test]
    fn a_block_outlives_whose_pool_it_is_of() {
        let pool = Arc::<Blocks>::default();
        let blocks = [1, 1, 4].map(|length| (pool.take(length), length));
        let other = Arc::clone(&pool);
        drop(pool);
        let giving = std::thread::spawn(move || drop(other));
        for (block, length) in blocks {
            // SAFETY: the block belongs to this test, and has room for a `u64`.
            unsafe { block.at.cast::<u64>().write(7) };
            // SAFETY: the block was taken with this length, and is not used any more.
            unsafe { Blocks::give_back(block, length) };
        }
        giving.join().unwrap();
    }

    /// Threads take blocks of many lengths and give back those of other threads. No block has two owners, and all are
    /// freed.
    #[test]
    fn blocks_come_and_go_on_any_thread() {
        let pool = Arc::<Blocks>::default();
        let taken = Mutex::new(Vec::new());
        let rounds = if cfg!(miri) { 60 } else { 3000 };
        let go = |seed: usize| {
            for round in 0..rounds {
                // In the first half of the rounds the threads mostly take blocks; in the second half they mostly give
                // blocks back.
                let takes = (round * 7 + seed * 3) % 10 < if round < rounds / 2 { 8 } else { 3 };
                let length = [1, 2, 3, 9, 600][(round * 5 + seed) % 7 % 5];
                if takes {
                    let block = pool.take(length);
                    let number = block.at.addr().get();
                    for line in [0, length - 1] {
                        // SAFETY: the block belongs to this test, and has `length` lines, so `line` is one of them.
                        let at = unsafe { block.at.add(line) };
                        // SAFETY: the line belongs to this test, and has room for a `usize`.
                        unsafe { at.cast().write(number) };
                    }
                    taken.lock().unwrap().push((block.at.expose_provenance(), block.index, length));
                    continue;
                }
                let Some((address, index, length)) = taken.lock().unwrap().pop() else { continue };
                let block = Block { at: NonNull::with_exposed_provenance(address), index };
                for line in [0, length - 1] {
                    // SAFETY: the block has `length` lines, so `line` is one of them.
                    let at = unsafe { block.at.add(line) };
                    // SAFETY: the thread that took the block wrote the line before it locked `taken`, through which
                    // this thread got the block.
                    assert_eq!(unsafe { at.cast::<usize>().read() }, address.get());
                }
                // SAFETY: the block was taken with this length, and is not used any more.
                unsafe { Blocks::give_back(block, length) };
            }
        };
        std::thread::scope(|scope| {
            let go = &go;
            (0..3).for_each(|seed| drop(scope.spawn(move || go(seed))));
        });
        for (address, index, length) in taken.into_inner().unwrap() {
            // SAFETY: the block was taken with this length, and is not used any more.
            unsafe { Blocks::give_back(Block { at: NonNull::with_exposed_provenance(address), index }, length) };
        }
        assert_eq!((pool.shelves().len(), Arc::strong_count(&pool)), (0, 1));
    }
}
