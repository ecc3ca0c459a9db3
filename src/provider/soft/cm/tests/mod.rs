//! Tests of the soft rdma_cm through its traits, on a manual fabric.

mod addresses;
mod connections;
mod datagrams;
mod devices;
mod endings;
mod losses;
mod states;

use super::*;
use crate::provider::soft::{Fabric, Fault};
use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, Ipv6Addr};

type Kind = RawEventKind;

const SECOND: Duration = Duration::from_secs(1);
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PORT: u16 = 7471;

/// A fabric of two devices, with one channel.
struct World {
    fabric: Fabric,
    channel: Arc<dyn RawChannel>,
    /// The addresses of the two devices.
    ips: [IpAddr; 2],
    last_key: Cell<u64>,
    /// Events that were taken while the test looked for another one.
    held: RefCell<VecDeque<RawEvent>>,
}

/// An identifier and its key.
struct Side {
    id: Box<dyn RawId>,
    key: u64,
}

impl std::ops::Deref for Side {
    type Target = dyn RawId;
    fn deref(&self) -> &Self::Target {
        &*self.id
    }
}

impl std::ops::DerefMut for Side {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.id
    }
}

fn offering(data: &[u8]) -> Parameters<'_> {
    Parameters {
        private_data: data,
        responder_resources: 4,
        initiator_depth: 3,
        retry_count: 5,
        rnr_retry_count: 6,
        has_shared_receives: false,
        queue_pair: 77,
        qkey: 0,
    }
}

fn padded(data: &[u8], len: usize) -> Vec<u8> {
    let mut padded = data.to_vec();
    padded.resize(len, 0);
    padded
}

fn errno<T>(result: Result<T, VerbError>) -> i32 {
    result.map_or_else(|error| error.errno(), |_| 0)
}

impl World {
    fn new() -> Self {
        Self::on(Fabric::manual())
    }

    fn on(fabric: Fabric) -> Self {
        let channel = open(&fabric).unwrap();
        let mut state = fabric.lock();
        let ips = ["dev0", "dev1"].map(|name| {
            let device = state.device(name).unwrap();
            address::of_device(&state.devices[device])
        });
        drop(state);
        Self { fabric, channel, ips, last_key: 0.into(), held: RefCell::default() }
    }

    fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ips[0], port)
    }

    fn fresh_key(&self) -> u64 {
        self.last_key.set(self.last_key.get() + 1);
        self.last_key.get()
    }

    fn id_in(&self, space: PortSpace) -> Side {
        let key = self.fresh_key();
        Side { id: Arc::clone(&self.channel).create_id(space, key).unwrap(), key }
    }

    fn id(&self) -> Side {
        self.id_in(PortSpace::Tcp)
    }

    /// Does all work, and moves all events from the channel to `held`.
    fn hold(&self) {
        self.fabric.run();
        while let Some(event) = Arc::clone(&self.channel).take_event(self.fresh_key()).unwrap() {
            self.held.borrow_mut().push_back(event);
        }
    }

    fn take(&self) -> Option<RawEvent> {
        self.hold();
        self.held.borrow_mut().pop_front()
    }

    /// Takes the next event of an identifier. It must be of this kind.
    fn expect(&self, side: &Side, kind: Kind) -> RawEvent {
        self.hold();
        let mut held = self.held.borrow_mut();
        let index = held.iter().position(|event| event.key == side.key);
        let event = index.and_then(|index| held.remove(index)).expect("an event");
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }

    fn quiet(&self) {
        let event = self.take();
        assert!(event.is_none(), "{event:?}");
    }

    fn listener_in(&self, space: PortSpace, port: u16) -> Side {
        let mut listener = self.id_in(space);
        listener.bind(SocketAddr::new(ANY, port)).unwrap();
        listener.listen(0).unwrap();
        listener
    }

    fn listener(&self) -> Side {
        self.listener_in(PortSpace::Tcp, PORT)
    }

    /// An identifier that has resolved the route to `to`.
    fn resolved_in(&self, space: PortSpace, to: SocketAddr) -> Side {
        let mut side = self.id_in(space);
        side.resolve_addr(None, to, SECOND).unwrap();
        self.expect(&side, Kind::ADDR_RESOLVED);
        side.resolve_route(SECOND).unwrap();
        self.expect(&side, Kind::ROUTE_RESOLVED);
        side
    }

    /// Clients whose requests wait at the listener.
    fn unread<const N: usize>(&self) -> [Side; N] {
        let mut clients = [(); N].map(|()| self.resolved_in(PortSpace::Tcp, self.at(PORT)));
        for client in &mut clients {
            client.connect(&offering(b"client")).unwrap();
        }
        self.fabric.run();
        clients
    }

    fn connecting(&self) -> Side {
        let mut side = self.resolved_in(PortSpace::Tcp, self.at(PORT));
        side.connect(&offering(b"client")).unwrap();
        side
    }

    fn requested(&self, listener: &Side) -> (Side, EventParameters) {
        let event = self.expect(listener, Kind::CONNECT_REQUEST);
        let NewId { raw, key } = event.request.expect("an identifier");
        (Side { id: raw, key }, event.parameters)
    }

    /// A client that has the answer of its server.
    fn responded(&self, listener: &Side) -> (Side, Side) {
        let client = self.connecting();
        let (mut server, _) = self.requested(listener);
        server.accept(&offering(b"server")).unwrap();
        self.expect(&client, Kind::CONNECT_RESPONSE);
        (client, server)
    }

    fn connected(&self, listener: &Side) -> (Side, Side) {
        let (mut client, server) = self.responded(listener);
        client.establish().unwrap();
        self.expect(&server, Kind::ESTABLISHED);
        (client, server)
    }
}
