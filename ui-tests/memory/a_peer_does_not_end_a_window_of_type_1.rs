//! Rule M29: what is not bound is not ended, and what is bound is not bound again.
//! Error: E0599

use interlock::RemoteWrite;
use interlock::window::{BoundWindow, RemoteWindow, Type1};

fn grant<B>(window: &BoundWindow<B, Type1>) -> RemoteWindow<RemoteWrite> {
    window.remote_window().unwrap()
}

fn main() {}
