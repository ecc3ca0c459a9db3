//! Rule Q2: a transition takes exactly the attributes that it requires.

use interlock::attributes::SqdAttributes;
use interlock::state::SendQueueDrain;
use interlock::{Brand, QueuePair};

fn alter<B: Brand>(pair: &mut QueuePair<B, SendQueueDrain>, attr: &SqdAttributes) {
    let _ = pair.modify(attr);
}

fn main() {}
