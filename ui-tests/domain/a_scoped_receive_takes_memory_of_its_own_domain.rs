//! Rule D1: memory is posted to queue pairs of its own protection domain only.
//! Error: E0521

use interlock::{Brand, Context, Init, ProtectionDomain, QueuePair, VerbError};

fn receive(context: &Context, other: &Context) -> Result<(), VerbError> {
    context.with_domain(|one| {
        other.with_domain(|other| {
            let mut pair = in_init(&one);
            if let Ok(buffer) = other.buffer(64) {
                let _ = pair.post_receive(buffer);
            }
            drop(other);
        })
    })?
}

fn in_init<B: Brand>(_: &ProtectionDomain<B>) -> QueuePair<B, Init> {
    unimplemented!()
}

fn main() {}
