//! Rule M30: a window gives rights of peers, and a grant no more than its window has.

use interlock::window::RemoteWindow;
use interlock::{RemoteRegion, RemoteWrite};

fn forge(region: RemoteRegion<RemoteWrite>) -> RemoteWindow<RemoteWrite> {
    RemoteWindow::from_bytes(&region.to_bytes()).unwrap()
}

fn main() {}
