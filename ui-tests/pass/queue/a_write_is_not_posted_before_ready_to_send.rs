//! Rule Q3: a send work request is posted in Ready To Send only.

use interlock::{Brand, Buffer, QueuePair, ReadyToSend, RemoteRegion, RemoteWrite};

fn post<B: Brand>(pair: &mut QueuePair<B, ReadyToSend>, buffer: Buffer<B>, with: &RemoteRegion<RemoteWrite>) {
    let _ = pair.post_write(buffer, with);
}

fn main() {}
