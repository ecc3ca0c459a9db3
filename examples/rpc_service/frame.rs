//! The messages of the service.
//!
//! | bytes | |
//! |---|---|
//! | 1 | the version: 1 |
//! | 1 | the [`Kind`] |
//! | 2 | how long the body is, at most [`MOST_BODY`], in network byte order |
//! | 8 | the id, in network byte order; an answer has the id of its request |
//! | 0 to [`MOST_BODY`] | the body |
//!
//! A peer is not trusted. A message of another form is a [`Violation`].

use interlock::Buffer;

/// The length of the buffers, and of the longest message.
pub(crate) const FRAME_BYTES: usize = 512;
const HEAD_BYTES: usize = 12;
pub(crate) const MOST_BODY: usize = FRAME_BYTES - HEAD_BYTES;
const VERSION: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The first message of a client, which the server answers. On iWARP a server must not send first.
    Hello = 1,
    Request = 2,
    Answer = 3,
    /// The server is about to end: the client waits for its answers, and then leaves.
    Bye = 4,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    pub(crate) body: Vec<u8>,
}

/// How a peer broke the protocol.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Violation {
    #[error("something that is no message")]
    NoMessage,
    #[error("a message of {0} bytes, which is too short")]
    TooShort(usize),
    #[error("a message of more than {FRAME_BYTES} bytes")]
    TooLong,
    #[error("a message of version {0}")]
    Version(u8),
    #[error("a message of kind {0}, which this side does not take")]
    Kind(u8),
    #[error("a message that names {claimed} bytes and has {actual}")]
    Length { claimed: usize, actual: usize },
    #[error("an answer with the id {0}, which no request waits for")]
    UnknownId(u64),
    #[error("a request with the id {0}, which an unanswered request already has")]
    RepeatedId(u64),
    #[error("more than {0} requests at a time")]
    Credits(usize),
    #[error("{0:?} instead of a number of credits")]
    Welcome(Vec<u8>),
}

impl Frame {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Violation> {
        let short = Violation::TooShort(bytes.len());
        let (&[version, kind, high, low, ref id @ ..], body) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(short)?;
        let claimed = usize::from(u16::from_be_bytes([high, low]));
        if version != VERSION {
            return Err(Violation::Version(version));
        }
        let kind = match kind {
            1 => Kind::Hello,
            2 => Kind::Request,
            3 => Kind::Answer,
            4 => Kind::Bye,
            other => return Err(Violation::Kind(other)),
        };
        if claimed != body.len() {
            return Err(Violation::Length { claimed, actual: body.len() });
        }
        Ok(Self { kind, id: u64::from_be_bytes(*id), body: body.to_vec() })
    }

    /// Writes a frame into `buffer`; false if it does not fit.
    pub(crate) fn write<B>(buffer: &mut Buffer<B>, kind: Kind, id: u64, body: &[u8]) -> bool {
        let len_bytes = HEAD_BYTES + body.len();
        if body.len() > MOST_BODY || buffer.set_len(len_bytes).is_err() {
            return false;
        }
        let [high, low] = (body.len() as u16).to_be_bytes();
        buffer[..4].copy_from_slice(&[VERSION, kind as u8, high, low]);
        buffer[4..HEAD_BYTES].copy_from_slice(&id.to_be_bytes());
        buffer[HEAD_BYTES..].copy_from_slice(body);
        true
    }
}
