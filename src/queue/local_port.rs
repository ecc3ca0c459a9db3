//! How peers reach a queue pair.

use super::attributes::{PeerPath, UnreliableRtrAttributes};
use super::error::TransitionFailure;
use crate::device::{GidEntry, LinkLayer, Port};
use crate::types::{Mtu, PortNumber, Psn, Qpn};

/// The port by which peers reach a queue pair: its addresses and its limits. Known once the pair is in Init.
#[derive(Clone, Copy)]
pub(crate) struct LocalPort {
    pub(crate) port: PortNumber,
    pub(crate) gid: Option<GidEntry>,
    pub(crate) lid: u16,
    pub(crate) mtu: Mtu,
    pub(crate) link_layer: LinkLayer,
    /// How many rows the port's table of partition keys has.
    pub(crate) pkey_rows: u16,
    /// The first packet sequence number that the pair sends.
    pub(crate) psn: Psn,
}

impl LocalPort {
    /// A placeholder for pairs that are not in Init yet. Nobody reads its values.
    pub(crate) const UNKNOWN: Self = Self {
        port: match PortNumber::new(1) {
            Ok(port) => port,
            Err(_) => panic!("1 is a port"),
        },
        gid: None,
        lid: 0,
        mtu: Mtu::Bytes256,
        link_layer: LinkLayer::Unspecified,
        pkey_rows: 0,
        psn: match Psn::new(0) {
            Ok(psn) => psn,
            Err(_) => panic!("0 is a PSN"),
        },
    };

    /// The row of the GID table that packets carry as their source.
    pub(crate) fn gid_index(&self) -> u8 {
        self.gid.map_or(0, |row| row.index())
    }

    /// Checks that the port's table of partition keys has the row `asked`; not every device checks this. Row 0 is
    /// always accepted, also on a port without a table.
    pub(crate) fn has_pkey(&self, asked: u16) -> Result<(), TransitionFailure> {
        let rows = self.pkey_rows;
        if asked == 0 || asked < rows { Ok(()) } else { Err(TransitionFailure::PkeyIndex { asked, rows }) }
    }

    /// Checks that the destination of `attr` can be the peer of a connection. No device checks this.
    pub(crate) fn connects_to(&self, attr: &UnreliableRtrAttributes) -> Result<(), TransitionFailure> {
        if attr.destination == Qpn::MULTICAST {
            return Err(TransitionFailure::Multicast { number: attr.destination });
        }
        self.reaches(&attr.path, attr.path_mtu)
    }

    /// Checks that packets of size `path_mtu` can take `path` from this port.
    pub(crate) fn reaches(&self, path: &PeerPath, path_mtu: Mtu) -> Result<(), TransitionFailure> {
        path.check()?;
        if self.link_layer == LinkLayer::Ethernet && path.gid.is_none() {
            return Err(TransitionFailure::NoPeerGid);
        }
        if path_mtu > self.mtu {
            return Err(TransitionFailure::Mtu { asked: path_mtu, most: self.mtu });
        }
        Ok(())
    }

    /// The same first packet sequence number, with the addresses and limits of `port`.
    pub(crate) fn on(self, port: &Port) -> Self {
        Self {
            psn: self.psn,
            port: port.number(),
            gid: port.gid(),
            lid: port.lid(),
            mtu: port.active_mtu(),
            link_layer: port.link_layer(),
            pkey_rows: port.pkey_rows(),
        }
    }
}
