//! Rule B5: a scope stays on its thread.
//! Error: E0277

use interlock::Brand;
use interlock::scope::{Exclusive, InScopeError};
use std::thread;
use std::time::Duration;

fn share<B: Brand>(exclusive: &mut Exclusive<B>, timeout: Duration, bytes: &mut [u8]) {
    let _ = exclusive.scope(timeout, |scope| {
        let mut lent = scope.lend_mut(bytes)?;
        thread::scope(|threads| {
            threads.spawn(|| lent.fill(1));
            threads.spawn(|| scope.wait_any(timeout));
        });
        Ok::<_, InScopeError>(())
    });
}

fn main() {}
