//! Rule C4: a completion queue has one poller.
//! Error: E0499

use interlock::{Brand, Poller};

fn poll<B: Brand>(one: &mut Poller<B>, two: &mut Poller<B>) {
    std::thread::scope(|scope| {
        scope.spawn(|| one.poll().is_ok());
        scope.spawn(|| one.poll().is_ok());
        let _ = two;
    });
}

fn main() {}
