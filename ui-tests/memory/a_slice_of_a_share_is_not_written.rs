//! Rule M10: nobody writes a shared buffer.
//! Error: E0596

use interlock::{Brand, SharedBuffer};

fn fill<B: Brand>(memory: &SharedBuffer<B>) {
    let Ok(head) = memory.slice(0..8) else { return };
    head.fill(7);
}

fn main() {}
