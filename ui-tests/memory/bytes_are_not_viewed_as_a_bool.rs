//! Rule M11: bytes are viewed only as types for which they are a value.
//! Error: E0277

use interlock::{Brand, Buffer};

fn view<B: Brand>(buffer: &Buffer<B>) -> bool {
    buffer.view::<bool>().is_ok_and(|flag| *flag)
}

fn main() {}
