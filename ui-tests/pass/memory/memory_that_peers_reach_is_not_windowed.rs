//! Rule M27: a window is bound over memory that was registered for that, of its own domain.

use interlock::access::Windowed;
use interlock::memory::Pages;
use interlock::{Brand, LocalWrite, ProtectionDomain};

fn register<B: Brand>(domain: &ProtectionDomain<B>, pages: Pages) {
    drop(domain.register::<Windowed<LocalWrite>, _>(pages));
}

fn main() {}
