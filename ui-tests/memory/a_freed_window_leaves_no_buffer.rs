//! Rule M28: memory behind a window is the program's again when the window has ended, and not before.
//! Error: E0599

use interlock::memory::Lapsed;
use interlock::window::Bindable;

fn take<B>(lapsed: Lapsed<B>) -> Bindable<B> {
    lapsed.into_bindable()
}

fn main() {}
