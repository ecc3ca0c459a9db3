//! Rule B3: nothing of a scope leaves its closure.
//! Error: lifetime may not live long enough

use interlock::Brand;
use interlock::scope::Exclusive;
use std::time::Duration;

fn carry_out<B: Brand>(exclusive: &mut Exclusive<B>, timeout: Duration, bytes: &[u8]) {
    let _ = exclusive.scope(timeout, |scope| scope.lend(bytes));
}

fn main() {}
