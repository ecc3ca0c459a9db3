//! Rule C3: a completion comes from the poller, once.
//! Error: E0639

use interlock::{Brand, Buffer};
use interlock::completion::WrittenWithImmediate;

fn forge<B: Brand>(written: WrittenWithImmediate<B>, buffer: Buffer<B>) -> WrittenWithImmediate<B> {
    WrittenWithImmediate { buffer, written_bytes: written.written_bytes, immediate: written.immediate }
}

fn main() {}
