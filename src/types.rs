//! Checked numbers with the names of the specification. Each is at most a few bytes, `Copy`, and in host byte order,
//! except for [`Gid`].

use crate::sys;
use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

/// A number outside the range of its type.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the {what} must be {} to {}, not {}", base.of(*least), base.of(*most), base.of(*value))]
pub struct OutOfRange {
    what: &'static str,
    base: Base,
    value: u64,
    least: u64,
    most: u64,
}

/// The same text as `Display`, so that numbers have the same base in both.
impl fmt::Debug for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OutOfRange({self})")
    }
}

/// How a number prints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Base {
    Decimal,
    Hexadecimal,
}

impl Base {
    fn of(self, number: u64) -> String {
        match self {
            Self::Decimal => number.to_string(),
            Self::Hexadecimal => format!("{number:#x}"),
        }
    }
}

impl OutOfRange {
    /// Checks the range of a number that has no type of its own.
    pub(crate) fn check(what: &'static str, value: u64, least: u64, most: u64) -> Result<(), Self> {
        if (least..=most).contains(&value) {
            Ok(())
        } else {
            Err(Self { what, base: Base::Decimal, value, least, most })
        }
    }
}

/// Declares a newtype over an integer with a range.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($int:ty), $base:ident $what:literal, $least:literal..=$most:literal) => {
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
                    let (base, least, most) = (Base::$base, $least as u64, $most as u64);
                    Err(OutOfRange { what: $what, base, value: value as u64, least, most })
                }
            }

            /// The number in range that is nearest to what a device reports.
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

/// Numbers that print in decimal.
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

/// Hexadecimal, as the tools of rdma-core print it: `0x38`.
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
    Qpn(u32), Hexadecimal "queue pair number", 0..=0xff_ffff
}
number! {
    /// A packet sequence number: 24 bits. The first that one side sends is the first that the other expects.
    #[doc(alias = "sq_psn")]
    #[doc(alias = "rq_psn")]
    Psn(u32), Decimal "packet sequence number", 0..=0xff_ffff
}
number! {
    /// A port of a device; they count from 1.
    #[doc(alias = "port_num")]
    PortNumber(u8), Decimal "port number", 1..=254
}
number! {
    /// How long a requester waits for an acknowledgement: `4.096 µs * 2^n`; 0 waits for ever.
    ///
    /// 14 is 67 ms, 18 is 1.07 s. Devices may wait up to four times as long. The request fails after
    /// `retry_count + 1` such waits.
    #[doc(alias = "timeout")]
    AckTimeout(u8), Decimal "acknowledgement timeout exponent", 0..=31
}
number! {
    /// How often a request is sent again after an acknowledgement timeout.
    ///
    /// Soft-RoCE treats 7 as "for ever".
    #[doc(alias = "retry_cnt")]
    RetryCount(u8), Decimal "retry count", 0..=7
}
number! {
    /// How often a request is sent again after the peer said that it is not ready to receive; 7 is for ever.
    #[doc(alias = "rnr_retry")]
    RnrRetry(u8), Decimal "receiver-not-ready retry count", 0..=7
}
number! {
    /// A code for how long this side asks a peer to wait when no receive is posted.
    ///
    /// 1 is 10 µs, 12 is 0.64 ms, 20 is 10.24 ms, 31 is 491.52 ms. 0 is the longest time, 655.36 ms.
    #[doc(alias = "min_rnr_timer")]
    RnrTimer(u8), Decimal "receiver-not-ready timer code", 0..=31
}
number! {
    /// How many RDMA reads and atomics may be outstanding at once, as requester or as responder.
    #[doc(alias = "max_rd_atomic")]
    #[doc(alias = "max_dest_rd_atomic")]
    ReadDepth(u8), Decimal "read depth", 0..=255
}

impl Psn {
    /// A random number, so that packets of an earlier connection are not taken for packets of this one.
    pub fn random() -> Self {
        use std::hash::{BuildHasher, RandomState};
        // The number guards against stale packets, not against an attacker, so the standard library's seeds are enough.
        Self(RandomState::new().hash_one(()) as u32 & 0xff_ffff)
    }

    /// A start PSN for the time after a reset. `self` is the number that the pair would have sent next. The start is so
    /// far ahead of it that late packets from before the reset, and their acknowledgements, fall outside the window.
    ///
    /// Sequence numbers wrap around, so half of all random starts are behind `self`. From such a start, soft-RoCE takes
    /// a late acknowledgement for one of a new packet, and reports that packet as arrived.
    pub(crate) fn after_reset(self) -> Self {
        const AHEAD: u32 = 1 << 21;
        Self((self.0 + AHEAD + Self::random().0 % AHEAD) & 0xff_ffff)
    }
}

impl Qpn {
    /// Addresses all members of a multicast group.
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// The number that a device reports: the lower 24 bits.
    #[inline(always)]
    pub(crate) fn from_device(number: u32) -> Self {
        Self(number & 0xff_ffff)
    }
}

impl ReadDepth {
    /// The depth nearest to a limit of a device.
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

/// The local key of registered memory. Requests of its own program name the memory by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lkey(pub(crate) u32);

/// The remote key of registered memory. Requests of a peer name the memory by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rkey(pub(crate) u32);

/// The key of a datagram queue pair: it takes only datagrams that carry the same key. Only privileged programs may use
/// keys with the top bit set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[doc(alias = "qkey")]
pub struct Qkey(pub u32);

impl Qkey {
    /// `0x1111_1111`, which `ibv_ud_pingpong` and perftest use.
    pub const USUAL: Self = Self(0x1111_1111);
    /// `0x0123_4567`, `RDMA_UDP_QKEY`: the key that rdma_cm tells peers, and that its multicast groups have.
    #[doc(alias = "RDMA_UDP_QKEY")]
    pub const CONNECTION_MANAGER: Self = Self(0x0123_4567);
}

/// A partition key. Two ports can communicate if the lower 15 bits of their keys are the same and at least one port is
/// a full member.
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
        let base = Base::Decimal;
        let (what, value) = ("MTU in bytes, a power of two,", bytes.into());
        found.ok_or(OutOfRange { what, base, value, least: 256, most: 4096 })
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
            _ => {
                let (what, base) = ("MTU code", Base::Decimal);
                return Err(OutOfRange { what, base, value: code.into(), least: 1, most: 5 });
            }
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

/// A global identifier: the 16 bytes of an IPv6 address, in network byte order. It prints as an IPv6 address.
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
                let ahead = Psn(last).after_reset().0.wrapping_sub(last) & 0xff_ffff;
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
            "the packet sequence number must be 0 to 16777215, not 16777216"
        );
    }

    #[test]
    fn a_queue_pair_number_prints_in_one_base() {
        let number = Qpn::new(56).unwrap();
        assert_eq!(
            (format!("{number:?}"), number.to_string(), format!("{number:#x}")),
            ("Qpn(0x38)".into(), "0x38".into(), "0x38".into())
        );
        let error = Qpn::new(0x100_0000).unwrap_err();
        assert_eq!(error.to_string(), "the queue pair number must be 0x0 to 0xffffff, not 0x1000000");
        assert_eq!(format!("{error:?}"), format!("OutOfRange({error})"));
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
