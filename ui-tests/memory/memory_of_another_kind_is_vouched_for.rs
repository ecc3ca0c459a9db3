//! Rule M22: memory that the library cannot see is vouched for.
//! Error: E0277

use interlock::{Brand, LocalWrite, ProtectionDomain};
use interlock::memory::Foreign;

struct Mine(Box<[u8]>);

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Mine) {
    let _ = domain.register::<LocalWrite, _>(Foreign(memory));
}

fn main() {}
