//! Filled buffers, and memory that counts how often it is freed.

use interlock::access::Exposed;
use interlock::memory::ForeignMemory;
use interlock::{Brand, Buffer, ProtectionDomain, RemoteRegion};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A buffer of `len` bytes, each of them `byte`.
pub fn filled<B: Brand>(domain: &ProtectionDomain<B>, byte: u8, len: usize) -> Buffer<B> {
    let mut buffer = domain.buffer(len).unwrap();
    buffer.fill(byte);
    buffer
}

/// A buffer that holds `bytes` and nothing else.
pub fn message<B: Brand>(domain: &ProtectionDomain<B>, bytes: &[u8]) -> Buffer<B> {
    // A buffer has at least one byte, even if the message is empty.
    let mut buffer = domain.buffer(bytes.len().max(1)).unwrap();
    buffer.write(bytes).unwrap();
    buffer.set_len(bytes.len()).unwrap();
    buffer
}

/// A record as a peer could change it: with the address moved by `by`.
pub fn moved<A: Exposed>(remote: &RemoteRegion<A>, by: i64) -> RemoteRegion<A> {
    let mut record = remote.to_bytes();
    record[8..16].copy_from_slice(&remote.address().wrapping_add_signed(by).to_be_bytes());
    RemoteRegion::from_bytes(&record).unwrap()
}

/// Zeroed words, and a counter of how often they were freed.
pub type Counted = Guarded<CountsDrops>;

impl Counted {
    /// `words` zeroed words, which add one to `freed` when they are freed.
    pub fn new(words: usize, freed: &Arc<AtomicUsize>) -> Self {
        Self::with(words, CountsDrops(Arc::clone(freed)))
    }
}

/// Adds one to the counter when it is dropped.
#[derive(Debug)]
pub struct CountsDrops(Arc<AtomicUsize>);

impl Drop for CountsDrops {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Zeroed words, and a value that is dropped after they were freed.
#[derive(Debug)]
pub struct Guarded<G>(Box<[u64]>, G);

impl<G> Guarded<G> {
    /// `words` zeroed words with that value.
    pub fn with(words: usize, guard: G) -> Self {
        Self(vec![0; words].into_boxed_slice(), guard)
    }
}

// SAFETY: the memory is a boxed slice of initialised words. `into_parts` turns the box into a raw pointer, so nobody
// moves, frees or aliases the memory until `from_parts` rebuilds the box. Any bytes are a valid `u64`.
unsafe impl<G: Send + 'static> ForeignMemory for Guarded<G> {
    type Parts = (usize, G);

    fn into_parts(self) -> (NonNull<[u8]>, Self::Parts) {
        let Self(words, guard) = self;
        let words = Box::into_raw(words);
        let start = NonNull::new(words.cast::<u8>()).unwrap();
        (NonNull::slice_from_raw_parts(start, words.len() * 8), (words.len(), guard))
    }

    unsafe fn from_parts(bytes: NonNull<[u8]>, (len, guard): Self::Parts) -> Self {
        let words = std::ptr::slice_from_raw_parts_mut(bytes.as_ptr().cast::<u64>(), len);
        // SAFETY: the caller passes what one call of `into_parts` returned, and passes it only once. So `words` is the
        // box that `into_parts` took apart, and nobody else owns it.
        Self(unsafe { Box::from_raw(words) }, guard)
    }
}
