//! Rule M27: a window is bound over memory that was registered for that, of its own domain.
//! Error: E0277

use interlock::{Brand, ProtectionDomain, RemoteWrite};
use interlock::access::Windowed;
use interlock::memory::Pages;

fn register<B: Brand>(domain: &ProtectionDomain<B>, pages: Pages) {
    drop(domain.register::<Windowed<RemoteWrite>, _>(pages));
}

fn main() {}
