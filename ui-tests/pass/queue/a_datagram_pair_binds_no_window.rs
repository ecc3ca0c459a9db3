//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::window::{Bindable, Type1, Window};
use interlock::{Brand, QueuePair, ReadyToSend, RemoteWrite, UnreliableConnection};

fn bind<B: Brand>(
    pair: &mut QueuePair<B, ReadyToSend, UnreliableConnection>,
    window: Window<B, Type1>,
    memory: Bindable<B>,
) {
    let _ = pair.post_bind::<RemoteWrite, _>(window, memory);
}

fn main() {}
