//! Rule B2: memory lent to be written is out of the caller's reach until the scope ends.
//! Error: E0499

use interlock::Brand;
use interlock::scope::{Exclusive, InScopeError};
use std::time::Duration;

fn lend<B: Brand>(exclusive: &mut Exclusive<B>, timeout: Duration, bytes: &mut [u8], others: &mut [u8]) {
    let _ = exclusive.scope(timeout, |scope| {
        drop(scope.lend_mut(bytes)?);
        drop(scope.lend_mut(bytes)?);
        Ok::<_, InScopeError>(())
    });
}

fn main() {}
