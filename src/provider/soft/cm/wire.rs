//! Messages between identifiers, their retransmissions, and the events that they cause.
#![forbid(unsafe_code)]

use super::address::{GID_ROW, Route, of_device};
use super::calls::{ACCEPT_BYTES, CONNECT_BYTES, FOUND_BYTES, LOOKUP_BYTES, REJECT_BYTES, source};
use super::{Cm, Event, HeldPair, Link, Phase, attributes};
use crate::provider::cm::{EventParameters, PortSpace, RawEventKind};
use crate::provider::soft::device::Device;
use crate::provider::soft::fabric::{State, TimerOf};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// How many times a message is sent if nobody answers.
const SENDINGS: u8 = 16;
/// How long to wait for the answer each time the message was sent: 77.7 s in total.
const RESPONSE_TIME: Duration = Duration::from_millis(4856);
/// How long to wait for the answer after the peer's host has confirmed the request: 16 times 4.096 us * 2^24.
const HELD_TIME: Duration = Duration::from_millis(16 * 68_719);
/// The time after a connection in which the number of its queue pair must not be used for another one (timewait).
const REST_TIME: Duration = Duration::from_millis(1050);

/// The reason of a reject: the peer's program refused, or ended.
pub(super) const REFUSED: i32 = 28;
const NOBODY_LISTENS: i32 = 8;
/// The reason that soft iWARP gives in both of these cases.
const IWARP_REFUSED: i32 = -libc::ECONNREFUSED;
/// The same two reasons for datagrams.
pub(super) const SIDR_REFUSED: i32 = 2;
const SIDR_NOBODY_LISTENS: i32 = 1;
const TIMED_OUT: i32 = -libc::ETIMEDOUT;

/// The queue pair number that stands for all members of a multicast group.
const EVERY_PAIR: u32 = 0xff_ffff;

/// A unit of work.
pub(super) enum Work {
    AddressResolved {
        id: u64,
        device: usize,
    },
    RouteResolved(u64),
    Joined(u64, IpAddr),
    Carry(Message),
    /// On iWARP: the connection was not made, so the device moves its pair to Error.
    Break(HeldPair),
}

/// A message in flight. Its sender may have ended.
pub(super) struct Message {
    pub(super) from: u64,
    /// The device that sends the message.
    pub(super) device: usize,
    /// `None` if the side that connects sends it before the peer has answered.
    pub(super) to: Option<u64>,
    pub(super) what: What,
}

#[derive(Clone)]
pub(super) enum What {
    Request {
        offer: Offer,
        from: SocketAddr,
        to: SocketAddr,
        space: PortSpace,
    },
    Reply(Offer),
    /// The side that connects has brought its queue pair up.
    Ready,
    Reject {
        reason: i32,
        data: Vec<u8>,
    },
    Disconnect,
    DisconnectReply,
    /// The answer to a lookup.
    Found {
        status: i32,
        offer: Offer,
    },
}

/// The parameters of one side, in a request or a reply.
#[derive(Clone, Default)]
pub(super) struct Offer {
    /// How many reads this side serves at once.
    pub(super) serves: u8,
    /// How many reads this side starts at once.
    pub(super) starts: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) queue_pair: u32,
    pub(super) qkey: u32,
    /// The first packet number of this side.
    pub(super) psn: u32,
    pub(super) data: Vec<u8>,
}

/// A message that is retransmitted until the peer answers.
pub(super) struct Sent {
    pub(super) what: What,
    /// How many times it was sent.
    pub(super) times: u8,
}

fn padded(mut data: Vec<u8>, len: usize) -> Vec<u8> {
    data.resize(len.max(data.len()), 0);
    data
}

impl State {
    /// Does one unit of rdma_cm's work, if there is any.
    pub(in crate::provider::soft) fn cm_work(&mut self) -> bool {
        let Some(work) = self.cm.work.pop_front() else { return false };
        match work {
            Work::AddressResolved { id, device } => self.cm_address_resolved(id, device),
            Work::RouteResolved(number) => {
                if self.cm.advance(number, Phase::ResolvingRoute, Phase::RouteResolved) {
                    self.cm.tell(number, RawEventKind::ROUTE_RESOLVED, 0);
                }
            }
            Work::Joined(number, group) => {
                let gid = match group {
                    IpAddr::V4(group) => group.to_ipv6_mapped().octets(),
                    IpAddr::V6(group) => group.octets(),
                };
                let path = Some(attributes::path(gid, 0));
                let parameters = EventParameters {
                    queue_pair: EVERY_PAIR,
                    qkey: attributes::DEFAULT_QKEY,
                    path,
                    ..EventParameters::default()
                };
                let (id, kind) = (number, RawEventKind::MULTICAST_JOIN);
                self.cm.push(Event { id, kind, status: 0, parameters, request: None });
            }
            Work::Carry(message) => self.cm_carry(message),
            Work::Break(pair) => self.cm_break(pair),
        }
        true
    }

    fn cm_address_resolved(&mut self, number: u64, to: usize) {
        let Some(bound) = self.cm.ids.get(&number).filter(|id| id.phase == Phase::ResolvingAddress) else { return };
        let by = bound.device.unwrap_or(to);
        let device = self.devices.get(by).filter(|device| !device.removed);
        let Some(ip) = device.map(of_device) else {
            self.cm.advance(number, Phase::ResolvingAddress, Phase::Bound);
            self.cm.tell(number, RawEventKind::ADDR_ERROR, -libc::ENODEV);
            return;
        };
        let Ok(id) = self.cm.id_mut(number) else { return };
        id.phase = Phase::AddressResolved;
        id.device = Some(by);
        if let (Some(local), Some(peer)) = (&mut id.local, id.peer_address) {
            local.set_ip(source(local.ip(), peer.ip(), ip));
        }
        self.cm.tell(number, RawEventKind::ADDR_RESOLVED, 0);
    }

    fn reaches(&self, device: usize) -> bool {
        self.devices.get(device).is_some_and(Device::is_reachable)
    }

    fn cm_carry(&mut self, message: Message) {
        let Message { from, device, to, what } = message;
        if !self.reaches(device) {
            return;
        }
        if let What::Request { offer, from: peer_address, to, space } = what {
            self.cm_ask(Asked { client: from, by: device, peer_address, to, space, offer });
            return;
        }
        let to = to.or_else(|| self.cm.ids.iter().find(|(_, id)| id.peer == Some(from)).map(|(&number, _)| number));
        let Some(to) = to else { return };
        let Ok(id) = self.cm.id(to) else {
            // The program has destroyed the identifier `to`. The program's host still answers a disconnect for it, and
            // drops other messages.
            if matches!(what, What::Disconnect) {
                let what = What::DisconnectReply;
                self.cm.work.push_back(Work::Carry(Message { from: to, device, to: Some(from), what }));
            }
            return;
        };
        if id.is_vanished || !id.device.is_some_and(|device| self.reaches(device)) {
            return;
        }
        match what {
            What::Reply(offer) => self.cm_reply(to, from, device, offer),
            What::Found { status, offer } => self.cm_found(to, device, status, offer),
            What::Ready => {
                if self.cm.advance(to, Phase::Accepted, Phase::Connected) {
                    self.cm.tell(to, RawEventKind::ESTABLISHED, 0);
                }
            }
            What::Reject { reason, data } => self.cm_rejected(to, reason, data),
            What::Disconnect => self.cm_disconnected(to),
            What::DisconnectReply => {
                let is_first = self.cm.advance(to, Phase::Disconnecting, Phase::Resting);
                if is_first {
                    self.cm.tell(to, RawEventKind::DISCONNECTED, 0);
                }
                // If both sides began to disconnect at the same time, this side can be in `Disconnected` when the
                // answer arrives.
                if is_first || self.cm.advance(to, Phase::Disconnected, Phase::Resting) {
                    self.cm_let_rest(to);
                }
            }
            What::Request { .. } => {}
        }
    }

    /// Delivers a request to the device and the listener that have the address `to`.
    fn cm_ask(&mut self, asked: Asked) {
        let Asked { client, by, peer_address, to, space, offer } = asked;
        let Route::Device(device) = self.route(to.ip().to_canonical()) else { return };
        if !self.reaches(device) || self.faults.loses_cm_request() {
            return;
        }
        // If a request of this client has arrived before, this request is a retransmission: drop it.
        if self.cm.ids.values().any(|id| id.peer == Some(client)) {
            return;
        }
        let is_iwarp = self.is_iwarp();
        let Some(listener) = self.cm.listener(space, to) else {
            let what = match space {
                PortSpace::Tcp if is_iwarp => What::Reject { reason: IWARP_REFUSED, data: Vec::new() },
                PortSpace::Tcp => What::Reject { reason: NOBODY_LISTENS, data: Vec::new() },
                PortSpace::Udp => What::Found { status: SIDR_NOBODY_LISTENS, offer: Offer::default() },
            };
            self.cm.work.push_back(Work::Carry(Message { from: 0, device, to: Some(client), what }));
            return;
        };
        let psn = self.cm.first_psn();
        let gid = self.gid_of(by);
        let Ok(found) = self.cm.id_mut(listener) else { return };
        // Without room in the backlog, drop the request. The client sends it again.
        let Some(room) = found.room.checked_sub(1) else { return };
        found.room = room;
        let (channel, key) = (found.channel, found.key);
        let request = self.cm.add(channel, key, space);
        let Ok(id) = self.cm.id_mut(request) else { return };
        id.phase = Phase::Requested;
        id.local = Some(to);
        id.peer_address = Some(peer_address);
        id.device = Some(device);
        id.listener = Some(listener);
        id.peer = Some(client);
        id.own.psn = psn;
        // This side serves the reads that the peer starts, and starts the reads that the peer serves.
        let (serves, starts) = (offer.starts, offer.serves);
        let Offer { retry_count, rnr_retry_count, queue_pair, psn, data, .. } = offer;
        id.link = Some(Link { gid, queue_pair, psn, serves, starts, retry_count, rnr_retry_count });
        let parameters = match space {
            PortSpace::Udp => {
                EventParameters { private_data: padded(data, LOOKUP_BYTES), ..EventParameters::default() }
            }
            PortSpace::Tcp => EventParameters {
                private_data: padded(data, if is_iwarp { 0 } else { CONNECT_BYTES }),
                responder_resources: serves,
                initiator_depth: starts,
                rnr_retry_count,
                queue_pair,
                ..EventParameters::default()
            },
        };
        let (id, kind) = (listener, RawEventKind::CONNECT_REQUEST);
        self.cm.push(Event { id, kind, status: 0, parameters, request: Some(request) });
        if self.faults.takes_client() {
            self.cm_vanish(client);
            if let Ok(id) = self.cm.id_mut(request) {
                id.peer_is_gone = true;
            }
        } else if let Ok(id) = self.cm.id_mut(client)
            && let Some(sent) = &mut id.sent
        {
            // The server's host confirms the request. So the client does not send the request again, and waits longer.
            sent.times = SENDINGS;
            self.start_timer(TimerOf::Cm(client), HELD_TIME);
        }
    }

    pub(super) fn gid_of(&self, device: usize) -> [u8; 16] {
        self.devices.get(device).and_then(|device| device.gid(GID_ROW)).unwrap_or_default()
    }

    /// Handles the peer's accept.
    fn cm_reply(&mut self, number: u64, from: u64, device: usize, offer: Offer) {
        let is_iwarp = self.is_iwarp();
        let gid = self.gid_of(device);
        let Ok(id) = self.cm.id_mut(number) else { return };
        if id.phase == Phase::Connected && !is_iwarp {
            // The reply is a retransmission: the peer has not received this side's `Ready`, so send `Ready` again.
            self.cm.post(number, What::Ready);
            return;
        }
        if id.phase != Phase::Connecting {
            return;
        }
        let (serves, starts) = (offer.starts, offer.serves);
        let Offer { rnr_retry_count, queue_pair, psn, data, .. } = offer;
        let retry_count = id.own.retry_count;
        id.peer = Some(from);
        id.link = Some(Link { gid, queue_pair, psn, serves, starts, retry_count, rnr_retry_count });
        id.rest(Phase::Responded);
        let mut parameters = EventParameters {
            private_data: padded(data, if is_iwarp { 0 } else { ACCEPT_BYTES }),
            responder_resources: serves,
            initiator_depth: starts,
            rnr_retry_count,
            queue_pair,
            ..EventParameters::default()
        };
        if self.latitudes.row.quirks.swaps_reply_depths {
            (parameters.responder_resources, parameters.initiator_depth) = (starts, serves);
        }
        let mut kind = RawEventKind::CONNECT_RESPONSE;
        if is_iwarp {
            if let Err(errno) = self.cm_raise_pair(number) {
                self.cm.post(number, What::Disconnect);
                self.cm.advance(number, Phase::Responded, Phase::Dead);
                self.cm.tell(number, RawEventKind::CONNECT_ERROR, -errno);
                self.cm.break_later(number);
                return;
            }
            self.cm.advance(number, Phase::Responded, Phase::Connected);
            kind = RawEventKind::ESTABLISHED;
        }
        self.cm.push(Event { id: number, kind, status: 0, parameters, request: None });
    }

    /// Handles the answer to a lookup.
    fn cm_found(&mut self, number: u64, device: usize, status: i32, offer: Offer) {
        let gid = self.gid_of(device);
        if !self.cm.advance(number, Phase::Connecting, if status == 0 { Phase::Connected } else { Phase::Dead }) {
            return;
        }
        let private_data = padded(offer.data, FOUND_BYTES);
        let (kind, parameters) = match status {
            0 => {
                let qkey = if offer.qkey == 0 { attributes::DEFAULT_QKEY } else { offer.qkey };
                let path = Some(attributes::path(gid, 0));
                let parameters = EventParameters {
                    private_data,
                    queue_pair: offer.queue_pair,
                    qkey,
                    path,
                    ..EventParameters::default()
                };
                (RawEventKind::ESTABLISHED, parameters)
            }
            _ => (RawEventKind::UNREACHABLE, EventParameters { private_data, ..EventParameters::default() }),
        };
        self.cm.push(Event { id: number, kind, status, parameters, request: None });
    }

    /// Handles a reject: the peer has refused, has ended before the connection was established, or has given up.
    fn cm_rejected(&mut self, number: u64, reason: i32, data: Vec<u8>) {
        let is_iwarp = self.is_iwarp();
        let private_data = padded(data, if is_iwarp { 0 } else { REJECT_BYTES });
        let parameters = EventParameters { private_data, ..EventParameters::default() };
        let status = if is_iwarp { IWARP_REFUSED } else { reason };
        let rejected = Event { id: number, kind: RawEventKind::REJECTED, status, parameters, request: None };
        let Ok(id) = self.cm.id_mut(number) else { return };
        match id.phase {
            Phase::Requested => id.peer_is_gone = true,
            Phase::Connecting | Phase::Responded | Phase::Accepted => {
                id.rest(Phase::Dead);
                self.cm.push(rejected);
                self.cm.break_later(number);
            }
            // On iWARP, the server is connected as soon as it accepts, and the client as soon as the accept arrives.
            // A reject in `Connected` means that the peer has ended.
            Phase::Connected if is_iwarp => self.cm_disconnected(number),
            // On other devices, a reject in `Connected` means that the peer has ended before it was connected itself.
            Phase::Connected => {
                self.cm.push(rejected);
                self.cm_let_rest(number);
            }
            _ => {}
        }
    }

    /// Handles the peer's disconnect.
    fn cm_disconnected(&mut self, number: u64) {
        let is_iwarp = self.is_iwarp();
        let Ok(id) = self.cm.id_mut(number) else { return };
        match id.phase {
            Phase::Connected | Phase::Accepted | Phase::Disconnecting => {
                id.rest(if is_iwarp { Phase::Dead } else { Phase::Disconnected });
                if is_iwarp {
                    self.cm_break_pair(number);
                }
                self.cm.tell(number, RawEventKind::DISCONNECTED, 0);
            }
            Phase::Resting => self.cm.post(number, What::DisconnectReply),
            _ => {}
        }
    }

    /// Sends or retransmits the message of an identifier.
    pub(super) fn cm_send(&mut self, number: u64) {
        let Ok(id) = self.cm.id_mut(number) else { return };
        let Some(sent) = &mut id.sent else { return };
        sent.times += 1;
        let what = sent.what.clone();
        self.cm.post(number, what);
        self.start_timer(TimerOf::Cm(number), RESPONSE_TIME);
    }

    /// Starts timewait, in which the number of the queue pair must not be used for another connection.
    pub(super) fn cm_let_rest(&mut self, number: u64) {
        let Ok(id) = self.cm.id_mut(number) else { return };
        id.rest(Phase::Resting);
        self.start_timer(TimerOf::Cm(number), REST_TIME);
    }

    /// Handles the expiry of an identifier's timer.
    pub(in crate::provider::soft) fn cm_expire(&mut self, number: u64) {
        let Ok(id) = self.cm.id_mut(number) else { return };
        id.timer = 0;
        let goes_on = id.sent.as_ref().is_some_and(|sent| sent.times < SENDINGS);
        match id.phase {
            Phase::ResolvingAddress => {
                id.phase = Phase::Bound;
                self.cm.tell(number, RawEventKind::ADDR_ERROR, TIMED_OUT);
            }
            Phase::Connecting | Phase::Accepted | Phase::Disconnecting if goes_on => self.cm_send(number),
            Phase::Connecting | Phase::Accepted => {
                id.rest(Phase::Dead);
                self.cm.tell(number, RawEventKind::UNREACHABLE, TIMED_OUT);
                self.cm.break_later(number);
            }
            Phase::Disconnecting => {
                self.cm.tell(number, RawEventKind::DISCONNECTED, TIMED_OUT);
                self.cm_let_rest(number);
            }
            Phase::Resting => {
                id.rest(Phase::Dead);
                self.cm.tell(number, RawEventKind::TIMEWAIT_EXIT, 0);
            }
            _ => {}
        }
    }
}

/// A request in flight to a listener.
struct Asked {
    client: u64,
    /// The device of the client.
    by: usize,
    peer_address: SocketAddr,
    to: SocketAddr,
    space: PortSpace,
    offer: Offer,
}

impl Cm {
    /// If an identifier holds a pair, lets the device move the pair to Error in a later step. The program may learn
    /// before that step why the connection was not made.
    pub(super) fn break_later(&mut self, number: u64) {
        if let Some(pair) = self.ids.get_mut(&number).and_then(|id| id.pair.take()) {
            self.work.push_back(Work::Break(pair));
        }
    }

    /// Moves an identifier from the phase `from` to the phase `to`. Returns false if the identifier is not in `from`.
    fn advance(&mut self, number: u64, from: Phase, to: Phase) -> bool {
        let found = self.ids.get_mut(&number).filter(|id| id.phase == from);
        found.map(|id| id.rest(to)).is_some()
    }
}
