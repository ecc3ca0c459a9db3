//! States of a queue pair, as types.
//!
//! The page of [`State`] has the diagram. A transition is a method that consumes the pair and returns the pair in its
//! next state, or an error with the unchanged pair. (`connect` and `open` are two transitions: their error has the pair
//! in the state that it reached.) A method that several states allow requires a trait such as [`PostSend`]. If the
//! state lacks the trait, the compiler names the transition to make. [`AnyQueuePair`](crate::AnyQueuePair) holds a pair
//! of any state, for a struct field.
//!
//! ```
//! use interlock::state::{PostSend, State};
//! use interlock::{Brand, QueuePair, ReliableConnection};
//!
//! /// Takes a pair in any state that may send.
//! fn say_hello<B: Brand, S: State + PostSend>(pair: &mut QueuePair<B, S, ReliableConnection>) {
//!     let _ = pair.post(interlock::WorkRequest::send(interlock::Inline(b"hello")));
//! }
//! ```

pub use crate::queue::state::{
    Alterable, AlterableWhileDraining, DeviceState, Errored, GoesTo, Init, OnPort, PostReceive, PostSend,
    ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError, State,
};
