//! Rule Q7: memory in flight is gone until its completion.

use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand>(pair: &mut QueuePair<B>, mut buffer: Buffer<B>) {
    if let Ok(word) = buffer.view_mut::<u64>() {
        *word = 7;
        let _ = pair.post_send(buffer);
    }
}

fn main() {}
