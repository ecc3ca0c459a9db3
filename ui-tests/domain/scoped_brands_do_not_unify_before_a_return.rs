//! Rule D3: the brands of two scoped domains never unify, whatever follows.
//! Error: E0521

use interlock::{Context, ProtectionDomain};

fn unify(context: &Context) {
    let _ = context.with_domain(|one| {
        let _ = context.with_domain(|other| {
            same(&one, &other);
            return;
        });
    });
}

fn same<B>(_: &ProtectionDomain<B>, _: &ProtectionDomain<B>) {}

fn main() {}
