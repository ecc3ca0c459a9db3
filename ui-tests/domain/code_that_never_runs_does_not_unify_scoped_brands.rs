//! Rule D3: the brands of two scoped domains never unify, whatever follows.
//! Error: E0521

use interlock::{Brand, Context, ProtectionDomain, QueuePair};

fn unify(context: &Context) {
    let _ = context.with_domain(|one| {
        context.with_domain(|other| {
            let (mut pair, buffer) = (ready(&one), other.buffer(64));
            if context.name().is_empty() {
                // The call of `same` comes after an endless loop, so the borrow checker skips it. The call must not
                // make the two brands equal for the code after this `if`.
                loop {}
                #[allow(unreachable_code)]
                same(&one, &other);
            }
            if let Ok(buffer) = buffer {
                let _ = pair.post_send(buffer);
            }
            drop(other);
        })
    });
}

fn same<B>(_: &ProtectionDomain<B>, _: &ProtectionDomain<B>) {}

fn ready<B: Brand>(_: &ProtectionDomain<B>) -> QueuePair<B> {
    unimplemented!()
}

fn main() {}
