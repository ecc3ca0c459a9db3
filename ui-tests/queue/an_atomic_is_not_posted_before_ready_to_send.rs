//! Rule Q3: a send work request is posted in Ready To Send only.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, ReadyToReceive, RemoteAll, RemoteRegion};

fn post<B: Brand>(pair: &mut QueuePair<B, ReadyToReceive>, buffer: Buffer<B>, with: &RemoteRegion<RemoteAll>) {
    let _ = pair.post_fetch_and_add(buffer, with, 1);
}

fn main() {}
