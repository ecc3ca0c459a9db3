//! rdma_cm inside the process: each fabric has one, for all its devices.
//!
//! A channel of rdma_cm has identifiers, which the program uses through [`RawId`]. Messages between two identifiers are
//! units of the fabric's work, like packets: on a manual fabric each travels in a step of its own. The timeouts of
//! identifiers are timers of the fabric.
//!
//! This rdma_cm behaves like librdmacm and the kernel on soft-RoCE, and pads private data in the same way. A call in a
//! wrong state returns `EINVAL` here, even where librdmacm would end the process. The queue pairs belong to the
//! program: rdma_cm exchanges their numbers, and gives the attributes for their transitions. On a fabric like soft
//! iWARP, rdma_cm also moves the pairs.
#![forbid(unsafe_code)]

// | module | what it holds |
// |---|---|
// | `address` | addresses and ports |
// | `calls` | the calls of a program |
// | `wire` | messages, timers, and the events that they make |
// | `attributes` | the attributes of a queue pair, up to Ready To Send; on iWARP, the moves of the pair |

mod address;
mod attributes;
mod calls;
mod wire;

// These tests do not run under Miri: they take long there, and this module has no `unsafe` code for Miri to check.
#[cfg(all(test, not(miri)))]
mod tests;

use super::events::Signal;
use super::fabric::{Fabric, State};
use super::fault::Verb;
use super::objects::Table;
use super::random::Random;
use crate::error::VerbError;
use crate::provider::cm::{
    BoundDevice, EventParameters, IdOption, NewId, Parameters, PortSpace, RawChannel, RawEvent, RawEventKind, RawId,
};
use crate::sys::{ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use libc::c_int;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use wire::{Offer, Sent, Work};

/// The state of rdma_cm, which the fabric's lock guards.
pub(super) struct Cm {
    channels: Table<Inbox>,
    /// The identifiers by number. Numbers are never reused.
    ids: BTreeMap<u64, Id>,
    last_id: u64,
    /// The port to try first for the next identifier that asks for port 0.
    last_port: u16,
    /// The units of work that are not done yet, oldest first.
    work: VecDeque<Work>,
    /// How many calls of `rdma_connect` wait until a fault ends.
    pub(super) blocked: usize,
    /// Chooses the first packet number of each connection.
    random: Random,
}

impl Default for Cm {
    fn default() -> Self {
        Self {
            channels: Table::default(),
            ids: BTreeMap::new(),
            last_id: 0,
            last_port: address::FIRST_FREE_PORT,
            work: VecDeque::new(),
            blocked: 0,
            random: Random::new(0),
        }
    }
}

impl Cm {
    /// How many identifiers there are, and how many events wait.
    pub(super) fn counts(&self) -> [usize; 2] {
        [self.ids.len(), self.channels.iter().map(|(_, inbox)| inbox.events.len()).sum()]
    }

    /// How many events of an identifier wait. Requests count as events of their listener.
    #[cfg(test)]
    fn waiting(&self, key: u64) -> usize {
        let of = |event: &&Event| self.ids.get(&event.id).is_some_and(|id| id.key == key);
        self.channels.iter().map(|(_, inbox)| inbox.events.iter().filter(of).count()).sum()
    }

    fn id(&self, number: u64) -> Result<&Id, c_int> {
        self.ids.get(&number).ok_or(libc::EINVAL)
    }

    fn id_mut(&mut self, number: u64) -> Result<&mut Id, c_int> {
        self.ids.get_mut(&number).ok_or(libc::EINVAL)
    }

    /// Adds an identifier.
    fn add(&mut self, channel: usize, key: u64, space: PortSpace) -> u64 {
        self.last_id += 1;
        self.ids.insert(self.last_id, Id::new(channel, key, space));
        self.last_id
    }

    /// Makes the descriptors of all channels readable, so that each thread that sleeps on one wakes and checks the
    /// timers again.
    pub(super) fn wake_all(&mut self) {
        for inbox in self.channels.iter_mut() {
            inbox.signal.raise();
        }
    }

    /// Whether the timer `number` has been replaced, or its identifier has ended.
    pub(super) fn is_stale(&self, id: u64, number: u64) -> bool {
        self.ids.get(&id).is_none_or(|id| id.timer != number)
    }

    pub(super) fn set_timer(&mut self, id: u64, number: u64) {
        if let Some(id) = self.ids.get_mut(&id) {
            id.timer = number;
        }
    }
}

/// A channel: the events of its identifiers, oldest first.
struct Inbox {
    signal: Signal,
    events: VecDeque<Event>,
}

/// An event that nobody has taken.
struct Event {
    id: u64,
    kind: RawEventKind,
    status: i32,
    parameters: EventParameters,
    /// The new identifier of a connect request.
    request: Option<u64>,
}

/// The state of an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Idle,
    /// Has an address; also a device, unless the address is the wildcard or the loopback address.
    Bound,
    Listening,
    ResolvingAddress,
    AddressResolved,
    ResolvingRoute,
    RouteResolved,
    /// Has sent its request.
    Connecting,
    /// The peer has accepted, and the program has not established the connection.
    Responded,
    /// Came with a request that the program has not answered.
    Requested,
    /// Has accepted, and the peer has not established the connection.
    Accepted,
    Connected,
    /// Has sent its disconnect, and waits for the answer.
    Disconnecting,
    /// The peer has sent its disconnect, and the program has not answered.
    Disconnected,
    /// Timewait: both sides have disconnected, and the number of the queue pair must not be used for another connection
    /// yet.
    Resting,
    /// The identifier can only be destroyed.
    Dead,
}

/// An identifier.
struct Id {
    channel: usize,
    /// The key by which the program knows the identifier.
    key: u64,
    space: PortSpace,
    phase: Phase,
    local: Option<SocketAddr>,
    peer_address: Option<SocketAddr>,
    device: Option<usize>,
    /// The identifier holds its port. Identifiers of requests share the port of their listener instead.
    holds_port: bool,
    reuses_address: bool,
    type_of_service: u8,
    ack_timeout: Option<u8>,
    /// How many more requests may wait to be taken from a listener.
    room: usize,
    /// The listener of a request that waits to be taken.
    listener: Option<u64>,
    /// The identifier at the other end of the connection.
    peer: Option<u64>,
    /// The peer has given up before this side accepted. The program learns that from its accept or reject, which fails.
    peer_is_gone: bool,
    /// A fault made the program vanish: the identifier sends and receives no messages.
    is_vanished: bool,
    /// The peer's parameters that the queue pair needs; `None` before they have arrived.
    link: Option<Link>,
    /// The parameters that this side offered.
    own: Offer,
    /// The message that is sent again until the peer answers.
    sent: Option<Sent>,
    /// The number of the current timer, or 0. An older timer that fires is ignored.
    timer: u64,
    /// On iWARP: the queue pair that is connected or being connected.
    pair: Option<HeldPair>,
    groups: BTreeSet<IpAddr>,
}

impl Id {
    fn new(channel: usize, key: u64, space: PortSpace) -> Self {
        Self {
            channel,
            key,
            space,
            phase: Phase::Idle,
            local: None,
            peer_address: None,
            device: None,
            holds_port: false,
            reuses_address: false,
            type_of_service: 0,
            ack_timeout: None,
            room: 0,
            listener: None,
            peer: None,
            peer_is_gone: false,
            is_vanished: false,
            link: None,
            own: Offer::default(),
            sent: None,
            timer: 0,
            pair: None,
            groups: BTreeSet::new(),
        }
    }

    /// Enters a phase in which nothing is sent again and no timer runs.
    fn rest(&mut self, phase: Phase) {
        self.phase = phase;
        self.sent = None;
        self.timer = 0;
    }

    fn is_in(&self, phases: &[Phase]) -> Result<(), c_int> {
        if phases.contains(&self.phase) { Ok(()) } else { Err(libc::EINVAL) }
    }
}

/// The index of a queue pair, and its epoch, which no other pair with this index has.
type HeldPair = (usize, u64);

/// What the queue pair of one side needs to know about the other side.
#[derive(Clone, Copy)]
struct Link {
    gid: [u8; 16],
    queue_pair: u32,
    /// The first packet number of the peer.
    psn: u32,
    /// How many reads this side serves at once.
    serves: u8,
    /// How many reads this side starts at once.
    starts: u8,
    retry_count: u8,
    rnr_retry_count: u8,
}

/// Opens a channel on the fabric.
pub(super) fn open(fabric: &Fabric) -> Result<Arc<dyn RawChannel>, VerbError> {
    let verb = Verb::RdmaCreateEventChannel;
    let failed = |errno| VerbError::new(verb.name(), errno);
    let mut state = fabric.lock();
    if let Some(errno) = state.faults.verb(verb) {
        return Err(failed(errno));
    }
    let signal = Signal::new().map_err(failed)?;
    let events = signal.file();
    let index = state.cm.channels.insert(Inbox { signal, events: VecDeque::new() });
    drop(state);
    Ok(Arc::new(Channel { fabric: fabric.clone(), index, events }))
}

/// An owned channel. Each identifier keeps it alive.
#[derive(Debug)]
struct Channel {
    fabric: Fabric,
    index: usize,
    /// The descriptor of its events.
    events: Arc<File>,
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.fabric.lock().cm.channels.remove(self.index);
    }
}

impl Channel {
    /// Runs `f`, the work of a call, under the lock, and then lets the fabric settle. If a fault makes the call fail,
    /// `f` does not run.
    fn call<R>(&self, verb: Verb, f: impl FnOnce(&mut State) -> Result<R, c_int>) -> Result<R, VerbError> {
        let mut state = self.fabric.lock();
        let result = match state.faults.verb(verb) {
            Some(errno) => Err(errno),
            None => f(&mut state),
        };
        state.settle();
        result.map_err(|errno| VerbError::new(verb.name(), errno))
    }
}

impl RawChannel for Channel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    fn create_id(self: Arc<Self>, space: PortSpace, key: u64) -> Result<Box<dyn RawId>, VerbError> {
        let number = self.call(Verb::RdmaCreateId, |state| Ok(state.cm.add(self.index, key, space)))?;
        Ok(Box::new(Identifier { channel: self, number }))
    }

    fn take_event(self: Arc<Self>, fresh_key: u64) -> Result<Option<RawEvent>, VerbError> {
        let mut state = self.fabric.lock();
        state.settle();
        if let Some(errno) = state.faults.verb(Verb::RdmaGetCmEvent) {
            return Err(VerbError::new(Verb::RdmaGetCmEvent.name(), errno));
        }
        let Some((event, key)) = state.cm.take(self.index, fresh_key) else { return Ok(None) };
        drop(state);
        let Event { kind, status, parameters, request, .. } = event;
        let request = request
            .map(|number| NewId { raw: Box::new(Identifier { channel: Arc::clone(&self), number }), key: fresh_key });
        Ok(Some(RawEvent { key, kind, status, parameters, request }))
    }

    fn next_timer(&self) -> Option<Duration> {
        self.fabric.lock().next_wakeup()
    }
}

impl Cm {
    /// Takes the oldest event of a channel, with the key of its identifier. If the event brings a new identifier, the
    /// new identifier gets `fresh_key`.
    fn take(&mut self, channel: usize, fresh_key: u64) -> Option<(Event, u64)> {
        let inbox = self.channels.get_mut(channel)?;
        let event = inbox.events.pop_front();
        if inbox.events.is_empty() {
            inbox.signal.lower();
        }
        let event = event?;
        // When an identifier is dropped, its events are dropped too. So the identifier of this event exists.
        let id = self.ids.get_mut(&event.id)?;
        let key = id.key;
        if let Some(request) = event.request {
            id.room += 1;
            if let Some(request) = self.ids.get_mut(&request) {
                request.key = fresh_key;
                request.listener = None;
            }
        }
        Some((event, key))
    }

    fn push(&mut self, event: Event) {
        let Some(id) = self.ids.get(&event.id).filter(|id| !id.is_vanished) else { return };
        if let Some(inbox) = self.channels.get_mut(id.channel) {
            inbox.events.push_back(event);
            inbox.signal.raise();
        }
    }

    /// Adds an event that has a status and no parameters.
    fn tell(&mut self, id: u64, kind: RawEventKind, status: i32) {
        self.push(Event { id, kind, status, parameters: EventParameters::default(), request: None });
    }

    /// Drops the events of an identifier, and returns the requests among them.
    fn forget(&mut self, number: u64) -> Vec<u64> {
        self.forget_where(|event| event.id == number)
    }

    /// Drops some events, and returns the requests among them.
    fn forget_where(&mut self, which: impl Fn(&Event) -> bool) -> Vec<u64> {
        let mut requests = Vec::new();
        for inbox in self.channels.iter_mut() {
            inbox.events.retain(|event| {
                let goes = which(event);
                requests.extend(event.request.filter(|_| goes));
                !goes
            });
            if inbox.events.is_empty() {
                inbox.signal.lower();
            }
        }
        requests
    }
}

/// An owned identifier.
struct Identifier {
    channel: Arc<Channel>,
    number: u64,
}

impl std::fmt::Debug for Identifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (local, peer) = (self.local_address(), self.peer_address());
        f.debug_struct("Id").field("device", &self.device()).field("local", &local).field("peer", &peer).finish()
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        let mut state = self.channel.fabric.lock();
        if state.is_iwarp() {
            state.cm_break_pair(self.number);
        }
        state.cm.destroy(self.number);
        state.settle();
    }
}

impl Identifier {
    fn call<R>(&self, verb: Verb, f: impl FnOnce(&mut State, u64) -> Result<R, c_int>) -> Result<R, VerbError> {
        self.channel.call(verb, |state| f(state, self.number))
    }
}

impl RawId for Identifier {
    fn bind(&mut self, address: SocketAddr) -> Result<(), VerbError> {
        self.call(Verb::RdmaBindAddr, |state, id| state.cm_bind(id, address))
    }

    fn resolve_addr(&mut self, source: Option<SocketAddr>, to: SocketAddr, timeout: Duration) -> Result<(), VerbError> {
        self.call(Verb::RdmaResolveAddr, |state, id| state.cm_resolve_addr(id, source, to, timeout))
    }

    fn resolve_route(&mut self, _: Duration) -> Result<(), VerbError> {
        self.call(Verb::RdmaResolveRoute, |state, id| state.cm.resolve_route(id))
    }

    fn listen(&mut self, backlog: u32) -> Result<(), VerbError> {
        self.call(Verb::RdmaListen, |state, id| state.cm_listen(id, backlog))
    }

    fn connect(&mut self, parameters: &Parameters<'_>) -> Result<(), VerbError> {
        // On iWARP, `rdma_connect` connects a TCP stream, and blocks until the stream is connected or has failed. While
        // a fault loses all connect requests, neither happens: wait until the fault ends, and then fail the connect.
        let is_silent = || {
            let state = self.channel.fabric.lock();
            state.is_iwarp() && state.faults.loses_all_cm_requests()
        };
        if is_silent() {
            self.channel.fabric.lock().cm.blocked += 1;
            while is_silent() {
                thread::sleep(Duration::from_millis(1));
            }
            self.channel.fabric.lock().cm.blocked -= 1;
            return self.call(Verb::RdmaConnect, |state, id| {
                state.cm_fail_connect(id, parameters);
                Err(libc::ETIMEDOUT)
            });
        }
        self.call(Verb::RdmaConnect, |state, id| state.cm_connect(id, parameters))
    }

    fn accept(&mut self, parameters: &Parameters<'_>) -> Result<(), VerbError> {
        self.call(Verb::RdmaAccept, |state, id| state.cm_accept(id, parameters))
    }

    fn reject(&mut self, private_data: &[u8]) -> Result<(), VerbError> {
        self.call(Verb::RdmaReject, |state, id| state.cm_reject(id, private_data))
    }

    fn establish(&mut self) -> Result<(), VerbError> {
        self.call(Verb::RdmaEstablish, |state, id| state.cm.establish(id))
    }

    fn notify_established(&mut self) -> Result<(), VerbError> {
        self.call(Verb::RdmaNotify, |state, id| state.cm.notify_established(id))
    }

    fn disconnect(&mut self) -> Result<(), VerbError> {
        self.call(Verb::RdmaDisconnect, |state, id| state.cm_disconnect(id))
    }

    fn pair_attributes(&self, to: ibv_qp_state) -> Result<(ibv_qp_attr, ibv_qp_attr_mask), VerbError> {
        self.call(Verb::RdmaInitQpAttr, |state, id| state.cm_attributes(id, to))
    }

    fn set_option(&mut self, option: IdOption) -> Result<(), VerbError> {
        self.call(Verb::RdmaSetOption, |state, id| state.cm.set_option(id, option))
    }

    fn join_multicast(&mut self, group: SocketAddr) -> Result<(), VerbError> {
        self.call(Verb::RdmaJoinMulticast, |state, id| state.cm.join(id, group))
    }

    fn leave_multicast(&mut self, group: SocketAddr) -> Result<(), VerbError> {
        self.call(Verb::RdmaLeaveMulticast, |state, id| state.cm.leave(id, group))
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.channel.fabric.lock().cm.ids.get(&self.number)?.local
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        self.channel.fabric.lock().cm.ids.get(&self.number)?.peer_address
    }

    fn device(&self) -> Option<BoundDevice> {
        let state = self.channel.fabric.lock();
        let device = state.devices.get(state.cm.ids.get(&self.number)?.device?)?;
        let (name, guid_be, fabric) = (device.name.clone(), device.guid_be(), self.channel.fabric.address());
        Some(BoundDevice { name, guid_be, port: super::device::PORT, fabric, is_iwarp: state.is_iwarp() })
    }
}

impl State {
    /// Whether rdma_cm treats the devices of this fabric as iWARP.
    fn is_iwarp(&self) -> bool {
        self.latitudes.is_iwarp
    }
}
