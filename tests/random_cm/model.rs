//! The possible outcomes of an attempt to connect: pure rules, without a device.
//!
//! The model knows what the two programs did, but not which messages are in flight. So it allows several outcomes of a
//! poll while messages may be in flight. Once every message has arrived ([`Moment::is_settled`]), a poll that finds
//! nothing is wrong if the model says that an event must come.

use interlock::cm::{Cause, PeerData, RejectReason};
use interlock::soft::Verb;
use std::time::Duration;

/// A side that hears nothing gives up after this time: 16 times 4.856 s.
pub(crate) const SILENCE: Duration = Duration::from_secs(77);
/// How long the number of a queue pair must not be used after a connection.
pub(crate) const REST: Duration = Duration::from_millis(1050);

/// The state of the world at a poll or a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Duration,
    /// Every message has arrived. Always false on a device that is not stepped.
    pub(crate) is_settled: bool,
    pub(crate) is_removed: bool,
    pub(crate) is_iwarp: bool,
    pub(crate) is_stepped: bool,
    /// A fault makes the next call of this verb of rdma_cm fail.
    pub(crate) fails: Option<Verb>,
}

/// The state of the side that connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Client {
    /// Its program holds a `Connecting`.
    Asking,
    /// Its program holds a `Connection`.
    Connected,
    /// It gave up before it was connected, and told the server.
    Gone,
    /// It ended its connection.
    Left,
    /// An event made it fail, and it sent nothing afterwards.
    Dead,
    /// It ended, and perhaps told the server.
    Unsure,
    /// A fault makes its process vanish: it sends and receives no messages.
    Vanished,
    /// Its program forgot the value: nobody polls it, and nobody ends it.
    Forgotten,
}

/// The state of the side that listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Server {
    /// No program has seen the request.
    Unasked,
    /// Its program holds a `Request`.
    Asked,
    /// Its program rejected the request, with these data.
    Refused(Vec<u8>),
    /// Its program holds an `Accepting`.
    Accepted,
    Connected,
    Gone,
    Left,
    Dead,
    Unsure,
    Vanished,
    Forgotten,
}

/// What the server sent when it accepted.
#[derive(Clone, Debug)]
pub(crate) struct Yes {
    pub(crate) at: Duration,
    pub(crate) data: Vec<u8>,
    pub(crate) depths: [u8; 2],
}

/// One attempt to connect, seen from both sides.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) at: Duration,
    pub(crate) data: Vec<u8>,
    pub(crate) depths: [u8; 2],
    /// The number of the listener that was asked; `None` if nobody listened.
    pub(crate) listener: Option<usize>,
    /// The first sending of the request was lost.
    pub(crate) is_lost: bool,
    /// The listener's host never answers, so rdma_cm gives the attempt up.
    pub(crate) is_given_up: bool,
    /// The request has certainly reached its listener.
    pub(crate) is_delivered: bool,
    /// The request may have found no listener.
    pub(crate) may_find_nobody: bool,
    pub(crate) client: Client,
    pub(crate) server: Server,
    pub(crate) yes: Option<Yes>,
    /// The client has established the connection at some time.
    pub(crate) is_established: bool,
    /// The server's program has told rdma_cm that a message arrived.
    pub(crate) is_told: bool,
    /// Whether the end of the connection certainly reaches the client and the server.
    pub(crate) owed_end: [bool; 2],
    /// Whether the number of the client's pair, and of the server's, has come free.
    pub(crate) has_free_number: [bool; 2],
}

/// The result of a poll by a side that waits.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    Nothing,
    /// A connection, with the private data of the peer.
    Connected(&'a PeerData),
    Failed(&'a Cause),
}

/// Whether `got` are the sent bytes, padded with zeros to the limit of their call.
pub(crate) fn arrived(sent: &[u8], got: &PeerData, limit: usize, is_iwarp: bool) -> bool {
    let got = got.padded();
    let is_padded = got.get(sent.len()..).is_some_and(|rest| rest.iter().all(|byte| *byte == 0));
    got.starts_with(sent) && is_padded && (is_iwarp || got.len() == limit)
}

impl Moment {
    /// Whether the cause is the failure that a fault injected.
    fn is_failed_call(&self, cause: &Cause) -> bool {
        self.fails.is_some() && matches!(cause, Cause::Call(error) if error.errno() == libc::ENOMEM)
    }

    /// Whether a poll fails if no event has arrived yet.
    fn must_fail(&self) -> bool {
        self.fails == Some(Verb::RdmaGetCmEvent)
    }

    fn is_silence_since(&self, start: Duration) -> bool {
        self.now.saturating_sub(start) >= SILENCE
    }

    /// Whether soft iWARP may have given up a client that asked at `start` and has no answer yet: it does so after ten
    /// seconds.
    pub(crate) fn has_siw_given_up(&self, start: Duration) -> bool {
        self.is_iwarp && !self.is_stepped && self.now.saturating_sub(start) >= Duration::from_secs(10)
    }
}

impl Attempt {
    fn server_has_ended(&self) -> bool {
        matches!(self.server, Server::Gone | Server::Vanished | Server::Unsure | Server::Left)
    }

    /// Whether the client may be rejected with this reason and these data.
    fn may_be_rejected(&self, reason: RejectReason, data: &PeerData, at: &Moment) -> bool {
        let no_data = data.padded().iter().all(|byte| *byte == 0);
        let is_refused = match &self.server {
            Server::Refused(said) => arrived(said, data, 148, at.is_iwarp),
            _ => self.server_has_ended() && no_data,
        };
        let is_nobody = self.may_find_nobody && no_data;
        match reason {
            RejectReason::CONSUMER => is_refused,
            RejectReason::NO_SUCH_SERVICE => is_nobody,
            RejectReason::STALE_CONNECTION => !at.is_stepped,
            RejectReason(reason) => at.is_iwarp && reason < 0 && (is_refused || is_nobody),
        }
    }

    /// Whether an event is in flight or has arrived, and a poll of the client must find it in the end.
    pub(crate) fn owes_client(&self) -> bool {
        let is_refused = matches!(self.server, Server::Refused(_)) || self.may_find_nobody;
        self.yes.is_some() || self.is_given_up || is_refused && !self.is_lost
    }

    /// Whether a poll of the client may find this.
    pub(crate) fn client_may_find(&self, found: &Found<'_>, at: &Moment) -> bool {
        match found {
            Found::Nothing if at.must_fail() => false,
            Found::Nothing if self.client == Client::Vanished => true,
            Found::Nothing => !(at.is_settled && self.owes_client() || at.is_removed),
            Found::Connected(data) => {
                let is_over = matches!(self.server, Server::Gone | Server::Vanished) || at.is_removed;
                let is_agreed = self.yes.as_ref().is_some_and(|yes| arrived(&yes.data, data, 196, at.is_iwarp));
                is_agreed && self.client == Client::Asking && !(at.is_settled && is_over)
            }
            Found::Failed(cause) if at.must_fail() && at.is_failed_call(cause) => true,
            Found::Failed(cause) => match cause {
                Cause::Call(_) => at.is_failed_call(cause) && self.yes.is_some(),
                Cause::Rejected { reason, data } => self.may_be_rejected(*reason, data, at),
                // The rejection comes while the client establishes the connection or, on iWARP, while TCP connects.
                Cause::PeerGone(_) if !at.is_stepped => self.server_has_ended() || at.is_iwarp && self.may_find_nobody,
                Cause::Unreachable { status } => {
                    *status == -libc::ETIMEDOUT && (at.is_silence_since(self.at) || at.has_siw_given_up(self.at))
                }
                Cause::DeviceRemoved | Cause::Pair(_) => at.is_removed,
                Cause::Disconnected | Cause::Failed(_) => at.is_iwarp && self.server_has_ended(),
                _ => false,
            },
        }
    }

    /// Whether a client that fails must give its pair back unchanged.
    pub(crate) fn client_has_done_nothing(&self) -> bool {
        self.yes.is_none()
    }

    fn client_has_gone(&self) -> bool {
        matches!(self.client, Client::Gone | Client::Vanished)
    }

    /// Whether an accept or a reject may have this result.
    pub(crate) fn answer_may_end(&self, failed: Option<&Cause>, calls: &[Verb], at: &Moment) -> bool {
        let must_fail = at.fails.is_some_and(|verb| calls.contains(&verb));
        match failed {
            None => !(must_fail || at.is_removed || at.is_settled && self.client_has_gone()),
            Some(_) if at.is_removed => true,
            Some(Cause::PeerGone(error)) => {
                let is_known = error.errno() == libc::EINVAL || at.is_iwarp && error.errno() == libc::ECONNRESET;
                is_known && (self.client_has_gone() || self.client == Client::Unsure || at.has_siw_given_up(self.at))
            }
            Some(cause) => must_fail && at.is_failed_call(cause),
        }
    }

    /// Whether an event is in flight or has arrived, and a poll of the server must find it in the end.
    pub(crate) fn owes_server(&self) -> bool {
        self.is_established || self.is_told || self.client == Client::Gone
    }

    /// Whether the server may find this after its accept.
    pub(crate) fn server_may_find(&self, found: &Found<'_>, at: &Moment) -> bool {
        let Some(yes) = &self.yes else { return false };
        match found {
            Found::Nothing if at.must_fail() => false,
            Found::Nothing if self.server == Server::Vanished => true,
            Found::Nothing => !(at.is_settled && self.owes_server() || at.is_removed),
            Found::Connected(data) => {
                let is_connected = self.is_established || self.is_told || at.is_iwarp;
                let is_said = arrived(&self.data, data, 56, at.is_iwarp);
                is_connected && is_said && self.server != Server::Vanished
            }
            Found::Failed(cause) if at.must_fail() && at.is_failed_call(cause) => true,
            Found::Failed(cause) => match cause {
                Cause::Rejected { data, .. } => {
                    let has_ended = matches!(self.client, Client::Gone | Client::Unsure);
                    has_ended && data.padded().iter().all(|byte| *byte == 0)
                }
                Cause::Unreachable { status } => *status == -libc::ETIMEDOUT && at.is_silence_since(yes.at),
                Cause::DeviceRemoved => at.is_removed,
                // The client has established the connection and ended it. The message about the end may overtake the
                // message that establishes the connection.
                Cause::Disconnected if !at.is_stepped && !at.is_iwarp => {
                    matches!(self.client, Client::Left | Client::Gone | Client::Unsure)
                }
                Cause::Disconnected | Cause::Failed(_) => at.is_iwarp,
                Cause::Pair(_) => at.is_removed || at.is_iwarp,
                _ => false,
            },
        }
    }

    /// Whether a poll of a connection may find this end. `side` is 0 for the client, 1 for the server.
    pub(crate) fn connection_may_find(&self, side: usize, end: Option<&Cause>, at: &Moment) -> bool {
        let has_ended = match side {
            0 => self.server_has_ended(),
            _ => matches!(self.client, Client::Gone | Client::Left | Client::Unsure),
        };
        match end {
            None => !(at.is_settled && self.owed_end[side] || at.is_removed),
            Some(Cause::Disconnected) => has_ended,
            // The peer ended before it knew of the connection.
            Some(Cause::Rejected { .. }) => has_ended && !at.is_iwarp,
            Some(Cause::DeviceRemoved) => at.is_removed,
            Some(_) => false,
        }
    }

    /// How many reads the client serves and starts, and the same of the server.
    pub(crate) fn agreed_depths(&self) -> [[u8; 2]; 2] {
        let [serves, starts] = self.depths;
        let yes = self.yes.as_ref().map_or([0, 0], |yes| yes.depths);
        let server = [yes[0].min(starts), yes[1].min(serves)];
        [[serves.min(server[1]), starts.min(server[0])], server]
    }
}
