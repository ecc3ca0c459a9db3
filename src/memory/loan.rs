//! The registration of borrowed memory, which a scope lends to its closure.
#![forbid(unsafe_code)]

use super::buffer::{Buffer, SharedBuffer};
use super::part::{SharedPart, UniqueRegion};
use super::region::Whole;
use super::registration::Lending;
use super::{Exposed, LocalWrite, MemoryRegion, Plain};
use crate::domain::Brand;

impl<'env, B> Lending<'env, SharedBuffer<B>> {
    /// `memory` as a shared buffer: the device may read it, too.
    pub(crate) fn shared<T: Plain>(memory: &'env [T]) -> Self {
        Self::of_shared(memory, |region| SharedBuffer::new(SharedPart::of_read_only(region)))
    }
}

impl<'env, B> Lending<'env, Buffer<B>> {
    /// `memory` as a buffer: the device may read and write it, too.
    pub(crate) fn unique<T: Plain>(memory: &'env mut [T]) -> Self {
        Self::of_unique::<LocalWrite, T>(memory, false, |region| {
            Buffer::new(UniqueRegion::<LocalWrite>::new(region).split().1)
        })
    }
}

impl<'env, B: Brand, A: Exposed> Lending<'env, MemoryRegion<B, A>> {
    /// `memory` for peers. Empty memory is refused by [`start`](Self::start).
    pub(crate) fn granted(memory: &'env mut [u64]) -> Self {
        Self::of_unique::<A, u64>(memory, true, |region| Whole::of(UniqueRegion::new(region)).into_region())
    }
}
