//! Rule M10: nobody writes a shared buffer.

use interlock::{Brand, Buffer};

fn fill<B: Brand>(memory: &mut Buffer<B>) {
    memory.fill(7);
}

fn main() {}
