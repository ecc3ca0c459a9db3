//! Rule M7: registered memory belongs to its region until it is deregistered.
//! Error: E0308

use interlock::{LocalWrite, MemoryRegion};

type OfAny = for<'a> fn(&'a u8);
type OfStatic = fn(&'static u8);

fn similar<B>(region: MemoryRegion<B, LocalWrite, Vec<OfAny>>) -> MemoryRegion<B, LocalWrite, Vec<OfStatic>> {
    region
}

fn main() {}
