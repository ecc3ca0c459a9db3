//! Filled buffers, and memory that counts how often it is freed.

use interlock::access::Exposed;
use interlock::memory::ForeignMemory;
use interlock::{Brand, Buffer, ProtectionDomain, RemoteRegion};
use std::mem;
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
#[derive(Debug)]
pub struct Counted(Box<[u64]>, Arc<AtomicUsize>);

impl Counted {
    /// `words` zeroed words, which add one to `freed` when they are freed.
    pub fn new(words: usize, freed: &Arc<AtomicUsize>) -> Self {
        Self(vec![0; words].into_boxed_slice(), Arc::clone(freed))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the memory is a boxed slice of initialised words. `into_parts` turns the box into a raw pointer, so nobody
// moves, frees or aliases the memory until `from_parts` rebuilds the box. Any bytes are a valid `u64`.
unsafe impl ForeignMemory for Counted {
    type Parts = (usize, Arc<AtomicUsize>);

    fn into_parts(mut self) -> (NonNull<[u8]>, Self::Parts) {
        let words = Box::into_raw(mem::take(&mut self.0));
        let freed = Arc::clone(&self.1);
        mem::forget(self);
        let start = NonNull::new(words.cast::<u8>()).unwrap();
        (NonNull::slice_from_raw_parts(start, words.len() * 8), (words.len(), freed))
    }

    unsafe fn from_parts(bytes: NonNull<[u8]>, (len, freed): Self::Parts) -> Self {
        let words = std::ptr::slice_from_raw_parts_mut(bytes.as_ptr().cast::<u64>(), len);
        // SAFETY: the caller passes what one call of `into_parts` returned, and passes it only once. So `words` is the
        // box that `into_parts` took apart, and nobody else owns it.
        Self(unsafe { Box::from_raw(words) }, freed)
    }
}
