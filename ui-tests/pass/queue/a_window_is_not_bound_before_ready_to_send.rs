//! Rule Q3: a send work request is posted in Ready To Send only.

use interlock::window::{Bindable, Window};
use interlock::{Brand, QueuePair, ReadyToSend, RemoteWrite};

fn bind<B: Brand>(pair: &mut QueuePair<B, ReadyToSend>, window: Window<B>, memory: Bindable<B>) {
    let _ = pair.post_bind::<RemoteWrite, _>(window, memory);
}

fn main() {}
