//! Rule M9: a buffer is the only handle of its bytes.
//! Error: E0599

use interlock::{Brand, Buffer};

fn twice<B: Brand>(buffer: Buffer<B>) {
    let _ = (buffer.clone(), buffer);
}

fn main() {}
