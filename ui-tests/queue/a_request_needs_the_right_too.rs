//! Rule Q9: an operation needs the right that the peer granted.
//! Error: E0277

use interlock::{Brand, Buffer, RemoteRead, RemoteRegion, WorkRequest, request};

fn write<B: Brand>(buffer: Buffer<B>, target: &RemoteRegion<RemoteRead>) -> WorkRequest<Buffer<B>, request::Write> {
    WorkRequest::write(buffer, target)
}

fn main() {}
