//! Rule D4: nothing of a scoped domain leaves its closure.

use interlock::Context;

fn escape(context: &Context) {
    let mut kept = None;
    let _ = context.with_domain(|domain| kept = domain.buffer(64).ok().map(|buffer| buffer.len()));
    let _ = kept;
}

fn main() {}
