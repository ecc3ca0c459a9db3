//! Rule M28: memory behind a window is the program's again when the window has ended, and not before.

use interlock::window::BoundWindow;

fn look<B>(window: &BoundWindow<B>) -> u64 {
    window.load(0).unwrap()
}

fn main() {}
