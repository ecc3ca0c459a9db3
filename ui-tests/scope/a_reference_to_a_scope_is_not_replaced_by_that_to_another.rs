//! Rule B6: a scope has its pair for itself.
//! Error: E0521

use interlock::Brand;
use interlock::scope::Exclusive;
use std::time::Duration;

fn swap<B: Brand>(one: &mut Exclusive<B>, two: &mut Exclusive<B>, timeout: Duration) {
    let _ = one.scope(timeout, |mut one| {
        let _ = two.scope(timeout, |mut two| std::mem::swap(&mut one, &mut two));
    });
}

fn main() {}
