//! The TCP connection of a session. The two sides introduce themselves, and notice when the other goes.
//!
//! The client sends its endpoint. The server connects and sends its own, the grant, and the number of the session. The
//! client says bye when it goes, and the server answers when its queue pair is gone. A side that closes without bye
//! died.

use crate::common::fault::{Doing, Fault};
use crate::table::Owner;
use interlock::{Endpoint, RemoteAll, RemoteRegion};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const MAGIC: [u8; 4] = *b"IKV1";
pub(crate) const BYE: [u8; 4] = *b"bye\n";

/// The answer of the server.
pub(crate) struct Welcome {
    pub(crate) endpoint: Endpoint,
    pub(crate) table: RemoteRegion<RemoteAll>,
    pub(crate) owner: Owner,
}

impl Welcome {
    pub(crate) const BYTES: usize =
        MAGIC.len() + Endpoint::RECORD_BYTES + RemoteRegion::<RemoteAll>::RECORD_BYTES + size_of::<Owner>();

    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, Fault> {
        let mut rest = &bytes[..];
        if part(&mut rest)? != MAGIC {
            return Err(no_kv_store());
        }
        let endpoint = Endpoint::from_bytes(&part::<{ Endpoint::RECORD_BYTES }>(&mut rest)?)?;
        let table = RemoteRegion::from_bytes(&part::<{ RemoteRegion::<RemoteAll>::RECORD_BYTES }>(&mut rest)?)?;
        let owner = Owner::new(u16::from_be_bytes(part(&mut rest)?)).ok_or_else(|| Fault::new("session 0"))?;
        Ok(Self { endpoint, table, owner })
    }
}

/// Takes the first bytes off.
fn part<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Fault> {
    let (part, after) = rest.split_first_chunk().ok_or_else(no_kv_store)?;
    *rest = after;
    Ok(*part)
}

fn no_kv_store() -> Fault {
    Fault::new("the other side is no kv_store")
}

/// What each side says first.
pub(crate) fn introduction(endpoint: &Endpoint) -> Vec<u8> {
    [&MAGIC[..], &endpoint.to_bytes()].concat()
}

/// How a session ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Farewell {
    Bye,
    /// The connection was closed without a bye.
    Died,
    /// This side was told to end the session.
    Told,
}

pub(crate) struct Control(TcpStream);

impl Control {
    pub(crate) fn new(stream: TcpStream, patience: Duration) -> Result<Self, Fault> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    pub(crate) fn say_endpoint(&mut self, endpoint: &Endpoint) -> Result<(), Fault> {
        self.say(&introduction(endpoint))
    }

    pub(crate) fn hear_endpoint(&mut self) -> Result<Endpoint, Fault> {
        if self.hear::<{ MAGIC.len() }>()? != MAGIC {
            return Err(no_kv_store());
        }
        Ok(Endpoint::from_bytes(&self.hear::<{ Endpoint::RECORD_BYTES }>()?)?)
    }

    pub(crate) fn say_welcome(&mut self, welcome: &Welcome) -> Result<(), Fault> {
        let Welcome { endpoint, table, owner } = welcome;
        self.say_endpoint(endpoint)?;
        self.say(&[&table.to_bytes()[..], &owner.get().to_be_bytes()].concat())
    }

    pub(crate) fn hear_welcome(&mut self) -> Result<Welcome, Fault> {
        Welcome::from_bytes(&self.hear()?)
    }

    pub(crate) fn say_bye(&mut self) -> Result<(), Fault> {
        self.say(&BYE)
    }

    /// Waits until the other side goes or `stay` returns false.
    pub(crate) fn hear_bye(&mut self, stay: impl Fn() -> bool) -> Result<Farewell, Fault> {
        self.0.set_read_timeout(Some(Duration::from_millis(100)))?;
        loop {
            match self.0.peek(&mut [0]) {
                Ok(0) => return Ok(Farewell::Died),
                Ok(_) if self.hear()? == BYE => return Ok(Farewell::Bye),
                Ok(_) => return Err(Fault::new("the other side speaks out of turn")),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if stay() => {}
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Ok(Farewell::Told),
                    io::ErrorKind::Interrupted => {}
                    _ => return Ok(Farewell::Died),
                },
            }
        }
    }

    /// Whether the other side has closed the connection.
    pub(crate) fn is_closed(&self) -> bool {
        let peek = || {
            self.0.set_nonblocking(true)?;
            self.0.peek(&mut [0])
        };
        let closed = match peek() {
            Ok(count) => count == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        _ = self.0.set_nonblocking(false);
        closed
    }

    fn say(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.0.write_all(bytes).doing("cannot talk to the other side")
    }

    fn hear<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        self.0
            .read_exact(&mut bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => io::Error::other("the other side closed the connection"),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::other("the other side says nothing"),
                _ => error,
            })
            .doing("no session")?;
        Ok(bytes)
    }
}
