//! Rule D4: nothing of a scoped domain leaves its closure.

use interlock::Context;

fn escape(context: &Context) {
    let _ = context.with_domain(|domain| domain.context());
}

fn main() {}
