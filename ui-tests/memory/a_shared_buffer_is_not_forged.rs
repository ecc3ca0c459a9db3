//! Rule M10: nobody writes a shared buffer.
//! Error: cannot construct `SharedBuffer<_>` with struct literal syntax due to private fields

use interlock::{Brand, Buffer, SharedBuffer};

fn forge<B: Brand>(buffer: Buffer<B>) -> SharedBuffer<B> {
    drop(buffer);
    SharedBuffer {}
}

fn main() {}
