//! Rule A3: a permit is used once.
//! Error: E0382

use interlock::aio::Permit;
use interlock::{Brand, Buffer};

fn post<B: Brand>(permit: Permit<'_, B>, one: Buffer<B>, two: Buffer<B>) {
    let _one = permit.with(|sender| sender.send(one));
    let _two = permit.with(|sender| sender.send(two));
}

fn main() {}
