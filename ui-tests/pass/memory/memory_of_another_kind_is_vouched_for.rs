//! Rule M22: memory that the library cannot see is vouched for.

use interlock::{Brand, LocalWrite, ProtectionDomain};

struct Mine(Box<[u8]>);

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Mine) {
    let _ = domain.register::<LocalWrite, _>(memory.0);
}

fn main() {}
