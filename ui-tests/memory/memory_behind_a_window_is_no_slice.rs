//! Rule M28: memory behind a window is the program's again when the window has ended, and not before.
//! Error: E0608

use interlock::window::BoundWindow;

fn look<B>(window: &BoundWindow<B>) -> u64 {
    u64::from(window[0])
}

fn main() {}
