//! Rule G2: a part of a grant ends before the grant is returned.

use interlock::aio::lend::{Granted, GrantedPart};
use interlock::{Brand, RemoteWrite};

fn late<B: Brand>(granted: Granted<B, RemoteWrite>) -> u64 {
    let part: GrantedPart<'_, B, RemoteWrite> = granted.whole();
    let len_bytes = part.len_bytes();
    drop(granted.give_back());
    len_bytes
}

fn main() {}
