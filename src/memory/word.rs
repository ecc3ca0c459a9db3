//! The words of a region that peers reach: copies of them, and one word as an atomic.

use super::error::OutOfBounds;
use super::exposed::{copy_in, copy_out, whole_word};
use super::options::KeepsOrder;
use super::{Access, Exposed, Memory, MemoryRegion, PeerCannotWrite, PeerMayChange, Plain};
use crate::domain::Brand;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, ops::Range};
use zerocopy::IntoBytes;

/// An aligned word of 8 bytes in memory that peers may change, in native byte order. `A` is the rights of its region.
/// A `Word` is `Copy`, and all threads of the program may use it.
///
/// Bounds and alignment were checked when it was made, so no method fails for them.
///
/// # Who sees what
///
/// *Threads of this program*: a word is an atomic. Each operation is indivisible, and each one that reads and changes
/// the word ([`fetch_add`](Self::fetch_add), [`swap`](Self::swap), [`compare_exchange`](Self::compare_exchange))
/// acquires and releases.
///
/// *Peers*, through the device: each load sees some value that was there. But
///
/// - a peer's *atomics* are atomic with those of the processor only where the device says so
///   ([`DeviceAttributes::atomics_reach_the_processor`](crate::device::DeviceAttributes::atomics_reach_the_processor)).
///   Elsewhere, let only peers change a word that peers change by atomics, and only load it here. (To change it, the
///   program posts an atomic too, on a pair that is connected to itself.)
/// - a peer's *write* may become visible in pieces: a word at the edge of a write, or one that two writes touch, may
///   mix older and newer bytes.
///
/// A peer can store any value at any time, so treat a value as input from the network.
pub struct Word<'region, A> {
    word: &'region AtomicU64,
    rights: PhantomData<fn() -> A>,
}

impl<A: PeerMayChange> Word<'_, A> {
    /// Loads the value. The load orders nothing else (`Ordering::Relaxed`).
    #[inline]
    pub fn load(self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// Loads the value. Later loads see what the peer wrote before this value (`Ordering::Acquire`).
    ///
    /// The specification promises that order for completions only. Most devices keep it for writes to memory without
    /// relaxed ordering as well. Soundness never rests on it.
    #[inline]
    pub fn load_acquire(self) -> u64
    where
        A: KeepsOrder,
    {
        self.word.load(Ordering::Acquire)
    }

    /// Stores `value`. The store orders nothing else (`Ordering::Relaxed`).
    #[inline]
    pub fn store(self, value: u64) {
        self.word.store(value, Ordering::Relaxed);
    }

    /// Stores `value` after all earlier stores (`Ordering::Release`): for a peer that reads this word first and then,
    /// by another request, the rest.
    #[inline]
    pub fn store_release(self, value: u64) {
        self.word.store(value, Ordering::Release);
    }

    /// Adds `value`, wrapping; returns the old value.
    #[inline]
    pub fn fetch_add(self, value: u64) -> u64 {
        self.word.fetch_add(value, Ordering::AcqRel)
    }

    /// Stores `value`; returns the old value.
    #[inline]
    pub fn swap(self, value: u64) -> u64 {
        self.word.swap(value, Ordering::AcqRel)
    }

    /// Stores `new` if the value is `current`.
    ///
    /// # Errors
    ///
    /// The value that the word has instead; nothing is stored.
    #[inline]
    pub fn compare_exchange(self, current: u64, new: u64) -> Result<u64, u64> {
        self.word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
}

impl<A> Clone for Word<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A> Copy for Word<'_, A> {}

impl<A> fmt::Debug for Word<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Word").field(&self.word.load(Ordering::Relaxed)).finish()
    }
}

static_assertions::assert_eq_size!(Word<'_, ()>, &AtomicU64);
static_assertions::assert_impl_all!(Word<'static, ()>: Send, Sync);

impl<B: Brand, A: Access, M: Memory> MemoryRegion<B, A, M> {
    /// The word at `offset`, a multiple of 8, as an atomic.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], also where `offset` is not a multiple of 8.
    ///
    /// # Examples
    ///
    /// A mailbox: the peer writes a message, then, by another request, its number.
    ///
    /// ```
    /// use interlock::{Brand, MemoryRegion, RemoteWrite};
    /// use interlock::error::OutOfBounds;
    ///
    /// fn message<B: Brand>(
    ///     mailbox: &MemoryRegion<B, RemoteWrite>,
    ///     last: u64,
    /// ) -> Result<Option<Vec<u8>>, OutOfBounds> {
    ///     let number = mailbox.word(0)?;
    ///     if number.load_acquire() == last {
    ///         return Ok(None);
    ///     }
    ///     mailbox.to_vec(8..64).map(Some) // a copy, which no peer can change any more: check it, then use it
    /// }
    /// ```
    pub fn word(&self, offset: usize) -> Result<Word<'_, A>, OutOfBounds>
    where
        A: PeerMayChange,
    {
        Ok(Word { word: whole_word(self.inner(), offset)?, rights: PhantomData })
    }

    /// Loads the byte at `offset`.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    pub fn load_byte(&self, offset: usize) -> Result<u8, OutOfBounds>
    where
        A: Exposed,
    {
        let mut byte = [0];
        self.read_into(offset, &mut byte)?;
        Ok(byte[0])
    }

    /// Copies the bytes in `range` out, as [`read_into`](Self::read_into) does.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is allocated.
    pub fn to_vec(&self, range: Range<usize>) -> Result<Vec<u8>, OutOfBounds>
    where
        A: Exposed,
    {
        let within = self.len() as u64;
        let Some(len_bytes) = range.end.checked_sub(range.start) else {
            return Err(OutOfBounds { offset: range.start as u64, len_bytes: 0, within });
        };
        OutOfBounds::check(range.start as u64, len_bytes as u64, within)?;
        let mut bytes = vec![0; len_bytes];
        self.read_into(range.start, &mut bytes)?;
        Ok(bytes)
    }
}

impl<B: Brand, A: Access, M: Memory> MemoryRegion<B, A, M> {
    /// Copies the bytes at `offset` out, word by word.
    ///
    /// All bytes of one word are read at one moment; different words may be read at different moments, in any order.
    /// Words that belong together need a completion after them, or a version number before and behind them. Check the
    /// copy and not the memory, which a peer may have changed since.
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
    /// It takes `&mut self`, because a region that peers may only read also lends `&[u8]`.
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

    /// Copies the values at `offset` out, as [`read_into`](Self::read_into) does with bytes.
    ///
    /// Name the type of `values`: the items of an array of integer literals are `i32` if nothing says otherwise.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    ///
    /// # Examples
    ///
    /// ```
    /// use interlock::{Brand, MemoryRegion, RemoteWrite};
    /// use interlock::error::OutOfBounds;
    /// use zerocopy::byteorder::big_endian::U32;
    ///
    /// /// The prices that a peer writes behind the 16 bytes of its head.
    /// fn prices<B: Brand>(table: &MemoryRegion<B, RemoteWrite>) -> Result<[U32; 8], OutOfBounds> {
    ///     let mut prices = [U32::ZERO; 8];
    ///     table.read_slice(16, &mut prices)?;
    ///     Ok(prices) // a copy, which no peer can change any more
    /// }
    /// ```
    pub fn read_slice<T: Plain>(&self, offset: usize, values: &mut [T]) -> Result<(), OutOfBounds>
    where
        A: Exposed,
    {
        self.read_into(offset, values.as_mut_bytes())
    }

    /// Copies `values` in at `offset`, as [`write_from`](Self::write_from) does with bytes.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn write_slice<T: Plain>(&mut self, offset: usize, values: &[T]) -> Result<(), OutOfBounds>
    where
        A: Exposed,
    {
        self.write_from(offset, values.as_bytes())
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

/// `as_bytes` is sound while peers only read. `write_from` and `store` take `&mut self`, so no slice exists when they
/// run.
const _: () = {
    const fn reads_only<A: PeerCannotWrite>() {}
    reads_only::<super::RemoteRead>();
};
