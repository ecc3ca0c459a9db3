//! Rule A8: a sender that is lent is not exchanged for another one.

use interlock::Brand;
use interlock::aio::{Sender, SharedSender};

fn exchange<B: Brand>(shared: &SharedSender<B>, other: &mut Sender<B>) {
    shared.with(|sender| assert_eq!(sender.number(), other.number()));
}

fn main() {}
