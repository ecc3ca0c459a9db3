//! Addresses and limits of a soft device.
#![forbid(unsafe_code)]

use super::{events::Events, fault::Verb, objects::Table};
use crate::sys::{
    ibv_atomic_cap, ibv_device_attr, ibv_device_cap_flags as Cap, ibv_gid, ibv_gid_entry, ibv_gid_type, ibv_mtu,
    ibv_port_attr, ibv_port_state,
};
use crate::types::Psn;
use libc::{c_char, c_int};
use std::collections::HashMap;
use std::sync::OnceLock;

/// The number of the only port.
pub(super) const PORT: u8 = 1;
/// The largest packet payload: 4096 bytes.
pub(super) const ACTIVE_MTU: ibv_mtu = ibv_mtu::IBV_MTU_4096;
/// `ACTIVE_MTU` in bytes. No datagram is longer.
pub(super) const ACTIVE_MTU_BYTES: u64 = 4096;
/// The longest message.
pub(super) const MAX_MESSAGE: u32 = 1 << 31;
/// The most requests in one queue.
pub(super) const MAX_QP_WR: u32 = 1 << 20;
/// The most scatter or gather entries of one request.
pub(super) const MAX_SGE: u32 = 32;
/// The most bytes of inline data in one request.
pub(super) const MAX_INLINE: u32 = 512;
/// The most entries of one completion queue.
pub(super) const MAX_CQE: u32 = (1 << 22) - 1;
/// The most reads and atomics at a time, in either direction.
pub(super) const MAX_RD_ATOMIC: u8 = 128;
pub(super) const COMPLETION_VECTORS: u32 = 1;
/// The most requests in one shared receive queue.
pub(super) const MAX_SRQ_WR: u32 = 1 << 20;
/// The most multicast groups, and the most queue pairs in one group.
pub(super) const MAX_GROUPS: usize = 8192;
pub(super) const MAX_GROUP_MEMBERS: usize = 56;
/// The only entry of the table of partition keys: full member of the default partition.
const DEFAULT_PKEY: u16 = 0xffff;
/// The most objects of one kind.
const MAX_OBJECTS: c_int = 1 << 20;
/// The number of entries of the GID table, of which two are filled.
const GID_ROWS: c_int = 1024;
/// The most devices of a fabric: the last two bytes of each address are the device's number.
pub(super) const MAX_DEVICES: usize = 0xfffe;

/// `IBV_PORT_CM_SUP` and `IBV_PORT_IP_BASED_GIDS`.
const PORT_CAP_FLAGS: u32 = 1 << 16 | 1 << 26;
/// `IBV_LINK_LAYER_ETHERNET`.
const ETHERNET: u8 = 2;
/// "Link up".
const PHYS_LINK_UP: u8 = 5;
/// "Disabled".
const PHYS_DISABLED: u8 = 3;
/// One lane of 2.5 Gb/s, as Linux soft-RoCE reports.
const WIDTH_1X: u8 = 1;
const SPEED_SDR: u8 = 1;

/// The `device_cap_flags`.
const CAPABILITIES: Cap = Cap(Cap::IBV_DEVICE_CURR_QP_STATE_MOD.0
    | Cap::IBV_DEVICE_PORT_ACTIVE_EVENT.0
    | Cap::IBV_DEVICE_SYS_IMAGE_GUID.0
    | Cap::IBV_DEVICE_RC_RNR_NAK_GEN.0
    | Cap::IBV_DEVICE_SRQ_RESIZE.0
    | Cap::IBV_DEVICE_MEM_WINDOW.0
    | Cap::IBV_DEVICE_MEM_MGT_EXTENSIONS.0
    | Cap::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0);

/// Two random bytes for the addresses of this process. They distinguish its addresses from those of another process,
/// whose devices no packet can reach. (Two processes have the same bytes once in 65536 times. From the 256th device of
/// a fabric on, IPv4 addresses have room for one of the bytes only.)
fn process() -> [u8; 2] {
    static PROCESS: OnceLock<[u8; 2]> = OnceLock::new();
    *PROCESS.get_or_init(|| {
        let [_, _, first, second] = Psn::random().value().to_be_bytes();
        [first, second]
    })
}

fn small(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// A device of a fabric.
pub(super) struct Device {
    pub(super) name: String,
    /// In network byte order.
    guid: [u8; 8],
    gids: [[u8; 16]; 2],
    /// The queue pairs by number.
    pub(super) qpns: HashMap<u32, usize, Numbers>,
    next_qpn: u32,
    pub(super) removed: bool,
    /// Whether the device has failed while its driver still works.
    pub(super) fatal: bool,
    pub(super) port_down: bool,
}

impl Device {
    /// The device number `index` of a fabric.
    pub(super) fn new(name: &str, index: usize) -> Self {
        let [.., high, low] = (index + 1).to_be_bytes();
        let [first, second] = process();
        // The GUID is the modified EUI-64 of the locally administered MAC address 02:49:pp:pp:hh:ll. The bytes `pp:pp`
        // are those of `process`, and `hh:ll` is the number of the device, counted from 1.
        let guid = [0x00, 0x49, first, 0xff, 0xfe, second, high, low];
        let link_local = u128::from_be_bytes([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
            | u128::from(u64::from_be_bytes(guid));
        // The first 255 devices have addresses 10.p.p.n, with one byte for the device's number. Further devices need
        // two bytes, so they have addresses 11.p.n.n.
        let ipv4 = u32::from_be_bytes(if high == 0 { [10, first, second, low] } else { [11, first, high, low] });
        let mapped = 0xffff_0000_0000 | u128::from(ipv4);
        Self {
            name: name.to_owned(),
            guid,
            gids: [link_local.to_be_bytes(), mapped.to_be_bytes()],
            qpns: HashMap::default(),
            next_qpn: 17,
            removed: false,
            fatal: false,
            port_down: false,
        }
    }

    /// Whether the device can send and receive packets.
    pub(super) fn is_reachable(&self) -> bool {
        !self.removed && !self.fatal && !self.port_down
    }

    /// Whether `verb` fails because the device is removed or has failed.
    pub(super) fn refuses(&self, verb: Verb) -> bool {
        let always = matches!(verb, Verb::CloseDevice | Verb::GetAsyncEvent);
        self.removed && !always || self.fatal && !verb.outlives_device()
    }

    /// The entry at `index` of the table of partition keys.
    pub(super) fn pkey(port: u8, index: u16) -> Option<u16> {
        (port == PORT && index == 0).then_some(DEFAULT_PKEY)
    }

    /// The GUID as `ibv_get_device_guid` returns it.
    pub(super) fn guid_be(&self) -> u64 {
        u64::from_ne_bytes(self.guid)
    }

    pub(super) fn gid(&self, index: u8) -> Option<[u8; 16]> {
        self.gids.get(usize::from(index)).copied()
    }

    pub(super) fn has_gid(&self, gid: &[u8; 16]) -> bool {
        self.gids.contains(gid)
    }

    /// A number for a new queue pair: it has 24 bits, and is not one of the special numbers. A number is reused as late
    /// as possible.
    pub(super) fn take_qpn(&mut self, index: usize) -> Option<u32> {
        const FIRST: u32 = 17;
        const LAST: u32 = 0xff_fffe;
        for _ in 0..=self.qpns.len() {
            let qpn = self.next_qpn;
            self.next_qpn = if qpn >= LAST { FIRST } else { qpn + 1 };
            if let std::collections::hash_map::Entry::Vacant(entry) = self.qpns.entry(qpn) {
                entry.insert(index);
                return Some(qpn);
            }
        }
        None
    }

    /// Makes `qpn` the number of the next queue pair, if it is free then.
    pub(super) fn take_next(&mut self, qpn: u32) {
        self.next_qpn = qpn;
    }

    pub(super) fn attributes(&self) -> ibv_device_attr {
        let mut attributes = ibv_device_attr::default();
        for (to, from) in attributes.fw_ver.iter_mut().zip(*b"interlock-soft") {
            *to = c_char::from_ne_bytes([from]);
        }
        attributes.node_guid = self.guid_be();
        attributes.sys_image_guid = self.guid_be();
        attributes.max_mr_size = u64::MAX;
        attributes.page_size_cap = 0xffff_f000;
        attributes.max_qp = MAX_OBJECTS;
        attributes.max_qp_wr = MAX_QP_WR.cast_signed();
        attributes.max_sge = MAX_SGE.cast_signed();
        attributes.max_sge_rd = MAX_SGE.cast_signed();
        attributes.max_cq = MAX_OBJECTS;
        attributes.max_cqe = MAX_CQE.cast_signed();
        attributes.max_mr = MAX_OBJECTS;
        attributes.max_pd = MAX_OBJECTS;
        attributes.max_qp_rd_atom = c_int::from(MAX_RD_ATOMIC);
        attributes.max_qp_init_rd_atom = c_int::from(MAX_RD_ATOMIC);
        attributes.max_res_rd_atom = MAX_OBJECTS;
        attributes.atomic_cap = ibv_atomic_cap::IBV_ATOMIC_HCA;
        attributes.max_srq = MAX_OBJECTS;
        attributes.max_srq_wr = MAX_SRQ_WR.cast_signed();
        attributes.max_srq_sge = MAX_SGE.cast_signed();
        attributes.max_mw = (1 << 23) - 1;
        attributes.max_ah = MAX_OBJECTS;
        attributes.max_mcast_grp = small(MAX_GROUPS);
        attributes.max_mcast_qp_attach = small(MAX_GROUP_MEMBERS);
        attributes.max_total_mcast_qp_attach = small(MAX_GROUPS * MAX_GROUP_MEMBERS);
        attributes.device_cap_flags = CAPABILITIES.0;
        attributes.max_pkeys = 1;
        attributes.local_ca_ack_delay = 15;
        attributes.phys_port_cnt = PORT;
        attributes
    }

    pub(super) fn port(&self) -> ibv_port_attr {
        let (state, phys_state) = if self.port_down {
            (ibv_port_state::IBV_PORT_DOWN, PHYS_DISABLED)
        } else {
            (ibv_port_state::IBV_PORT_ACTIVE, PHYS_LINK_UP)
        };
        ibv_port_attr {
            state,
            max_mtu: ACTIVE_MTU,
            active_mtu: ACTIVE_MTU,
            gid_tbl_len: GID_ROWS,
            port_cap_flags: PORT_CAP_FLAGS,
            max_msg_sz: MAX_MESSAGE,
            pkey_tbl_len: 1,
            max_vl_num: 1,
            active_width: WIDTH_1X,
            active_speed: SPEED_SDR,
            phys_state,
            link_layer: ETHERNET,
            ..ibv_port_attr::default()
        }
    }

    pub(super) fn gid_table(&self) -> Vec<ibv_gid_entry> {
        let row = |(index, raw): (u32, &[u8; 16])| ibv_gid_entry {
            gid: ibv_gid { raw: *raw },
            gid_index: index,
            port_num: u32::from(PORT),
            gid_type: ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0,
            ndev_ifindex: 0,
        };
        (0..).zip(&self.gids).map(row).collect()
    }
}

/// The table entry of an open context.
pub(super) struct ContextInfo {
    pub(super) device: usize,
    /// How many protection domains, channels and completion queues the context has.
    pub(super) children: u32,
    pub(super) events: Events,
}

/// Open contexts.
pub(super) type Contexts = Table<ContextInfo>;

/// A cheap hash for object numbers.
#[derive(Clone, Copy, Default)]
pub(super) struct Numbers;

impl std::hash::BuildHasher for Numbers {
    type Hasher = NumberHasher;
    fn build_hasher(&self) -> NumberHasher {
        NumberHasher(0)
    }
}

pub(super) struct NumberHasher(u64);

impl std::hash::Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }
    fn write_u32(&mut self, number: u32) {
        // The hash table uses the highest and the lowest bits of the hash. The multiplication (Fibonacci hashing)
        // spreads the number over the highest bits, and the shift mixes the upper half into the lower half.
        let spread = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ spread >> 32;
    }
}
