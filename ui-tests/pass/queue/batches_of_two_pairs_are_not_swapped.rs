//! Rule Q12: a lent batch settles on state that its closure cannot reach.

use interlock::{Brand, QueuePair};

fn swap<B: Brand>(one: &mut QueuePair<B>, two: &mut QueuePair<B>) {
    let _ = one.batch(|one| {
        let _ = two.batch(|two| drop(format!("{one:?} {two:?}")));
    });
}

fn main() {}
