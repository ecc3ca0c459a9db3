//! A port of a device, and its table of GIDs.

use super::inner::{ContextInner, DeviceKey};
use crate::os;
use crate::sys;
use crate::types::{Gid, Mtu, PortNumber};
use std::fmt;

/// The logical state of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[doc(alias = "ibv_port_state")]
#[doc(alias = "ibv_port_state_str")]
pub enum PortState {
    /// No link.
    #[doc(alias = "IBV_PORT_DOWN")]
    Down,
    /// A link, not yet configured by a subnet manager.
    #[doc(alias = "IBV_PORT_INIT")]
    Init,
    /// Configured, not yet switched on.
    #[doc(alias = "IBV_PORT_ARMED")]
    Armed,
    /// Carries traffic.
    #[doc(alias = "IBV_PORT_ACTIVE")]
    Active,
    /// Lost its link a moment ago and may get it back.
    #[doc(alias = "IBV_PORT_ACTIVE_DEFER")]
    ActiveDefer,
    /// A state that the specification does not name.
    Unknown(u32),
}

/// The kind of link that carries the packets of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand: peers are addressed by LID within the subnet, and by GID beyond it.
    #[doc(alias = "IBV_LINK_LAYER_INFINIBAND")]
    InfiniBand,
    /// Ethernet (RoCE): peers are addressed by GID.
    #[doc(alias = "IBV_LINK_LAYER_ETHERNET")]
    Ethernet,
    /// The device does not say.
    Unspecified,
}

/// The meaning of a GID on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[doc(alias = "ibv_gid_type")]
pub enum GidKind {
    /// InfiniBand.
    #[doc(alias = "IBV_GID_TYPE_IB")]
    InfiniBand,
    /// RoCE version 1: Ethernet frames, one link only.
    #[doc(alias = "IBV_GID_TYPE_ROCE_V1")]
    RoceV1,
    /// RoCE version 2: UDP packets, routable.
    #[doc(alias = "IBV_GID_TYPE_ROCE_V2")]
    RoceV2,
    /// iWARP: such a GID has no meaning. Peers know the device by the IP addresses of its network interface.
    Iwarp,
    /// A kind that this library does not know.
    Unknown(u32),
}

/// A filled row of a port's GID table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_gid_entry")]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// Its meaning on the wire.
    pub kind: GidKind,
    /// The index of the network interface that it belongs to (`if_indextoname(3)`); 0 if there is none.
    pub interface: u32,
    /// The number of the row. Rows come and go with addresses, so programs should choose a GID by its content, not by
    /// this number.
    pub(crate) index: u8,
}

impl GidEntry {
    /// The number of the row, to print it, or for programs whose user chooses by number.
    pub fn index(&self) -> u8 {
        self.index
    }

    /// The name of the network interface that it belongs to, if there is one and it still exists.
    pub fn interface_name(&self) -> Option<String> {
        os::interface_name(self.interface)
    }

    /// The order of preference for programs that choose no GID. The lowest rank wins: RoCE v2 over IPv4 is first. Among
    /// GIDs of one kind of RoCE, link-local addresses are last.
    fn rank(&self) -> u8 {
        match self.kind {
            GidKind::RoceV2 if self.gid.address().is_ipv4() => 0,
            GidKind::RoceV2 if !self.gid.is_link_local() => 1,
            GidKind::InfiniBand => 2,
            GidKind::RoceV2 => 3,
            GidKind::RoceV1 if !self.gid.is_link_local() => 4,
            _ => 5,
        }
    }
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, index {}", self.gid, self.kind, self.index)?;
        match self.interface_name() {
            Some(name) => write!(f, ", {name})"),
            None => f.write_str(")"),
        }
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::RoceV1 => f.write_str("RoCE v1"),
            Self::RoceV2 => f.write_str("RoCE v2"),
            Self::Iwarp => f.write_str("iWARP"),
            Self::Unknown(kind) => write!(f, "kind {kind}"),
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
            Self::Unspecified => "unspecified",
        })
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("down"),
            Self::Init => f.write_str("initializing"),
            Self::Armed => f.write_str("armed"),
            Self::Active => f.write_str("active"),
            Self::ActiveDefer => f.write_str("active, but its link is lost"),
            Self::Unknown(state) => write!(f, "in state {state}"),
        }
    }
}

/// The speed of one lane of a link, by the code of the specification, in which one bit is set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "active_speed")]
pub struct LinkSpeed(pub u16);

impl LinkSpeed {
    /// In gigabits a second, and the name of the generation; `None` for a code that the specification does not have.
    fn known(self) -> Option<(&'static str, &'static str)> {
        Some(match self.0 {
            1 => ("2.5", "SDR"),
            2 => ("5", "DDR"),
            4 => ("10", "QDR"),
            8 => ("10", "FDR10"),
            16 => ("14", "FDR"),
            32 => ("25", "EDR"),
            64 => ("50", "HDR"),
            128 => ("100", "NDR"),
            256 => ("200", "XDR"),
            _ => return None,
        })
    }
}

impl fmt::Display for LinkSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((gigabits, name)) => write!(f, "{gigabits} Gbit/s ({name})"),
            None => write!(f, "speed {}", self.0),
        }
    }
}

/// No row of the GID table fits what the program asked for.
#[derive(Debug, thiserror::Error)]
#[error("no GID of port {port} fits what the program asked for; the port has: {}", list(candidates))]
pub struct NoGid {
    /// The port.
    pub port: PortNumber,
    /// Its filled rows.
    pub candidates: Vec<GidEntry>,
}

fn list(entries: &[GidEntry]) -> String {
    if entries.is_empty() {
        return "none (give its network interface an IP address)".to_owned();
    }
    entries.iter().map(GidEntry::to_string).collect::<Vec<_>>().join(", ")
}

/// A port as it was when it was queried, and the GID by which peers will reach it.
///
/// The default GID is chosen by its kind: RoCE v2 over IPv4 if the port has one, else RoCE v2 over an IPv6 address that
/// is not link-local, else InfiniBand, else any other. [`with_gid`](Self::with_gid) chooses another.
#[derive(Clone)]
#[doc(alias = "ibv_port_attr")]
pub struct Port {
    device: DeviceKey,
    number: PortNumber,
    attributes: sys::ibv_port_attr,
    gids: Vec<GidEntry>,
    chosen: Option<GidEntry>,
}

impl Port {
    pub(crate) fn new(
        device: DeviceKey,
        number: PortNumber,
        attributes: sys::ibv_port_attr,
        table: &[sys::ibv_gid_entry],
        is_iwarp: bool,
    ) -> Self {
        let of_this_port = table.iter().filter(|row| row.port_num == u32::from(number.value()));
        let gids: Vec<GidEntry> = of_this_port.filter_map(|row| entry(row, is_iwarp)).collect();
        let chosen = gids.iter().copied().min_by_key(GidEntry::rank);
        Self { device, number, attributes, gids, chosen }
    }

    /// Chooses the first GID for which `wanted` holds.
    ///
    /// # Errors
    ///
    /// [`NoGid`] lists the rows of the table.
    ///
    /// # Examples
    ///
    /// ```
    /// use interlock::Context;
    /// use interlock::device::GidKind;
    /// let port = Context::open("soft0")?.active_port()?;
    /// let port = port.with_gid(|row| row.kind == GidKind::RoceV2 && !row.gid.is_link_local())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "sgid_index")]
    pub fn with_gid(mut self, mut wanted: impl FnMut(&GidEntry) -> bool) -> Result<Self, NoGid> {
        match self.gids.iter().find(|row| wanted(row)) {
            Some(&row) => {
                self.chosen = Some(row);
                Ok(self)
            }
            None => Err(NoGid { port: self.number, candidates: self.gids }),
        }
    }

    /// Whether the port belongs to the device of `context`.
    pub(crate) fn is_of(&self, context: &ContextInner) -> bool {
        self.device == context.device
    }

    /// The port's number.
    pub fn number(&self) -> PortNumber {
        self.number
    }

    /// The chosen GID; `None` if the port has none.
    pub fn gid(&self) -> Option<GidEntry> {
        self.chosen
    }

    /// The filled rows of its GID table.
    #[doc(alias = "ibv_query_gid_table")]
    #[doc(alias = "ibv_query_gid")]
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn gids(&self) -> &[GidEntry] {
        &self.gids
    }

    /// The port's logical state.
    pub fn state(&self) -> PortState {
        match self.attributes.state {
            sys::ibv_port_state::IBV_PORT_DOWN => PortState::Down,
            sys::ibv_port_state::IBV_PORT_INIT => PortState::Init,
            sys::ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
            sys::ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
            sys::ibv_port_state::IBV_PORT_ACTIVE_DEFER => PortState::ActiveDefer,
            other => PortState::Unknown(other.0),
        }
    }

    /// Whether the port carries traffic.
    pub fn is_active(&self) -> bool {
        self.state() == PortState::Active
    }

    /// The kind of link that carries the port's packets.
    pub fn link_layer(&self) -> LinkLayer {
        match self.attributes.link_layer {
            1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            _ => LinkLayer::Unspecified,
        }
    }

    /// The greatest MTU that its link carries now.
    pub fn active_mtu(&self) -> Mtu {
        // Perhaps a newer device reports a code that is not known here. Then return the smallest MTU, which every link
        // carries.
        Mtu::from_code(self.attributes.active_mtu.0).unwrap_or(Mtu::Bytes256)
    }

    /// The greatest MTU that the port can be set to.
    pub fn max_mtu(&self) -> Mtu {
        Mtu::from_code(self.attributes.max_mtu.0).unwrap_or(self.active_mtu())
    }

    /// How many lanes its link has now; `None` if the port reports a code that the specification does not have.
    pub fn active_width(&self) -> Option<u8> {
        match self.attributes.active_width {
            1 => Some(1),
            2 => Some(4),
            4 => Some(8),
            8 => Some(12),
            16 => Some(2),
            _ => None,
        }
    }

    /// The speed of each lane of its link now. A software device reports a speed that means nothing.
    pub fn active_speed(&self) -> LinkSpeed {
        LinkSpeed(u16::from(self.attributes.active_speed))
    }

    /// The local identifier of the subnet manager; 0 on Ethernet.
    #[doc(alias = "sm_lid")]
    pub fn subnet_manager_lid(&self) -> u16 {
        self.attributes.sm_lid
    }

    /// How many low bits of the local identifier the port ignores, so that it has several identifiers; 0 on Ethernet.
    #[doc(alias = "lmc")]
    pub fn lid_mask_control(&self) -> u8 {
        self.attributes.lmc
    }

    /// Its local identifier; 0 on Ethernet.
    pub fn lid(&self) -> u16 {
        self.attributes.lid
    }

    /// How many rows its table of partition keys has; 0 for a device without partitions, such as one for iWARP.
    #[doc(alias = "pkey_tbl_len")]
    pub fn pkey_rows(&self) -> u16 {
        self.attributes.pkey_tbl_len
    }

    /// The longest message, in bytes.
    pub fn max_message_bytes(&self) -> u32 {
        self.attributes.max_msg_sz
    }
}

/// Reads one row; `None` for an empty one.
fn entry(row: &sys::ibv_gid_entry, is_iwarp: bool) -> Option<GidEntry> {
    let gid = Gid(row.gid.bytes());
    let kind = match row.gid_type {
        // There is no GID type for iWARP, and the rows of an iWARP device have the type 0.
        0 if is_iwarp => GidKind::Iwarp,
        0 => GidKind::InfiniBand,
        1 => GidKind::RoceV1,
        2 => GidKind::RoceV2,
        other => GidKind::Unknown(other),
    };
    // An address vector has one byte for the row of the source GID. So leave out rows above 255, which no request can
    // use.
    let index = u8::try_from(row.gid_index).ok()?;
    (!gid.is_empty()).then_some(GidEntry { gid, kind, interface: row.ndev_ifindex, index })
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("number", &self.number.value())
            .field("state", &self.state())
            .field("link_layer", &self.link_layer())
            .field("active_mtu", &self.active_mtu())
            .field("lid", &self.lid())
            .field("gid", &self.chosen)
            .finish_non_exhaustive()
    }
}
