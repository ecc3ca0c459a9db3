//! Rule D3: the brands of two scoped domains never unify, whatever follows.

use interlock::{Context, ProtectionDomain};

fn unify(context: &Context) {
    let _ = context.with_domain(|one| {
        let _ = context.with_domain(|other| {
            same(&one, &one);
            drop(other);
            loop {}
        });
    });
}

fn same<B>(_: &ProtectionDomain<B>, _: &ProtectionDomain<B>) {}

fn main() {}
