//! Rule C3: a completion comes from the poller, once.

use interlock::completion::WrittenWithImmediate;
use interlock::{Brand, Buffer};

fn forge<B: Brand>(written: WrittenWithImmediate<B>, buffer: Buffer<B>) -> WrittenWithImmediate<B> {
    (written, buffer).0
}

fn main() {}
