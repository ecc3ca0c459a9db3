//! Rule C4: a completion queue has one poller.

use interlock::{Brand, Poller};

fn poll<B: Brand>(one: &mut Poller<B>, two: &mut Poller<B>) {
    std::thread::scope(|scope| {
        scope.spawn(|| one.poll().is_ok());
        scope.spawn(|| two.poll().is_ok());
    });
}

fn main() {}
