//! Rule D4: nothing of a scoped domain leaves its closure.

use interlock::Context;

fn escape(context: &Context) {
    let _ = context.with_domain(|domain| {
        std::thread::scope(|scope| scope.spawn(move || domain.buffer(64).is_ok()).join().is_ok())
    });
}

fn main() {}
