//! What a peer did against the protocol.

use super::record::ControlError;

/// What a peer did against the protocol. The message was ignored.
///
/// The peer's program has another version, is faulty, lies, or sends too much. A program that does not trust its peers
/// ends the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A message that cannot be read.
    #[error(
        "the peer sent a control message that is not valid, and it was ignored: {0} (check that both sides have the \
         same version of the library and the same `Mark`; see docs/failures.md#protocol-violation)"
    )]
    Control(#[from] ControlError),
    /// A number that was used before.
    #[error(
        "the peer has used the number of a request or a grant twice, or has returned a grant twice, and its message \
         was ignored: the peer's program is faulty (see docs/failures.md#protocol-violation)"
    )]
    Replayed,
    /// The return or the end of a grant that was never given.
    #[error(
        "the peer returned a grant that it never had, and its message was ignored: the peer's program is faulty (see \
         docs/failures.md#protocol-violation)"
    )]
    UnknownGrant,
    /// An answer to a request that this side never sent, or that already has its answer.
    #[error(
        "the peer answered a request that this side never sent, or that already has its answer, and its message was \
         ignored: the peer's program is faulty (see docs/failures.md#protocol-violation)"
    )]
    UnknownRequest,
    /// A message after its goodbye, or after this side could not send a control message of its own.
    #[error(
        "a control message of the peer came after lending had ended, and was ignored (see \
         docs/failures.md#protocol-violation)"
    )]
    AfterGoodbye,
    /// A request while too many replies of this side wait to be sent, or an offer while this side already has
    /// [`LendingOptions::most_held`](super::LendingOptions::most_held) requests and grants.
    #[error(
        "the peer sends requests faster than it takes the replies, or more offers than `LendingOptions::most_held` \
         allows: its message was ignored; return grants, or raise `most_held` (see \
         docs/failures.md#protocol-violation)"
    )]
    Flood,
}
