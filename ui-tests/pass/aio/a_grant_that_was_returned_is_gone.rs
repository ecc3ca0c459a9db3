//! Rule G3: a grant has one holder.

use interlock::aio::lend::{Granted, UseError};
use interlock::{Brand, Buffer, RemoteWrite};

fn late<B: Brand>(granted: Granted<B, RemoteWrite>, buffer: Buffer<B>) -> Result<(), UseError<Buffer<B>>> {
    granted.whole().write(buffer).map(drop)
}

fn main() {}
