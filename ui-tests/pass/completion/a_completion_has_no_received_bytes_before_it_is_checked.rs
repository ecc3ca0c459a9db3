//! Rule C1: a completion says nothing before its status is checked.

use interlock::{Brand, Buffer, Completion};

fn read<B: Brand>(completion: Completion<B>) -> Option<Buffer<B>> {
    completion.check().ok()?.into_received().ok()
}

fn main() {}
