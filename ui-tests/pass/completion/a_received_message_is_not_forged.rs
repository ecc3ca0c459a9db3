//! Rule C3: a completion comes from the poller, once.

use interlock::completion::Received;
use interlock::{Brand, Buffer};

fn forge<B: Brand>(message: Received<B>, buffer: Buffer<B>) -> (Received<B>, Buffer<B>) {
    (message, buffer)
}

fn main() {}
