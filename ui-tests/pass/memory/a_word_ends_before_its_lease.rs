//! Rule M26: leased memory is the program's again when the lease has ended, and not before.

use interlock::memory::Lease;
use interlock::{Brand, RemoteWrite};

fn late<B: Brand>(lease: Lease<B, RemoteWrite>) {
    let Ok(word) = lease.word(0) else { return };
    word.store(1);
    let _ = lease.end();
}

fn main() {}
