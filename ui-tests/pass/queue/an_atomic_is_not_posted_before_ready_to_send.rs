//! Rule Q3: a send work request is posted in Ready To Send only.

use interlock::{Brand, Buffer, QueuePair, ReadyToSend, RemoteAll, RemoteRegion};

fn post<B: Brand>(pair: &mut QueuePair<B, ReadyToSend>, buffer: Buffer<B>, with: &RemoteRegion<RemoteAll>) {
    let _ = pair.post_fetch_and_add(buffer, with, 1);
}

fn main() {}
