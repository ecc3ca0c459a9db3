//! Rule M28: memory behind a window is the program's again when the window has ended, and not before.

use interlock::window::{Bindable, UnsettledWindow};

fn take<B>(window: UnsettledWindow<B>) -> Bindable<B> {
    window.dealloc().unwrap().reclaim().unwrap()
}

fn main() {}
