//! Hole J-1: a device made of any pointer, by `From`, in safe code.
//! Error: E0308

use interlock::Device;

fn open(pointer: *mut u8) {
    let _ = Device::from(pointer);
}

fn main() {}
