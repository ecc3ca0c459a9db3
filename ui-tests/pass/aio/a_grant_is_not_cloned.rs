//! Rule G3: a grant has one holder.

use interlock::RemoteWrite;
use interlock::aio::lend::Granted;

fn twice<B>(granted: Granted<B, RemoteWrite>) -> Vec<Granted<B, RemoteWrite>> {
    vec![granted]
}

fn main() {}
