//! Rule D7: the run-time brand does not mix with other brands.
//! Error: E0277

use interlock::{Buffer, Checked, QueuePair};

interlock::domain! { struct Storage; }

fn send(pair: &mut QueuePair<Storage>, buffer: Buffer<Checked>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
