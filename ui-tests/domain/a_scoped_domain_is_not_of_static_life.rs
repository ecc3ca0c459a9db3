//! Rule D4: nothing of a scoped domain leaves its closure.
//! Error: E0521

use interlock::{Context, ProtectionDomain, Scoped};

fn escape(context: &Context) {
    let _ = context.with_domain(|domain| take(domain));
}

fn take(domain: ProtectionDomain<Scoped<'static>>) {
    drop(domain);
}

fn main() {}
