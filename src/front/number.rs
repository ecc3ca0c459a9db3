//! The numbers that verbs take, as types. Each is checked against its range when it is made.
//!
//! Queue pair numbers and packet sequence numbers have 24 bits, retry counts go from 0 to 7, timeouts are exponents. C
//! takes plain integers, and the device ignores or refuses a number that is out of range. Here each number has a type,
//! whose `new` refuses a value out of range with [`OutOfRange`](crate::error::OutOfRange). [`Lkey`] and [`Rkey`] are
//! the keys of registered memory.
//!
//! ```
//! use interlock::number::{AckTimeout, RetryCount};
//!
//! assert!(RetryCount::new(7).is_ok());
//! assert!(RetryCount::new(9).is_err());
//! # let _ = AckTimeout::new(14);
//! ```

pub use crate::types::{
    AckTimeout, Gid, Lkey, Mtu, Pkey, PortNumber, Psn, Qkey, Qpn, ReadDepth, RetryCount, Rkey, RnrRetry, RnrTimer,
};
