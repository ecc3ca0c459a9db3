//! Rule M30: a window gives rights of peers, and a grant no more than its window has.
//! Error: E0423

use interlock::{RemoteRegion, RemoteWrite};
use interlock::window::RemoteWindow;

fn forge(region: RemoteRegion<RemoteWrite>) -> RemoteWindow<RemoteWrite> {
    RemoteWindow(region)
}

fn main() {}
