//! Memory regions and their keys.
#![forbid(unsafe_code)]

use super::{
    device::Numbers,
    fabric::State,
    memory::{Era, Extent, Late, Registration, Source, Span, read},
    objects::Table,
    window::Window,
};
use crate::sys::{ibv_access_flags, ibv_sge};
use libc::c_int;
use std::collections::HashMap;

/// A memory region.
pub(super) struct Mr {
    pub(super) pd: usize,
    /// The address of the first byte for requests that use the keys.
    base: u64,
    pub(super) memory: Extent,
    pub(super) access: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
    /// How many windows are bound to the region.
    pub(super) windows: u32,
}

/// The rights that expose memory to peers.
pub(super) const REMOTE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
pub(super) const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
/// The rights that require local write.
pub(super) const NEEDS_LOCAL_WRITE: u32 =
    ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
pub(super) const ZERO_BASED: u32 = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
/// Flags that the specification has and this device does not support.
const UNSERVED: u32 = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0 | ibv_access_flags::IBV_ACCESS_HUGETLB.0;
/// `IBV_ACCESS_OPTIONAL_RANGE`: flags that a device may ignore. Relaxed ordering is one.
const OPTIONAL: u32 = 0x3ff0_0000;
/// The size of a page. The address of a region in memory, and the address by which requests name it (`iova`), must have
/// the same offset in a page.
const PAGE: u64 = 4096;
/// Exposed memory consists of whole words of this size.
const WORD: u64 = 8;

/// The object that a remote key names.
#[derive(Clone, Copy)]
pub(super) enum Keyed {
    Region(usize),
    Window(usize),
}

/// Regions, windows and keys.
#[derive(Default)]
pub(super) struct Regions {
    pub(super) table: Table<Mr>,
    pub(super) windows: Table<Window>,
    lkeys: HashMap<u32, usize, Numbers>,
    pub(super) rkeys: HashMap<u32, Keyed, Numbers>,
    /// How many keys regions have got so far. `families` counts the families of keys of windows.
    keys: u32,
    pub(super) families: u32,
    /// How many bytes are registered now.
    locked: u64,
    /// Keys of regions that have ended, for profiles that reuse such keys immediately.
    spare_keys: Vec<u32>,
    pub(super) reuses_keys: bool,
    /// Whether a peer's write that has begun goes on after the end of its region.
    pub(super) ends_early: bool,
    /// Such writes that are not done yet. `true` if the next call of `carry_on` does the write.
    copies: Vec<(Late, bool)>,
    /// Whether a window gives peers access to its whole region.
    pub(super) has_lax_windows: bool,
    /// The current era: spans of this era lie in regions that are still registered.
    pub(super) era: Era,
}

/// A permutation of the numbers with `bits` bits. It maps neighbours far apart, and 0 to 0.
pub(super) fn spread(number: u32, bits: u32) -> u32 {
    let mask = u32::MAX >> (32 - bits);
    let mut key = number.wrapping_mul(0x9e37_79b1) & mask;
    key = (key ^ key >> 15).wrapping_mul(0x85eb_ca6b) & mask;
    key ^ key >> 13
}

impl Regions {
    pub(super) fn get(&self, index: usize) -> Option<&Mr> {
        self.table.get(index)
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// A key that no region has now; in most profiles, a key that no region had before either. It is never 0. Its
    /// highest bit is clear, since that bit marks the keys of windows.
    fn key(&mut self) -> Option<u32> {
        if let Some(key) = self.spare_keys.pop() {
            return Some(key);
        }
        self.keys = self.keys.checked_add(1).filter(|&keys| keys < 1 << 31)?;
        Some(spread(self.keys, 31))
    }

    /// Registers memory, unless the total of registered bytes would then be more than `limit`.
    pub(super) fn insert(&mut self, pd: usize, memory: Registration, limit: u64) -> Result<usize, c_int> {
        let (addr, len) = (memory.pointer().addr(), memory.len());
        let Registration { iova, access, .. } = memory;
        if access & UNSERVED != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let known = REMOTE | LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_MW_BIND.0 | ZERO_BASED | OPTIONAL;
        let missing = access & NEEDS_LOCAL_WRITE != 0 && access & LOCAL_WRITE == 0;
        if access & !known != 0 || missing || len == 0 || addr.checked_add(len).is_none() {
            return Err(libc::EINVAL);
        }
        if addr == 0 {
            return Err(libc::EFAULT);
        }
        let (addr, len) = (addr as u64, len as u64);
        let exposed = access & REMOTE != 0;
        if exposed && !(addr.is_multiple_of(WORD) && len.is_multiple_of(WORD)) {
            return Err(libc::EINVAL);
        }
        let base = match iova {
            _ if access & ZERO_BASED != 0 => 0,
            None => addr,
            Some(base) if addr % PAGE == base % PAGE && base.checked_add(len).is_some() => base,
            Some(_) => return Err(libc::EINVAL),
        };
        let locked = self.locked.checked_add(len).filter(|&locked| locked <= limit).ok_or(libc::ENOMEM)?;
        let (Some(lkey), Some(rkey)) = (self.key(), self.key()) else { return Err(libc::ENOMEM) };
        let region = Mr { pd, base, memory: memory.extent(), access, lkey, rkey, windows: 0 };
        let index = self.table.insert(region);
        self.lkeys.insert(lkey, index);
        self.rkeys.insert(rkey, Keyed::Region(index));
        self.locked = locked;
        Ok(index)
    }

    /// Removes a region, unless a window is bound to it. Returns its protection domain.
    fn remove(&mut self, index: usize) -> Result<usize, c_int> {
        if self.table.get(index).ok_or(libc::EINVAL)?.windows > 0 {
            return Err(libc::EBUSY);
        }
        let region = self.table.remove(index).ok_or(libc::EINVAL)?;
        self.lkeys.remove(&region.lkey);
        self.rkeys.remove(&region.rkey);
        if self.reuses_keys {
            self.spare_keys.extend([region.lkey, region.rkey]);
        }
        self.locked = self.locked.saturating_sub(region.memory.len());
        if self.ends_early && region.permits(ibv_access_flags::IBV_ACCESS_REMOTE_WRITE) {
            self.go_on_copying(&region);
        }
        region.memory.end(&mut self.era);
        Ok(region.pd)
    }

    /// Models a write that a peer has begun: the first word of the region will be written once more, with its current
    /// bytes.
    fn go_on_copying(&mut self, region: &Mr) {
        if let Some(word) = region.memory.span(region.memory.start(), WORD, true, true, &self.era) {
            let mut bytes = vec![0; WORD as usize];
            read(&self.era, Source { header: &[], inline: &[], registered: &[word] }, &mut bytes);
            self.copies.push((Late::new(bytes, vec![word]), false));
        }
    }

    /// Does the writes that are due, and makes the others due for the next call.
    pub(super) fn carry_on(&mut self) {
        self.copies.retain_mut(|(write, is_due)| {
            if *is_due {
                write.write();
            }
            !std::mem::replace(is_due, true)
        });
    }

    /// Drops the writes that are not done yet.
    pub(super) fn finish_copies(&mut self) {
        self.copies.clear();
    }

    /// Appends the first `len` bytes of a scatter or gather list. They must lie in regions of `pd`, and must be
    /// writable if `write` is true.
    ///
    /// Entries beyond the message are not checked. `None`: a local protection error.
    pub(super) fn local(&self, pd: usize, list: &[ibv_sge], len: u64, write: bool, to: &mut Vec<Span>) -> Option<()> {
        let mut left = len;
        for entry in list {
            let part = left.min(u64::from(entry.length));
            if part > 0 {
                let index = *self.lkeys.get(&entry.lkey)?;
                let region = self.table.get(index)?;
                let needed = if write { LOCAL_WRITE } else { 0 };
                if region.pd != pd || region.access & needed != needed {
                    return None;
                }
                let addr = region.find(entry.addr, part)?;
                // The part is exposed if the region has remote rights, or if one window covers all of the part: then
                // peers can access the part at the same time. (No window covers only some bytes of a part: the
                // library binds a window over a whole buffer.) So the device accesses an exposed part by atomics of the
                // aligned words that hold it. All of these words are exposed: a region with remote rights consists of
                // whole aligned words, and so does a window on a region without remote rights.
                let exposed = region.is_exposed() || region.windows > 0 && self.in_window(index, addr, part);
                to.push(region.memory.span(addr, part, exposed, write, &self.era)?);
                left -= part;
            }
        }
        (left == 0).then_some(())
    }

    /// The `len` bytes at `addr` that the peer of `pair` may access by `rkey`. `None`: a remote access error.
    pub(super) fn remote(
        &self,
        (pd, pair): (usize, usize),
        rkey: u32,
        addr: u64,
        len: u64,
        right: ibv_access_flags,
    ) -> Option<Span> {
        let (region, addr) = match *self.rkeys.get(&rkey)? {
            Keyed::Region(index) => {
                let region = self.table.get(index).filter(|region| region.pd == pd && region.permits(right))?;
                (region, region.find(addr, len)?)
            }
            Keyed::Window(index) => {
                let window = self.windows.get(index).filter(|window| window.pd == pd)?;
                if self.has_lax_windows {
                    let region = self.table.get(window.region()?)?;
                    (region, region.find(addr, len)?)
                } else {
                    let (region, addr) = window.find(pair, addr, len, right)?;
                    (self.table.get(region)?, addr)
                }
            }
        };
        let writes = right.0 & NEEDS_LOCAL_WRITE != 0;
        let writable = region.access & LOCAL_WRITE != 0;
        if writes && !writable { None } else { region.memory.span(addr, len, true, writes, &self.era) }
    }
}

impl Mr {
    fn permits(&self, right: ibv_access_flags) -> bool {
        self.access & right.0 == right.0
    }

    /// Whether the whole region is exposed.
    pub(super) fn is_exposed(&self) -> bool {
        self.access & REMOTE != 0
    }

    /// Converts `addr`, as requests with the keys use it, to the bytes' own address. `None` if the `len` bytes are not
    /// all in the region.
    pub(super) fn find(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.base)?;
        (offset.checked_add(len)? <= self.memory.len()).then(|| self.memory.start() + offset)
    }
}

impl State {
    pub(super) fn reg_mr(&mut self, pd: usize, memory: Registration) -> Result<usize, c_int> {
        let limit = self.faults.locked_limit();
        if self.pds.get(pd).is_none() {
            return Err(libc::EINVAL);
        }
        let index = self.regions.insert(pd, memory, limit)?;
        self.adopt(pd)?;
        Ok(index)
    }

    pub(super) fn dereg_mr(&mut self, index: usize) -> Result<(), c_int> {
        self.watch_memory(index);
        let pd = self.regions.remove(index)?;
        self.release_pd(pd);
        Ok(())
    }
}
