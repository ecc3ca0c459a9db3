//! Hole J-5: a guard of begun posts is forgotten, and posts are begun a second time.

use interlock::{Brand, QueuePair};

fn begin<B: Brand>(pair: &mut QueuePair<B>) {
    let _ = pair.batch(|batch| {
        let _ = std::mem::ManuallyDrop::new(batch);
    });
    let _ = pair.batch(|again| drop(format!("{again:?}")));
}

fn main() {}
