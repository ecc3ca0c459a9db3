//! Rule M11: bytes are viewed only as types for which they are a value.

use interlock::{Brand, Buffer};

fn view<B: Brand>(buffer: &Buffer<B>) -> usize {
    buffer.view_slice::<u64>().map_or(0, |texts| texts.len())
}

fn main() {}
