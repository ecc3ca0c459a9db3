//! Rule B6: a scope has its pair for itself.
//! Error: E0505

use interlock::Brand;
use interlock::scope::Exclusive;
use std::time::Duration;

fn take<B: Brand>(mut exclusive: Exclusive<B>, timeout: Duration) {
    let _ = exclusive.scope(timeout, |scope| {
        println!("{scope:?}");
        drop(exclusive.into_parts());
    });
}

fn main() {}
