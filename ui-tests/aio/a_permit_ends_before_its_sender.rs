//! Rule A4: a permit ends before its sender.
//! Error: E0505

use interlock::Brand;
use interlock::aio::SharedSender;

async fn take<B: Brand>(shared: SharedSender<B>) {
    let permit = shared.room().await;
    drop(shared.try_into_sender());
    drop(permit);
}

fn main() {}
