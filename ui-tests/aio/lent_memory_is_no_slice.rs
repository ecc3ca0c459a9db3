//! Rule G1: memory that is lent is not the program's.
//! Error: E0277

use interlock::aio::lend::Lent;
use interlock::{Brand, RemoteWrite};

fn look<B: Brand>(lent: &Lent<B, RemoteWrite>) -> Option<u64> {
    lent.as_bytes().first().map(|&byte| byte.into())
}

fn main() {}
