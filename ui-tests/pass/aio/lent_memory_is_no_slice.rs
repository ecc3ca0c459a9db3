//! Rule G1: memory that is lent is not the program's.

use interlock::aio::lend::Lent;
use interlock::{Brand, RemoteWrite};

fn look<B: Brand>(lent: &Lent<B, RemoteWrite>) -> Option<u64> {
    lent.load(0).ok()
}

fn main() {}
