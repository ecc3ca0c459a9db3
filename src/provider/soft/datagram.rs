//! Datagrams: address handles, the header before the data, and multicast groups.
//!
//! A datagram goes to the pair that its request names, or to each pair that is attached to a group. It is dropped
//! silently if the Q_Key or the transport does not match, if there is no receive, or if the port is down.
#![forbid(unsafe_code)]

use super::{
    completion::Origin, device, engine::SUCCESS, fabric::State, memory::Source, responder::Misfit,
    transition::Transport, work::SendWork,
};
use crate::sys::{ibv_ah_attr, ibv_gid, ibv_wc_opcode, ibv_wc_status};
use libc::c_int;

/// The bytes before the data in each receive.
pub(super) const HEADER: usize = 40;
/// The queue pair number that addresses a multicast group.
const GROUP_QPN: u32 = 0xff_ffff;
/// If this bit is set in the Q_Key of a request, the datagram carries the Q_Key of the sending pair instead.
const OWN_QKEY: u32 = 1 << 31;
/// The prefix of an IPv6 address that is a mapped IPv4 address.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// The bytes of the headers of UDP and InfiniBand, and of the checksum at the end.
const OVERHEAD: u64 = 8 + 12 + 8 + 4;
/// The protocol number of UDP.
const UDP: u8 = 17;
/// Fills the first 20 bytes of the header if an IPv4 header takes the last 20: the first 20 are then undefined. They
/// look like the beginning of an IPv6 header, so that nobody decides by the first byte alone.
const JUNK: u8 = 0x6a;

/// An address handle.
pub(super) struct Address {
    pd: usize,
    attributes: ibv_ah_attr,
    source: [u8; 16],
    target: [u8; 16],
}

/// The destination that the request of a datagram names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Destination {
    /// The number of the address handle. No number is used twice.
    pub(super) address: u32,
    pub(super) qpn: u32,
    pub(super) qkey: u32,
}

/// The header of a datagram, and the address to which the datagram goes.
pub(super) struct Header {
    bytes: [u8; HEADER],
    target: [u8; 16],
    qpn: u32,
    qkey: u32,
    origin: Origin,
}

impl Header {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Whether this is the address of a multicast group.
fn is_group(gid: &[u8; 16]) -> bool {
    match gid.strip_prefix(&MAPPED) {
        Some(ipv4) => ipv4.first().is_some_and(|first| first >> 4 == 0xe),
        None => gid.first() == Some(&0xff),
    }
}

/// The header of a datagram with `len` bytes of data: an IPv6 header, or an IPv4 header in the last 20 bytes.
fn header(address: &Address, len: u64) -> [u8; HEADER] {
    let route = address.attributes.grh;
    let len = u16::try_from(len.next_multiple_of(4) + OVERHEAD).unwrap_or(u16::MAX);
    let mut bytes = [JUNK; HEADER];
    if let (Some(source), Some(target)) = (address.source.strip_prefix(&MAPPED), address.target.strip_prefix(&MAPPED)) {
        let [high, low] = (len + 20).to_be_bytes();
        let mut ipv4 = [0; 20];
        let start = [0x45, route.traffic_class, high, low, 0, 0, 0x40, 0, route.hop_limit, UDP, 0, 0];
        fill(&mut ipv4, &[&start, source, target]);
        let sum = checksum(&ipv4).to_be_bytes();
        let (before, rest) = start.split_at(10);
        fill(&mut ipv4, &[before, &sum, rest.get(2..).unwrap_or(&[]), source, target]);
        fill(&mut bytes, &[&[JUNK; 20], &ipv4]);
    } else {
        let first = 6 << 28 | u32::from(route.traffic_class) << 20 | route.flow_label & 0xf_ffff;
        let rest = [UDP, route.hop_limit];
        fill(&mut bytes, &[&first.to_be_bytes(), &len.to_be_bytes(), &rest, &address.source, &address.target]);
    }
    bytes
}

/// Writes `parts` one after the other.
fn fill(to: &mut [u8], parts: &[&[u8]]) {
    for (to, from) in to.iter_mut().zip(parts.iter().copied().flatten()) {
        *to = *from;
    }
}

/// The checksum of an IPv4 header whose own checksum is 0.
fn checksum(header: &[u8; 20]) -> u16 {
    let mut sum = 0_u32;
    for pair in header.chunks_exact(2) {
        if let &[high, low] = pair {
            sum += u32::from(u16::from_be_bytes([high, low]));
        }
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

impl State {
    /// Creates an address handle, and returns its number.
    pub(super) fn create_ah(&mut self, pd: usize, attributes: &ibv_ah_attr) -> Result<u32, c_int> {
        let device = self.pds.get(pd).ok_or(libc::EINVAL)?.device;
        if attributes.is_global == 0 || attributes.port_num != device::PORT {
            return Err(libc::EINVAL);
        }
        let device = self.devices.get(device).ok_or(libc::EINVAL)?;
        let source = device.gid(attributes.grh.sgid_index).ok_or(libc::ENODATA)?;
        let target = attributes.grh.dgid.bytes();
        self.last_address = self.last_address.checked_add(1).ok_or(libc::ENOMEM)?;
        self.adopt(pd)?;
        self.addresses.insert(self.last_address, Address { pd, attributes: *attributes, source, target });
        Ok(self.last_address)
    }

    pub(super) fn destroy_ah(&mut self, index: usize) -> Result<(), c_int> {
        let number = u32::try_from(index).map_err(|_| libc::EINVAL)?;
        let address = self.addresses.remove(&number).ok_or(libc::EINVAL)?;
        self.release_pd(address.pd);
        Ok(())
    }

    /// The header of a request's datagram. `Err` if the address handle belongs to another domain, or is gone.
    pub(super) fn header(&self, index: usize, work: &SendWork) -> Result<Header, ibv_wc_status> {
        let found = || {
            let (pair, to) = (self.pairs.get(index)?, work.to?);
            let address = self.addresses.get(&to.address).filter(|address| address.pd == pair.pd)?;
            let qkey = if to.qkey & OWN_QKEY != 0 { pair.attributes.qkey } else { to.qkey };
            let origin = Origin { qpn: pair.qpn, service_level: address.attributes.sl };
            Some(Header { bytes: header(address, work.len), target: address.target, qpn: to.qpn, qkey, origin })
        };
        found().ok_or(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR)
    }

    /// Delivers a datagram to the addressed pair, or to all members of the addressed group. `message` begins with the
    /// header.
    pub(super) fn distribute(&mut self, index: usize, work: &SendWork, header: &Header, message: Source<'_>) {
        let own = self.pairs.get(index).and_then(|pair| self.devices.get(pair.device));
        if !own.is_some_and(device::Device::is_reachable) {
            return;
        }
        if !is_group(&header.target) {
            let device = self.devices.iter().find(|device| device.has_gid(&header.target));
            if let Some(&peer) = device.and_then(|device| device.qpns.get(&header.qpn)) {
                self.receive_datagram(peer, work, header, message);
            }
        } else if header.qpn == GROUP_QPN {
            let mut turn = 0;
            // Each round of the loop looks up the group again, because `receive_datagram` borrows all of `self`. No
            // delivery changes a group, so the index `turn` stays valid.
            while let Some(&peer) = self.groups.get(&header.target).and_then(|members| members.get(turn)) {
                self.receive_datagram(peer, work, header, message);
                turn += 1;
            }
        }
    }

    fn receive_datagram(&mut self, peer: usize, work: &SendWork, header: &Header, message: Source<'_>) {
        let Some(pair) = self.pairs.get(peer) else { return };
        let reachable = self.devices.get(pair.device).is_some_and(device::Device::is_reachable);
        let expected = pair.transport == Transport::Datagram && pair.attributes.qkey == header.qkey;
        if !(reachable && expected && pair.state.responds()) {
            return;
        }
        let status = match self.scatter(peer, message, work.len + HEADER as u64) {
            Ok(()) => SUCCESS,
            Err(Misfit::NoReceive) => return,
            Err(Misfit::TooSmall) => ibv_wc_status::IBV_WC_LOC_LEN_ERR,
            Err(Misfit::Protected) => ibv_wc_status::IBV_WC_LOC_PROT_ERR,
        };
        if status == SUCCESS {
            self.take_receive(peer, ibv_wc_opcode::IBV_WC_RECV, work, Some(header.origin));
        } else {
            self.fail_receive(peer, status);
            self.enter_error(peer);
        }
    }

    /// Adds a pair to a group. Joining again changes nothing.
    pub(super) fn attach(&mut self, index: usize, gid: &ibv_gid) -> Result<(), c_int> {
        let gid = gid.bytes();
        let pair = self.pairs.get_mut(index).ok_or(libc::EINVAL)?;
        if pair.transport != Transport::Datagram || !is_group(&gid) {
            return Err(libc::EINVAL);
        }
        if self.groups.len() >= device::MAX_GROUPS && !self.groups.contains_key(&gid) {
            return Err(libc::ENOMEM);
        }
        let members = self.groups.entry(gid).or_default();
        if members.contains(&index) {
            return Ok(());
        }
        if members.len() >= device::MAX_GROUP_MEMBERS {
            return Err(libc::ENOMEM);
        }
        members.push(index);
        pair.groups += 1;
        Ok(())
    }

    /// Removes a pair from a group.
    pub(super) fn detach(&mut self, index: usize, gid: &ibv_gid) -> Result<(), c_int> {
        let gid = gid.bytes();
        let members = self.groups.get_mut(&gid).ok_or(libc::EINVAL)?;
        let place = members.iter().position(|&member| member == index).ok_or(libc::EINVAL)?;
        members.remove(place);
        if members.is_empty() {
            self.groups.remove(&gid);
        }
        if let Some(pair) = self.pairs.get_mut(index) {
            pair.groups = pair.groups.saturating_sub(1);
        }
        Ok(())
    }
}
