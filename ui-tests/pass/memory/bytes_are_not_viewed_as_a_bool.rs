//! Rule M11: bytes are viewed only as types for which they are a value.

use interlock::{Brand, Buffer};

fn view<B: Brand>(buffer: &Buffer<B>) -> bool {
    buffer.view::<u8>().is_ok_and(|flag| *flag != 0)
}

fn main() {}
