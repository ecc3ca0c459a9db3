//! Public modules that gather the types of one subject from several internal modules.

pub mod access;
pub mod attributes;
pub mod datagram;
pub mod error;
pub mod event;
pub mod number;
pub mod request;
pub mod shared;
pub mod state;
pub mod transport;
pub mod window;
