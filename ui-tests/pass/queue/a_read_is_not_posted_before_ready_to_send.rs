//! Rule Q3: a send work request is posted in Ready To Send only.

use interlock::{Brand, Buffer, QueuePair, ReadyToSend, RemoteRead, RemoteRegion};

fn post<B: Brand>(pair: &mut QueuePair<B, ReadyToSend>, buffer: Buffer<B>, with: &RemoteRegion<RemoteRead>) {
    let _ = pair.post_read(buffer, with);
}

fn main() {}
