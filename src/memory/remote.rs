//! Memory that a peer granted: its address, key and rights, and the record that carries them.

use super::access::{self, Access};
use super::error::OutOfBounds;
use super::{Exposed, MAX_MESSAGE_BYTES};
use crate::sys::ibv_access_flags as flags;
use crate::types::Rkey;
use std::ops::{Deref, Range};
use std::{fmt, marker::PhantomData};
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Memory of a peer: address, length and remote key, with the rights `A` that the peer gave.
///
/// It comes from the peer as a [record](Self::to_bytes). A record is only what the peer said. The peer's device checks
/// each request, and a request that it does not allow fails with a remote access error.
pub struct RemoteRegion<A> {
    address: u64,
    len_bytes: u64,
    rkey: Rkey,
    /// How much of `len_bytes` one message can reach, computed once for all posts.
    fits: u32,
    rights: PhantomData<fn() -> A>,
}
static_assertions::assert_eq_size!(RemoteRegion<()>, [u64; 3]);

/// A word of a peer's memory: 8 bytes at an address that is a multiple of 8. Such a target is never a reason to refuse
/// an atomic.
///
/// Atomics take it in place of a [`RemoteRegion`]. Other requests take it as a region of 8 bytes, `&*word`.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # interlock::domain! { struct Docs; }
/// # let mut pair: interlock::QueuePair<Docs> = todo!();
/// # let (result, other): (interlock::Buffer<Docs>, interlock::Buffer<Docs>) = todo!();
/// # let log: interlock::RemoteRegion<interlock::RemoteAll> = todo!();
/// pair.post_fetch_and_add(result, &log.word(0)?, 1)?;
/// let word = log.word(8)?;
/// pair.post_read(other, &word)?;
/// # Ok(()) }
/// ```
pub struct RemoteWord<A>(RemoteRegion<A>);

impl<A> Clone for RemoteWord<A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A> Copy for RemoteWord<A> {}

impl<A> Deref for RemoteWord<A> {
    type Target = RemoteRegion<A>;
    fn deref(&self) -> &RemoteRegion<A> {
        &self.0
    }
}

impl<A> AsRef<RemoteRegion<A>> for RemoteWord<A> {
    #[inline(always)]
    fn as_ref(&self) -> &RemoteRegion<A> {
        &self.0
    }
}

impl<A> AsRef<RemoteRegion<A>> for RemoteRegion<A> {
    #[inline(always)]
    fn as_ref(&self) -> &Self {
        self
    }
}

impl<A: Access> fmt::Debug for RemoteWord<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteWord").field(&self.0).finish()
    }
}

/// Memory of a peer that is not a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a word is 8 bytes at an address that is a multiple of 8, inside the granted memory; the given address is \
     {address:#x}, from which {len_bytes} bytes of the granted memory are left"
)]
pub struct NotAWord {
    /// Its address.
    pub address: u64,
    /// How many bytes there are.
    pub len_bytes: u64,
}

/// The wire form: 24 bytes, network byte order.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Record {
    /// `b"IR"`.
    magic: [u8; 2],
    version: u8,
    /// The remote rights, as in `ibv_access_flags`.
    rights: u8,
    rkey: U32,
    address: U64,
    len_bytes: U64,
}
static_assertions::const_assert_eq!(size_of::<Record>(), 24);

const MAGIC: [u8; 2] = *b"IR";
/// The magic of a record of memory behind a window that the peer may end.
const MAGIC_OF_WINDOW: [u8; 2] = *b"IW";
const VERSION: u8 = 1;
const REMOTE: u8 =
    (flags::IBV_ACCESS_REMOTE_READ.0 | flags::IBV_ACCESS_REMOTE_WRITE.0 | flags::IBV_ACCESS_REMOTE_ATOMIC.0) as u8;

/// Why bytes are not a valid record of remote memory, or grant too little.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Not the length of a record.
    #[error("a record must have {expected} bytes, not {found}")]
    Length {
        /// The length of a record.
        expected: usize,
        /// How many bytes were given.
        found: usize,
    },
    /// Not a record of this kind.
    #[error("these bytes are not a record of this kind: they start with {0:#06x}")]
    Magic(u16),
    /// A record of another version.
    #[error("the record has version {found}, and this side reads version {known}: use the same version of the library")]
    Version {
        /// The version that this side reads.
        known: u8,
        /// The version of the record.
        found: u8,
    },
    /// A field has a value that it cannot have.
    #[error("the record has an impossible value in its field `{0}`")]
    Field(&'static str),
    /// The peer granted fewer rights than are needed.
    #[error(
        "the memory was granted without a right of `{wanted}`: its owner must register it, or bind the window over it, \
         as `{wanted}` or with more rights"
    )]
    Rights {
        /// The rights that are needed.
        wanted: &'static str,
    },
    /// A peer that ends a window could harm this device.
    #[error(
        "peers cannot end windows of this device: send the peer the record of `remote`, and end the window with `dealloc`"
    )]
    NotInvalidated,
}

impl RecordError {
    pub(crate) fn check_head(found: [u8; 2], magic: [u8; 2], version: u8, known: u8) -> Result<(), Self> {
        if found != magic {
            return Err(Self::Magic(U16::from(found).get()));
        }
        if version != known {
            return Err(Self::Version { known, found: version });
        }
        Ok(())
    }
}

impl<A: Exposed> RemoteRegion<A> {
    /// The length of a record in bytes.
    pub const RECORD_BYTES: usize = size_of::<Record>();

    pub(super) fn of(address: u64, len_bytes: u64, rkey: Rkey) -> Self {
        let fits = len_bytes.min(MAX_MESSAGE_BYTES as u64) as u32;
        Self { address, len_bytes, rkey, fits, rights: PhantomData }
    }

    /// The remote rights, as in `ibv_access_flags`.
    pub(crate) fn rights() -> u8 {
        (A::FLAGS.0 as u8) & REMOTE
    }

    /// The record to send to the peer that is to use the memory: 24 bytes, version 1, network byte order.
    pub fn to_bytes(&self) -> [u8; 24] {
        self.record(MAGIC)
    }

    fn record(&self, magic: [u8; 2]) -> [u8; 24] {
        zerocopy::transmute!(Record {
            magic,
            version: VERSION,
            rights: Self::rights(),
            rkey: self.rkey.0.into(),
            address: self.address.into(),
            len_bytes: self.len_bytes.into(),
        })
    }

    /// Reads a record that a peer sent. It may grant more than `A`.
    ///
    /// # Errors
    ///
    /// [`RecordError`], for any bytes that are not a record or grant less than `A`.
    ///
    /// # Examples
    ///
    /// ```
    /// use interlock::{Context, RemoteRead, RemoteRegion, RemoteWrite};
    /// interlock::domain! { struct Docs; }
    /// let domain = Context::open("soft0")?.named_domain(Docs)?;
    /// let mine = domain.register::<RemoteRead, _>(vec![0_u64; 8])?;
    /// let record = mine.remote().to_bytes();
    /// let theirs = RemoteRegion::<RemoteRead>::from_bytes(&record)?;
    /// assert_eq!(theirs.len(), 64);
    /// assert!(RemoteRegion::<RemoteWrite>::from_bytes(&record).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        Self::from_record(bytes, MAGIC)
    }

    fn from_record(bytes: &[u8], magic: [u8; 2]) -> Result<Self, RecordError> {
        let length = RecordError::Length { expected: size_of::<Record>(), found: bytes.len() };
        let record = Record::ref_from_bytes(bytes).map_err(|_| length)?;
        RecordError::check_head(record.magic, magic, record.version, VERSION)?;
        let (address, len_bytes) = (record.address.get(), record.len_bytes.get());
        if record.rights & !REMOTE != 0 || record.rights == 0 {
            return Err(RecordError::Field("rights"));
        }
        if record.rights & Self::rights() != Self::rights() {
            return Err(RecordError::Rights { wanted: access::name::<A>() });
        }
        Self::of_peer(address, len_bytes, record.rkey.get())
    }

    /// Memory that a peer grants without this library: `len_bytes` at `address`, with the key `rkey`.
    ///
    /// The library only has the peer's word for the rights `A` and for the numbers. If any of them is wrong, the peer's
    /// device refuses the requests.
    ///
    /// # Errors
    ///
    /// [`RecordError::Field`]: no bytes, or a range that ends beyond the last address.
    pub fn of_peer(address: u64, len_bytes: u64, rkey: u32) -> Result<Self, RecordError> {
        if len_bytes == 0 || address.checked_add(len_bytes).is_none() {
            return Err(RecordError::Field("length"));
        }
        Ok(Self::of(address, len_bytes, Rkey(rkey)))
    }

    /// The part of it in `range`, in bytes from its start.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    pub fn slice(&self, range: Range<u64>) -> Result<Self, OutOfBounds> {
        let len_bytes = range.end.saturating_sub(range.start);
        if range.start > range.end {
            return Err(OutOfBounds { offset: range.start, len_bytes: 0, within: self.len_bytes });
        }
        OutOfBounds::check(range.start, len_bytes, self.len_bytes)?;
        Ok(Self::of(self.address + range.start, len_bytes, self.rkey))
    }

    /// The word of 8 bytes at `offset`, for atomics.
    ///
    /// # Errors
    ///
    /// [`NotAWord`]: its address is not a multiple of 8, or it is not inside.
    pub fn word(&self, offset: u64) -> Result<RemoteWord<A>, NotAWord> {
        let (address, len_bytes) = (self.address.saturating_add(offset), self.len_bytes.saturating_sub(offset));
        match self.slice(offset..offset.saturating_add(8)) {
            Ok(word) if word.address.is_multiple_of(8) => Ok(RemoteWord(word)),
            _ => Err(NotAWord { address, len_bytes }),
        }
    }

    /// The same memory with fewer rights, for a part of the program that needs no more.
    ///
    /// # Errors
    ///
    /// [`RecordError::Rights`]: `Fewer` has a right that `A` lacks.
    pub fn restrict<Fewer: Exposed>(&self) -> Result<RemoteRegion<Fewer>, RecordError> {
        let (has, wanted) = (Self::rights(), RemoteRegion::<Fewer>::rights());
        if wanted & !has != 0 {
            return Err(RecordError::Rights { wanted: access::name::<Fewer>() });
        }
        Ok(RemoteRegion::of(self.address, self.len_bytes, self.rkey))
    }
}

impl<A> RemoteRegion<A> {
    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len_bytes
    }

    /// Whether it is an empty slice.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Its address in the peer's memory.
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How much of it one message can reach.
    #[inline(always)]
    pub(crate) fn fits(&self) -> u64 {
        self.fits.into()
    }

    /// The key that requests name.
    #[inline]
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }
}

impl<A> Clone for RemoteRegion<A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A> Copy for RemoteRegion<A> {}

impl<A: Access> fmt::Debug for RemoteRegion<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteRegion")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len_bytes", &self.len_bytes)
            .field("rkey", &format_args!("{:#x}", self.rkey.0))
            .field("rights", &access::name::<A>())
            .finish()
    }
}

/// Memory of a peer behind a window that this side may end when it is done, with [`post_send_invalidating`].
///
/// It comes from [`BoundWindow::remote_window`](crate::window::BoundWindow::remote_window) as a record of its own kind.
/// A program gets such a record only on a device that a peer cannot harm, whatever key the peer invalidates.
///
/// [`post_send_invalidating`]: crate::QueuePair::post_send_invalidating
pub struct RemoteWindow<A>(RemoteRegion<A>);

impl<A: Exposed> RemoteWindow<A> {
    pub(super) fn of(region: RemoteRegion<A>) -> Self {
        Self(region)
    }

    /// The record to send to the peer that is to use the memory: 24 bytes, version 1, network byte order.
    pub fn to_bytes(&self) -> [u8; 24] {
        self.0.record(MAGIC_OF_WINDOW)
    }

    /// Reads a record that a peer sent. It may grant more than `A`.
    ///
    /// # Errors
    ///
    /// [`RecordError`], for any bytes that are not a record of a window or grant less than `A`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        RemoteRegion::from_record(bytes, MAGIC_OF_WINDOW).map(Self)
    }

    /// The memory, to read and write.
    pub fn region(&self) -> RemoteRegion<A> {
        self.0
    }
}

impl<A> Clone for RemoteWindow<A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A> Copy for RemoteWindow<A> {}

impl<A: Access> fmt::Debug for RemoteWindow<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteWindow").field(&self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{RemoteAll, RemoteRead, RemoteWrite};

    fn record(edit: impl FnOnce(&mut [u8; 24])) -> Result<RemoteRegion<RemoteRead>, RecordError> {
        let mut bytes = RemoteRegion::<RemoteAll>::of(0x1000, 64, Rkey(7)).to_bytes();
        edit(&mut bytes);
        RemoteRegion::from_bytes(&bytes)
    }

    #[test]
    fn a_record_says_the_same_on_the_other_side() {
        let region = record(|_| ()).unwrap();
        assert_eq!((region.address(), region.len(), region.rkey().value()), (0x1000, 64, 7));
    }

    #[test]
    fn each_damaged_field_is_refused() {
        assert_eq!(record(|b| b[0] = b'X').unwrap_err(), RecordError::Magic(0x5852));
        assert_eq!(record(|b| b[2] = 9).unwrap_err(), RecordError::Version { known: 1, found: 9 });
        assert_eq!(record(|b| b[3] = 0x81).unwrap_err(), RecordError::Field("rights"));
        assert_eq!(record(|b| b[16..].fill(0)).unwrap_err(), RecordError::Field("length"));
        assert_eq!(record(|b| b[16..].fill(0xff)).unwrap_err(), RecordError::Field("length"));
        assert!(matches!(record(|b| b[3] = 2).unwrap_err(), RecordError::Rights { .. }));
        assert!(matches!(RemoteRegion::<RemoteRead>::from_bytes(&[0; 23]), Err(RecordError::Length { .. })));
    }

    #[test]
    fn a_slice_stays_inside_and_rights_only_shrink() {
        let region = RemoteRegion::<RemoteRead>::of(0x1000, 64, Rkey(7));
        assert_eq!(region.slice(8..16).unwrap().address(), 0x1008);
        assert!(region.slice(60..65).is_err());
        #[allow(clippy::reversed_empty_ranges, reason = "that is the case")]
        let backwards = region.slice(9..8);
        assert!(backwards.is_err());
        assert!(region.restrict::<RemoteWrite>().is_err());
    }
}
