//! The code that `benches/scale`, `benches/soak` and `tests/scale` share.
#![allow(dead_code, reason = "each of them uses a part")]

pub(crate) mod fleet;
#[cfg(feature = "tokio")]
pub(crate) mod futures;
pub(crate) mod heap;
pub(crate) mod race;
pub(crate) use support::random;
pub(crate) mod shape;
pub(crate) mod world;
