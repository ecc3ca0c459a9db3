//! Connections by address, through rdma_cm.

use super::PingPong;
use super::common::fault::{Doing, Fault};
use interlock::cm::{
    self, AcceptData, Accepting, Cause, Channel, ConnectData, Connection, Failed, Idle, Listener, Parameters,
};
use interlock::{Context, Init, Port, QueuePair};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

type Pair = QueuePair<PingPong, Init>;
type Connected = Connection<PingPong>;

/// The IP address of the port, if its GID is one.
pub(crate) fn address(port: &Port) -> Result<IpAddr, Fault> {
    let found = port.gids().iter().find_map(|row| Ipv6Addr::from(row.gid.0).to_ipv4_mapped());
    found.map(IpAddr::V4).ok_or_else(|| {
        Fault::new(
            "no GID of the port is an IPv4 address: name an address of its network interface, as in -R -b ADDRESS",
        )
    })
}

/// How this side meets the other one.
pub(crate) enum Meet<'m> {
    /// It waits for a client, for ever if need be, and accepts it.
    Server(&'m mut Listener),
    /// It connects to the server of that host, at that port.
    Client(&'m str, u16),
    /// Both sides are in this process, on that device.
    Both(&'m Context, IpAddr),
}

/// Listens at an address. Port 0 means any free port.
pub(crate) fn listen(context: &Context, at: IpAddr, port: u16) -> Result<Listener, Fault> {
    cm::listen(context, (at, port)).doing(format_args!("cannot listen at {at}, port {port}"))
}

/// Connects the pairs of this process: two where both sides are here, else one.
pub(crate) fn connect(pairs: Vec<Pair>, meet: Meet<'_>, patience: Duration) -> Result<Vec<Connected>, Fault> {
    let mut pairs = pairs.into_iter();
    let mut pair = || pairs.next().ok_or_else(|| Fault::new("a queue pair is missing"));
    match meet {
        Meet::Server(listener) => Ok(vec![accept(listener, pair()?, Duration::MAX)?.wait(patience).map_err(cause)?]),
        Meet::Client(host, port) => {
            let connected = cm::connect((host, port), pair()?, &ConnectData::none(), patience);
            Ok(vec![connected.map_err(cause).doing(format_args!("cannot connect to {host}, port {port}"))?])
        }
        Meet::Both(context, at) => {
            let mut listener = listen(context, at, 0)?;
            let to = listener.local_address().ok_or_else(|| Fault::new("the listener has no address"))?;
            let resolving = Idle::new(&Channel::open(context)?)?.resolve(to, patience).map_err(cause)?;
            let resolved = resolving.wait(patience).map_err(cause)?;
            let connecting = resolved.connect(pair()?, &Parameters::default(), &ConnectData::none()).map_err(cause)?;
            let accepting = accept(&mut listener, pair()?, patience)?;
            Ok(vec![connecting.wait(patience).map_err(cause)?, accepting.wait(patience).map_err(cause)?])
        }
    }
}

fn accept(listener: &mut Listener, pair: Pair, patience: Duration) -> Result<Accepting<PingPong>, Fault> {
    let request = listener.next(patience).doing("no client")?;
    Ok(request.accept(pair, &Parameters::default(), &AcceptData::none()).map_err(cause)?)
}

fn cause<V>(failed: Failed<V>) -> Cause {
    failed.into_cause()
}
