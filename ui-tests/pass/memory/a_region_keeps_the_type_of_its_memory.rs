//! Rule M7: registered memory belongs to its region until it is deregistered.

use interlock::{LocalWrite, MemoryRegion};

type OfAny = for<'a> fn(&'a u8);

fn similar<B>(region: MemoryRegion<B, LocalWrite, Vec<OfAny>>) -> MemoryRegion<B, LocalWrite, Vec<OfAny>> {
    region
}

fn main() {}
