//! A client: a session with a server, and access to the server's table.

use crate::Asking;
use crate::common::fault::Fault;
use crate::common::tcp;
use crate::control::{Control, Farewell, Welcome};
use crate::remote::{Counts, Place, Remote, Seat};
use crate::table::Owner;
use interlock::attributes::PeerRights;

/// The address of a server.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// A client of a server's table. If it is dropped without [`bye`](Self::bye), the server takes it for dead.
pub(crate) struct Client {
    remote: Remote<Asking>,
    control: Control,
    owner: Owner,
}

impl Client {
    pub(crate) fn connect(place: &Place<Asking>, server: &Address) -> Result<Self, Fault> {
        let stream = tcp::connect(&server.host, server.port, place.patience)?;
        let mut control = Control::new(stream, place.patience)?;
        // The server gets no rights to this side's memory.
        let seat = Seat::new(place, PeerRights::NONE)?;
        control.say_endpoint(&seat.endpoint())?;
        let Welcome { endpoint, table, owner } = control.hear_welcome()?;
        let remote = Remote::new(seat.connect(&endpoint)?, place, table, owner)?;
        Ok(Self { remote, control, owner })
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Runs `f` on the table. If that fails because the server has gone, the fault says so.
    pub(crate) fn with<R>(&mut self, f: impl FnOnce(&mut Remote<Asking>) -> Result<R, Fault>) -> Result<R, Fault> {
        f(&mut self.remote).map_err(|fault| match self.control.is_closed() {
            true => Fault::new(format!("the server has ended the session: {fault}")),
            false => fault,
        })
    }

    /// Waits until the server goes.
    pub(crate) fn stay(&mut self) -> Result<(), Fault> {
        self.control.hear_bye(|| true).map(drop)
    }

    /// Ends the session. When this returns, the server has destroyed its queue pair.
    pub(crate) fn bye(self) -> Result<Counts, Fault> {
        let Self { remote, mut control, .. } = self;
        let counts = remote.counts();
        remote.end()?;
        control.say_bye()?;
        match control.hear_bye(|| true)? {
            Farewell::Bye => Ok(counts),
            Farewell::Died | Farewell::Told => Err(Fault::new("the server closed the connection without a bye")),
        }
    }
}
