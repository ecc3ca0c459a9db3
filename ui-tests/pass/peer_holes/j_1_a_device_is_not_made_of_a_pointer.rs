//! Hole J-1: a device made of any pointer, by `From`, in safe code.

use interlock::{Device, devices};

fn open(pointer: *mut u8) {
    let _ = devices().map(|devices: Vec<Device>| (devices, pointer));
}

fn main() {}
