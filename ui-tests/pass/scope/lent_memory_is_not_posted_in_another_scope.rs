//! Rule B4: a scope takes only memory that was lent to it.

use interlock::Brand;
use interlock::scope::{Exclusive, InScopeError};
use std::time::Duration;

fn mix<B: Brand>(one: &mut Exclusive<B>, two: &mut Exclusive<B>, timeout: Duration, bytes: &[u8]) {
    let _ = one.scope(timeout, |outer| {
        let lent = outer.lend(bytes)?;
        let _ = two.scope(timeout, |inner| {
            drop(outer.post_send(lent)?);
            drop(inner.post_send(inner.lend(bytes)?)?);
            Ok::<_, InScopeError>(())
        });
        Ok::<_, InScopeError>(())
    });
}

fn main() {}
