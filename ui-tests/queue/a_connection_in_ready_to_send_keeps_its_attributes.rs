//! Rule Q2: a transition takes exactly the attributes that it requires.
//! Error: E0277

use interlock::{Brand, QueuePair, ReadyToSend};
use interlock::attributes::SqdAttributes;

fn alter<B: Brand>(pair: &mut QueuePair<B, ReadyToSend>, attr: &SqdAttributes) {
    let _ = pair.modify(attr);
}

fn main() {}
