//! Rule B3: nothing of a scope leaves its closure.
//! Error: E0521

use interlock::Brand;
use interlock::scope::{Exclusive, InScopeError};
use std::time::Duration;

fn carry_out<B: Brand>(exclusive: &mut Exclusive<B>, timeout: Duration, bytes: &[u8]) {
    let mut kept = None;
    let _ = exclusive.scope(timeout, |scope| {
        kept = Some(scope.post_send(scope.lend(bytes)?)?);
        Ok::<_, InScopeError>(())
    });
    println!("{kept:?}");
}

fn main() {}
