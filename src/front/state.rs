//! States of a queue pair, as types.
//!
//! The page of [`State`] has the diagram. A transition is a method that consumes the pair and gives the pair in its
//! next state, or an error with the pair as it was. A method that several states allow asks for a trait such as
//! [`PostSend`], and the compiler names the transition that is missing. [`AnyQueuePair`](crate::AnyQueuePair) holds a
//! pair of any state, for a struct field.
//!
//! ```
//! use interlock::state::{PostSend, State};
//! use interlock::{Brand, QueuePair, ReliableConnection};
//!
//! /// Any state that sends.
//! fn say_hello<B: Brand, S: State + PostSend>(pair: &mut QueuePair<B, S, ReliableConnection>) {
//!     let _ = pair.post(interlock::WorkRequest::send(interlock::Inline(b"hello")));
//! }
//! ```

pub use crate::queue::state::{
    Alterable, AlterableWhileDraining, DeviceState, Errored, GoesTo, Init, OnPort, PostReceive, PostSend,
    ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError, State,
};
