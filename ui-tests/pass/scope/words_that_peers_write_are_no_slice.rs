//! Rule M1: what a peer can write is never `&[u8]`.

use interlock::scope::Granted;
use interlock::{Brand, RemoteRead};

fn look<B: Brand>(granted: &Granted<'_, B, RemoteRead>) -> u8 {
    granted.as_bytes()[0]
}

fn main() {}
