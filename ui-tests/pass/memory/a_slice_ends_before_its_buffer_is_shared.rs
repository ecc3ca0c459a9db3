//! Rule M9: a buffer is the only handle of its bytes.

use interlock::{Brand, Buffer, SharedBuffer};

fn share<B: Brand>(mut buffer: Buffer<B>) -> SharedBuffer<B> {
    let bytes = &mut buffer[..];
    bytes.fill(7);
    let share = buffer.share();
    share
}

fn main() {}
