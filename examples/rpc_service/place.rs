//! What queue pairs are made of here, and how two of them are connected: by address where there is rdma_cm, and else by
//! records over TCP.

use crate::frame::FRAME_BYTES;
use anyhow::{Context as _, bail};
use interlock::aio::cm::{self, SharedChannel};
use interlock::aio::{self, Connection, SharedPoller, tcp};
use interlock::attributes::{InitAttributes, PeerRights};
use interlock::cm::{AcceptData, ConnectData};
use interlock::memory::{Growth, Pool, PoolOptions, SizeClass};
use interlock::{Brand, CompletionQueue, Init, Limits, Port, ProtectionDomain, QueuePair};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

/// Longer than it takes to connect to a host that is up.
const PATIENCE: Duration = Duration::from_secs(30);

/// A domain with one completion queue, one pool, and the drivers that sleep for all tasks.
pub(crate) struct Place<B> {
    domain: ProtectionDomain<B>,
    port: Port,
    limits: Limits,
    queue: CompletionQueue<B>,
    poller: SharedPoller<B>,
    /// `None`: pairs are connected by records.
    channel: Option<SharedChannel>,
    pub(crate) pool: Pool<B>,
    /// The most clients that a server has at a time.
    pub(crate) most_clients: usize,
}

pub(crate) enum Listener {
    Address(cm::Listener),
    Records(tcp::Listener),
}

/// A client that wants to be connected.
pub(crate) enum Arrival {
    Address(cm::Request),
    Records(tcp::Arrival),
}

impl<B: Brand + 'static> Place<B> {
    /// A place for a server of at most `clients` clients at a time, and for as many clients. Pairs are connected by
    /// records if `by_records` or if there is no rdma_cm. The drivers run as tasks of the runtime of the caller.
    pub(crate) fn new(
        domain: ProtectionDomain<B>,
        clients: u32,
        limits: Limits,
        by_records: bool,
    ) -> anyhow::Result<Arc<Self>> {
        let port = domain.context().active_port()?;
        // Half of the room is for the pairs of the server and half for those of the clients: the command `both` runs
        // the server and all clients in one place.
        let (queue, poller) = domain.completion_queue(2 * clients * limits.completions())?;
        let poller = SharedPoller::new(poller);
        drop(aio::spawn(poller.driver().context("the poller has a driver")?)?);
        let channel = if by_records { None } else { SharedChannel::open(&domain.context()).ok() };
        if let Some(channel) = &channel {
            drop(cm::spawn(channel.driver().context("the channel has a driver")?)?);
        }
        let classes = vec![SizeClass { len_bytes: FRAME_BYTES, count: clients * limits.completions() }];
        // The pool can grow to twice the capacity of the queue. One half is for requests in flight. The other half is
        // for messages of clients that vanish before they are connected. The poller keeps these messages, but at most
        // as many as the queue has room for.
        let growth = Growth::UpTo(2 * queue.capacity() as usize * FRAME_BYTES);
        let pool = domain.pool(&PoolOptions { classes, growth, ..PoolOptions::default() })?;
        Ok(Arc::new(Self { domain, port, limits, queue, poller, channel, pool, most_clients: clients as usize }))
    }

    /// The address at which a server of this place can listen, if the device has one of IPv4.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self.channel {
            Some(_) => {
                self.port.gids().iter().find_map(|row| Ipv6Addr::from(row.gid.0).to_ipv4_mapped()).map(Into::into)
            }
            None => Some([127, 0, 0, 1].into()),
        }
    }

    /// Whether pairs are connected by records, and not by rdma_cm.
    pub(crate) fn is_by_records(&self) -> bool {
        self.channel.is_none()
    }

    /// How pairs are connected.
    pub(crate) fn way(&self) -> &'static str {
        if self.is_by_records() { "records over TCP" } else { "rdma_cm" }
    }

    /// A pair without receives.
    fn pair(&self, peer_rights: PeerRights) -> anyhow::Result<QueuePair<B, Init>> {
        let attributes = InitAttributes { peer_rights, ..InitAttributes::from(&self.port) };
        let pair = self.domain.reliable(&self.queue, &self.limits)?.into_init(attributes);
        pair.map_err(|error| error.source.into())
    }

    /// A pair with all its receives, for a client that sends as soon as it is connected.
    fn ready_pair(&self) -> anyhow::Result<QueuePair<B, Init>> {
        let mut pair = self.pair(PeerRights::NONE)?;
        for _ in 0..self.limits.receives {
            pair.post_receive(self.pool.try_take(FRAME_BYTES)?).map_err(|error| error.into_cause())?;
        }
        Ok(pair)
    }

    pub(crate) async fn listen(&self, at: SocketAddr) -> anyhow::Result<Listener> {
        Ok(match &self.channel {
            Some(channel) => Listener::Address(channel.listen(at)?),
            None => Listener::Records(tcp::Listener::bind(at).await?),
        })
    }

    /// Connects to a server, which sends nothing before it has heard this client. So the receives are posted when there
    /// is a connection, and an attempt that fails holds no memory.
    pub(crate) async fn connect(&self, to: SocketAddr) -> anyhow::Result<Connection<B>> {
        // The server probes this side with empty writes, which need the right to write. It is safe to grant this right,
        // because no memory here is exposed to writes.
        let pair = self.pair(PeerRights { write: true, ..PeerRights::NONE })?;
        let mut connection = match &self.channel {
            Some(channel) => {
                match channel.connect(&self.poller, to, pair, &ConnectData::none(), PATIENCE).await {
                    Ok(connection) => connection,
                    Err(failed) => {
                        // On iWARP, the drop of the pair may block if the connect has timed out. So drop the pair on a
                        // thread that is allowed to block.
                        drop(spawn_blocking(move || drop(failed.value)));
                        return Err(failed.cause.into());
                    }
                }
            }
            None => {
                let connected = tcp::connect(&self.poller, to, pair, &[], PATIENCE).await;
                connected.map_err(|failed| failed.into_cause())?
            }
        };
        for _ in 0..self.limits.receives {
            connection.post_receive(self.pool.try_take(FRAME_BYTES)?).map_err(|error| error.into_cause())?;
        }
        Ok(connection)
    }

    /// Connects a pair to the client, which gets `data` with the connection.
    pub(crate) async fn accept(&self, arrival: Arrival, data: &[u8]) -> anyhow::Result<Connection<B>> {
        match arrival {
            Arrival::Address(request) => {
                if request.device() != self.domain.context().name() {
                    bail!("a client came by {}, which is another device", request.device());
                }
                let data = AcceptData::framed(data)?;
                let accepted = request.accept(&self.poller, self.ready_pair()?, &data, PATIENCE).await;
                Ok(accepted.map_err(|failed| failed.into_cause())?)
            }
            Arrival::Records(arrival) => {
                // The pair is made after the greeting, so a client that sends none occupies nothing but its stream.
                let request = arrival.read(PATIENCE).await?;
                let accepted = request.accept(&self.poller, self.ready_pair()?, data, PATIENCE).await;
                Ok(accepted.map_err(|failed| failed.into_cause())?)
            }
        }
    }

    /// Waits until nothing of a connection is left: every buffer is at home, and the queue has all its room. Returns
    /// the number of buffers. The servers here must have ended: this drops the messages of clients that connect.
    pub(crate) async fn is_empty(&self, within: Duration) -> anyhow::Result<usize> {
        let deadline = Instant::now() + within;
        loop {
            // Drop unclaimed completions: they hold messages of clients whose connection this side has never completed.
            while self.poller.take_unclaimed().is_some() {}
            let stats = self.pool.stats();
            let class = stats.classes.first().context("the pool has a class")?;
            let (room, capacity) = (self.queue.room(), self.queue.capacity());
            if class.free == class.buffers && room == capacity {
                return Ok(class.buffers);
            }
            if Instant::now() > deadline {
                let (free, all) = (class.free, class.buffers);
                bail!("{free} of {all} buffers are home, and {room} of {capacity} places of the queue are free");
            }
            sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Listener {
    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        match self {
            Self::Address(listener) => listener.local_address().context("the listener has no address"),
            Self::Records(listener) => Ok(listener.local_address()?),
        }
    }

    /// The next client. The future may be dropped at any time.
    pub(crate) async fn accept(&mut self) -> anyhow::Result<Arrival> {
        Ok(match self {
            Self::Address(listener) => Arrival::Address(listener.accept().await?),
            Self::Records(listener) => Arrival::Records(listener.accept().await?),
        })
    }
}
