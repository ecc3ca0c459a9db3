//! Rule A8: a sender that is lent is not exchanged for another one.
//! Error: E0308

use interlock::Brand;
use interlock::aio::{Sender, SharedSender};

fn exchange<B: Brand>(shared: &SharedSender<B>, other: &mut Sender<B>) {
    shared.with(|sender| std::mem::swap(sender, other));
}

fn main() {}
