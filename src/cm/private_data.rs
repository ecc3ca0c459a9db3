//! Private data: bytes that two sides send each other while they connect.

use std::fmt;

/// At most `MAX` bytes that go to the peer with a call of rdma_cm.
///
/// The limit depends on the call: 56 bytes with a connect, 196 with an accept, 148 with a reject. A lookup for
/// datagrams carries 180 bytes, its answer 136. The network pads the bytes with zeros to that limit (iWARP does not),
/// so the peer does not learn how many bytes were sent. [`framed`](Self::framed) puts the length in front of the bytes,
/// and [`PeerData::framed`] reads it. [`raw`](Self::raw) adds nothing: it is for peers that expect another format.
///
/// # Examples
///
/// ```
/// use interlock::cm::PrivateData;
///
/// let grant = PrivateData::<56>::framed(b"a record of 40 bytes or so")?;
/// assert!(PrivateData::<56>::raw(&[0; 57]).is_err());
/// # Ok::<(), interlock::cm::PrivateDataTooLong>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const MAX: usize> {
    bytes: [u8; MAX],
    /// # Invariants
    ///
    /// 0. At most `MAX`.
    len: usize,
}

/// The data of a connect request.
pub type ConnectData = PrivateData<56>;
/// The data of an accept.
pub type AcceptData = PrivateData<196>;
/// The data of a reject.
pub type RejectData = PrivateData<148>;

/// The data of a lookup.
pub type LookupData = PrivateData<180>;
/// The data of the answer to a lookup. The answer may be a refusal.
pub type AnswerData = PrivateData<136>;

/// More private data than the call carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this call of rdma_cm carries at most {most} bytes of private data, not {asked}")]
pub struct PrivateDataTooLong {
    /// How many bytes there were.
    pub asked: usize,
    /// How many fit.
    pub most: usize,
}

/// The first two bytes of framed data. The third is the length.
const MAGIC: [u8; 2] = *b"IP";
const HEAD: usize = 3;

impl<const MAX: usize> PrivateData<MAX> {
    /// The most bytes that [`framed`](Self::framed) takes.
    pub const FRAMED_BYTES: usize = MAX - HEAD;

    /// No data.
    pub const fn none() -> Self {
        Self { bytes: [0; MAX], len: 0 }
    }

    /// Takes the bytes as they are.
    ///
    /// # Errors
    ///
    /// [`PrivateDataTooLong`]: more than `MAX`.
    pub fn raw(bytes: &[u8]) -> Result<Self, PrivateDataTooLong> {
        let mut this = Self { len: bytes.len(), ..Self::none() };
        let room = this.bytes.get_mut(..bytes.len()).ok_or(PrivateDataTooLong { asked: bytes.len(), most: MAX })?;
        room.copy_from_slice(bytes);
        Ok(this)
    }

    /// Puts a header of three bytes, which contains the length, in front of the bytes.
    ///
    /// # Errors
    ///
    /// [`PrivateDataTooLong`]: more than [`FRAMED_BYTES`](Self::FRAMED_BYTES).
    pub fn framed(bytes: &[u8]) -> Result<Self, PrivateDataTooLong> {
        let too_long = PrivateDataTooLong { asked: bytes.len(), most: Self::FRAMED_BYTES };
        if bytes.len() > Self::FRAMED_BYTES {
            return Err(too_long);
        }
        let len = u8::try_from(bytes.len()).map_err(|_| too_long)?;
        let mut this = Self { len: HEAD + bytes.len(), ..Self::none() };
        let (head, room) = this.bytes.split_at_mut(HEAD);
        head.copy_from_slice(&[MAGIC[0], MAGIC[1], len]);
        room[..bytes.len()].copy_from_slice(bytes);
        Ok(this)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<const MAX: usize> Default for PrivateData<MAX> {
    fn default() -> Self {
        Self::none()
    }
}

impl<const MAX: usize> fmt::Debug for PrivateData<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrivateData").field(&self.as_bytes()).finish()
    }
}

/// Private data of a peer. They are untrusted input.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PeerData(pub(super) Vec<u8>);

impl PeerData {
    /// All bytes that arrived: the bytes that the peer sent, then zeros up to the limit of its call. iWARP adds no
    /// zeros.
    pub fn padded(&self) -> &[u8] {
        &self.0
    }

    /// The bytes that the peer gave to [`PrivateData::framed`]; `None` if the data do not begin with a valid header of
    /// that function.
    pub fn framed(&self) -> Option<&[u8]> {
        let (head, rest) = self.0.split_at_checked(HEAD)?;
        let (magic, len) = head.split_at(MAGIC.len());
        let bytes = rest.get(..usize::from(*len.first()?))?;
        (magic == MAGIC).then_some(bytes)
    }
}

impl fmt::Debug for PeerData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeerData").field(&self.framed().unwrap_or(&self.0)).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn received<const MAX: usize>(sent: PrivateData<MAX>) -> PeerData {
        let mut padded = sent.as_bytes().to_vec();
        padded.resize(MAX, 0);
        PeerData(padded)
    }

    #[test]
    fn framed_data_arrive_with_their_length() {
        for len in [0, 1, 53] {
            let sent = vec![7; len];
            assert_eq!(received(ConnectData::framed(&sent).unwrap()).framed(), Some(&sent[..]));
        }
        assert_eq!(ConnectData::framed(&[0; 54]), Err(PrivateDataTooLong { asked: 54, most: 53 }));
        assert_eq!(ConnectData::raw(&[0; 57]), Err(PrivateDataTooLong { asked: 57, most: 56 }));
        assert_eq!(received(AcceptData::framed(&[1; 193]).unwrap()).framed().map(<[u8]>::len), Some(193));
    }

    #[test]
    fn bytes_of_another_form_are_not_framed() {
        assert_eq!(PeerData(vec![0; 56]).framed(), None);
        assert_eq!(PeerData(vec![b'I', b'P', 60, 1]).framed(), None);
        for len in 0..HEAD {
            assert_eq!(PeerData(vec![b'I'; len]).framed(), None);
        }
    }

    /// Tries each length that a header can claim, with each number of bytes that can arrive.
    #[test]
    fn whatever_a_peer_claims_is_framed_within_what_arrived() {
        // Miri is slow. Under Miri, the test tries only every 51st number.
        let step = if cfg!(miri) { 51 } else { 1 };
        for claimed in (0..=u8::MAX).step_by(step) {
            for arrived in (0..=256).step_by(step) {
                let mut hostile = vec![MAGIC[0], MAGIC[1], claimed];
                hostile.resize(256, 9);
                hostile.truncate(arrived);
                let fits = HEAD + usize::from(claimed) <= arrived;
                assert_eq!(PeerData(hostile).framed().map(<[u8]>::len), fits.then_some(claimed.into()));
            }
        }
    }

    #[test]
    fn data_of_each_length_fit_or_are_refused() {
        for len in 0..260 {
            let bytes = vec![5; len];
            let lookup = LookupData::framed(&bytes);
            assert_eq!(lookup.is_ok(), len <= 177, "{len}");
            if let Ok(lookup) = lookup {
                assert_eq!(received(lookup).framed(), Some(&bytes[..]));
            }
            assert_eq!(AnswerData::raw(&bytes).is_ok(), len <= 136, "{len}");
            assert_eq!(RejectData::raw(&bytes).is_ok(), len <= 148, "{len}");
        }
    }
}
