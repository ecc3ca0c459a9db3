//! Rule C2: a failure has no received message.

use interlock::{Brand, Buffer, Completion};

fn read<B: Brand>(completion: Completion<B>) -> Option<Buffer<B>> {
    completion.check().ok()?.into_received().ok()
}

fn main() {}
