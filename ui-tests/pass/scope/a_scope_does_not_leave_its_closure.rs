//! Rule B3: nothing of a scope leaves its closure.

use interlock::Brand;
use interlock::scope::Exclusive;
use std::time::Duration;

fn carry_out<B: Brand>(exclusive: &mut Exclusive<B>, timeout: Duration) {
    let mut kept = None;
    let _ = exclusive.scope(timeout, |scope| kept = Some(format!("{scope:?}")));
    drop(kept);
}

fn main() {}
