//! Rule G2: a part of a grant ends before the grant is returned.
//! Error: E0505

use interlock::aio::lend::{Granted, GrantedPart};
use interlock::{Brand, RemoteWrite};

fn late<B: Brand>(granted: Granted<B, RemoteWrite>) -> u64 {
    let part: GrantedPart<'_, B, RemoteWrite> = granted.whole();
    drop(granted.give_back());
    part.len_bytes()
}

fn main() {}
