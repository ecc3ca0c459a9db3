//! Rule Q3: a send work request is posted in Ready To Send only.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, ReadyToReceive, RemoteRegion, RemoteWrite};

fn post<B: Brand>(pair: &mut QueuePair<B, ReadyToReceive>, buffer: Buffer<B>, with: &RemoteRegion<RemoteWrite>) {
    let _ = pair.post_write(buffer, with);
}

fn main() {}
