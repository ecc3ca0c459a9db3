//! Rule Q10: only sends and writes carry an immediate.
//! Error: E0277

use interlock::{Brand, Buffer, RemoteAll, RemoteRegion, WorkRequest};

fn request<B: Brand>(buffer: Buffer<B>, peer: &RemoteRegion<RemoteAll>) {
    let _ = WorkRequest::read(buffer, peer).with_immediate(7);
}

fn main() {}
