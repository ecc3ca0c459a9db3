//! Memory behind a window that was freed, and how the program gets it back.

use super::bindable::Bindable;
use super::error::{DeregisterError, RejoinError};
use super::raw_window::{LapsedPart, WindowInner};
use super::region::Whole;
use super::{Access, DeviceMayWrite, Memory, Pages, SplitRegion, Unexposed};
use crate::domain::Brand;
use crate::domain::brand::Branded;
use crate::verb_error::VerbError;
use std::{fmt, marker::PhantomData};

/// The memory behind a window that was freed.
pub struct Lapsed<B> {
    part: LapsedPart,
    brand: Branded<B>,
}

/// The end of a window did not release the memory, because the device's windows are not barriers. The [`Lapsed`] memory
/// comes back.
#[derive(thiserror::Error)]
#[error(
    "on this device, accesses that had begun may go on after the end of a window: deregister the region \
     (`SplitRegion::rejoin_lapsed`)"
)]
pub struct NoBarrier<P> {
    /// The memory.
    pub memory: P,
}

impl<P> NoBarrier<P> {
    /// The error without the memory, which is dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> NoBarrier<()> {
        NoBarrier { memory: () }
    }
}

impl<P> fmt::Debug for NoBarrier<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NoBarrier").finish_non_exhaustive()
    }
}

impl<B> Lapsed<B> {
    pub(super) fn of(mut inner: Box<WindowInner>) -> Result<Self, (Box<WindowInner>, VerbError)> {
        match inner.dealloc() {
            Ok(Some(part)) => Ok(Self { part, brand: PhantomData }),
            // `None` is never returned: only windows that are bound, or perhaps bound, come here, and such a window has
            // memory.
            Ok(None) => Err((inner, VerbError::new("ibv_dealloc_mw", libc::EINVAL))),
            Err(source) => Err((inner, source)),
        }
    }

    /// The memory, if the device's [windows are barriers](crate::device::Promises::windows_are_barriers).
    ///
    /// # Errors
    ///
    /// The device's windows are not barriers. The memory comes back, for
    /// [`SplitRegion::rejoin_lapsed`](crate::memory::SplitRegion::rejoin_lapsed).
    pub fn reclaim(self) -> Result<Bindable<B>, NoBarrier<Self>> {
        self.part.reclaim().map_err(|part| NoBarrier { memory: Self { part, ..self } })
    }
}

impl<B: Brand, A: DeviceMayWrite + Unexposed, M: Memory> SplitRegion<B, A, M> {
    /// Rebuilds the region from memory over which a window was bound. All that can be done with it is to deregister it.
    ///
    /// # Errors
    ///
    /// The memory belongs to another region, or is not all of this one; both come back.
    pub fn rejoin_lapsed(self, whole: Lapsed<B>) -> Result<LapsedRegion<B, A, M>, RejoinError<Self, Lapsed<B>>> {
        match self.into_rest().rejoin_lapsed(whole.part) {
            Ok(whole) => Ok(LapsedRegion::of(whole)),
            Err((rest, part)) => {
                Err(RejoinError { region: SplitRegion::of(rest), buffer: Lapsed { part, brand: PhantomData } })
            }
        }
    }
}

/// A region over which a window was bound, on a device where the end of a window does not end accesses that had begun.
///
/// Only the end of the registration ends them: [`deregister`](Self::deregister). Until then the program cannot borrow
/// the bytes.
pub struct LapsedRegion<B, A, M = Pages> {
    whole: Whole<(), M>,
    brand: Branded<B>,
    rights: PhantomData<fn() -> A>,
}

impl<B, A, M> LapsedRegion<B, A, M> {
    pub(super) fn of(whole: Whole<(), M>) -> Self {
        Self { whole, brand: PhantomData, rights: PhantomData }
    }
}

impl<B: Brand, A: Access, M: Memory> LapsedRegion<B, A, M> {
    /// Ends the registration and gives the memory back.
    ///
    /// `ibv_dereg_mr(3)`.
    ///
    /// # Errors
    ///
    /// The device refused to deregister it; the region comes back, still registered.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Result<M, DeregisterError<Self>> {
        self.whole.deregister().map_err(|error| error.map(Self::of))
    }
}

impl<B, A, M> fmt::Debug for LapsedRegion<B, A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LapsedRegion").field("len", &self.whole.len_bytes()).finish_non_exhaustive()
    }
}

impl<B> fmt::Debug for Lapsed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lapsed").field("part", &self.part).finish_non_exhaustive()
    }
}
