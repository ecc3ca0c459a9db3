//! The states of a queue pair, and what each allows.

use crate::sys::ibv_qp_state;

mod sealed {
    use super::Kind;

    #[allow(unnameable_types, reason = "seals `State`")]
    pub trait Sealed {
        /// The state as a value.
        const KIND: Kind;
    }
    #[allow(unnameable_types, reason = "seals `GoesTo`")]
    pub trait GoesTo<To> {}
}

/// A state as a value: one for each of the types below.
#[allow(unnameable_types, missing_debug_implementations, reason = "in a sealed trait")]
pub enum Kind {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    SendQueueDrain,
    SendQueueError,
    Errored,
}

/// The kind of the state `S`.
pub(super) const fn kind<S: State>() -> Kind {
    <S as sealed::Sealed>::KIND
}

/// A state of a queue pair. Sealed.
///
/// ```text
///                       ╭──────────────── connect ────────────────╮
///         into_init     │   into_rtr                   into_rts   ▼
///   Reset ──────────▶ Init ──────────▶ ReadyToReceive ──────────▶ ReadyToSend
///                                                       into_sqd │         ▲
///                                                                ▼         │ resume
///                                                               SendQueueDrain
///
///   from ReadyToSend, UC and UD, where the device went there:  into_sqe ──▶ SendQueueError ──resume──▶ ReadyToSend
///   from Init, ReadyToReceive, ReadyToSend, SendQueueDrain, SendQueueError:  into_error ──▶ Errored
///   from every state:  into_reset ──▶ Reset
/// ```
///
/// `into_reset`, and `resume` of unreliable transports, are refused with some providers: where
/// [`pairs_can_be_reset`](crate::device::Promises::pairs_can_be_reset) is false, a pair is used once.
///
/// | state | post receives | receives messages | post sends |
/// |---|---|---|---|
/// | [`Reset`] | | | |
/// | [`Init`] | yes | | |
/// | [`ReadyToReceive`] | yes | yes | |
/// | [`ReadyToSend`] | yes | yes | yes |
/// | [`SendQueueDrain`] | yes | yes | |
/// | [`SendQueueError`] | yes | yes | |
/// | [`Errored`] | | | |
///
/// The type is the state that the program asked for last. The device may enter Error by itself at any time: completions
/// report it, and later posts are refused as [`Broken`](crate::PostError::Broken). There is no transition from Reset to
/// Error.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a state of a queue pair",
    label = "not a state",
    note = "the states are `Reset`, `Init`, `ReadyToReceive`, `ReadyToSend`, `SendQueueDrain`, `SendQueueError` and `Errored`"
)]
#[doc(alias = "ibv_qp_state")]
pub trait State: sealed::Sealed + Sized + 'static {
    /// The state's name, as printed.
    #[doc(hidden)]
    const NAME: &'static str;
}

/// States from which a pair can go to the state `To`: see the diagram at [`State`]. Sealed. A pair can go to [`Reset`]
/// from every state, so that transition needs no bound.
#[diagnostic::on_unimplemented(
    message = "there is no transition from `{Self}` to `{To}`",
    label = "not from this state",
    note = "the way up is `.into_init(..)` from `Reset`, then `.connect(..)`, or `.into_rtr(..)` and `.into_rts(..)`; every \
            state goes to `Reset`, all but `Reset` to `Errored`",
    note = "from `ReadyToSend` to `SendQueueDrain` goes `.into_sqd()`, and back goes `.resume()`",
    note = "a queue pair that is in `Errored` already stays there: `drain`, `into_reset` or `destroy` it"
)]
pub trait GoesTo<To: State>: State + sealed::GoesTo<To> {}

/// States in which the pair is on a port, and so has an [`endpoint`](crate::QueuePair::endpoint): all but Reset.
/// Sealed.
#[diagnostic::on_unimplemented(
    message = "a queue pair in `{Self}` has no endpoint",
    label = "needs a queue pair that went through `.into_init(..)`"
)]
pub trait OnPort: State {}

/// States in which a receive may be posted. Sealed.
#[diagnostic::on_unimplemented(
    message = "cannot post a receive in state `{Self}`",
    label = "needs `Init`, `ReadyToReceive`, `ReadyToSend`, `SendQueueDrain` or `SendQueueError`",
    note = "from `Reset`, call `.into_init(..)` first; a pair in `Errored` goes through `.into_reset()`"
)]
pub trait PostReceive: State {}

/// States in which a send, write, read or atomic may be posted. Sealed.
#[diagnostic::on_unimplemented(
    message = "cannot post a send, write, read or atomic in state `{Self}`",
    label = "needs a queue pair in `ReadyToSend`",
    note = "bring the queue pair up with `.connect(..)`, or with `.into_rtr(..)` and then `.into_rts(..)`; a pair in `Errored` \
            goes through `.into_reset()` first"
)]
pub trait PostSend: State {}

/// States in which a pair's attributes can change, such as [the rights of the peer](crate::QueuePair::set_peer_rights).
/// Sealed.
#[diagnostic::on_unimplemented(
    message = "no attribute of a queue pair changes in state `{Self}`",
    label = "needs `Init`, `ReadyToSend` or `SendQueueDrain`"
)]
pub trait Alterable: OnPort {}

/// States in which the attributes of a connection can change: only Send Queue Drain, where no request is under way once
/// the queue is drained. Sealed.
#[diagnostic::on_unimplemented(
    message = "the attributes of a connection do not change in state `{Self}`",
    label = "needs a queue pair in `SendQueueDrain`",
    note = "go there from `ReadyToSend` with `.into_sqd()`, wait with `.drained(..)`, and come back with `.resume()`"
)]
pub trait AlterableWhileDraining: Alterable {}

/// The state of a new pair: nothing may be posted.
#[doc(alias = "IBV_QPS_RESET")]
#[derive(Debug)]
pub enum Reset {}
impl GoesTo<Init> for Reset {}
impl sealed::GoesTo<Init> for Reset {}
impl sealed::Sealed for Reset {
    const KIND: Kind = Kind::Reset;
}
impl State for Reset {
    const NAME: &'static str = "Reset";
}

/// The pair has a port, and peers have rights: receives may be posted, but no packet is accepted.
#[doc(alias = "IBV_QPS_INIT")]
#[derive(Debug)]
pub enum Init {}
impl GoesTo<ReadyToReceive> for Init {}
impl sealed::GoesTo<ReadyToReceive> for Init {}
impl GoesTo<Errored> for Init {}
impl sealed::GoesTo<Errored> for Init {}
impl OnPort for Init {}
impl Alterable for Init {}
impl PostReceive for Init {}
impl sealed::Sealed for Init {
    const KIND: Kind = Kind::Init;
}
impl State for Init {
    const NAME: &'static str = "Init";
}

/// RTR: the pair knows its peer and receives from it.
#[doc(alias = "IBV_QPS_RTR")]
#[doc(alias = "RTR")]
#[derive(Debug)]
pub enum ReadyToReceive {}
impl GoesTo<ReadyToSend> for ReadyToReceive {}
impl sealed::GoesTo<ReadyToSend> for ReadyToReceive {}
impl GoesTo<Errored> for ReadyToReceive {}
impl sealed::GoesTo<Errored> for ReadyToReceive {}
impl OnPort for ReadyToReceive {}
impl PostReceive for ReadyToReceive {}
impl sealed::Sealed for ReadyToReceive {
    const KIND: Kind = Kind::ReadyToReceive;
}
impl State for ReadyToReceive {
    const NAME: &'static str = "ReadyToReceive";
}

/// RTS: the pair receives and sends.
#[doc(alias = "IBV_QPS_RTS")]
#[doc(alias = "RTS")]
#[derive(Debug)]
pub enum ReadyToSend {}
impl GoesTo<SendQueueDrain> for ReadyToSend {}
impl sealed::GoesTo<SendQueueDrain> for ReadyToSend {}
impl GoesTo<Errored> for ReadyToSend {}
impl sealed::GoesTo<Errored> for ReadyToSend {}
impl OnPort for ReadyToSend {}
impl Alterable for ReadyToSend {}
impl PostReceive for ReadyToSend {}
impl PostSend for ReadyToSend {}
impl sealed::Sealed for ReadyToSend {
    const KIND: Kind = Kind::ReadyToSend;
}
impl State for ReadyToSend {
    const NAME: &'static str = "ReadyToSend";
}

/// SQD: the send queue is *draining*. The device completes the requests that it has started;
/// [`drained`](crate::QueuePair::drained) says whether it has finished. The state alone gives no buffer back.
#[doc(alias = "IBV_QPS_SQD")]
#[doc(alias = "SQD")]
#[derive(Debug)]
pub enum SendQueueDrain {}
impl GoesTo<Errored> for SendQueueDrain {}
impl sealed::GoesTo<Errored> for SendQueueDrain {}
impl OnPort for SendQueueDrain {}
impl Alterable for SendQueueDrain {}
impl AlterableWhileDraining for SendQueueDrain {}
impl PostReceive for SendQueueDrain {}
impl sealed::Sealed for SendQueueDrain {
    const KIND: Kind = Kind::SendQueueDrain;
}
impl State for SendQueueDrain {
    const NAME: &'static str = "SendQueueDrain";
}

/// SQE: a send of an unreliable transport failed. Sends are flushed, receives go on. The device enters this state by
/// itself; [`into_sqe`](crate::QueuePair::into_sqe) makes the type follow, and `resume` leads back.
#[doc(alias = "IBV_QPS_SQE")]
#[doc(alias = "SQE")]
#[derive(Debug)]
pub enum SendQueueError {}
impl GoesTo<Errored> for SendQueueError {}
impl sealed::GoesTo<Errored> for SendQueueError {}
impl OnPort for SendQueueError {}
impl PostReceive for SendQueueError {}
impl sealed::Sealed for SendQueueError {
    const KIND: Kind = Kind::SendQueueError;
}
impl State for SendQueueError {
    const NAME: &'static str = "SendQueueError";
}

/// The device flushes all requests, each with a completion. To go on, drain the pair, then destroy it, or reset it
/// where that is allowed.
#[doc(alias = "IBV_QPS_ERR")]
#[derive(Debug)]
pub enum Errored {}
impl OnPort for Errored {}
impl sealed::Sealed for Errored {
    const KIND: Kind = Kind::Errored;
}
impl State for Errored {
    const NAME: &'static str = "Errored";
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
