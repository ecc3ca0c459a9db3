//! Rule M11: bytes are viewed only as types for which they are a value.
//! Error: E0277

use interlock::{Brand, Buffer};

fn view<B: Brand>(buffer: &Buffer<B>) -> usize {
    buffer.view_slice::<&'static str>().map_or(0, |texts| texts.len())
}

fn main() {}
