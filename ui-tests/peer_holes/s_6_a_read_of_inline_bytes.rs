//! Hole S-6: a read whose target is inline data of the request.
//! Error: E0308

use interlock::{Brand, Buffer, RemoteRead, RemoteRegion, WorkRequest, request};

fn read<B: Brand>(buffer: Buffer<B>, source: &RemoteRegion<RemoteRead>) {
    let _ = WorkRequest::<Buffer<B>, request::Read>::read([0_u8; 16], source);
}

fn main() {}
