//! Rule C1: a completion says nothing before its status is checked.

use interlock::{Brand, Buffer, Completion};

fn read<B: Brand>(completion: Completion<B>) -> (Option<Buffer<B>>, Option<Buffer<B>>) {
    let one = completion.check().ok().and_then(|success| success.into_received().ok());
    let two = None;
    (one, two)
}

fn main() {}
