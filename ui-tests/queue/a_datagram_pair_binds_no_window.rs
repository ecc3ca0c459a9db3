//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, QueuePair, ReadyToSend, RemoteWrite, UnreliableDatagram};
use interlock::window::{Bindable, Type1, Window};

fn bind<B: Brand>(pair: &mut QueuePair<B, ReadyToSend, UnreliableDatagram>, window: Window<B, Type1>, memory: Bindable<B>) {
    let _ = pair.post_bind::<RemoteWrite, _>(window, memory);
}

fn main() {}
