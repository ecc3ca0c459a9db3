//! Hole J-5: a guard of begun posts that is forgotten, and begun again.

use interlock::{Brand, QueuePair};

fn begin<B: Brand>(pair: &mut QueuePair<B>) {
    let _ = pair.batch(|batch| {
        let _ = std::mem::ManuallyDrop::new(batch);
    });
    let _ = pair.batch(|again| drop(format!("{again:?}")));
}

fn main() {}
