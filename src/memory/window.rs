//! Memory windows: a peer reaches a part of a private region while a window is bound over it.
//!
//! Requests on a queue pair bind and end a window (`inflight/windows.rs`). The memory that a window is bound over
//! travels with the window, also in the ledger. So its region stays registered for as long as a peer may reach it
//! through the window.

use super::bindable::Bindable;
use super::lapsed::Lapsed;
use super::options::WindowRights;
use super::part::Descriptor;
use super::raw_window::{Settled, WindowCore, WindowInner};
use super::registration::RegionInner;
use super::remote::RemoteWindow;
use super::{OutOfBounds, Plain, RecordError, RemoteRegion, access, exposed};
use crate::domain::brand::Branded;
use crate::domain::{Brand, DomainInner, ProtectionDomain};
use crate::provider::window_handles::Succeeded;
use crate::sys;
use crate::types::Rkey;
use crate::verb_error::VerbError;
use std::marker::PhantomData;
use std::sync::{Arc, atomic::Ordering};
use std::{fmt, ptr::NonNull};
use zerocopy::IntoBytes;

mod sealed {
    #[allow(unnameable_types, reason = "seals `WindowType`")]
    pub trait Sealed {
        const ONE: bool;
    }
}

/// Types of window. Sealed.
///
/// | | made by | bound on | serves | ended by |
/// |---|---|---|---|---|
/// | [`Type1`] | [`ProtectionDomain::window`] | any pair of the domain | all pairs of the domain | a request on any of them |
/// | [`Type2`] | [`QueuePair::window`](crate::QueuePair::window) | that pair | that pair | a request on it, or a message of its peer |
#[doc(alias = "ibv_mw_type")]
pub trait WindowType: sealed::Sealed + 'static {}

/// A window for all pairs of its domain.
#[doc(alias = "IBV_MW_TYPE_1")]
#[derive(Debug)]
pub enum Type1 {}
impl WindowType for Type1 {}
impl sealed::Sealed for Type1 {
    const ONE: bool = true;
}

/// A window for one pair (type 2B of the specification): it ends with the pair, and the pair's peer may invalidate it.
#[doc(alias = "IBV_MW_TYPE_2")]
#[derive(Debug)]
pub enum Type2 {}
impl WindowType for Type2 {}
impl sealed::Sealed for Type2 {
    const ONE: bool = false;
}

/// A memory window of domain `B` that is bound to nothing.
///
/// Bound over a [part of a region](Bindable) by [`post_bind`](crate::QueuePair::post_bind), it lets peers reach that
/// part and no more, with rights and a key of its own. Binding and ending a window are requests, as quick as a send. A
/// [`Lease`](crate::memory::Lease), in contrast, takes a system call and pins pages.
///
/// ```text
///   Window + Bindable ──post_bind──▶ (in flight) ──▶ BoundWindow ──post_revoke──▶ (in flight) ──▶ Revoked: Window + Bindable
///                                        │                │                           │
///                                  failed, flushed      dealloc                 failed, flushed
///                                        ▼                ▼                           ▼
///                                  UnsettledWindow ───▶ Lapsed ◀──dealloc── UnsettledWindow
///                                                         │
///                        reclaim, where the device's windows are barriers: Bindable
///                        rejoin_lapsed and deregister, everywhere: the memory
/// ```
///
/// # What a device promises
///
/// On devices whose [windows are barriers](crate::device::Promises::windows_are_barriers) the memory is the program's
/// again when the window has ended. Other devices, such as Linux soft-RoCE, do not check the bounds of a window. There
/// a window can be bound over a whole region only; only [`dealloc`](BoundWindow::dealloc) ends it, and no request does;
/// and only the end of the region gives the memory back. Anything else is refused before it is posted, with a
/// [`RequestFlaw`](crate::error::RequestFlaw).
///
/// # Owners
///
/// A bound window keeps its region registered, whatever is dropped or forgotten. A window of type 2 is freed before its
/// pair is destroyed, so dropping a pair ends all its windows; the handles keep the memory. Dropping a window frees it.
/// A forgotten window stays bound, and the peer keeps access to its memory.
///
/// # Rules
///
/// The compiler enforces each of them; programs that break them are in `ui-tests/memory`.
///
/// - M27: a window is bound over memory that was registered for that, of its own domain.
/// - M28: memory behind a window is the program's again when the window has ended, and not before.
/// - M29: what is not bound is not ended, and what is bound is not bound again.
/// - M30: a window gives rights of peers, and a grant no more than its window has.
///
/// # Examples
///
/// ```
/// use interlock::{Context, Limits, LocalWrite, RemoteWrite, Work};
/// use interlock::access::Windowed;
/// use interlock::memory::Pages;
/// use std::time::Duration;
/// interlock::domain! { struct Docs; }
///
/// let domain = Context::open("soft0")?.named_domain(Docs)?;
/// let port = domain.context().active_port()?;
/// let (queue, mut poller) = domain.completion_queue(Limits::default().completions())?;
/// let pair = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
/// let myself = pair.endpoint();
/// let mut pair = pair.connect(&myself)?; // it is its own peer here
///
/// let region = domain.register::<Windowed<LocalWrite>, _>(Pages::new(4096)?)?;
/// let (part, _rest) = region.split_bindable().1.split_at(64)?;
/// let window = pair.window()?;
/// pair.post_bind::<RemoteWrite, _>(window, part)?;
/// let Work::Bound(bound) = poller.wait(Duration::from_secs(1))?.check()?.into_work() else { panic!("not a bind") };
///
/// let mut text = domain.buffer(8)?;
/// text.write(b"for you")?;
/// pair.post_write(text, &bound.remote::<RemoteWrite>()?)?; // this record is what a peer is sent
/// poller.wait(Duration::from_secs(1))?.check()?;
///
/// pair.post_revoke(bound)?;
/// let Work::Revoked(ended) = poller.wait(Duration::from_secs(1))?.check()?.into_work() else { panic!("not an end") };
/// assert_eq!(&ended.memory[..7], b"for you"); // a slice again; and `ended.window` can be bound anew
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_mw")]
pub struct Window<B, K = Type2> {
    inner: Box<WindowInner>,
    brand: Branded<B>,
    kind: PhantomData<fn() -> K>,
}

/// A window that is bound: peers reach the memory behind it until it is ended or dropped.
///
/// The peer of a window of type 2 may have ended it by a message: see
/// [`Received::invalidated`](crate::completion::Received::invalidated). Then call [`dealloc`](Self::dealloc): a request
/// to end the window would fail, and break the pair.
#[must_use = "dropping it ends the window"]
pub struct BoundWindow<B, K = Type2> {
    inner: Box<WindowInner>,
    brand: Branded<B>,
    kind: PhantomData<fn() -> K>,
}

/// A window that may or may not be bound: the request to bind or to end it failed or was flushed, or its pair is gone.
pub struct UnsettledWindow<B> {
    inner: Box<WindowInner>,
    brand: Branded<B>,
}

/// A window that a request has ended, and its memory: the window can be bound again, and the memory is the program's.
#[non_exhaustive]
pub struct Revoked<B, K = Type2> {
    /// The window.
    pub window: Window<B, K>,
    /// The memory that it was bound over.
    pub memory: Bindable<B>,
}

static_assertions::assert_impl_all!(BoundWindow<()>: Send, Sync);
static_assertions::assert_not_impl_any!(Window<()>: Clone, Copy);
static_assertions::assert_not_impl_any!(BoundWindow<()>: Clone, Copy);

/// The device refused to free a window. It comes back.
#[derive(thiserror::Error)]
#[error("the device did not free the window: try again, or drop it (see docs/failures.md#not-destroyed)")]
pub struct DeallocError<W> {
    /// The window.
    pub window: W,
    /// What the device answered.
    pub source: VerbError,
}

impl<W> DeallocError<W> {
    /// The error without the window, which is dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> VerbError {
        self.source
    }
}

impl<W> fmt::Debug for DeallocError<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeallocError").field("source", &self.source).finish_non_exhaustive()
    }
}

impl<B: Brand> ProtectionDomain<B> {
    /// A window for all pairs of the domain.
    ///
    /// `ibv_alloc_mw(3)`, of type 1.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the device has no windows of type 1. `ENOMEM`: it has no more.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn window(&self) -> Result<Window<B, Type1>, VerbError> {
        Ok(Window::of(WindowInner::new(alloc(&self.inner, None)?)))
    }
}

/// A window of type 2 if there is a `pair`, else of type 1. On an iWARP device this fails, and the device is not
/// called.
fn alloc(domain: &Arc<DomainInner>, pair: Option<NonNull<sys::ibv_qp>>) -> Result<Arc<WindowCore>, VerbError> {
    if domain.context.is_iwarp() {
        return Err(VerbError::unsupported("ibv_alloc_mw"));
    }
    WindowCore::alloc(domain, pair)
}

/// A window of type 2 for `pair`, and its core. The pair frees the core before it is destroyed.
pub(crate) fn of_pair<B>(
    domain: &Arc<DomainInner>,
    pair: NonNull<sys::ibv_qp>,
) -> Result<(Window<B, Type2>, Arc<WindowCore>), VerbError> {
    let core = alloc(domain, Some(pair))?;
    Ok((Window::of(WindowInner::new(Arc::clone(&core))), core))
}

impl<B, K: WindowType> Window<B, K> {
    pub(crate) fn of(inner: Box<WindowInner>) -> Self {
        debug_assert!(inner.is_type_1() == K::ONE && inner.descriptor().is_none());
        Self { inner, brand: PhantomData, kind: PhantomData }
    }

    pub(crate) fn inner(&self) -> &WindowInner {
        &self.inner
    }

    pub(crate) fn into_inner(self) -> Box<WindowInner> {
        self.inner
    }

    /// Frees the window, as dropping it does, and reports a failure.
    ///
    /// `ibv_dealloc_mw(3)`.
    ///
    /// # Errors
    ///
    /// The device refused; the window comes back.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc(mut self) -> Result<(), DeallocError<Self>> {
        self.inner.dealloc().map(drop).map_err(|source| DeallocError { window: self, source })
    }
}

impl<B, K: WindowType> BoundWindow<B, K> {
    pub(crate) fn of(inner: Box<WindowInner>) -> Self {
        debug_assert!(inner.is_type_1() == K::ONE && inner.descriptor().is_some());
        Self { inner, brand: PhantomData, kind: PhantomData }
    }

    pub(crate) fn inner(&self) -> &WindowInner {
        &self.inner
    }

    pub(crate) fn into_inner(self) -> Box<WindowInner> {
        self.inner
    }

    fn address(&self) -> u64 {
        self.inner.descriptor().map_or(0, Descriptor::device_addr)
    }

    /// How many bytes it is bound over.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.inner.descriptor().map_or(0, Descriptor::capacity)
    }

    /// The key that peers name.
    pub fn rkey(&self) -> Rkey {
        self.inner.rkey()
    }

    /// The record that a peer needs to reach the memory with the rights `W`. The window must have been bound with them.
    ///
    /// # Errors
    ///
    /// [`RecordError::Rights`]: the window was bound with fewer rights.
    pub fn remote<W: WindowRights>(&self) -> Result<RemoteRegion<W>, RecordError> {
        if rights::<W>() & !self.inner.rights() != 0 {
            return Err(RecordError::Rights { wanted: access::name::<W>() });
        }
        Ok(RemoteRegion::of(self.address(), self.len() as u64, self.rkey()))
    }

    /// Frees the window, bound or not: peers no longer reach the memory through it.
    ///
    /// `ibv_dealloc_mw(3)`.
    ///
    /// # Errors
    ///
    /// The device refused; the window comes back, and peers may still use it.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc(self) -> Result<Lapsed<B>, DeallocError<Self>> {
        Lapsed::of(self.inner).map_err(|(inner, source)| DeallocError { window: Self::of(inner), source })
    }

    /// The region behind the window, and the offset in that region of the window's byte `offset`.
    ///
    /// Fails unless the `len_bytes` from that byte on are inside the window.
    fn place(&self, offset: usize, len_bytes: usize) -> Result<(&RegionInner, usize), OutOfBounds> {
        let within = self.len() as u64;
        OutOfBounds::check(offset as u64, len_bytes as u64, within)?;
        let missing = OutOfBounds { offset: offset as u64, len_bytes: len_bytes as u64, within };
        let part = self.inner.descriptor().ok_or(missing)?;
        let region = part.region();
        // The region and the part both start at a multiple of 8, so each word of the window is a word of the region.
        Ok((region, part.address().addr() - region.address().addr() + offset))
    }

    /// Copies the bytes at `offset` out, word by word, as [`MemoryRegion::read_into`](crate::MemoryRegion::read_into)
    /// does.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn read_into(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        let (region, place) = self.place(offset, bytes.len())?;
        exposed::copy_out(region, place, bytes)
    }

    /// Copies `bytes` in at `offset`, word by word, as [`MemoryRegion::write_from`](crate::MemoryRegion::write_from)
    /// does.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn write_from(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let (region, place) = self.place(offset, bytes.len())?;
        exposed::copy_in(region, place, bytes)
    }

    /// Copies the values at `offset` out, as [`MemoryRegion::read_slice`](crate::MemoryRegion::read_slice) does.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn read_slice<T: Plain>(&self, offset: usize, values: &mut [T]) -> Result<(), OutOfBounds> {
        self.read_into(offset, values.as_mut_bytes())
    }

    /// Copies `values` in at `offset`, as [`MemoryRegion::write_slice`](crate::MemoryRegion::write_slice) does.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn write_slice<T: Plain>(&mut self, offset: usize, values: &[T]) -> Result<(), OutOfBounds> {
        self.write_from(offset, values.as_bytes())
    }

    /// Loads the word at `offset`, a multiple of 8; native byte order.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], also where `offset` is not a multiple of 8.
    pub fn load(&self, offset: usize) -> Result<u64, OutOfBounds> {
        let (region, place) = self.place(offset, 8)?;
        Ok(exposed::whole_word(region, place)?.load(Ordering::Relaxed))
    }

    /// Stores the word at `offset`, a multiple of 8; native byte order.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn store(&mut self, offset: usize, value: u64) -> Result<(), OutOfBounds> {
        let (region, place) = self.place(offset, 8)?;
        exposed::whole_word(region, place)?.store(value, Ordering::Relaxed);
        Ok(())
    }
}

impl<B> BoundWindow<B, Type2> {
    /// As [`remote`](Self::remote), for a peer that may also end the window, by
    /// [`post_send_invalidating`](crate::QueuePair::post_send_invalidating).
    ///
    /// # Errors
    ///
    /// As [`remote`](Self::remote); and [`RecordError::NotInvalidated`] if a peer that invalidates keys could harm this
    /// device.
    pub fn remote_window<W: WindowRights>(&self) -> Result<RemoteWindow<W>, RecordError> {
        if !self.inner.is_revocable() {
            return Err(RecordError::NotInvalidated);
        }
        self.remote().map(RemoteWindow::of)
    }
}

impl<B> UnsettledWindow<B> {
    pub(crate) fn of(inner: Box<WindowInner>) -> Self {
        Self { inner, brand: PhantomData }
    }

    /// The result of the request about the window, which has succeeded.
    pub(crate) fn settle(self, proof: Succeeded) -> Settled<B> {
        self.inner.settle(proof)
    }

    /// Frees the window, bound or not: peers no longer reach the memory through it.
    ///
    /// `ibv_dealloc_mw(3)`.
    ///
    /// # Errors
    ///
    /// The device refused; the window comes back, and peers may be able to use it.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc(self) -> Result<Lapsed<B>, DeallocError<Self>> {
        Lapsed::of(self.inner).map_err(|(inner, source)| DeallocError { window: Self::of(inner), source })
    }
}

/// The rights `W` as flags of a window.
pub(crate) fn rights<W: WindowRights>() -> u32 {
    RemoteRegion::<W>::rights().into()
}

macro_rules! debug {
    ($($name:ident<$($parameter:ident),*>),*) => {$(
        impl<$($parameter),*> fmt::Debug for $name<$($parameter),*> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("part", &self.inner.descriptor()).finish_non_exhaustive()
            }
        }
    )*};
}
debug!(Window<B, K>, BoundWindow<B, K>, UnsettledWindow<B>);

impl<B, K> fmt::Debug for Revoked<B, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revoked").field("memory", &self.memory).finish_non_exhaustive()
    }
}
