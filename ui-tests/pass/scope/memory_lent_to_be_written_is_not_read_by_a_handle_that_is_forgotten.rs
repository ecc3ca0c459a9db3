//! Rule B2: memory lent to be written is out of the caller's reach until the scope ends.

use interlock::Brand;
use interlock::scope::{Exclusive, InScopeError};
use std::time::Duration;

fn write<B: Brand>(exclusive: &mut Exclusive<B>, timeout: Duration) {
    let mut bytes = [0_u8; 8];
    let _ = exclusive.scope(timeout, |scope| {
        std::mem::forget(scope.post_receive(scope.lend_mut(&mut bytes)?)?);
        Ok::<_, InScopeError>(())
    });
    bytes.fill(1);
}

fn main() {}
