//! Rule M29: what is not bound is not ended, and what is bound is not bound again.

use interlock::RemoteWrite;
use interlock::window::{BoundWindow, RemoteWindow};

fn grant<B>(window: &BoundWindow<B>) -> RemoteWindow<RemoteWrite> {
    window.remote_window().unwrap()
}

fn main() {}
