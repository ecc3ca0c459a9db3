use interlock::Brand;
use interlock::aio::{Sender, SharedSender};

fn exchange<B: Brand>(shared: &mut SharedSender<B>, other: Sender<B>) {
    *shared = other.into_shared();
}

fn main() {}
