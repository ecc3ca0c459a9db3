//! Checked numbers with the names of the specification. Each is at most a few bytes, `Copy`, and in host byte order.

use crate::sys;
use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

/// A number outside the range of its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{value} is no {what}: the range is {least}..={most}")]
pub struct OutOfRange {
    what: &'static str,
    value: u64,
    least: u64,
    most: u64,
}

impl OutOfRange {
    /// Checks the range of a number that has no type of its own.
    pub(crate) fn check(what: &'static str, value: u64, least: u64, most: u64) -> Result<(), Self> {
        if (least..=most).contains(&value) { Ok(()) } else { Err(Self { what, value, least, most }) }
    }
}

/// Declares a newtype over an integer with a range.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($int:ty), $what:literal, $least:literal..=$most:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($int);

        impl $name {
            /// Checks the range.
            ///
            /// # Errors
            ///
            #[doc = concat!("Outside `", stringify!($least), "..=", stringify!($most), "`.")]
            pub const fn new(value: $int) -> Result<Self, OutOfRange> {
                #[allow(unused_comparisons, reason = "some ranges start at the least value of the type")]
                if value >= $least && value <= $most {
                    Ok(Self(value))
                } else {
                    Err(OutOfRange { what: $what, value: value as u64, least: $least as u64, most: $most as u64 })
                }
            }

            /// The nearest in range to what a device says.
            #[allow(dead_code, reason = "not every number comes from a device")]
            pub(crate) fn clamped(value: $int) -> Self {
                Self(value.clamp($least, $most))
            }

            /// The number.
            pub const fn value(self) -> $int {
                self.0
            }
        }

        impl TryFrom<$int> for $name {
            type Error = OutOfRange;
            fn try_from(value: $int) -> Result<Self, OutOfRange> {
                Self::new(value)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

/// Lets numbers print in the decimal base.
macro_rules! decimal {
    ($($name:ident),+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.0).finish()
            }
        }
    )+};
}
decimal!(Psn, PortNumber, AckTimeout, RetryCount, RnrRetry, RnrTimer, ReadDepth);

/// In hexadecimal, as the tools of rdma-core print it, everywhere: `0x38`.
impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({self})")
    }
}

number! {
    /// A queue pair number: 24 bits, unique on one device only. It prints in hexadecimal.
    #[doc(alias = "qp_num")]
    Qpn(u32), "queue pair number", 0..=0xff_ffff
}
number! {
    /// A packet sequence number: 24 bits. The first that one side sends is the first that the other expects.
    #[doc(alias = "sq_psn")]
    #[doc(alias = "rq_psn")]
    Psn(u32), "packet sequence number", 0..=0xff_ffff
}
number! {
    /// A port of a device; they count from 1.
    #[doc(alias = "port_num")]
    PortNumber(u8), "port number", 1..=254
}
number! {
    /// How long a requester waits for an acknowledgement: `4.096 µs * 2^n`; 0 waits for ever.
    ///
    /// 14 is 67 ms, 18 is 1.07 s. Devices may wait up to four times as long. It is given up after
    /// `retry_count + 1` such waits.
    #[doc(alias = "timeout")]
    AckTimeout(u8), "acknowledgement timeout exponent", 0..=31
}
number! {
    /// How often a request is sent again after an acknowledgement timeout.
    ///
    /// Soft-RoCE takes 7 as "for ever".
    #[doc(alias = "retry_cnt")]
    RetryCount(u8), "retry count", 0..=7
}
number! {
    /// How often a request is sent again after the peer said that it is not ready to receive; 7 is for ever.
    #[doc(alias = "rnr_retry")]
    RnrRetry(u8), "receiver-not-ready retry count", 0..=7
}
number! {
    /// How long this side asks a peer to wait when no receive is posted: a code.
    ///
    /// 1 is 10 µs, 12 is 0.64 ms, 20 is 10.24 ms, 31 is 491.52 ms; 0 is not the least but the greatest, 655.36 ms.
    #[doc(alias = "min_rnr_timer")]
    RnrTimer(u8), "receiver-not-ready timer code", 0..=31
}
number! {
    /// How many RDMA reads and atomics may be outstanding at once, as requester or as responder.
    #[doc(alias = "max_rd_atomic")]
    #[doc(alias = "max_dest_rd_atomic")]
    ReadDepth(u8), "read depth", 0..=255
}

impl Psn {
    /// A random one, so that packets of an earlier connection are not taken for this one's.
    pub fn random() -> Self {
        use std::hash::{BuildHasher, RandomState};
        // Guards against stale packets, not against an attacker: the standard library's seeds are enough.
        Self(RandomState::new().hash_one(()) as u32 & 0xff_ffff)
    }

    /// One to begin the next life of a pair with that would have sent this next: packets of before that are still under way,
    /// and their answers, are behind it. Numbers are compared round a circle, so every other random one is not ahead: there
    /// soft-RoCE takes a late acknowledgement for one of what it sends now, which it says then has arrived.
    pub(crate) fn of_next_life(self) -> Self {
        const AHEAD: u32 = 1 << 21;
        Self((self.0 + AHEAD + Self::random().0 % AHEAD) & 0xff_ffff)
    }
}

impl Qpn {
    /// The members of a multicast group.
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// What a device says, of which 24 bits count.
    #[inline(always)]
    pub(crate) fn from_device(number: u32) -> Self {
        Self(number & 0xff_ffff)
    }
}

impl ReadDepth {
    /// The nearest to a limit of a device.
    pub(crate) fn saturating(limit: i32) -> Self {
        Self(limit.clamp(0, 255) as u8)
    }
}

impl AckTimeout {
    /// Waits for ever.
    pub const NEVER: Self = Self(0);

    /// The time that the exponent stands for; `None` for 0, which never ends.
    pub fn duration(self) -> Option<Duration> {
        (self.0 != 0).then(|| Duration::from_nanos(4096 << self.0))
    }
}

impl RnrRetry {
    /// Sends again for ever.
    pub const FOREVER: Self = Self(7);
}

/// The local key of registered memory: goes into the requests of its own program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lkey(pub(crate) u32);

/// The remote key of registered memory: what a peer must name to reach it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rkey(pub(crate) u32);

/// The key that a datagram must bring along to be taken: the same on both sides. Keys with the top bit set are for the
/// privileged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[doc(alias = "qkey")]
pub struct Qkey(pub u32);

impl Qkey {
    /// `0x1111_1111`, which `ibv_ud_pingpong` and perftest use.
    pub const USUAL: Self = Self(0x1111_1111);
}

/// A partition key: two ports speak with each other if the lower 15 bits are the same and at least one of them is a full member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[doc(alias = "pkey")]
pub struct Pkey(pub u16);

impl Pkey {
    /// Full membership of the default partition.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether the port is a full member rather than a limited one.
    pub const fn is_full(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether it names a partition.
    pub const fn is_valid(self) -> bool {
        self.0 & 0x7fff != 0
    }
}

impl Rkey {
    /// The number, for printing and for wire formats of other programs.
    pub fn value(self) -> u32 {
        self.0
    }
}

/// A path MTU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[doc(alias = "ibv_mtu")]
pub enum Mtu {
    /// 256 bytes.
    #[doc(alias = "IBV_MTU_256")]
    Bytes256 = 1,
    /// 512 bytes.
    #[doc(alias = "IBV_MTU_512")]
    Bytes512 = 2,
    /// 1024 bytes.
    #[doc(alias = "IBV_MTU_1024")]
    Bytes1024 = 3,
    /// 2048 bytes.
    #[doc(alias = "IBV_MTU_2048")]
    Bytes2048 = 4,
    /// 4096 bytes.
    #[doc(alias = "IBV_MTU_4096")]
    Bytes4096 = 5,
}

impl Mtu {
    /// The size in bytes.
    pub fn bytes(self) -> u32 {
        128 << (self as u32)
    }

    /// The MTU of this many bytes.
    ///
    /// # Errors
    ///
    /// Not 256, 512, 1024, 2048 or 4096.
    pub fn from_bytes(bytes: u32) -> Result<Self, OutOfRange> {
        let all = [Self::Bytes256, Self::Bytes512, Self::Bytes1024, Self::Bytes2048, Self::Bytes4096];
        let found = all.into_iter().find(|mtu| mtu.bytes() == bytes);
        found.ok_or(OutOfRange { what: "MTU in bytes (a power of two)", value: bytes.into(), least: 256, most: 4096 })
    }

    /// The MTU with this code of the specification, 1 to 5.
    ///
    /// # Errors
    ///
    /// Any other code.
    pub fn from_code(code: u32) -> Result<Self, OutOfRange> {
        Ok(match code {
            1 => Self::Bytes256,
            2 => Self::Bytes512,
            3 => Self::Bytes1024,
            4 => Self::Bytes2048,
            5 => Self::Bytes4096,
            _ => return Err(OutOfRange { what: "MTU code", value: code.into(), least: 1, most: 5 }),
        })
    }

    pub(crate) fn to_sys(self) -> sys::ibv_mtu {
        sys::ibv_mtu(self as u32)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// A global identifier: the 16 bytes of an IPv6 address, network byte order. Prints as one.
///
/// # Examples
///
/// ```
/// use interlock::Gid;
/// use std::net::Ipv4Addr;
///
/// let gid = "10.0.0.1".parse::<Gid>()?; // or an IPv6 address, as a GID of any kind is written
/// assert_eq!(gid, Ipv4Addr::new(10, 0, 0, 1).into());
/// assert_eq!(gid.to_string(), "::ffff:10.0.0.1");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[doc(alias = "ibv_gid")]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The same bytes as an address; an IPv4-mapped one (`::ffff:a.b.c.d`) becomes IPv4.
    pub fn address(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// All bytes zero: an empty row of a table.
    pub fn is_empty(self) -> bool {
        self.0 == [0; 16]
    }

    /// `fe80::/10`: reaches only the same link.
    pub fn is_link_local(self) -> bool {
        Ipv6Addr::from(self.0).is_unicast_link_local()
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    /// IPv4-mapped, as RoCE v2 has it.
    fn from(address: Ipv4Addr) -> Self {
        address.to_ipv6_mapped().into()
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl FromStr for Gid {
    type Err = AddrParseError;

    /// An IPv6 or IPv4 address in text.
    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        text.parse::<IpAddr>().map(Self::from)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_life_of_a_pair_is_ahead_of_its_last() {
        for last in [0, 1, 0x7f_ffff, 0xff_ffff] {
            for _ in 0..100 {
                let ahead = Psn(last).of_next_life().0.wrapping_sub(last) & 0xff_ffff;
                assert!((1 << 21..1 << 22).contains(&ahead), "{ahead:#x}");
            }
        }
    }

    #[test]
    fn ranges_are_those_of_the_specification() {
        assert!(Psn::new(0xff_ffff).is_ok() && Psn::new(0x100_0000).is_err());
        assert!(AckTimeout::new(31).is_ok() && AckTimeout::new(32).is_err());
        assert!(RetryCount::new(7).is_ok() && RetryCount::new(9).is_err());
        assert!(PortNumber::new(0).is_err());
        assert_eq!(
            Psn::new(0x100_0000).unwrap_err().to_string(),
            "16777216 is no packet sequence number: the range is 0..=16777215"
        );
    }

    #[test]
    fn a_queue_pair_number_prints_in_one_base() {
        let number = Qpn::new(56).unwrap();
        assert_eq!(
            (format!("{number:?}"), number.to_string(), format!("{number:#x}")),
            ("Qpn(0x38)".into(), "0x38".into(), "0x38".into())
        );
        assert_eq!(format!("{:?} {0}", Psn::new(56).unwrap()), "Psn(56) 56");
    }

    #[test]
    fn mtu_codes_and_sizes_agree() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!(Mtu::from_code(code).unwrap().bytes(), bytes);
        }
        assert!(Mtu::from_code(0).is_err() && Mtu::from_code(9).is_err());
    }

    #[test]
    fn an_ipv4_mapped_gid_is_an_ipv4_address() {
        let gid = Gid::from(IpAddr::from([10, 0, 0, 1]));
        assert_eq!(gid.to_string(), "::ffff:10.0.0.1");
        assert_eq!(gid.address(), IpAddr::from([10, 0, 0, 1]));
    }
}
