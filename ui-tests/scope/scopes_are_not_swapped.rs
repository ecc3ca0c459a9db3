//! Rule B6: a scope has its pair for itself.
//! Error: E0308

use interlock::Brand;
use interlock::scope::Exclusive;
use std::time::Duration;

fn swap<B: Brand>(one: &mut Exclusive<B>, two: &mut Exclusive<B>, timeout: Duration) {
    let _ = one.scope(timeout, |one| {
        let _ = two.scope(timeout, |two| std::mem::swap(one, two));
    });
}

fn main() {}
