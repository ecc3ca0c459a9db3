//! Rule A8: a sender that is lent is not exchanged for another one.

use interlock::Brand;
use interlock::aio::SharedSender;

fn free<B: Brand>(shared: &SharedSender<B>, other: &SharedSender<B>) -> u32 {
    shared.with(|sender| other.with(|other| sender.free() + other.free()))
}

fn main() {}
