//! The public modules that gather what stands on several floors, each under its noun.

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
