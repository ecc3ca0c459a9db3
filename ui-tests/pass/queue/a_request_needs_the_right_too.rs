//! Rule Q9: an operation needs the right that the peer granted.

use interlock::{Brand, Buffer, RemoteAll, RemoteRegion, WorkRequest, request};

fn write<B: Brand>(buffer: Buffer<B>, target: &RemoteRegion<RemoteAll>) -> WorkRequest<Buffer<B>, request::Write> {
    WorkRequest::write(buffer, target)
}

fn main() {}
