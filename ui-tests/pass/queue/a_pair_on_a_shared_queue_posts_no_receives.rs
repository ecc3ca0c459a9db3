//! Rule H1: a pair on a shared receive queue has no receives of its own.

use interlock::shared::SharedReceiveQueue;
use interlock::transport::OnShared;
use interlock::{Brand, Buffer, QueuePair, ReadyToSend, ReliableConnection};

type Pair<B> = QueuePair<B, ReadyToSend, OnShared<ReliableConnection>>;

fn receive<B: Brand>(shared: &mut SharedReceiveQueue<B>, pair: &mut Pair<B>, buffer: Buffer<B>) {
    let _ = (shared.post_receive(buffer), pair);
}

fn main() {}
