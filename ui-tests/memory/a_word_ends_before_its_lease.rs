//! Rule M26: leased memory is the program's again when the lease has ended, and not before.
//! Error: E0505

use interlock::{Brand, RemoteWrite};
use interlock::memory::Lease;

fn late<B: Brand>(lease: Lease<B, RemoteWrite>) {
    let Ok(word) = lease.word(0) else { return };
    let _ = lease.end();
    word.store(1);
}

fn main() {}
