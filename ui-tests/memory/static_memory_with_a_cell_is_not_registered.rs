//! Rule M25: static memory is only read.
//! Error: E0277

use interlock::{Brand, ProtectionDomain};
use std::sync::atomic::AtomicU64;

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: &'static [AtomicU64]) {
    let _ = domain.register_static(memory);
}

fn main() {}
