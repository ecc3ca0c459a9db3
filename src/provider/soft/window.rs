//! Memory windows: parts of regions that a peer may access until the window is bound again, invalidated or freed.
//!
//! A window of type 1 serves every queue pair of its domain, and may be bound again at any time. A window of type 2
//! serves the pair on which it was bound (type 2B), and must be invalidated or freed before it is bound again.
//!
//! The keys of one window differ only in their lowest byte. No other object has a key with the same upper 24 bits.
//!
//! A window over private memory must consist of whole aligned words, like an exposed region: see `memory`.
#![forbid(unsafe_code)]

use super::{
    fabric::State,
    pair::Pair,
    regions::{Keyed, LOCAL_WRITE, NEEDS_LOCAL_WRITE, REMOTE, Regions, ZERO_BASED, spread},
};
use crate::sys::{ibv_access_flags, ibv_mw_type};
use libc::c_int;

/// The bits of a key that change with each bind of its window.
const TAG: u32 = 0xff;
/// The bit that is set in the keys of all windows.
const MARK: u32 = 1 << 31;

/// A window.
pub(super) struct Window {
    pub(super) pd: usize,
    /// Whether it is of type 1.
    one: bool,
    pub(super) rkey: u32,
    bound: Option<Bound>,
}

/// The memory that a window is bound to.
#[derive(Clone, Copy)]
struct Bound {
    region: usize,
    /// The only pair that can use the window, if it is of type 2.
    pair: Option<usize>,
    /// The address of the first byte for requests that use the key.
    base: u64,
    /// The first byte's own address.
    addr: u64,
    len: u64,
    access: u32,
}

/// A bind request in a send queue. It is kept small, because every request reserves room for one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bind {
    pub(super) window: u32,
    /// The window's new key.
    pub(super) rkey: u32,
    pub(super) region: u32,
    /// The region's key when the request was posted; 0 for a bind over no region.
    pub(super) lkey: u32,
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) access: u32,
    /// Whether the window is of type 1.
    pub(super) one: bool,
}

/// Whether these rights are among those that a window can have.
pub(super) fn rights_known(access: u32) -> bool {
    access & !(REMOTE | ZERO_BASED) == 0
}

impl Window {
    /// The region over which the window is bound.
    pub(super) fn region(&self) -> Option<usize> {
        self.bound.as_ref().map(|bound| bound.region)
    }

    /// Finds the `len` bytes at `addr`, an address as the peer of `pair` gives it with the key of the window. Returns
    /// the region and the address in this process. `None` if the peer lacks the right, or if some of the bytes are
    /// outside of the window.
    pub(super) fn find(&self, pair: usize, addr: u64, len: u64, right: ibv_access_flags) -> Option<(usize, u64)> {
        let bound = self.bound.as_ref()?;
        let offset = addr.checked_sub(bound.base)?;
        let inside = offset.checked_add(len)? <= bound.len;
        let permitted = bound.access & right.0 == right.0 && bound.pair.is_none_or(|only| only == pair);
        (inside && permitted).then(|| (bound.region, bound.addr + offset))
    }
}

impl Regions {
    /// Whether all these bytes lie behind one window.
    pub(super) fn in_window(&self, region: usize, addr: u64, len: u64) -> bool {
        let holds =
            |bound: &Bound| bound.region == region && bound.addr <= addr && addr + len <= bound.addr + bound.len;
        self.windows.iter().any(|(_, window)| window.bound.as_ref().is_some_and(holds))
    }

    fn unbind(&mut self, index: usize) {
        let bound = self.windows.get_mut(index).and_then(|window| window.bound.take());
        if let Some(region) = bound.and_then(|bound| self.table.get_mut(bound.region)) {
            region.windows = region.windows.saturating_sub(1);
        }
    }

    /// Unbinds the windows that only this pair can use, because the pair is being destroyed.
    pub(super) fn unbind_pair(&mut self, pair: usize) {
        let of_pair = |window: &Window| window.bound.is_some_and(|bound| bound.pair == Some(pair));
        let windows: Vec<usize> =
            self.windows.iter().filter(|(_, window)| of_pair(window)).map(|(index, _)| index).collect();
        for index in windows {
            self.unbind(index);
        }
    }

    /// The window of type 2 that `rkey` names, if it is bound for that pair.
    fn invalidable(&self, (pd, pair): (usize, usize), rkey: u32) -> Option<usize> {
        let Keyed::Window(index) = *self.rkeys.get(&rkey)? else { return None };
        let window = self.windows.get(index)?;
        let bound = window.bound.as_ref()?;
        (window.pd == pd && bound.pair == Some(pair)).then_some(index)
    }

    pub(super) fn can_invalidate(&self, by: (usize, usize), rkey: u32) -> bool {
        self.invalidable(by, rkey).is_some()
    }

    /// Unbinds the window that `rkey` names. Returns whether there was one.
    pub(super) fn invalidate(&mut self, by: (usize, usize), rkey: u32) -> bool {
        let found = self.invalidable(by, rkey);
        if let Some(index) = found {
            self.unbind(index);
        }
        found.is_some()
    }

    /// Binds or unbinds a window for a request of a pair. `None` if the request is refused; then nothing has changed.
    pub(super) fn bind(&mut self, (pd, pair): (usize, usize), bind: &Bind) -> Option<()> {
        let (place, one) = (bind.window as usize, bind.one);
        let window = self.windows.get(place)?;
        let same = window.one == one && window.pd == pd && window.rkey & !TAG == bind.rkey & !TAG;
        if !same || !one && window.bound.is_some() {
            return None;
        }
        let bound = match bind.len {
            0 if !one => return None,
            0 => None,
            len => {
                let index = bind.region as usize;
                let region = self.table.get(index).filter(|region| region.lkey == bind.lkey && region.pd == pd)?;
                let may_bind = region.access & ibv_access_flags::IBV_ACCESS_MW_BIND.0 != 0;
                let may_write = bind.access & NEEDS_LOCAL_WRITE == 0 || region.access & LOCAL_WRITE != 0;
                let addr = region.find(bind.addr, len)?;
                let words = region.is_exposed() || addr.is_multiple_of(8) && len.is_multiple_of(8);
                if !(may_bind && may_write && words) {
                    return None;
                }
                let base = if bind.access & ZERO_BASED != 0 { 0 } else { bind.addr };
                let pair = (!one).then_some(pair);
                Some(Bound { region: index, pair, base, addr, len, access: bind.access })
            }
        };
        self.unbind(place);
        if let Some(region) = bound.and_then(|bound| self.table.get_mut(bound.region)) {
            region.windows += 1;
        }
        let window = self.windows.get_mut(place)?;
        window.bound = bound;
        let old = std::mem::replace(&mut window.rkey, bind.rkey);
        self.rkeys.remove(&old);
        self.rkeys.insert(bind.rkey, Keyed::Window(place));
        Some(())
    }
}

impl State {
    /// Creates a window. Returns its index and its key.
    pub(super) fn alloc_mw(&mut self, pd: usize, kind: ibv_mw_type) -> Result<(usize, u32), c_int> {
        if kind != ibv_mw_type::IBV_MW_TYPE_1 && kind != ibv_mw_type::IBV_MW_TYPE_2 {
            return Err(libc::EINVAL);
        }
        let regions = &mut self.regions;
        if self.pds.get(pd).is_none() {
            return Err(libc::EINVAL);
        }
        regions.families = regions.families.checked_add(1).filter(|&all| all < 1 << 23).ok_or(libc::ENOMEM)?;
        let rkey = MARK | spread(regions.families, 23) << 8;
        let index = regions.windows.insert(Window { pd, one: kind == ibv_mw_type::IBV_MW_TYPE_1, rkey, bound: None });
        regions.rkeys.insert(rkey, Keyed::Window(index));
        self.adopt(pd)?;
        Ok((index, rkey))
    }

    pub(super) fn dealloc_mw(&mut self, index: usize) -> Result<(), c_int> {
        self.regions.unbind(index);
        let window = self.regions.windows.remove(index).ok_or(libc::EINVAL)?;
        self.regions.rkeys.remove(&window.rkey);
        self.release_pd(window.pd);
        Ok(())
    }
}

impl Pair {
    /// The domain and the index of a pair, which identify it in a bind or an invalidation.
    pub(super) fn who(&self, index: usize) -> (usize, usize) {
        (self.pd, index)
    }
}
