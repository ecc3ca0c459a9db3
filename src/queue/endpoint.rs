//! The data that two sides exchange before they are connected.

use crate::memory::RecordError;
use crate::types::{Gid, Mtu, Psn, Qpn};
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The data that a peer needs to connect to a queue pair. It goes to the peer out of band, as a
/// [record](Self::to_bytes).
///
/// # Examples
///
/// Each side sends its own over a socket and connects to what came back:
///
/// ```
/// # use interlock::{Context, Limits};
/// use interlock::{Brand, Endpoint, Init, QueuePair};
/// use std::error::Error;
/// use std::io::{Read, Write};
/// use std::net::{TcpListener, TcpStream};
///
/// fn meet<B: Brand + 'static>(
///     pair: QueuePair<B, Init>,
///     mut socket: TcpStream,
/// ) -> Result<QueuePair<B>, Box<dyn Error + Send + Sync>> {
///     socket.write_all(&pair.endpoint().to_bytes())?;
///     let mut theirs = [0; Endpoint::RECORD_BYTES];
///     socket.read_exact(&mut theirs)?;
///     let pair = pair.connect(&Endpoint::from_bytes(&theirs)?)?;
///     // A send before the peer is connected has to be retried: so wait until both are.
///     socket.write_all(&[0])?;
///     socket.read_exact(&mut [0])?;
///     Ok(pair)
/// }
/// # interlock::domain! { struct Docs; }
/// # let domain = Context::open("soft0")?.named_domain(Docs)?;
/// # let (queue, _poller) = domain.completion_queue(16)?;
/// # let pair = || {
/// #     let pair = domain.reliable(&queue, &Limits::default())?;
/// #     pair.into_init(&domain.context().active_port()?).map_err(Box::<dyn Error + Send + Sync>::from)
/// # };
/// # let (server, client) = (pair()?, pair()?);
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// let server = std::thread::spawn(move || meet(server, listener.accept()?.0));
/// let client = meet(client, TcpStream::connect(address)?)?;
/// # let server = server.join().unwrap()?;
/// # Ok::<(), Box<dyn Error + Send + Sync>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    queue_pair: Qpn,
    psn: Psn,
    gid: Option<Gid>,
    lid: u16,
    mtu: Mtu,
}

/// The wire form: 32 bytes, network byte order.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Record {
    /// `b"IE"`.
    magic: [u8; 2],
    version: u8,
    /// The MTU's code in the specification: 1 is 256 bytes, 5 is 4096.
    mtu: u8,
    /// The top byte is zero.
    queue_pair: U32,
    /// The first packet sequence number that this side sends; the top byte is zero.
    psn: U32,
    lid: U16,
    zero: [u8; 2],
    /// All zero if the port has no GID.
    gid: [u8; 16],
}
static_assertions::const_assert_eq!(size_of::<Record>(), 32);

const MAGIC: [u8; 2] = *b"IE";
const VERSION: u8 = 1;

impl Endpoint {
    /// The length of a record in bytes.
    pub const RECORD_BYTES: usize = size_of::<Record>();

    /// An endpoint from parts that were exchanged in another form, such as the text of `ibv_rc_pingpong`.
    pub fn new(queue_pair: Qpn, psn: Psn, gid: Option<Gid>, lid: u16, mtu: Mtu) -> Self {
        Self { queue_pair, psn, gid: gid.filter(|gid| !gid.is_empty()), lid, mtu }
    }

    /// The record to send to the peer: 32 bytes, version 1, network byte order.
    pub fn to_bytes(&self) -> [u8; 32] {
        zerocopy::transmute!(Record {
            magic: MAGIC,
            version: VERSION,
            mtu: self.mtu as u8,
            queue_pair: self.queue_pair.value().into(),
            psn: self.psn.value().into(),
            lid: self.lid.into(),
            zero: [0; 2],
            gid: self.gid.unwrap_or_default().0,
        })
    }

    /// Reads a record that a peer sent.
    ///
    /// # Errors
    ///
    /// [`RecordError`]: the bytes are not a valid record.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        let length = RecordError::Length { expected: size_of::<Record>(), found: bytes.len() };
        let record = Record::ref_from_bytes(bytes).map_err(|_| length)?;
        RecordError::check_head(record.magic, MAGIC, record.version, VERSION)?;
        if record.zero != [0; 2] {
            return Err(RecordError::Field("reserved part"));
        }
        Ok(Self::new(
            Qpn::new(record.queue_pair.get()).map_err(|_| RecordError::Field("queue pair number"))?,
            Psn::new(record.psn.get()).map_err(|_| RecordError::Field("packet sequence number"))?,
            Some(Gid(record.gid)),
            record.lid.get(),
            Mtu::from_code(record.mtu.into()).map_err(|_| RecordError::Field("MTU"))?,
        ))
    }

    /// The queue pair.
    pub fn queue_pair(&self) -> Qpn {
        self.queue_pair
    }

    /// The first packet sequence number that the queue pair sends.
    pub fn psn(&self) -> Psn {
        self.psn
    }

    /// The GID of the pair's port.
    pub fn gid(&self) -> Option<Gid> {
        self.gid
    }

    /// The local identifier of the pair's port; 0 on Ethernet.
    pub fn lid(&self) -> u16 {
        self.lid
    }

    /// The active MTU of the pair's port.
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        let (qpn, psn) = (Qpn::new(0x11).unwrap(), Psn::new(0xab_cdef).unwrap());
        Endpoint::new(qpn, psn, Some(Gid([7; 16])), 3, Mtu::Bytes1024)
    }

    #[test]
    fn a_record_says_the_same_on_the_other_side() {
        assert_eq!(Endpoint::from_bytes(&endpoint().to_bytes()), Ok(endpoint()));
    }

    #[test]
    fn each_damaged_field_is_refused() {
        for (at, field) in [(3, "MTU"), (4, "queue pair number"), (8, "packet sequence number"), (14, "reserved part")]
        {
            let mut bytes = endpoint().to_bytes();
            bytes[at] = 0xff;
            assert_eq!(Endpoint::from_bytes(&bytes), Err(RecordError::Field(field)));
        }
        assert!(matches!(Endpoint::from_bytes(&[0; 32]), Err(RecordError::Magic(0))));
        assert!(matches!(Endpoint::from_bytes(&[]), Err(RecordError::Length { .. })));
    }
}
