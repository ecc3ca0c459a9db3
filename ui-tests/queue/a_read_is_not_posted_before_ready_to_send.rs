//! Rule Q3: a send work request is posted in Ready To Send only.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, ReadyToReceive, RemoteRead, RemoteRegion};

fn post<B: Brand>(pair: &mut QueuePair<B, ReadyToReceive>, buffer: Buffer<B>, with: &RemoteRegion<RemoteRead>) {
    let _ = pair.post_read(buffer, with);
}

fn main() {}
