//! Rule M1: what a peer can write is never `&[u8]`.
//! Error: E0277

use interlock::scope::Granted;
use interlock::{Brand, RemoteWrite};

fn look<B: Brand>(granted: &Granted<'_, B, RemoteWrite>) -> u8 {
    granted.as_bytes()[0]
}

fn main() {}
