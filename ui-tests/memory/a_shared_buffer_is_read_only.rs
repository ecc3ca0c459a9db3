//! Rule M10: nobody writes a shared buffer.
//! Error: E0596

use interlock::{Brand, SharedBuffer};

fn fill<B: Brand>(memory: &mut SharedBuffer<B>) {
    memory.fill(7);
}

fn main() {}
