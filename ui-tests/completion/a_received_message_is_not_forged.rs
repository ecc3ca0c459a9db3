//! Rule C3: a completion comes from the poller, once.
//! Error: E0639

use interlock::{Brand, Buffer};
use interlock::completion::Received;

fn forge<B: Brand>(message: Received<B>, buffer: Buffer<B>) -> Received<B> {
    Received { buffer, immediate: message.immediate }
}

fn main() {}
