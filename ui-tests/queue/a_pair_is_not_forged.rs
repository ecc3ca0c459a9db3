//! Rule Q6: a transition takes the pair; only its result goes on.
//! Error: cannot construct `QueuePair<_, _, _>` with struct literal syntax due to private fields

use interlock::{Brand, Init, QueuePair, ReadyToSend};

fn forge<B: Brand>(pair: QueuePair<B, Init>) -> QueuePair<B, ReadyToSend> {
    drop(pair);
    QueuePair {}
}

fn main() {}
