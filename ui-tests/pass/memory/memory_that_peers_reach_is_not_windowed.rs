//! Rule M27: a window is bound over memory that was registered for that, of its own domain.

use interlock::{Brand, LocalWrite, Pages, ProtectionDomain, Windowed};

fn register<B: Brand>(domain: &ProtectionDomain<B>, pages: Pages) {
    drop(domain.register::<Windowed<LocalWrite>, _>(pages));
}

fn main() {}
