//! Rule Q12: a lent batch settles on state that its closure cannot reach.
//! Error: E0521

use interlock::{Brand, QueuePair};

fn swap<B: Brand>(one: &mut QueuePair<B>, two: &mut QueuePair<B>) {
    let _ = one.batch(|one| {
        let _ = two.batch(|two| std::mem::swap(one, two));
    });
}

fn main() {}
