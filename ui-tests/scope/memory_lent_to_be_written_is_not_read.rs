//! Rule B2: memory lent to be written is out of the caller's reach until the scope ends.
//! Error: E0502

use interlock::Brand;
use interlock::scope::{Exclusive, InScopeError};
use std::time::Duration;

fn look<B: Brand>(exclusive: &mut Exclusive<B>, timeout: Duration, bytes: &mut [u8]) {
    let _ = exclusive.scope(timeout, |scope| {
        let ticket = scope.post_receive(scope.lend_mut(bytes)?)?;
        println!("{}", bytes[0]);
        scope.wait(ticket)?;
        Ok::<_, InScopeError>(())
    });
}

fn main() {}
