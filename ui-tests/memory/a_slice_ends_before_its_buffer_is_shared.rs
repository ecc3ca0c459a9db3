//! Rule M9: a buffer is the only handle of its bytes.
//! Error: E0505

use interlock::{Brand, Buffer, SharedBuffer};

fn share<B: Brand>(mut buffer: Buffer<B>) -> SharedBuffer<B> {
    let bytes = &mut buffer[..];
    let share = buffer.share();
    bytes.fill(7);
    share
}

fn main() {}
