//! Hole J-3: references inside memory that a peer writes, so the peer can forge a pointer.
//! Error: E0277

use interlock::{Brand, ProtectionDomain, RemoteAll};

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Vec<Option<&'static str>>) {
    let _ = domain.register::<RemoteAll, _>(memory);
}

fn main() {}
