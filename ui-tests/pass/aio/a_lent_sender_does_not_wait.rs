//! Rule A7: a sender that is lent does not wait.

use interlock::Brand;
use interlock::aio::SharedSender;

async fn wait<B: Brand>(shared: &SharedSender<B>) {
    let waiting = shared.room();
    drop(waiting.await);
}

fn main() {}
