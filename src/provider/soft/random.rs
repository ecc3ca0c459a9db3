//! Random numbers that are the same for the same seed.
//!
//! The six lines of SplitMix64 are written here: the library has no other use for a crate of generators, and the
//! numbers of a seed must not change with a release of such a crate.
#![forbid(unsafe_code)]

/// A splitmix64 generator.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which must not be 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
