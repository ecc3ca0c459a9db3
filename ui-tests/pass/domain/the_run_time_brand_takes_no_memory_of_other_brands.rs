//! Rule D7: the run-time brand does not mix with other brands.

use interlock::{Buffer, Checked, QueuePair};

interlock::domain! { struct Storage; }

fn receive(pair: &mut QueuePair<Checked>, buffer: Buffer<Checked>) {
    let _ = pair.post_receive(buffer);
}
