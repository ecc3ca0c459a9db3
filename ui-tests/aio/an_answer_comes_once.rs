//! Rule A2: memory that a task has posted is gone until its answer.
//! Error: E0382

use interlock::Buffer;
use interlock::aio::Posted;

async fn twice<B>(posted: Posted<B, Buffer<B>>) {
    drop(posted.await);
    drop(posted.await);
}

fn main() {}
