//! Rule A4: a permit ends before its sender.

use interlock::Brand;
use interlock::aio::SharedSender;

async fn take<B: Brand>(shared: SharedSender<B>) {
    let permit = shared.room().await;
    drop(permit);
    drop(shared.try_into_sender());
}

fn main() {}
