//! What several examples need.
#![allow(dead_code, reason = "not every example needs all of it")]

pub(crate) mod device;
pub(crate) mod fault;
pub(crate) mod meeting;
pub(crate) mod number;
pub(crate) mod tcp;
