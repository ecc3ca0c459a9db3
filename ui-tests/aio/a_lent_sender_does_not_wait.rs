//! Rule A7: a sender that is lent does not wait.
//! Error: E0599

use interlock::Brand;
use interlock::aio::SharedSender;

async fn wait<B: Brand>(shared: &SharedSender<B>) {
    let waiting = shared.with(|sender| sender.room());
}

fn main() {}
