//! Rule C1: a completion says nothing before its status is checked.
//! Error: E0382

use interlock::{Brand, Buffer, Completion};

fn read<B: Brand>(completion: Completion<B>) -> (Option<Buffer<B>>, Option<Buffer<B>>) {
    let one = completion.check().ok().and_then(|success| success.into_received().ok());
    let two = completion.check().ok().and_then(|success| success.into_received().ok());
    (one, two)
}

fn main() {}
