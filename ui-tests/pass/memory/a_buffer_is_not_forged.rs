//! Rule M9: a buffer is the only handle of its bytes.

use interlock::Buffer;

fn forge<One>(buffer: Buffer<One>) -> Buffer<One> {
    buffer
}

fn main() {}
