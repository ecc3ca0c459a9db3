//! The table, which is the only memory of the server that peers can access.

use crate::Serving;
use crate::common::fault::{Doing, Fault};
use crate::table::{SLOT_BYTES, Slot, Word};
use interlock::memory::Lease;
use interlock::{ProtectionDomain, RemoteAll, RemoteRegion};
use std::time::Duration;
use zerocopy::FromZeros;

pub(crate) struct Exposure {
    lease: Lease<Serving, RemoteAll, Box<[Slot]>>,
}

/// The grant of one session.
///
/// The key covers the whole table, and is valid until the table ends. A session's access ends with its queue pair.
pub(crate) struct Grant(RemoteRegion<RemoteAll>);

impl Grant {
    pub(crate) fn remote(&self) -> RemoteRegion<RemoteAll> {
        self.0
    }
}

impl Exposure {
    pub(crate) fn new(domain: &ProtectionDomain<Serving>, slots: usize, lease: Duration) -> Result<Self, Fault> {
        let table = vec![Slot::new_zeroed(); slots].into_boxed_slice();
        Ok(Self { lease: domain.lease(table, lease).doing("cannot register the table")? })
    }

    pub(crate) fn slots(&self) -> u64 {
        self.lease.len() as u64 / SLOT_BYTES
    }

    pub(crate) fn grant(&self) -> Grant {
        Grant(self.lease.remote())
    }

    /// The word of a slot as it is now.
    pub(crate) fn word(&self, slot: u64) -> Result<Word, Fault> {
        Ok(Word(self.lease.load((slot * SLOT_BYTES) as usize)?))
    }

    /// Whether the lease has expired. Clients can go on until [`end`](Self::end).
    pub(crate) fn has_expired(&self) -> bool {
        self.lease.has_expired()
    }

    /// Ends the access of all clients, and returns the table.
    pub(crate) fn end(self) -> Result<Box<[Slot]>, Fault> {
        self.lease.end().doing("the device keeps the table")
    }
}
