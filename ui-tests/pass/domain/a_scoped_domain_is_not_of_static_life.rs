//! Rule D4: nothing of a scoped domain leaves its closure.

use interlock::{Context, ProtectionDomain, Scoped};

fn escape(context: &Context) {
    let _ = context.with_domain(|domain| take(domain));
}

fn take(domain: ProtectionDomain<Scoped<'_>>) {
    drop(domain);
}

fn main() {}
