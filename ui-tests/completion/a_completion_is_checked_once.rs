//! Rule C1: a completion says nothing before its status is checked.
//! Error: E0382

use interlock::{Brand, Buffer, Completion, Success};

fn read<B: Brand>(completion: Completion<B>) -> (Option<Buffer<B>>, Option<Buffer<B>>) {
    let one = completion.check().ok().and_then(Success::received);
    let two = completion.check().ok().and_then(Success::received);
    (one, two)
}

fn main() {}
