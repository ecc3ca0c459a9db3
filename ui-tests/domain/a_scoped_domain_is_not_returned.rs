//! Rule D4: nothing of a scoped domain leaves its closure.
//! Error: lifetime may not live long enough

use interlock::Context;

fn escape(context: &Context) {
    let _ = context.with_domain(|domain| domain);
}

fn main() {}
