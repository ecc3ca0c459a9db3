//! Rule B3: nothing of a scope leaves its closure.

use interlock::Brand;
use interlock::scope::{Exclusive, InScopeError};
use std::time::Duration;

fn carry_out<B: Brand + 'static>(exclusive: &mut Exclusive<B>, timeout: Duration, bytes: &[u8]) {
    let _ = exclusive.scope(timeout, |scope| -> Result<(), InScopeError> {
        let lent = scope.lend(bytes)?;
        drop(scope.post_send(lent)?);
        Ok(())
    });
}

fn main() {}
