//! Rule D7: the run-time brand does not mix with other brands.

use interlock::{Buffer, QueuePair};

interlock::domain! { struct Storage; }

fn send(pair: &mut QueuePair<Storage>, buffer: Buffer<Storage>) {
    let _ = pair.post_send(buffer);
}
