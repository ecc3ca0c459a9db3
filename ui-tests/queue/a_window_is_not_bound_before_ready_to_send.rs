//! Rule Q3: a send work request is posted in Ready To Send only.
//! Error: E0277

use interlock::{Brand, QueuePair, ReadyToReceive, RemoteWrite};
use interlock::window::{Bindable, Window};

fn bind<B: Brand>(pair: &mut QueuePair<B, ReadyToReceive>, window: Window<B>, memory: Bindable<B>) {
    let _ = pair.post_bind::<RemoteWrite, _>(window, memory);
}

fn main() {}
