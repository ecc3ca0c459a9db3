//! Rule H1: a pair on a shared receive queue has no receives of its own.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, ReadyToSend, ReliableConnection};
use interlock::shared::SharedReceiveQueue;
use interlock::transport::OnShared;

type Pair<B> = QueuePair<B, ReadyToSend, OnShared<ReliableConnection>>;

fn receive<B: Brand>(shared: &mut SharedReceiveQueue<B>, pair: &mut Pair<B>, buffer: Buffer<B>) {
    let _ = (pair.post_receive(buffer), shared);
}

fn main() {}
