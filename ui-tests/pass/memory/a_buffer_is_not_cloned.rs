//! Rule M9: a buffer is the only handle of its bytes.

use interlock::{Brand, SharedBuffer};

fn twice<B: Brand>(buffer: SharedBuffer<B>) {
    let _ = (buffer.clone(), buffer);
}

fn main() {}
