//! Hole J-3: references inside memory that a peer writes, so the peer can forge a pointer.

use interlock::{Brand, ProtectionDomain, RemoteAll};

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Vec<u64>) {
    let _ = domain.register::<RemoteAll, _>(memory);
}

fn main() {}
