//! The device's windows, and the form in which a window travels through a ledger.
#![forbid(unsafe_code)]

use super::bindable::Bindable;
use super::part::{Descriptor, ExposedPart, RegionRest, UniqueRegion};
use crate::domain::{DomainId, DomainInner};
use crate::provider::reviewed::Windows;
use crate::provider::window_handles::{FreedBarrier, HeldWindow, MemoryWindow, NotPosted, Succeeded, Unreached};
use crate::sys::{self, ibv_mw_type};
use crate::types::Rkey;
use crate::verb_error::{VerbError, note_leak};
use std::{mem, ptr::NonNull, sync::Arc};

/// The device's window. The handle of the program shares it. For type 2 the pair shares it, too, and may free it.
pub(crate) struct WindowCore {
    handle: MemoryWindow,
    /// For a window of type 2, the address of its pair. It serves to compare pairs, and is never followed.
    pair: Option<usize>,
    /// Whether the end of the window gives the memory back, and the device checks the window's bounds.
    is_barrier: bool,
    /// Whether a request may end the window.
    is_revocable: bool,
    /// The window's domain. `handle` needs the domain, so it stands above this field, to be dropped first.
    domain: Arc<DomainInner>,
}

impl WindowCore {
    pub(super) fn alloc(domain: &Arc<DomainInner>, pair: Option<NonNull<sys::ibv_qp>>) -> Result<Arc<Self>, VerbError> {
        let windows = domain.context.promises().windows;
        let kind = if pair.is_none() { ibv_mw_type::IBV_MW_TYPE_1 } else { ibv_mw_type::IBV_MW_TYPE_2 };
        let handle = MemoryWindow::alloc(domain.handle(), kind, windows)?;
        let is_barrier = windows.are_barriers();
        let is_revocable = is_barrier && (pair.is_some() || windows == Windows::Both);
        let (pair, domain) = (pair.map(|pair| pair.as_ptr().addr()), Arc::clone(domain));
        Ok(Arc::new(Self { handle, pair, is_barrier, is_revocable, domain }))
    }

    /// Holds the window, so that nobody frees it while the result exists; `None` once the window has ended.
    pub(crate) fn hold(&self) -> Option<HeldWindow<'_>> {
        self.handle.hold()
    }

    /// Whether the device has freed the window.
    pub(crate) fn has_ended(&self) -> bool {
        self.hold().is_none()
    }

    /// The key that the device has for the window; 0 once the window has ended.
    fn device_rkey(&self) -> u32 {
        self.hold().map_or(0, |mut window| window.rkey())
    }

    /// Frees the window, bound or not. Does nothing the second time.
    pub(crate) fn dealloc(&self) -> Result<(), VerbError> {
        self.handle.end().map(drop)
    }
}

fn reclaim<B>(part: ExposedPart, proof: Unreached) -> Bindable<B> {
    Bindable::of_window(part.reclaim(proof))
}

/// A window and the memory behind it, in the form in which a ledger holds them.
///
/// The alignment leaves room for the ledger's tag.
#[repr(align(64))]
pub(crate) struct WindowInner {
    core: Arc<WindowCore>,
    /// For type 2: the key that the window has, or will have when the bind in flight is done.
    rkey: u32,
    rights: u32,
    /// Whether the newest request about the window is one to end it.
    is_ending: bool,
    /// # Invariants
    ///
    /// 0. The part belongs to a region over which windows may be bound. It is `Some` from before the window is bound
    ///    until it is known that no peer reaches the part through the window.
    part: Option<ExposedPart>,
}

/// The result of a request about a window.
pub(crate) enum Settled<B> {
    Bound(Box<WindowInner>),
    Revoked(Box<WindowInner>, Bindable<B>),
}

impl WindowInner {
    pub(super) fn new(core: Arc<WindowCore>) -> Box<Self> {
        let rkey = core.device_rkey();
        Box::new(Self { core, rkey, rights: 0, is_ending: false, part: None })
    }

    pub(crate) fn is_type_1(&self) -> bool {
        self.core.pair.is_none()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.core.has_ended()
    }

    pub(crate) fn core(&self) -> Arc<WindowCore> {
        Arc::clone(&self.core)
    }

    pub(crate) fn domain(&self) -> DomainId {
        self.core.domain.id()
    }

    /// Whether a pair may post requests about the window.
    pub(crate) fn serves(&self, pair: NonNull<sys::ibv_qp>) -> bool {
        self.core.pair.is_none_or(|own| own == pair.as_ptr().addr())
    }

    pub(crate) fn is_barrier(&self) -> bool {
        self.core.is_barrier
    }

    pub(crate) fn is_revocable(&self) -> bool {
        self.core.is_revocable
    }

    /// The rights with which the window was bound last.
    pub(super) fn rights(&self) -> u32 {
        self.rights
    }

    /// Takes `memory`, to bind the window over it with the next key. Returns the binding for the device, and that key.
    /// `held` is this window.
    pub(crate) fn begin_bind<B>(
        &mut self,
        held: &mut HeldWindow<'_>,
        memory: Bindable<B>,
        rights: u32,
    ) -> (sys::ibv_mw_bind_info, u32) {
        debug_assert!(self.part.is_none(), "a bound window is not bound again");
        let part = memory.into_part().expose();
        let info = sys::ibv_mw_bind_info {
            mr: part.region().raw(),
            addr: part.device_addr(),
            length: part.capacity() as u64,
            mw_access_flags: rights,
        };
        // For a window of type 2, the code that posts the bind chooses the new key, by `ibv_inc_rkey(3)`. The provider
        // reads the old key from its own struct of the window. A provider need not update this struct after a bind. So
        // write the old key into the struct first.
        if !self.is_type_1() {
            held.set_rkey(self.rkey);
            self.rkey = sys::inline::ibv_inc_rkey(self.rkey);
        }
        (self.part, self.rights, self.is_ending) = (Some(part), rights, false);
        (info, self.rkey)
    }

    /// Records that a request to end the window is being posted.
    pub(crate) fn begin_end(&mut self) {
        self.is_ending = true;
    }

    /// Undoes [`begin_bind`](Self::begin_bind), and gives the memory back.
    pub(crate) fn undo_bind<B>(&mut self, proof: NotPosted) -> Option<Bindable<B>> {
        if !self.is_type_1() {
            // `ibv_inc_rkey` increments only the low 8 bits, so only these bits are decremented.
            self.rkey = self.rkey & !0xff | self.rkey.wrapping_sub(1) & 0xff;
        }
        self.part.take().map(|part| reclaim(part, Unreached::NotPosted(proof)))
    }

    /// The result of the newest request about the window, which has succeeded.
    pub(crate) fn settle<B>(mut self: Box<Self>, proof: Succeeded) -> Settled<B> {
        match self.part.take_if(|_| self.is_ending) {
            Some(part) => Settled::Revoked(self, reclaim(part, Unreached::Revoked(proof))),
            None => Settled::Bound(self),
        }
    }

    /// The key of the binding; 0 once a window of type 1 has ended.
    pub(crate) fn rkey(&self) -> Rkey {
        Rkey(if self.is_type_1() { self.core.device_rkey() } else { self.rkey })
    }

    pub(super) fn descriptor(&self) -> Option<&Descriptor> {
        self.part.as_deref()
    }

    /// Frees the window: new requests of peers no longer reach the memory behind it.
    pub(super) fn dealloc(&mut self) -> Result<Option<LapsedPart>, VerbError> {
        let freed = self.core.handle.end()?;
        Ok(self.part.take().map(|part| LapsedPart { part, freed }))
    }

    /// The pointer of the box. Whoever has it owns the window.
    pub(crate) fn into_raw(self: Box<Self>) -> NonNull<Self> {
        NonNull::from(Box::leak(self))
    }
}

impl Drop for WindowInner {
    fn drop(&mut self) {
        if let Err(error) = self.core.dealloc() {
            // The device did not free the window, so perhaps peers still reach the memory. Leak the part, which keeps
            // its region registered, and leak the window.
            mem::forget(self.part.take());
            mem::forget(Arc::clone(&self.core));
            note_leak("a memory window", error);
        }
    }
}

/// Memory behind a window that the device has freed.
#[derive(Debug)]
pub(super) struct LapsedPart {
    part: ExposedPart,
    /// `Some` if the end of a window ends the accesses that had begun.
    freed: Option<FreedBarrier>,
}

impl LapsedPart {
    /// Gives the memory back, if freeing the window ended all access through it.
    pub(super) fn reclaim<B>(self) -> Result<Bindable<B>, Self> {
        match self.freed {
            Some(proof) => Ok(reclaim(self.part, Unreached::Freed(proof))),
            None => Err(self),
        }
    }

    /// Turns the memory into its region, if `rest` names that region and the memory is all of it. The region can only
    /// be ended.
    pub(super) fn into_region<A>(self, rest: &RegionRest<A>) -> Result<UniqueRegion<()>, Self> {
        self.part.into_region(rest).map_err(|part| Self { part, ..self })
    }
}

#[cfg(all(test, feature = "soft", not(loom)))]
mod tests {
    use super::*;
    use crate::device::Context;

    #[test]
    fn only_a_success_proves_that_a_request_has_succeeded() {
        use crate::sys::ibv_wc_status;
        for code in 0..=u8::MAX {
            assert_eq!(Succeeded::of(ibv_wc_status(code.into())).is_some(), code == 0);
        }
    }

    #[test]
    fn a_window_is_freed_once_and_cannot_be_held_afterwards() {
        let domain = Context::open("soft0").unwrap().checked_domain().unwrap();
        let core = WindowCore::alloc(&domain.inner, None).unwrap();
        assert!(core.hold().is_some_and(|mut window| window.rkey() != 0));
        core.dealloc().unwrap();
        core.dealloc().unwrap();
        assert!(core.hold().is_none() && core.has_ended() && core.device_rkey() == 0);
    }

    #[test]
    fn a_success_of_a_bind_gives_no_memory() {
        let domain = Context::open("soft0").unwrap().checked_domain().unwrap();
        let inner = WindowInner::new(WindowCore::alloc(&domain.inner, None).unwrap());
        let proof = Succeeded::of(sys::ibv_wc_status::IBV_WC_SUCCESS).unwrap();
        assert!(matches!(inner.settle::<crate::Checked>(proof), Settled::Bound(_)));
    }
}
