//! Rule M10: nobody writes a shared buffer.

use interlock::{Brand, Buffer, SharedBuffer};

fn forge<B: Brand>(buffer: Buffer<B>) -> SharedBuffer<B> {
    buffer.share()
}

fn main() {}
