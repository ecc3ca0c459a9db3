//! Rule M5: a region ends only when all its bytes are back.
//! Error: E0308

use interlock::{Buffer, LocalWrite};
use interlock::memory::SplitRegion;

interlock::domain! { struct Storage; struct Scratch; }

fn rejoin(rest: SplitRegion<Storage, LocalWrite>, buffer: Buffer<Scratch>) {
    let _ = rest.rejoin(buffer);
}

fn main() {}
