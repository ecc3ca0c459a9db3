//! Rule M5: a region ends only when all its bytes are back.

use interlock::memory::SplitRegion;
use interlock::{Buffer, LocalWrite};

interlock::domain! { struct Storage; struct Scratch; }

fn rejoin(rest: SplitRegion<Storage, LocalWrite>, buffer: Buffer<Storage>) {
    let _ = rest.rejoin(buffer);
}

fn main() {}
