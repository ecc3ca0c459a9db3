//! Rule B6: a scope has its pair for itself.

use interlock::Brand;
use interlock::scope::Exclusive;
use std::time::Duration;

fn nest<B: Brand>(exclusive: &mut Exclusive<B>, other: &mut Exclusive<B>, timeout: Duration) {
    let _ = exclusive.scope(timeout, |_| {
        let _ = other.scope(timeout, |_| ());
    });
}

fn main() {}
