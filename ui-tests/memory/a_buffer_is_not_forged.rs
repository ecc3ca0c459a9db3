//! Rule M9: a buffer is the only handle of its bytes.
//! Error: cannot construct `Buffer<_>` with struct literal syntax due to private fields

use interlock::Buffer;

fn forge<One, Other>(buffer: Buffer<One>) -> Buffer<Other> {
    drop(buffer);
    Buffer {}
}

fn main() {}
