//! The legal twins of the failing cases, which compile as a part of `tests/ui.rs`.

#[cfg(feature = "aio")]
mod aio;
mod cm;
mod completion;
mod device;
mod domain;
mod memory;
mod peer_holes;
mod queue;
mod scope;
