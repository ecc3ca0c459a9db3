//! What a peer did against the protocol.

use super::record::ControlError;

/// What a peer did against the protocol. Nothing was done for it.
///
/// The peer's program is another version, is faulty, or lies. A program that does not trust its peers ends the
/// connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A message that cannot be read.
    #[error("the peer sent a control message that is not valid: {0}")]
    Control(#[from] ControlError),
    /// A number that was used before.
    #[error("the peer has used the number of a request, a grant or a return twice")]
    Replayed,
    /// A grant that this side never gave.
    #[error("the peer returned a grant that it never had")]
    UnknownGrant,
    /// An answer to a question that this side never asked, or that was answered.
    #[error("the peer answered a request that this side does not wait for")]
    UnknownRequest,
    /// A message after its goodbye.
    #[error("the peer sent a control message after its goodbye")]
    AfterGoodbye,
    /// More messages than this side may have to answer at once.
    #[error("the peer asks faster than it takes answers: the answer was dropped")]
    Flood,
}
