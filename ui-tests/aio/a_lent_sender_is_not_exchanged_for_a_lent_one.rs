//! Rule A8: a sender that is lent is not exchanged for another one.
//! Error: E0521

use interlock::Brand;
use interlock::aio::SharedSender;

fn exchange<B: Brand>(shared: &SharedSender<B>, other: &SharedSender<B>) {
    shared.with(|sender| other.with(|other| std::mem::swap(sender, other)));
}

fn main() {}
