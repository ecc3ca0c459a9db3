//! Rule M11: bytes are viewed only as types for which they are a value.

use interlock::{Brand, Buffer};

fn view<B: Brand>(buffer: &Buffer<B>) {
    if let Ok(word) = buffer.view::<u64>() {
        println!("{word}");
    }
}

fn main() {}
