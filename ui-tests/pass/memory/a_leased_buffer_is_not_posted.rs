//! Rule M26: leased memory is the program's again when the lease has ended, and not before.

use interlock::{Brand, Buffer, ProtectionDomain, QueuePair, RemoteAll};
use std::time::Duration;

fn lend<B: Brand>(domain: &ProtectionDomain<B>, pair: &mut QueuePair<B>, buffer: Buffer<B>) {
    let Ok(lease) = domain.lease::<RemoteAll, _>(buffer, Duration::MAX) else { return };
    let Ok(buffer) = lease.end() else { return };
    let _ = pair.post_receive(buffer);
}

fn main() {}
