//! Rule B4: a scope takes only memory that was lent to it.

use interlock::Brand;
use interlock::scope::{Exclusive, InScopeError};
use std::time::Duration;

fn mix<B: Brand>(one: &mut Exclusive<B>, two: &mut Exclusive<B>, timeout: Duration, bytes: &[u8]) {
    let _ = one.scope(timeout, |outer| {
        let ticket = outer.post_send(outer.lend(bytes)?)?;
        let _ = two.scope(timeout, |inner| {
            drop(inner.post_send(inner.lend(bytes)?)?);
            outer.wait(ticket)?;
            Ok::<_, InScopeError>(())
        });
        Ok::<_, InScopeError>(())
    });
}

fn main() {}
