//! The server. It accepts clients and cleans up after them. It takes no part in gets and puts.

use crate::Serving;
use crate::common::fault::{Doing, Fault};
use crate::control::{Control, Farewell, Welcome};
use crate::exposure::Exposure;
use crate::remote::{Link, Place, Remote, Seat};
use crate::table::{Owner, Slot};
use interlock::attributes::PeerRights;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// When the server ends.
#[derive(Default, Debug)]
pub(crate) struct Closing {
    now: AtomicBool,
    sessions_ended: AtomicU64,
    after_sessions: Option<u64>,
}

impl Closing {
    /// The server ends after this many sessions.
    pub(crate) fn after(sessions: Option<u64>) -> Self {
        Self { after_sessions: sessions, ..Self::default() }
    }

    /// Ends the server at once, with all sessions.
    pub(crate) fn close(&self) {
        self.now.store(true, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.now.load(Ordering::Relaxed)
            || self.after_sessions.is_some_and(|count| self.sessions_ended.load(Ordering::Relaxed) >= count)
    }
}

/// Serves a table until `closing` or the end of the lease, and returns its content. `say` gets a line for each session.
pub(crate) fn serve(
    place: &Place<Serving>,
    listener: &TcpListener,
    (slots, lease): (usize, Duration),
    closing: &Closing,
    say: &(dyn Fn(String) + Sync),
) -> Result<Box<[Slot]>, Fault> {
    let table = Exposure::new(&place.domain, slots, lease)?;
    let janitor = Mutex::new(Janitor::new(place, &table)?);
    let house = House { place, table: &table, janitor: &janitor, closing, say };
    let served = house.let_clients_in(listener);
    janitor.into_inner().unwrap_or_else(PoisonError::into_inner).end()?;
    served.and(table.end())
}

struct House<'house> {
    place: &'house Place<Serving>,
    table: &'house Exposure,
    janitor: &'house Mutex<Janitor>,
    closing: &'house Closing,
    say: &'house (dyn Fn(String) + Sync),
}

impl House<'_> {
    fn let_clients_in(&self, listener: &TcpListener) -> Result<(), Fault> {
        listener.set_nonblocking(true)?;
        thread::scope(|scope| {
            // The janitor has the number `Owner::MAX`. No number is used twice, so that a new client never inherits a
            // lock.
            let mut owners = (1..Owner::MAX.get()).filter_map(Owner::new);
            while !self.closing.is_closed() {
                if self.table.has_expired() {
                    self.closing.close();
                    break;
                }
                match listener.accept() {
                    Ok((stream, _)) => {
                        let Some(owner) = owners.next() else {
                            self.closing.close();
                            return Err(Fault::new(
                                "as many clients came as there are numbers for: start the server anew",
                            ));
                        };
                        scope.spawn(move || self.look_after(stream, owner));
                    }
                    Err(error) => match error.kind() {
                        io::ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(10)),
                        // A client left before it was accepted, or a signal came. The server goes on.
                        io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                        _ => {
                            self.closing.close();
                            return Err(error).doing("cannot take clients any more");
                        }
                    },
                }
            }
            Ok(())
        })
    }

    /// Serves one client. If that fails, the other sessions go on.
    fn look_after(&self, stream: TcpStream, owner: Owner) {
        match self.session(stream, owner) {
            Ok(line) => (self.say)(format!("session {owner} {line}")),
            Err(fault) => (self.say)(format!("session {owner} failed: {fault}")),
        }
        self.closing.sessions_ended.fetch_add(1, Ordering::Relaxed);
    }

    fn session(&self, stream: TcpStream, owner: Owner) -> Result<String, Fault> {
        stream.set_nonblocking(false)?;
        let mut control = Control::new(stream, self.place.patience)?;
        let peer = control.hear_endpoint()?;
        let seat = Seat::new(self.place, PeerRights::ALL)?;
        let (endpoint, grant) = (seat.endpoint(), self.table.grant());
        let link = seat.connect(&peer)?;
        let farewell = control
            .say_welcome(&Welcome { endpoint, table: grant.remote(), owner })
            .and_then(|()| control.hear_bye(|| !self.closing.is_closed()));

        // A client that seems dead is perhaps only slow, and could still send requests. `end` destroys the queue pair
        // that takes them. So the locks of the client are freed only after `end`.
        link.end()?;
        let freed = self.janitor.lock().unwrap_or_else(PoisonError::into_inner).free(self.table, owner)?;
        let how = match farewell? {
            Farewell::Bye => {
                // Perhaps the client has left without waiting for this answer, so an error is ignored.
                _ = control.say_bye();
                "said bye"
            }
            Farewell::Died => "died",
            Farewell::Told => "was ended",
        };
        Ok(match freed {
            0 => how.to_owned(),
            _ => format!("{how}; locks of it that were broken: {freed}"),
        })
    }
}

/// Unlocks what dead clients have locked. It is a client itself, because only atomics of the device exclude each other.
struct Janitor {
    remote: Remote<Serving>,
    /// The other end of the janitor's connection.
    anchor: Link<Serving>,
}

impl Janitor {
    fn new(place: &Place<Serving>, table: &Exposure) -> Result<Self, Fault> {
        let (seat, anchor) = (Seat::new(place, PeerRights::NONE)?, Seat::new(place, PeerRights::ALL)?);
        let (to_seat, to_anchor) = (seat.endpoint(), anchor.endpoint());
        let (link, anchor) = (seat.connect(&to_anchor)?, anchor.connect(&to_seat)?);
        let remote = Remote::new(link, place, table.grant().remote(), Owner::MAX)?;
        Ok(Self { remote, anchor })
    }

    /// Unlocks all slots that `owner` has locked. Returns their number.
    fn free(&mut self, table: &Exposure, owner: Owner) -> Result<u64, Fault> {
        let mut freed = 0;
        for slot in 0..table.slots() {
            let word = table.word(slot)?;
            if word.owner() == Some(owner) && self.remote.free(slot, word)? {
                freed += 1;
            }
        }
        Ok(freed)
    }

    fn end(self) -> Result<(), Fault> {
        self.remote.end()?;
        self.anchor.end()
    }
}
