//! Rule M11: bytes are viewed only as types for which they are a value.
//! Error: E0277

use interlock::{Brand, Buffer};

fn view<B: Brand>(buffer: &Buffer<B>) {
    if let Ok(cell) = buffer.view::<std::cell::Cell<u64>>() {
        cell.set(7);
    }
}

fn main() {}
