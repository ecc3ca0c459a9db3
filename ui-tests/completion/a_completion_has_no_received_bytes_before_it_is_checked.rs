//! Rule C1: a completion says nothing before its status is checked.
//! Error: E0599

use interlock::{Brand, Buffer, Completion};

fn read<B: Brand>(completion: Completion<B>) -> Option<Buffer<B>> {
    completion.into_received().ok()
}

fn main() {}
