//! Rule D4: nothing of a scoped domain leaves its closure.
//! Error: E0521

use interlock::Context;

fn escape(context: &Context) {
    let mut kept = None;
    let _ = context.with_domain(|domain| kept = domain.buffer(64).ok());
    let _ = kept;
}

fn main() {}
