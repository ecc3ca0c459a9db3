//! The table as peers reach it. Nothing else exposes memory to them.

use crate::Serving;
use crate::fault::{Doing, Fault};
use crate::table::{SLOT_BYTES, Slot, Word};
use interlock::{MemoryRegion, ProtectionDomain, RemoteAll, RemoteRegion};
use zerocopy::FromZeros;

pub(crate) struct Exposure {
    region: MemoryRegion<Serving, RemoteAll, Box<[Slot]>>,
}

/// What one session is granted.
///
/// Its key is that of the whole table and ends with it. What ends with the session is its queue pair, the way in.
pub(crate) struct Grant(RemoteRegion<RemoteAll>);

impl Grant {
    pub(crate) fn remote(&self) -> RemoteRegion<RemoteAll> {
        self.0
    }
}

impl Exposure {
    pub(crate) fn new(domain: &ProtectionDomain<Serving>, slots: usize) -> Result<Self, Fault> {
        let table = vec![Slot::new_zeroed(); slots].into_boxed_slice();
        Ok(Self { region: domain.register(table).doing("cannot register the table")? })
    }

    pub(crate) fn slots(&self) -> u64 {
        self.region.len() as u64 / SLOT_BYTES
    }

    pub(crate) fn grant(&self) -> Grant {
        Grant(self.region.remote())
    }

    /// The word of a slot as it is now.
    pub(crate) fn word(&self, slot: u64) -> Result<Word, Fault> {
        Ok(Word(self.region.load((slot * SLOT_BYTES) as usize)?))
    }

    /// Ends it for everybody, and gives the table back.
    pub(crate) fn end(self) -> Result<Box<[Slot]>, Fault> {
        self.region.deregister().doing("the device keeps the table")
    }
}
