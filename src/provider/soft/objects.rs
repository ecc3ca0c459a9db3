//! Tables of objects, protection domains, memory regions and their keys.

use super::{device::Numbers, fabric::State, memory::Span};
use crate::sys::{ibv_access_flags, ibv_sge};
use libc::c_int;
use std::collections::HashMap;

/// Objects by a small number that is used again when the object is gone.
pub(super) struct Table<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    pub(super) fn insert(&mut self, object: T) -> usize {
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(index)
        {
            *slot = Some(object);
            return index;
        }
        self.slots.push(Some(object));
        self.slots.len() - 1
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.slots.get(index)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.slots.get_mut(index)?.as_mut()
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<T> {
        let object = self.slots.get_mut(index)?.take()?;
        self.free.push(index);
        Some(object)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// A protection domain.
pub(super) struct Pd {
    pub(super) context: usize,
    pub(super) device: usize,
    /// Queue pairs and memory regions.
    pub(super) children: u32,
}

/// A memory region.
pub(super) struct Mr {
    pub(super) pd: usize,
    addr: u64,
    len: u64,
    access: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// Rights that make memory exposed.
const REMOTE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
/// Rights that say nothing without local write.
const NEEDS_LOCAL_WRITE: u32 =
    ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
/// Flags that this device knows but does not serve.
const UNSERVED: u32 = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0
    | ibv_access_flags::IBV_ACCESS_ON_DEMAND.0
    | ibv_access_flags::IBV_ACCESS_HUGETLB.0;
/// `IBV_ACCESS_OPTIONAL_RANGE`: flags that a device may ignore.
const OPTIONAL: u32 = 0x3ff0_0000;

/// Regions and keys.
#[derive(Default)]
pub(super) struct Regions {
    table: Table<Mr>,
    lkeys: HashMap<u32, usize, Numbers>,
    rkeys: HashMap<u32, usize, Numbers>,
    /// Keys handed out so far.
    keys: u32,
}

impl Regions {
    pub(super) fn get(&self, index: usize) -> Option<&Mr> {
        self.table.get(index)
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// A key that no region of this fabric has had before: a bijection of a counter, so that neighbours differ widely.
    /// Never 0.
    fn key(&mut self) -> Option<u32> {
        loop {
            self.keys = self.keys.checked_add(1)?;
            let mut key = self.keys.wrapping_mul(0x9e37_79b1);
            key = (key ^ key >> 15).wrapping_mul(0x85eb_ca6b);
            key ^= key >> 13;
            if key != 0 {
                return Some(key);
            }
        }
    }

    /// Registers `len` bytes at `addr`.
    pub(super) fn insert(&mut self, pd: usize, addr: usize, len: usize, access: u32) -> Result<usize, c_int> {
        if access & UNSERVED != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let known = REMOTE | LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_MW_BIND.0 | OPTIONAL;
        let missing = access & NEEDS_LOCAL_WRITE != 0 && access & LOCAL_WRITE == 0;
        if access & !known != 0 || missing || len == 0 || addr.checked_add(len).is_none() {
            return Err(libc::EINVAL);
        }
        if addr == 0 {
            return Err(libc::EFAULT);
        }
        let exposed = access & REMOTE != 0;
        if exposed && !(addr.is_multiple_of(8) && len.is_multiple_of(8)) {
            return Err(libc::EINVAL);
        }
        let (Some(lkey), Some(rkey)) = (self.key(), self.key()) else { return Err(libc::ENOMEM) };
        let region = Mr { pd, addr: addr as u64, len: len as u64, access, lkey, rkey };
        let index = self.table.insert(region);
        self.lkeys.insert(lkey, index);
        self.rkeys.insert(rkey, index);
        Ok(index)
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<Mr> {
        let region = self.table.remove(index)?;
        self.lkeys.remove(&region.lkey);
        self.rkeys.remove(&region.rkey);
        Some(region)
    }

    /// The first `len` bytes of a scatter or gather list, which must be of regions of `pd`, and writable if `write`.
    ///
    /// Entries beyond what the message needs are not looked at. `None`: a local protection error.
    pub(super) fn local(&self, pd: usize, list: &[ibv_sge], len: u64, write: bool, to: &mut Vec<Span>) -> Option<()> {
        let mut left = len;
        for entry in list {
            let part = left.min(u64::from(entry.length));
            if part > 0 {
                let region = self.table.get(*self.lkeys.get(&entry.lkey)?)?;
                let needed = if write { LOCAL_WRITE } else { 0 };
                to.push(region.span(pd, entry.addr, part, needed)?);
                left -= part;
            }
        }
        (left == 0).then_some(())
    }

    /// `len` bytes that a peer named by `rkey`. `None`: a remote access error.
    pub(super) fn remote(&self, pd: usize, rkey: u32, addr: u64, len: u64, right: ibv_access_flags) -> Option<Span> {
        self.table.get(*self.rkeys.get(&rkey)?)?.span(pd, addr, len, right.0)
    }
}

impl Mr {
    #![allow(unsafe_code, reason = "vouches for registered memory")]

    fn span(&self, pd: usize, addr: u64, len: u64, needed: u32) -> Option<Span> {
        let offset = addr.checked_sub(self.addr)?;
        let inside = offset.checked_add(len)? <= self.len;
        if self.pd != pd || !inside || self.access & needed != needed {
            return None;
        }
        let (addr, len) = (usize::try_from(addr).ok()?, usize::try_from(len).ok()?);
        // SAFETY: within the registered memory, which `reg_mr` was given (its caller's promise) until `dereg_mr` ends the
        // region; spans are used under the lock in which they were made, so the region lives as long. Exposed regions
        // consist of whole words.
        Some(unsafe { Span::new(addr, len, self.access & REMOTE != 0) })
    }
}

impl State {
    pub(super) fn alloc_pd(&mut self, context: usize) -> Result<usize, c_int> {
        let info = self.contexts.get_mut(context).ok_or(libc::EINVAL)?;
        info.children += 1;
        let device = info.device;
        Ok(self.pds.insert(Pd { context, device, children: 0 }))
    }

    pub(super) fn dealloc_pd(&mut self, index: usize) -> Result<(), c_int> {
        let pd = self.pds.get(index).ok_or(libc::EINVAL)?;
        if pd.children > 0 {
            return Err(libc::EBUSY);
        }
        let context = pd.context;
        self.pds.remove(index);
        self.release_context(context);
        Ok(())
    }

    pub(super) fn reg_mr(&mut self, pd: usize, addr: usize, len: usize, access: u32) -> Result<usize, c_int> {
        let owner = self.pds.get_mut(pd).ok_or(libc::EINVAL)?;
        let index = self.regions.insert(pd, addr, len, access)?;
        owner.children += 1;
        Ok(index)
    }

    pub(super) fn dereg_mr(&mut self, index: usize) -> Result<(), c_int> {
        let region = self.regions.remove(index).ok_or(libc::EINVAL)?;
        self.release_pd(region.pd);
        Ok(())
    }

    pub(super) fn release_context(&mut self, index: usize) {
        if let Some(context) = self.contexts.get_mut(index) {
            context.children = context.children.saturating_sub(1);
        }
    }

    pub(super) fn release_pd(&mut self, index: usize) {
        if let Some(pd) = self.pds.get_mut(index) {
            pd.children = pd.children.saturating_sub(1);
        }
    }
}
