//! Rule C4: a completion queue has one poller.
//! Error: E0501

use interlock::{Brand, Errored, Poller, QueuePair};

fn nest<B: Brand>(pair: &mut QueuePair<B, Errored>, poller: &mut Poller<B>) {
    let _ = pair.drain(poller, std::time::Duration::from_secs(1), |completion| {
        let _ = (poller.poll(), completion.check());
    });
}

fn main() {}
