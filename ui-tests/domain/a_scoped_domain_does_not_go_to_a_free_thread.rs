//! Rule D4: nothing of a scoped domain leaves its closure.
//! Error: E0521

use interlock::Context;

fn escape(context: &Context) {
    let _ = context.with_domain(|domain| {
        std::thread::spawn(move || domain.buffer(64).is_ok());
    });
}

fn main() {}
