//! Rule Q12: a lent batch settles on state that its closure cannot reach.
//! Error: E0501

use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) {
    let _ = pair.batch(|batch| {
        let _ = pair.post_send(buffer);
        let _ = batch;
    });
}

fn main() {}
