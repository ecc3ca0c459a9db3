//! Rule Q7: memory in flight is gone until its completion.
//! Error: E0505

use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand>(pair: &mut QueuePair<B>, mut buffer: Buffer<B>) {
    if let Ok(word) = buffer.view_mut::<u64>() {
        let _ = pair.post_send(buffer);
        *word = 7;
    }
}

fn main() {}
