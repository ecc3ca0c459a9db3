//! The states of a queue pair, and what each allows.
//!
//! ```text
//!           into_init        into_rtr                   into_rts
//!   Reset ────────────▶ Init ──────────▶ ReadyToReceive ──────────▶ ReadyToSend
//!     ▲                  │                      │                    │       ▲
//!     │                  │ into_error           │ into_error         │ into_sqd / into_rts
//!     │                  │                      │                    ▼       │
//!     │ into_reset       ▼                      ▼      into_error   SendQueueDrain
//!     └─────────────── Error ◀──────────────────────────────────────────┘
//!       (from every state)
//! ```
//!
//! | state | post receives | receives messages | post sends |
//! |---|---|---|---|
//! | [`Reset`] | | | |
//! | [`Init`] | yes | | |
//! | [`ReadyToReceive`] | yes | yes | |
//! | [`ReadyToSend`] | yes | yes | yes |
//! | [`SendQueueDrain`] | yes | yes | |
//! | [`Errored`] | | | |
//!
//! The type is what the program asked for last. The device may enter Error at any time by itself: completions say so, and
//! posts are then refused as [`Broken`](crate::PostError::Broken). There is no way from Reset to Error.

use crate::sys::ibv_qp_state;

mod sealed {
    #[allow(unnameable_types, reason = "seals `State`")]
    pub trait Sealed {}
}

/// A state of a queue pair. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a state of a queue pair",
    label = "not a state",
    note = "the states are `Reset`, `Init`, `ReadyToReceive`, `ReadyToSend`, `SendQueueDrain` and `Errored`"
)]
#[doc(alias = "ibv_qp_state")]
pub trait State: sealed::Sealed + 'static {
    /// Its name, as printed.
    #[doc(hidden)]
    const NAME: &'static str;
}

/// States in which a receive may be posted. Sealed.
#[diagnostic::on_unimplemented(
    message = "cannot post a receive in state `{Self}`",
    label = "needs `Init`, `ReadyToReceive`, `ReadyToSend` or `SendQueueDrain`",
    note = "from `Reset`, call `.into_init(..)` first; a pair in `Errored` goes through `.into_reset()`"
)]
pub trait PostReceive: State {}

/// States in which a send, write, read or atomic may be posted. Sealed.
#[diagnostic::on_unimplemented(
    message = "cannot post a send, write, read or atomic in state `{Self}`",
    label = "needs a queue pair in `ReadyToSend`",
    note = "bring the queue pair up with `.connect(..)`, or with `.into_rtr(..)` and then `.into_rts(..)`"
)]
pub trait PostSend: State {}

/// States from which a queue pair may be moved to Error: all but Reset and Error. Sealed.
#[diagnostic::on_unimplemented(
    message = "there is no transition from `{Self}` to Error",
    label = "only `Init`, `ReadyToReceive`, `ReadyToSend` and `SendQueueDrain` go to Error",
    note = "a queue pair in `Reset` has nothing in flight that could be flushed: drop it, or bring it up"
)]
pub trait MayFail: State {}

macro_rules! state {
    ($(#[$doc:meta])* $name:ident: $($capability:ident),*) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name {}
        impl sealed::Sealed for $name {}
        impl State for $name {
            const NAME: &'static str = stringify!($name);
        }
        $(impl $capability for $name {})*
    };
}

state! {
    /// As created: nothing may be posted.
    #[doc(alias = "IBV_QPS_RESET")]
    Reset:
}
state! {
    /// Has a port and the rights of peers: receives may be posted, but no packet is taken.
    #[doc(alias = "IBV_QPS_INIT")]
    Init: PostReceive, MayFail
}
state! {
    /// RTR: knows its peer and receives from it.
    #[doc(alias = "IBV_QPS_RTR")]
    #[doc(alias = "RTR")]
    ReadyToReceive: PostReceive, MayFail
}
state! {
    /// RTS: receives and sends.
    #[doc(alias = "IBV_QPS_RTS")]
    #[doc(alias = "RTS")]
    ReadyToSend: PostReceive, PostSend, MayFail
}
state! {
    /// SQD: the send queue is *draining*. What was begun goes on to its end; whether that is reached only
    /// [`drained`](crate::QueuePair::drained) tells. No buffer comes back because of this state.
    #[doc(alias = "IBV_QPS_SQD")]
    #[doc(alias = "SQD")]
    SendQueueDrain: PostReceive, MayFail
}
state! {
    /// All requests are being flushed, each with a completion. The way out is to drain it, and to reset or destroy it.
    #[doc(alias = "IBV_QPS_ERR")]
    Errored:
}

/// The state that a device says a queue pair is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[doc(alias = "ibv_qp_state")]
pub enum DeviceState {
    /// Reset.
    Reset,
    /// Init.
    Init,
    /// Ready To Receive.
    ReadyToReceive,
    /// Ready To Send.
    ReadyToSend,
    /// Send Queue Drain.
    SendQueueDrain,
    /// Send Queue Error: unreliable transports only.
    SendQueueError,
    /// Error.
    Error,
    /// A state that the specification does not name.
    Unknown(u32),
}

impl DeviceState {
    pub(super) fn from_raw(raw: ibv_qp_state) -> Self {
        match raw {
            ibv_qp_state::IBV_QPS_RESET => Self::Reset,
            ibv_qp_state::IBV_QPS_INIT => Self::Init,
            ibv_qp_state::IBV_QPS_RTR => Self::ReadyToReceive,
            ibv_qp_state::IBV_QPS_RTS => Self::ReadyToSend,
            ibv_qp_state::IBV_QPS_SQD => Self::SendQueueDrain,
            ibv_qp_state::IBV_QPS_SQE => Self::SendQueueError,
            ibv_qp_state::IBV_QPS_ERR => Self::Error,
            other => Self::Unknown(other.0),
        }
    }
}
