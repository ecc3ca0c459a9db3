//! Rule C2: a failure has no received message.
//! Error: E0599

use interlock::{Brand, Buffer, Completion};

fn read<B: Brand>(completion: Completion<B>) -> Option<Buffer<B>> {
    match completion.check() {
        Ok(success) => success.into_received().ok(),
        Err(failure) => failure.into_received().ok(),
    }
}

fn main() {}
