//! Rule B1: lent memory outlives its scope.

use interlock::Brand;
use interlock::scope::{Exclusive, InScopeError};
use std::time::Duration;

fn lend<B: Brand>(exclusive: &mut Exclusive<B>, timeout: Duration, bytes: Vec<u8>) {
    let _ = exclusive.scope(timeout, |scope| {
        let ticket = scope.post_send(scope.lend(&bytes)?)?;
        scope.wait(ticket)?;
        Ok::<_, InScopeError>(())
    });
}

fn main() {}
