//! The calls of a program. Binding is in [`address`](super::address), attributes in [`attributes`](super::attributes).
#![forbid(unsafe_code)]

use super::address::{Route, of_device};
use super::wire::{Message, Offer, REFUSED, SIDR_REFUSED, Sent, What, Work};
use super::{Cm, Phase};
use crate::provider::cm::{IdOption, Parameters, PortSpace, RawEventKind};
use crate::provider::soft::fabric::{State, TimerOf};
use crate::provider::soft::{device, pair::PSN_MASK};
use libc::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The most requests that may wait to be taken from a listener.
const MAX_BACKLOG: u32 = 1024;
/// A requested depth with this value means the largest possible one.
const MOST: u8 = 255;

/// The most private data of each call. The peer receives the data padded to this length.
pub(super) const CONNECT_BYTES: usize = 56;
pub(super) const ACCEPT_BYTES: usize = 196;
pub(super) const REJECT_BYTES: usize = 148;
/// The same limits for datagrams. Accept and reject share one message.
pub(super) const LOOKUP_BYTES: usize = 180;
pub(super) const FOUND_BYTES: usize = 136;

/// Checks one of the two read depths. A program that asks for [`MOST`] gets `most`, as far as the device supports it.
fn depth(asked: u8, most: u8) -> Result<u8, c_int> {
    match asked {
        MOST => Ok(most.min(device::MAX_RD_ATOMIC)),
        _ if asked > device::MAX_RD_ATOMIC => Err(libc::EINVAL),
        _ => Ok(asked),
    }
}

fn offer(parameters: &Parameters<'_>, most: [u8; 2], psn: u32) -> Result<Offer, c_int> {
    Ok(Offer {
        serves: depth(parameters.responder_resources, most[0])?,
        starts: depth(parameters.initiator_depth, most[1])?,
        retry_count: parameters.retry_count.min(7),
        rnr_retry_count: parameters.rnr_retry_count.min(7),
        queue_pair: parameters.queue_pair,
        qkey: parameters.qkey,
        psn,
        data: parameters.private_data.to_vec(),
    })
}

impl Cm {
    pub(super) fn first_psn(&mut self) -> u32 {
        u32::try_from(self.random.below(u64::from(PSN_MASK) + 1)).unwrap_or_default()
    }

    pub(super) fn resolve_route(&mut self, number: u64) -> Result<(), c_int> {
        let id = self.id_mut(number)?;
        id.is_in(&[Phase::AddressResolved])?;
        id.phase = Phase::ResolvingRoute;
        self.work.push_back(Work::RouteResolved(number));
        Ok(())
    }

    pub(super) fn establish(&mut self, number: u64) -> Result<(), c_int> {
        let id = self.id_mut(number)?;
        id.is_in(&[Phase::Responded])?;
        id.rest(Phase::Connected);
        self.post(number, What::Ready);
        Ok(())
    }

    pub(super) fn notify_established(&mut self, number: u64) -> Result<(), c_int> {
        let id = self.id_mut(number)?;
        if id.phase == Phase::Connected {
            return Err(libc::EISCONN);
        }
        id.is_in(&[Phase::Accepted])?;
        id.rest(Phase::Connected);
        self.tell(number, RawEventKind::ESTABLISHED, 0);
        Ok(())
    }

    pub(super) fn set_option(&mut self, number: u64, option: IdOption) -> Result<(), c_int> {
        let id = self.id_mut(number)?;
        match option {
            IdOption::TypeOfService(value) => id.type_of_service = value,
            IdOption::AckTimeout(value) => id.ack_timeout = Some(value),
            IdOption::ReuseAddress(is_on) if id.phase == Phase::Idle || is_on && id.phase != Phase::Listening => {
                id.reuses_address = is_on;
            }
            IdOption::ReuseAddress(_) => return Err(libc::EINVAL),
        }
        Ok(())
    }

    pub(super) fn join(&mut self, number: u64, group: SocketAddr) -> Result<(), c_int> {
        let id = self.id_mut(number)?;
        if id.device.is_none() || id.phase == Phase::Dead || !group.ip().is_multicast() {
            return Err(libc::EINVAL);
        }
        id.groups.insert(group.ip());
        self.work.push_back(Work::Joined(number, group.ip()));
        Ok(())
    }

    pub(super) fn leave(&mut self, number: u64, group: SocketAddr) -> Result<(), c_int> {
        if !self.id_mut(number)?.groups.remove(&group.ip()) {
            return Err(libc::EADDRNOTAVAIL);
        }
        // If the join of this group has not made its event yet, drop the join. Also drop all multicast events of this
        // identifier that still wait for the program.
        self.work.retain(|work| !matches!(work, Work::Joined(id, ip) if (*id, *ip) == (number, group.ip())));
        self.forget_where(|event| {
            let kinds = [RawEventKind::MULTICAST_JOIN, RawEventKind::MULTICAST_ERROR];
            event.id == number && kinds.contains(&event.kind)
        });
        Ok(())
    }

    /// Queues a message from an identifier to its peer.
    pub(super) fn post(&mut self, number: u64, what: What) {
        let Some(id) = self.ids.get(&number).filter(|id| !id.is_vanished) else { return };
        let Some(device) = id.device else { return };
        self.work.push_back(Work::Carry(Message { from: number, device, to: id.peer, what }));
    }

    /// Ends an identifier, and sends its peer the last message that the phase demands. Drops the events of the
    /// identifier, and rejects the requests among them.
    pub(super) fn destroy(&mut self, number: u64) {
        let Some(id) = self.ids.get(&number) else { return };
        let last_word = match (id.phase, id.space) {
            (Phase::Requested, PortSpace::Udp) => Some(What::Found { status: SIDR_REFUSED, offer: Offer::default() }),
            (_, PortSpace::Udp) => None,
            (Phase::Connecting, _) => Some(What::Reject { reason: GAVE_UP, data: Vec::new() }),
            (Phase::Responded | Phase::Requested | Phase::Accepted, _) => {
                Some(What::Reject { reason: REFUSED, data: Vec::new() })
            }
            (Phase::Connected, _) => Some(What::Disconnect),
            (Phase::Disconnected, _) => Some(What::DisconnectReply),
            _ => None,
        };
        if let Some(what) = last_word {
            self.post(number, what);
        }
        for request in self.forget(number) {
            self.destroy(request);
        }
        self.ids.remove(&number);
    }
}

/// The reason of a reject by a side that gave up.
const GAVE_UP: i32 = 4;

impl State {
    pub(super) fn cm_resolve_addr(
        &mut self,
        number: u64,
        source: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<(), c_int> {
        let id = self.cm.id(number)?;
        id.is_in(&[Phase::Idle, Phase::Bound])?;
        if id.phase == Phase::Idle {
            self.cm_bind(number, source.unwrap_or(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0)))?;
        }
        let route = self.route(to.ip().to_canonical());
        let ip = match route {
            Route::None => return Err(libc::ENETUNREACH),
            Route::Device(device) if to.ip().is_unspecified() => self.devices.get(device).map_or(to.ip(), of_device),
            Route::Device(_) | Route::Nobody => to.ip(),
        };
        let id = self.cm.id_mut(number)?;
        id.peer_address = Some(SocketAddr::new(ip, to.port()));
        id.phase = Phase::ResolvingAddress;
        match route {
            Route::Device(device) => self.cm.work.push_back(Work::AddressResolved { id: number, device }),
            _ => self.start_timer(TimerOf::Cm(number), timeout),
        }
        Ok(())
    }

    pub(super) fn cm_listen(&mut self, number: u64, backlog: u32) -> Result<(), c_int> {
        if self.cm.id(number)?.phase == Phase::Idle {
            self.cm_bind(number, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        let id = self.cm.id(number)?;
        id.is_in(&[Phase::Bound])?;
        let local = id.local.ok_or(libc::EINVAL)?;
        // An identifier cannot start to listen while another one holds the same address and port, even if both reuse
        // addresses.
        self.cm.check_port(number, id.space, local.ip().to_canonical(), local.port(), false)?;
        let room = if backlog == 0 { MAX_BACKLOG } else { backlog.min(MAX_BACKLOG) };
        let id = self.cm.id_mut(number)?;
        id.room = usize::try_from(room).unwrap_or(usize::MAX);
        id.phase = Phase::Listening;
        Ok(())
    }

    pub(super) fn cm_connect(&mut self, number: u64, parameters: &Parameters<'_>) -> Result<(), c_int> {
        let id = self.cm.id(number)?;
        id.is_in(&[Phase::RouteResolved])?;
        let room = if id.space == PortSpace::Udp { LOOKUP_BYTES } else { CONNECT_BYTES };
        let offer = offer(parameters, [MOST; 2], self.cm.first_psn())?;
        if offer.data.len() > room {
            return Err(libc::EINVAL);
        }
        let id = self.cm.id(number)?;
        let (Some(from), Some(to)) = (id.local, id.peer_address) else { return Err(libc::EINVAL) };
        if self.is_iwarp() && id.space == PortSpace::Tcp {
            // On iWARP, this call connects a TCP stream. If a device has the address `to` and nobody listens there, the
            // device refuses the stream, so the call fails at once.
            let is_host = matches!(self.route(to.ip().to_canonical()), Route::Device(_));
            if is_host && self.cm.listener(PortSpace::Tcp, to).is_none() {
                self.cm_fail_connect(number, parameters);
                return Err(libc::ECONNREFUSED);
            }
            self.cm.id_mut(number)?.own = offer.clone();
            self.cm_hold_pair(number)?;
        }
        let id = self.cm.id_mut(number)?;
        id.own = offer.clone();
        id.phase = Phase::Connecting;
        id.sent = Some(Sent { what: What::Request { offer, from, to, space: id.space }, times: 0 });
        self.cm_send(number);
        Ok(())
    }

    /// On iWARP: handles a connect that failed because there is no TCP stream. Some devices move the pair to Error all
    /// the same. The time is random: in the next step, which an automatic fabric makes before the call returns, or when
    /// the identifier ends.
    pub(super) fn cm_fail_connect(&mut self, number: u64, parameters: &Parameters<'_>) {
        if !self.latitudes.habits.breaks_unconnected {
            return;
        }
        let Ok(id) = self.cm.id_mut(number) else { return };
        id.own.queue_pair = parameters.queue_pair;
        if self.cm_hold_pair(number).is_ok() && self.latitudes.once_in(2) {
            self.cm.break_later(number);
        }
    }

    pub(super) fn cm_accept(&mut self, number: u64, parameters: &Parameters<'_>) -> Result<(), c_int> {
        let id = self.cm.id(number)?;
        id.is_in(&[Phase::Requested])?;
        let is_datagram = id.space == PortSpace::Udp;
        let link = id.link.ok_or(libc::EINVAL)?;
        let offer = offer(parameters, [link.serves, link.starts], id.own.psn)?;
        let peer_is_gone = id.peer_is_gone;
        // From here on, an accept that fails also ends the request: the program cannot accept the request again.
        if offer.data.len() > if is_datagram { FOUND_BYTES } else { ACCEPT_BYTES } {
            self.cm_refuse(number, Vec::new());
            return Err(libc::EINVAL);
        }
        let id = self.cm.id_mut(number)?;
        id.own = offer.clone();
        if peer_is_gone {
            id.rest(Phase::Dead);
            if self.is_iwarp() && !is_datagram {
                // The device moves the pair to Ready To Send before it answers the peer. The answer then fails, because
                // the peer has ended. The pair stays in Ready To Send. So the identifier forgets the pair here:
                // otherwise the drop of the identifier would move the pair to Error.
                self.cm_raise_pair(number)?;
                self.cm.id_mut(number)?.pair = None;
                return Err(libc::ECONNRESET);
            }
            return Err(libc::EINVAL);
        }
        if is_datagram {
            id.rest(Phase::Connected);
            self.cm.post(number, What::Found { status: 0, offer });
            return Ok(());
        }
        if self.is_iwarp() {
            // An iWARP device serves at least as many reads as the peer asked for, even if the accept names fewer.
            let mut offer = offer;
            offer.serves = offer.serves.max(link.serves);
            self.cm.id_mut(number)?.own.serves = offer.serves;
            if let Err(errno) = self.cm_raise_pair(number) {
                self.cm_refuse(number, Vec::new());
                return Err(errno);
            }
            let id = self.cm.id_mut(number)?;
            id.rest(Phase::Connected);
            self.cm.post(number, What::Reply(offer));
            self.cm.tell(number, RawEventKind::ESTABLISHED, 0);
        } else {
            let id = self.cm.id_mut(number)?;
            id.phase = Phase::Accepted;
            id.sent = Some(Sent { what: What::Reply(offer), times: 0 });
            self.cm_send(number);
        }
        if self.faults.takes_server() {
            self.cm.post(number, What::Reject { reason: REFUSED, data: Vec::new() });
            self.cm_vanish(number);
        }
        Ok(())
    }

    pub(super) fn cm_reject(&mut self, number: u64, data: &[u8]) -> Result<(), c_int> {
        let id = self.cm.id_mut(number)?;
        id.is_in(&[Phase::Requested])?;
        if data.len() > if id.space == PortSpace::Udp { FOUND_BYTES } else { REJECT_BYTES } {
            return Err(libc::EINVAL);
        }
        if id.peer_is_gone {
            id.rest(Phase::Dead);
            return Err(libc::EINVAL);
        }
        self.cm_refuse(number, data.to_vec());
        Ok(())
    }

    /// Rejects a request. After that, its identifier can only be destroyed.
    fn cm_refuse(&mut self, number: u64, data: Vec<u8>) {
        let Ok(id) = self.cm.id_mut(number) else { return };
        id.rest(Phase::Dead);
        let what = match id.space {
            PortSpace::Tcp => What::Reject { reason: REFUSED, data },
            PortSpace::Udp => What::Found { status: SIDR_REFUSED, offer: Offer { data, ..Offer::default() } },
        };
        self.cm.post(number, what);
    }

    pub(super) fn cm_disconnect(&mut self, number: u64) -> Result<(), c_int> {
        use Phase::{AddressResolved, Bound, Idle, Listening, ResolvingAddress, ResolvingRoute, RouteResolved};
        let is_iwarp = self.is_iwarp();
        let id = self.cm.id_mut(number)?;
        match id.phase {
            Idle | Bound | Listening | ResolvingAddress | AddressResolved | ResolvingRoute | RouteResolved => {
                return Err(libc::EINVAL);
            }
            Phase::Connected if id.space == PortSpace::Tcp && is_iwarp => {
                id.rest(Phase::Dead);
                self.cm.post(number, What::Disconnect);
                self.cm_break_pair(number);
                self.cm.tell(number, RawEventKind::DISCONNECTED, 0);
            }
            Phase::Connected if id.space == PortSpace::Tcp => {
                id.phase = Phase::Disconnecting;
                id.sent = Some(Sent { what: What::Disconnect, times: 0 });
                self.cm_send(number);
            }
            Phase::Disconnected => {
                self.cm.post(number, What::DisconnectReply);
                self.cm_let_rest(number);
            }
            // There is nothing to end: no connection is established, or the connection is ending already. An identifier
            // for datagrams has no connection.
            _ => {}
        }
        Ok(())
    }

    /// Makes the program of an identifier vanish: the identifier sends and receives no more messages.
    pub(super) fn cm_vanish(&mut self, number: u64) {
        if let Ok(id) = self.cm.id_mut(number) {
            id.is_vanished = true;
            id.rest(Phase::Dead);
        }
    }

    /// Ends each identifier on a device that was removed, and reports the removal to the program.
    pub(in crate::provider::soft) fn cm_remove_device(&mut self, device: usize) {
        self.cm_tell_where(
            |id| id.device == Some(device) && id.phase != Phase::Dead,
            |id| id.rest(Phase::Dead),
            RawEventKind::DEVICE_REMOVAL,
            0,
        );
    }

    /// Reports to the connections of a device that the address of a neighbour has changed. The connections go on.
    pub(in crate::provider::soft) fn cm_change_neighbour(&mut self, device: usize) {
        self.cm_tell_where(
            |id| id.device == Some(device) && id.phase == Phase::Connected && id.space == PortSpace::Tcp,
            |_| {},
            RawEventKind::UNREACHABLE,
            -libc::ETIMEDOUT,
        );
    }

    /// Reports the end of their memberships to the identifiers of a device that have joined multicast groups.
    pub(in crate::provider::soft) fn cm_lose_groups(&mut self, device: usize) {
        self.cm_tell_where(
            |id| id.device == Some(device) && !id.groups.is_empty(),
            |_| {},
            RawEventKind::MULTICAST_ERROR,
            -libc::ENETRESET,
        );
    }

    fn cm_tell_where(
        &mut self,
        which: impl Fn(&super::Id) -> bool,
        change: impl Fn(&mut super::Id),
        kind: RawEventKind,
        status: i32,
    ) {
        let chosen = self.cm.ids.iter_mut().filter(|(_, id)| which(id));
        // An identifier with a listener belongs to a request that the program has not taken yet. The program does not
        // know such an identifier, so the identifier gets no event.
        let known: Vec<_> = chosen
            .map(|(&number, id)| {
                change(id);
                (number, id.listener.is_none())
            })
            .collect();
        for (number, _) in known.into_iter().filter(|&(_, is_known)| is_known) {
            self.cm.tell(number, kind, status);
        }
    }
}

/// The source address for a peer at `to`. `own` is the address that the identifier is bound to, and `device` the
/// address of the device that leads to the peer.
pub(super) fn source(own: IpAddr, to: IpAddr, device: IpAddr) -> IpAddr {
    match own.is_unspecified() {
        false => own,
        true if to.is_loopback() => to,
        true => device,
    }
}
