//! The control messages: 64 bytes each, in network byte order.

use crate::memory::{RecordError, RemoteAtomic, RemoteRead, RemoteRegion, RemoteWrite};
use std::num::NonZeroU64;
use std::time::Duration;
use zerocopy::byteorder::network_endian::U64;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The length of a control message.
pub const CONTROL_BYTES: usize = size_of::<Wire>();

/// The wire format. Fields that a kind of message does not use are zero.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Wire {
    /// `b"IL"`.
    magic: [u8; 2],
    version: u8,
    kind: u8,
    /// The remote rights, as in `ibv_access_flags`.
    rights: u8,
    /// Why a request is refused, or whether the return asked the owner to pass the memory on.
    detail: u8,
    reserved: [u8; 2],
    /// The number of a grant.
    id: U64,
    /// The number of a request.
    nonce: U64,
    /// A length in bytes, or the number that says who is to get the memory next.
    number: U64,
    /// In microseconds; all ones means for ever.
    duration: U64,
    /// The record of a [`RemoteRegion`].
    region: [u8; 24],
}
static_assertions::const_assert_eq!(size_of::<Wire>(), 64);

const MAGIC: [u8; 2] = *b"IL";
const VERSION: u8 = 1;
const FOR_EVER: u64 = u64::MAX;

const GRANT: u8 = 1;
const RETURN: u8 = 2;
const PASS_ON: u8 = 3;
const RETURNED: u8 = 4;
const ASK: u8 = 5;
const REFUSED: u8 = 6;
const BYE: u8 = 7;

/// A control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Control {
    /// The owner lends memory; `answers` is the request that it answers.
    Grant { id: NonZeroU64, answers: Option<NonZeroU64>, duration: Duration, region: GrantedRecord },
    /// The holder does not need the memory any more.
    Return { id: NonZeroU64 },
    /// As `Return`, and the holder asks the owner to lend the memory to somebody else.
    PassOn { id: NonZeroU64, to: u64 },
    /// The owner has ended the grant: nobody can access the memory by it any more. `moved`: the holder had returned it
    /// by `PassOn`.
    Returned { id: NonZeroU64, moved: bool },
    /// The holder asks for memory.
    Ask { nonce: NonZeroU64, bytes: NonZeroU64, rights: u8, duration: Duration },
    /// The owner lends no memory for this request.
    Refused { nonce: NonZeroU64, why: Refusal },
    /// The goodbye: this side sends no more messages.
    Bye,
}

/// The record of a region, which is valid for at least one of the remote rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GrantedRecord([u8; 24]);

impl GrantedRecord {
    pub(super) fn new(bytes: [u8; 24]) -> Result<Self, RecordError> {
        let fitting = [
            RemoteRegion::<RemoteRead>::from_bytes(&bytes).map(|region| region.len()),
            RemoteRegion::<RemoteWrite>::from_bytes(&bytes).map(|region| region.len()),
            RemoteRegion::<RemoteAtomic>::from_bytes(&bytes).map(|region| region.len()),
        ];
        let [first, ..] = fitting;
        fitting
            .into_iter()
            .find_map(Result::ok)
            .map(|_| Self(bytes))
            .ok_or(first.err().unwrap_or(RecordError::Field("rights")))
    }

    pub(super) fn bytes(&self) -> &[u8; 24] {
        &self.0
    }

    /// Its remote rights, as in `ibv_access_flags`.
    pub(super) fn rights(&self) -> u8 {
        self.0[3]
    }

    pub(super) fn len_bytes(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

/// Why the peer lends no memory for a request of this side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The program of the peer declined.
    #[error("the peer declined to lend the memory that this side asked for (see docs/failures.md#not-lent)")]
    Declined,
    /// The quota that the peer allows this side has too few bytes left: ask for less, or give memory back first.
    #[error(
        "the peer's quota for this side has too few bytes left: ask for less, or give memory back first (see \
         docs/failures.md#not-lent)"
    )]
    TooManyBytes,
    /// The quota that the peer allows this side has no request or grant left: give memory back first.
    #[error("the peer's quota for this side has no grant left: give memory back first (see docs/failures.md#not-lent)")]
    TooManyGrants,
}

/// Why bytes are not a valid control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Not the length of a control message.
    #[error("a control message must have {CONTROL_BYTES} bytes, not {found}")]
    Length {
        /// How many bytes were received.
        found: usize,
    },
    /// Not a control message.
    #[error("the first bytes are not those of a control message")]
    Magic,
    /// Of another version.
    #[error(
        "the control message has version {found}, and this side reads version {VERSION}: use one version of the library \
         on both sides"
    )]
    Version {
        /// The version of the message.
        found: u8,
    },
    /// Of an unknown kind.
    #[error("the control message is of kind {0}, which this side does not know")]
    Kind(u8),
    /// A field has a value that it must not have.
    #[error("the field `{0}` of a control message has a value that is not valid")]
    Field(&'static str),
    /// The record of the memory is not valid.
    #[error("the record of the granted memory is not valid: {0}")]
    Region(RecordError),
}

/// All remote rights, as in `ibv_access_flags`.
const REMOTE: u8 = 0b1110;

fn to_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(FOR_EVER)
}

fn of_micros(micros: u64) -> Duration {
    if micros == FOR_EVER { Duration::MAX } else { Duration::from_micros(micros) }
}

impl Wire {
    fn new(kind: u8) -> Self {
        Self { magic: MAGIC, version: VERSION, kind, ..Self::new_zeroed() }
    }
}

impl Control {
    pub(super) fn to_bytes(self) -> [u8; CONTROL_BYTES] {
        let wire = match self {
            Self::Grant { id, answers, duration, region } => Wire {
                id: id.get().into(),
                nonce: answers.map_or(0, NonZeroU64::get).into(),
                duration: to_micros(duration).into(),
                region: region.0,
                ..Wire::new(GRANT)
            },
            Self::Return { id } => Wire { id: id.get().into(), ..Wire::new(RETURN) },
            Self::PassOn { id, to } => Wire { id: id.get().into(), number: to.into(), ..Wire::new(PASS_ON) },
            Self::Returned { id, moved } => Wire { id: id.get().into(), detail: moved.into(), ..Wire::new(RETURNED) },
            Self::Ask { nonce, bytes, rights, duration } => Wire {
                nonce: nonce.get().into(),
                number: bytes.get().into(),
                rights,
                duration: to_micros(duration).into(),
                ..Wire::new(ASK)
            },
            Self::Refused { nonce, why } => {
                let detail = match why {
                    Refusal::Declined => 0,
                    Refusal::TooManyBytes => 1,
                    Refusal::TooManyGrants => 2,
                };
                Wire { nonce: nonce.get().into(), detail, ..Wire::new(REFUSED) }
            }
            Self::Bye => Wire::new(BYE),
        };
        zerocopy::transmute!(wire)
    }

    /// Reads a message of the peer. Each message has exactly one encoding: bytes that `to_bytes` would not write are
    /// refused.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, ControlError> {
        let wire = Wire::read_from_bytes(bytes).map_err(|_| ControlError::Length { found: bytes.len() })?;
        if wire.magic != MAGIC {
            return Err(ControlError::Magic);
        }
        if wire.version != VERSION {
            return Err(ControlError::Version { found: wire.version });
        }
        let id = || NonZeroU64::new(wire.id.get()).ok_or(ControlError::Field("id"));
        let nonce = || NonZeroU64::new(wire.nonce.get()).ok_or(ControlError::Field("nonce"));
        let duration = of_micros(wire.duration.get());
        let control = match wire.kind {
            GRANT => Self::Grant {
                id: id()?,
                answers: nonce().ok(),
                duration,
                region: GrantedRecord::new(wire.region).map_err(ControlError::Region)?,
            },
            RETURN => Self::Return { id: id()? },
            PASS_ON => Self::PassOn { id: id()?, to: wire.number.get() },
            RETURNED => match wire.detail {
                0 | 1 => Self::Returned { id: id()?, moved: wire.detail == 1 },
                _ => return Err(ControlError::Field("moved")),
            },
            ASK if wire.rights == 0 || wire.rights & !REMOTE != 0 => return Err(ControlError::Field("rights")),
            ASK => Self::Ask {
                nonce: nonce()?,
                bytes: NonZeroU64::new(wire.number.get()).ok_or(ControlError::Field("bytes"))?,
                rights: wire.rights,
                duration,
            },
            REFUSED => Self::Refused {
                nonce: nonce()?,
                why: match wire.detail {
                    0 => Refusal::Declined,
                    1 => Refusal::TooManyBytes,
                    2 => Refusal::TooManyGrants,
                    _ => return Err(ControlError::Field("why")),
                },
            },
            BYE => Self::Bye,
            kind => return Err(ControlError::Kind(kind)),
        };
        if control.to_bytes() != bytes {
            return Err(ControlError::Field("reserved"));
        }
        Ok(control)
    }
}
