//! Rule M9: a buffer is the only handle of its bytes.

use interlock::{Brand, Buffer};

fn cut<B: Brand>(buffer: Buffer<B>) -> usize {
    let length = buffer.len();
    let _parts = buffer.into_chunks(64);
    length
}

fn main() {}
