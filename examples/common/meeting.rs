//! The TCP connection over which two sides tell each other how to reach their queue pairs, as `ibv_rc_pingpong` does
//! it.
//!
//! The client sends its address. The server connects and sends its own. The client connects and sends "done".

use super::fault::{Doing, Fault};
use super::tcp;
use interlock::number::{Mtu, Psn, Qpn};
use interlock::{Endpoint, Gid};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// An address in text: LID, queue pair number, packet sequence number and GID, all in hexadecimal, and a zero byte.
const ADDRESS_BYTES: usize = "0000:000000:000000:00000000000000000000000000000000\0".len();

const DONE: [u8; 5] = *b"done\0";

/// A connection to the other side.
pub(crate) struct Meeting(TcpStream);

impl Meeting {
    pub(crate) fn with_client(listener: &TcpListener, patience: Duration) -> Result<Self, Fault> {
        let (stream, _) = listener.accept().doing("no client")?;
        Self::new(stream, patience)
    }

    pub(crate) fn with_server(host: &str, port: u16, patience: Duration) -> Result<Self, Fault> {
        Self::new(tcp::connect(host, port, patience)?, patience)
    }

    fn new(stream: TcpStream, patience: Duration) -> Result<Self, Fault> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// Sends the address of this side's queue pair.
    pub(crate) fn say_address(&mut self, local: &Endpoint) -> Result<(), Fault> {
        let gid = u128::from_be_bytes(local.gid().unwrap_or_default().0);
        let text = format!("{:04x}:{:06x}:{:06x}:{gid:032x}\0", local.lid(), local.queue_pair(), local.psn());
        self.0.write_all(text.as_bytes()).doing("cannot tell the peer this side's address")
    }

    /// Receives the address of the peer's queue pair. It does not include the MTU.
    pub(crate) fn hear_address(&mut self, mtu: Mtu) -> Result<Endpoint, Fault> {
        let bytes = self.hear::<ADDRESS_BYTES>("the peer's address")?;
        read_address(&bytes, mtu).ok_or_else(|| {
            Fault::new(format!("the peer sent no address of a queue pair, but \"{}\"", bytes.escape_ascii()))
        })
    }

    pub(crate) fn say_done(mut self) -> Result<(), Fault> {
        self.0.write_all(&DONE).doing("cannot tell the peer that this side is connected")
    }

    pub(crate) fn hear_done(mut self) -> Result<(), Fault> {
        let bytes = self.hear::<{ DONE.len() }>("the peer to say that it is connected")?;
        if bytes == DONE {
            return Ok(());
        }
        Err(Fault::new(format!("the peer did not say that it is connected, but \"{}\"", bytes.escape_ascii())))
    }

    fn hear<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        self.0
            .read_exact(&mut bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => io::Error::other("the peer closed the connection"),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::other("the peer says nothing"),
                _ => error,
            })
            .doing(format_args!("waited for {what}"))?;
        Ok(bytes)
    }
}

fn read_address(bytes: &[u8; ADDRESS_BYTES], mtu: Mtu) -> Option<Endpoint> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\0')?;
    let fields: Vec<&str> = text.split(':').collect();
    let &[lid, queue_pair, psn, gid] = fields.as_slice() else { return None };
    Some(Endpoint::new(
        Qpn::new(hexadecimal(queue_pair, 6)? as u32).ok()?,
        Psn::new(hexadecimal(psn, 6)? as u32).ok()?,
        Some(Gid(hexadecimal(gid, 32)?.to_be_bytes())),
        hexadecimal(lid, 4)? as u16,
        mtu,
    ))
}

fn hexadecimal(field: &str, digits: usize) -> Option<u128> {
    let fits = field.len() == digits && field.bytes().all(|byte| byte.is_ascii_hexdigit());
    fits.then(|| u128::from_str_radix(field, 16).ok())?
}
