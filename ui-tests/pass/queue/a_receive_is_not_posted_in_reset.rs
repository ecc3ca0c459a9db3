//! Rule Q4: a receive is posted in Init, Ready To Receive, Ready To Send and Send Queue Drain only.

use interlock::{Brand, Buffer, Init, QueuePair};

fn receive<B: Brand>(pair: &mut QueuePair<B, Init>, buffer: Buffer<B>) {
    let _ = pair.post_receive(buffer);
}

fn main() {}
