//! Rule M9: a buffer is the only handle of its bytes.
//! Error: E0382

use interlock::{Brand, Buffer};

fn cut<B: Brand>(buffer: Buffer<B>) -> usize {
    let _parts = buffer.into_chunks(64);
    buffer.len()
}

fn main() {}
