//! Rule B6: a scope has its pair for itself.
//! Error: E0501

use interlock::Brand;
use interlock::scope::Exclusive;
use std::time::Duration;

fn nest<B: Brand>(exclusive: &mut Exclusive<B>, other: &mut Exclusive<B>, timeout: Duration) {
    let _ = exclusive.scope(timeout, |_| {
        let _ = exclusive.scope(timeout, |_| ());
    });
}

fn main() {}
