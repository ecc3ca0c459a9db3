//! Rule M10: nobody writes a shared buffer.

use interlock::{Brand, SharedBuffer};

fn fill<B: Brand>(memory: &SharedBuffer<B>) {
    let Ok(head) = memory.slice(0..8) else { return };
    assert_eq!(head.len(), 8);
}

fn main() {}
