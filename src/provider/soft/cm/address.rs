//! Addresses and ports. The network of a fabric is the IPv4 network of its devices' addresses.
#![forbid(unsafe_code)]

use super::{Cm, Phase};
use crate::provider::cm::PortSpace;
use crate::provider::soft::device::Device;
use crate::provider::soft::fabric::State;
use libc::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The first port for identifiers that ask for port 0. Linux uses the same range for sockets.
pub(super) const FIRST_FREE_PORT: u16 = 32768;
const LAST_FREE_PORT: u16 = 60999;

/// Where an address leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route {
    /// The address leads to this device.
    Device(usize),
    /// The address is in the network of the fabric, but no device has it.
    Nobody,
    /// No route leads to the address.
    None,
}

/// The IPv4 address of a device.
pub(super) fn of_device(device: &Device) -> IpAddr {
    let [.., a, b, c, d] = device.gid(GID_ROW).unwrap_or_default();
    Ipv4Addr::new(a, b, c, d).into()
}

/// The index of the entry in a device's GID table that has the IPv4 address.
pub(super) const GID_ROW: u8 = 1;

/// The address, with an IPv4-mapped IPv6 address converted to IPv4.
fn canonical(address: SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}

impl State {
    /// The device of this host that has the address.
    fn owner(&self, ip: IpAddr) -> Option<usize> {
        let link_local = |device: &Device| device.gid(0).map(|gid| IpAddr::from(Ipv6Addr::from(gid)));
        self.devices.iter().position(|device| of_device(device) == ip || link_local(device) == Some(ip))
    }

    /// Where the address leads. The wildcard and the loopback address lead to the first device.
    pub(super) fn route(&self, ip: IpAddr) -> Route {
        if ip.is_unspecified() || ip.is_loopback() {
            return if self.devices.is_empty() { Route::None } else { Route::Device(0) };
        }
        if let Some(device) = self.owner(ip) {
            return Route::Device(device);
        }
        let network = |ip: IpAddr| match ip {
            IpAddr::V4(ip) if ip.octets()[3] != u8::MAX => Some(ip.octets().first_chunk::<3>().copied()),
            _ => None,
        };
        let is_near =
            self.devices.iter().any(|device| network(ip).is_some_and(|near| network(of_device(device)) == Some(near)));
        if is_near { Route::Nobody } else { Route::None }
    }

    /// Gives an identifier an address of this host, and a free port if it asks for port 0.
    pub(super) fn cm_bind(&mut self, number: u64, address: SocketAddr) -> Result<(), c_int> {
        self.cm.id(number)?.is_in(&[Phase::Idle])?;
        let ip = canonical(address);
        let device = if ip.is_unspecified() || ip.is_loopback() {
            None
        } else {
            let device = self.owner(ip).ok_or(libc::EADDRNOTAVAIL)?;
            if self.devices.get(device).is_none_or(|device| device.removed) {
                return Err(libc::ENODEV);
            }
            Some(device)
        };
        let port = self.cm.port_for(number, ip, address.port())?;
        let id = self.cm.id_mut(number)?;
        id.local = Some(SocketAddr::new(address.ip(), port));
        id.device = device;
        id.holds_port = true;
        id.rest(Phase::Bound);
        Ok(())
    }
}

impl Cm {
    /// Checks that an identifier may have a port, or chooses one for port 0.
    fn port_for(&mut self, number: u64, ip: IpAddr, port: u16) -> Result<u16, c_int> {
        if port != 0 {
            let id = self.id(number)?;
            self.check_port(number, id.space, ip, port, id.reuses_address)?;
            return Ok(port);
        }
        let space = self.id(number)?.space;
        for _ in FIRST_FREE_PORT..=LAST_FREE_PORT {
            let port = self.last_port;
            self.last_port = if port >= LAST_FREE_PORT { FIRST_FREE_PORT } else { port + 1 };
            if !self.ids.values().any(|id| id.space == space && id.holds(port)) {
                return Ok(port);
            }
        }
        Err(libc::EADDRNOTAVAIL)
    }

    /// Checks that no other identifier holds the port. Two identifiers that both reuse addresses may share it.
    pub(super) fn check_port(
        &self,
        number: u64,
        space: PortSpace,
        ip: IpAddr,
        port: u16,
        reuses: bool,
    ) -> Result<(), c_int> {
        for (&other, id) in &self.ids {
            let Some(held) = id.local.filter(|_| other != number && id.space == space && id.holds(port)) else {
                continue;
            };
            if reuses && id.reuses_address {
                continue;
            }
            let held = canonical(held);
            // If one of the two addresses is the wildcard, Linux returns `EADDRNOTAVAIL`, not `EADDRINUSE`.
            if held.is_unspecified() || ip.is_unspecified() {
                return Err(libc::EADDRNOTAVAIL);
            }
            if held == ip {
                return Err(libc::EADDRINUSE);
            }
        }
        Ok(())
    }

    /// The listener for an address.
    pub(super) fn listener(&self, space: PortSpace, to: SocketAddr) -> Option<u64> {
        let listens = |id: &&super::Id| {
            let Some(at) = id.local else { return false };
            let (ip, wanted) = (canonical(at), canonical(to));
            id.phase == Phase::Listening
                && id.space == space
                && id.holds(to.port())
                && (ip.is_unspecified() || ip == wanted)
        };
        self.ids.iter().find(|(_, id)| listens(id)).map(|(&number, _)| number)
    }
}

impl super::Id {
    fn holds(&self, port: u16) -> bool {
        self.holds_port && self.local.is_some_and(|local| local.port() == port)
    }
}
