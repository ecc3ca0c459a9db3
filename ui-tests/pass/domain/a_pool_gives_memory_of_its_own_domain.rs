//! Rule D1: memory is posted to queue pairs of its own protection domain only.

use interlock::{QueuePair, memory::Pool};

interlock::domain! { struct Storage; struct Scratch; }

fn receive(pair: &mut QueuePair<Storage>, pool: &Pool<Storage>) {
    let Ok(buffer) = pool.try_take(64) else { return };
    let _ = pair.post_receive(buffer);
}

fn main() {}
