//! Rule Q10: only sends and writes carry an immediate.

use interlock::{Brand, Buffer, RemoteAll, RemoteRegion, WorkRequest};

fn request<B: Brand>(buffer: Buffer<B>, peer: &RemoteRegion<RemoteAll>) {
    let _ = WorkRequest::write(buffer, peer).with_immediate(7);
}

fn main() {}
