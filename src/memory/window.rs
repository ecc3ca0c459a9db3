//! Memory windows: parts of private regions that peers reach while a window is bound over them.
//!
//! A window is bound and ended by requests of a queue pair (`queue/windows.rs`). Which memory a window is or may be
//! bound over goes with it, in the ledger too: so the region is registered for as long as a peer may reach it by the
//! window.
//!
//! ASSUMPTION: a provider reads the `ibv_mw` of a posted bind before the device can complete the request.
#![allow(unsafe_code, reason = "owns raw windows")]

use super::bindable::Bindable;
use super::options::WindowRights;
use super::part::{Descriptor, Part};
use super::remote::RemoteWindow;
use super::{OutOfBounds, RecordError, RegionInner, RemoteRegion, access, exposed};
use crate::domain::brand::Branded;
use crate::domain::{Brand, DomainId, DomainInner, ProtectionDomain};
use crate::error::{VerbError, note_leak};
use crate::provider::reviewed::Windows;
use crate::sys::{self, ibv_mw_type};
use crate::types::Rkey;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, mem, ptr::NonNull};

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

/// A window for one pair, of the kind 2B: it ends with the pair, and the pair's peer may invalidate it.
#[doc(alias = "IBV_MW_TYPE_2")]
#[derive(Debug)]
pub enum Type2 {}
impl WindowType for Type2 {}
impl sealed::Sealed for Type2 {
    const ONE: bool = false;
}

/// The device's window: of its handle, and of the pair that it ends with.
pub(crate) struct WindowCore {
    /// # Invariants
    ///
    /// 0. Came from `alloc_mw` of the domain's provider, and is alive unless `ended`.
    raw: NonNull<sys::ibv_mw>,
    /// Set under `guard`.
    ended: AtomicBool,
    /// Held while the window is ended, and while a verb may write to it.
    guard: Mutex<()>,
    /// The pair that a window of type 2 is of; to be compared only.
    pair: Option<NonNull<sys::ibv_qp>>,
    /// Whether its end gives memory back, and peers are kept within it.
    barrier: bool,
    /// Whether a request may end it.
    revocable: bool,
    domain: Arc<DomainInner>,
}

// SAFETY: verbs may be called from any thread; the pair is a number.
unsafe impl Send for WindowCore {}
// SAFETY: shared access ends the window once, under its guard.
unsafe impl Sync for WindowCore {}

impl WindowCore {
    fn alloc(domain: &Arc<DomainInner>, pair: Option<NonNull<sys::ibv_qp>>) -> Result<Arc<Self>, VerbError> {
        let kind = if pair.is_none() { ibv_mw_type::IBV_MW_TYPE_1 } else { ibv_mw_type::IBV_MW_TYPE_2 };
        let context = &domain.context;
        // SAFETY: open as long as the domain holds it.
        if pair.is_none() && unsafe { (*context.raw.as_ptr()).ops.bind_mw }.is_none() {
            return Err(VerbError::new("ibv_bind_mw", libc::EOPNOTSUPP));
        }
        let windows = context.promises().windows;
        let barrier = windows.are_barriers();
        let revocable = barrier && (pair.is_some() || windows == Windows::Both);
        // SAFETY: the domain is alive.
        let raw = unsafe { context.provider.alloc_mw(domain.raw, kind) }?;
        let (ended, guard, domain) = (AtomicBool::new(false), Mutex::new(()), Arc::clone(domain));
        Ok(Arc::new(Self { raw, ended, guard, pair, barrier, revocable, domain }))
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the device has it no more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// For a bind of type 2, which names it.
    pub(crate) fn raw(&self) -> *mut sys::ibv_mw {
        self.raw.as_ptr()
    }

    /// Posts a bind of a window of type 1, or its end.
    ///
    /// # Safety
    ///
    /// `ibv_bind_mw(3)`: the window is alive, the pair too and in a state that sends, and nobody else posts to it.
    pub(crate) unsafe fn bind(&self, pair: NonNull<sys::ibv_qp>, mut bind: sys::ibv_mw_bind) -> Result<(), VerbError> {
        // The provider writes the new key to the window when it has posted; by then the window may be out of the
        // poller.
        let _guard = self.lock();
        // SAFETY: the caller's promise.
        match unsafe { sys::inline::ibv_bind_mw(pair.as_ptr(), self.raw.as_ptr(), &raw mut bind) } {
            0 => Ok(()),
            errno => Err(VerbError::new("ibv_bind_mw", errno.wrapping_abs())),
        }
    }

    /// Gives it back to the device, with its binding. Does nothing the second time.
    pub(crate) fn dealloc(&self) -> Result<(), VerbError> {
        let _guard = self.lock();
        if !self.has_ended() {
            // SAFETY: alive (0), and no verb uses it: those that write to it hold the guard, those that read it have been
            // called by whoever then had the handle (ASSUMPTION), or by the pair that ends it now.
            unsafe { self.domain.context.provider.dealloc_mw(self.raw) }?;
            self.ended.store(true, Ordering::Release);
        }
        Ok(())
    }
}

/// A window with the memory behind it, as it goes through a ledger.
///
/// The alignment leaves room for the ledger's tag.
#[repr(align(64))]
pub(crate) struct WindowInner {
    core: Arc<WindowCore>,
    /// Of type 2: the key that it has, or will have when the bind in flight is done.
    rkey: u32,
    rights: u32,
    /// # Invariants
    ///
    /// 0. The only reference to the part, whose region has the right to be bound to. There is one from before the
    ///    window is bound until it is known that no peer reaches the part by it.
    part: Option<Part>,
}

/// What a bind tells the device.
pub(crate) struct Binding {
    pub(crate) core: Arc<WindowCore>,
    pub(crate) rkey: u32,
    pub(crate) info: sys::ibv_mw_bind_info,
}

impl WindowInner {
    fn new(core: Arc<WindowCore>) -> Box<Self> {
        // SAFETY: allocated just now.
        let rkey = unsafe { (*core.raw.as_ptr()).rkey };
        Box::new(Self { core, rkey, rights: 0, part: None })
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

    /// Whether a pair may post requests about it.
    pub(crate) fn serves(&self, pair: NonNull<sys::ibv_qp>) -> bool {
        self.core.pair.is_none_or(|own| own == pair)
    }

    pub(crate) fn is_barrier(&self) -> bool {
        self.core.barrier
    }

    pub(crate) fn is_revocable(&self) -> bool {
        self.core.revocable
    }

    /// Takes `memory` to be bound over, with the next key.
    pub(crate) fn begin<B>(&mut self, memory: Bindable<B>, rights: u32) -> Binding {
        let part = memory.into_part();
        let info = sys::ibv_mw_bind_info {
            mr: part.region().raw(),
            addr: part.device_addr(),
            length: part.capacity() as u64,
            mw_access_flags: rights,
        };
        // The provider names the window by its old key, which of type 2 is the caller's to keep (`ibv_inc_rkey(3)`).
        if !self.is_type_1() {
            // SAFETY: alive, as the caller has seen (core 0); this handle is the only one whose holder posts.
            unsafe { (*self.core.raw.as_ptr()).rkey = self.rkey };
            self.rkey = sys::inline::ibv_inc_rkey(self.rkey);
        }
        (self.part, self.rights) = (Some(part), rights);
        Binding { core: Arc::clone(&self.core), rkey: self.rkey, info }
    }

    /// Undoes [`begin`](Self::begin), of which the device was not told.
    pub(crate) fn undo<B>(&mut self) -> Option<Bindable<B>> {
        if !self.is_type_1() {
            self.rkey = self.rkey & !0xff | self.rkey.wrapping_sub(1) & 0xff;
        }
        self.take_memory()
    }

    /// The memory over which the window was bound and, as the caller knows, is bound no more.
    pub(crate) fn take_memory<B>(&mut self) -> Option<Bindable<B>> {
        self.part.take().map(Bindable::of_window)
    }

    /// The key of the binding.
    pub(crate) fn rkey(&self) -> Rkey {
        if !self.is_type_1() {
            return Rkey(self.rkey);
        }
        let _guard = self.core.lock();
        if self.has_ended() {
            return Rkey(0);
        }
        // SAFETY: alive (core 0), and not written meanwhile.
        Rkey(unsafe { (*self.core.raw.as_ptr()).rkey })
    }

    fn part(&self) -> Option<&Descriptor> {
        self.part.as_deref()
    }

    /// The pointer. Whoever has it owns the window.
    pub(crate) fn into_raw(self: Box<Self>) -> NonNull<Self> {
        // SAFETY: a box is not null.
        unsafe { NonNull::new_unchecked(Box::into_raw(self)) }
    }

    /// The window again.
    ///
    /// # Safety
    ///
    /// `raw` came from [`into_raw`](Self::into_raw), and is used once.
    pub(crate) unsafe fn from_raw(raw: NonNull<Self>) -> Box<Self> {
        // SAFETY: from a box (caller).
        unsafe { Box::from_raw(raw.as_ptr()) }
    }
}

impl WindowInner {
    /// Drops a window.
    ///
    /// # Safety
    ///
    /// `raw` came from [`into_raw`](Self::into_raw), and is used once.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn drop_raw(raw: NonNull<Self>) {
        // SAFETY: the caller's promise.
        drop(unsafe { Self::from_raw(raw) });
    }
}

impl Drop for WindowInner {
    fn drop(&mut self) {
        if let Err(error) = self.core.dealloc() {
            // Peers may still reach the memory.
            mem::forget(self.part.take());
            mem::forget(Arc::clone(&self.core));
            note_leak("a memory window", error);
        }
    }
}

/// A memory window of domain `B` that is bound to nothing.
///
/// Bound over a [part of a region](Bindable) by [`post_bind`](crate::QueuePair::post_bind), it lets peers reach that
/// part and no more, with rights and a key of its own. To bind and to end a window are requests, as quick as a send:
/// no system call, no pinning of pages, other than with a [`Lease`](crate::Lease).
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
/// On devices whose [windows are barriers](crate::Context::windows_are_barriers) the memory is the program's again
/// when the window has ended. On others, Linux soft-RoCE among them, a window is bound over a whole region only,
/// since bounds are not checked there; it is ended by [`dealloc`](BoundWindow::dealloc), never by a request; and what
/// gives the memory back is the end of the region. To ask for more is refused before anything is posted, with a
/// [`RequestFlaw`](crate::RequestFlaw).
///
/// # Owners
///
/// A bound window keeps its region registered, whatever is dropped or forgotten. A window of type 2 is freed before
/// its pair is destroyed, so dropping a pair ends all its windows; their memory stays in the handles. Dropping a
/// window frees it. A forgotten one stays bound, and its memory with the peer.
///
/// # Rules
///
/// Each is kept by the compiler; programs that break them are in `ui-tests/memory`.
///
/// - M27: a window is bound over memory that was registered for that, of its own domain.
/// - M28: memory behind a window is the program's again when the window has ended, and not before.
/// - M29: what is not bound is not ended, and what is bound is not bound again.
/// - M30: a window gives rights of peers, and a grant no more than its window has.
///
/// # Examples
///
/// ```
/// use interlock::{Context, Limits, LocalWrite, Pages, RemoteWrite, Windowed, Work};
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
/// let Work::Bound(bound) = poller.wait(Duration::from_secs(1))?.check()?.work() else { panic!("not a bind") };
///
/// let mut text = domain.buffer(8)?;
/// text.write(b"for you")?;
/// pair.post_write(text, &bound.remote::<RemoteWrite>()?)?; // this record is what a peer is sent
/// poller.wait(Duration::from_secs(1))?.check()?;
///
/// pair.post_revoke(bound)?;
/// let Work::Revoked(ended) = poller.wait(Duration::from_secs(1))?.check()?.work() else { panic!("not an end") };
/// assert_eq!(&ended.memory[..7], b"for you"); // a slice again; and `ended.window` can be bound anew
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_mw")]
pub struct Window<B, K = Type2> {
    inner: Box<WindowInner>,
    brand: Branded<B>,
    kind: PhantomData<fn() -> K>,
}

/// A window that is bound: peers reach the memory behind it, as long as this is around and after it was forgotten.
///
/// The peer of a window of type 2 may have ended it by a message: see
/// [`Received::invalidated`](crate::Received::invalidated). Then [`dealloc`](Self::dealloc) is the way on; a request
/// to end it would fail, and break the pair.
#[must_use = "dropping it ends the window"]
pub struct BoundWindow<B, K = Type2> {
    inner: Box<WindowInner>,
    brand: Branded<B>,
    kind: PhantomData<fn() -> K>,
}

/// A window of which it is not known whether it is bound: the request to bind or to end it failed, was flushed, or
/// its pair is gone.
pub struct UnsettledWindow<B> {
    inner: Box<WindowInner>,
    brand: Branded<B>,
}

/// A window that was ended by a request: it can be bound again, and its memory is the program's.
#[non_exhaustive]
pub struct Revoked<B, K = Type2> {
    /// The window.
    pub window: Window<B, K>,
    /// What it was bound over.
    pub memory: Bindable<B>,
}

/// Memory over which a window was bound that was freed.
pub struct Lapsed<B> {
    part: Part,
    barrier: bool,
    brand: Branded<B>,
}

static_assertions::assert_impl_all!(BoundWindow<()>: Send, Sync);
static_assertions::assert_not_impl_any!(Window<()>: Clone, Copy);
static_assertions::assert_not_impl_any!(BoundWindow<()>: Clone, Copy);

/// A window that the device would not free. It comes back.
#[derive(thiserror::Error)]
#[error("the window is still there")]
pub struct DeallocError<W> {
    /// The window.
    pub window: W,
    /// What the device answered.
    pub source: VerbError,
}

impl<W> DeallocError<W> {
    /// The error without the window, which is dropped: it can leave a scoped domain.
    pub fn into_cause(self) -> VerbError {
        self.source
    }
}

impl<W> fmt::Debug for DeallocError<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeallocError").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Memory that the end of a window did not give back, for the device's windows are no barriers. It comes back.
#[derive(thiserror::Error)]
#[error(
    "on this device the end of a window says nothing of accesses that had begun: deregister the region \
     (`SplitRegion::rejoin_lapsed`)"
)]
pub struct NoBarrier<P> {
    /// The memory.
    pub memory: P,
}

impl<P> NoBarrier<P> {
    /// The error without the memory, which is dropped: it can leave a scoped domain.
    pub fn into_cause(self) -> NoBarrier<()> {
        NoBarrier { memory: () }
    }
}

impl<P> fmt::Debug for NoBarrier<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NoBarrier").finish_non_exhaustive()
    }
}

impl<B: Brand> ProtectionDomain<B> {
    /// A window for all pairs of the domain.
    ///
    /// `ibv_alloc_mw(3)`, of type 1.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the device has none. `ENOMEM`: no more.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn window(&self) -> Result<Window<B, Type1>, VerbError> {
        Ok(Window::of(WindowInner::new(WindowCore::alloc(&self.inner, None)?)))
    }
}

/// A window of type 2 for `pair`, which frees the core before it ends.
pub(crate) fn of_pair<B>(
    domain: &Arc<DomainInner>,
    pair: NonNull<sys::ibv_qp>,
) -> Result<(Window<B, Type2>, Arc<WindowCore>), VerbError> {
    let core = WindowCore::alloc(domain, Some(pair))?;
    Ok((Window::of(WindowInner::new(Arc::clone(&core))), core))
}

impl<B, K: WindowType> Window<B, K> {
    pub(crate) fn of(inner: Box<WindowInner>) -> Self {
        debug_assert!(inner.is_type_1() == K::ONE && inner.part.is_none());
        Self { inner, brand: PhantomData, kind: PhantomData }
    }

    pub(crate) fn inner(&self) -> &WindowInner {
        &self.inner
    }

    pub(crate) fn into_inner(self) -> Box<WindowInner> {
        self.inner
    }

    /// Frees it, as dropping it does, and says if that fails.
    ///
    /// `ibv_dealloc_mw(3)`.
    ///
    /// # Errors
    ///
    /// The device refused; the window comes back.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc(self) -> Result<(), DeallocError<Self>> {
        self.inner.core.dealloc().map_err(|source| DeallocError { window: self, source })
    }
}

impl<B> Lapsed<B> {
    fn of(mut inner: Box<WindowInner>) -> Result<Self, (Box<WindowInner>, VerbError)> {
        let ended = inner.core.dealloc();
        match (ended, inner.part.take()) {
            (Ok(()), Some(part)) => Ok(Self { part, barrier: inner.core.barrier, brand: PhantomData }),
            (Err(source), part) => {
                inner.part = part;
                Err((inner, source))
            }
            // Cannot be: one that is or may be bound has memory (0).
            (Ok(()), None) => Err((inner, VerbError::new("ibv_dealloc_mw", libc::EINVAL))),
        }
    }

    pub(super) fn covers(&self, region: &Arc<RegionInner>) -> bool {
        Arc::ptr_eq(self.part.region(), region) && self.part.capacity() == region.len_bytes()
    }

    /// The memory, where the device's [windows are barriers](crate::Context::windows_are_barriers).
    ///
    /// # Errors
    ///
    /// They are none. It comes back, for [`SplitRegion::rejoin_lapsed`](crate::SplitRegion::rejoin_lapsed).
    pub fn reclaim(self) -> Result<Bindable<B>, NoBarrier<Self>> {
        if self.barrier { Ok(Bindable::of_window(self.part)) } else { Err(NoBarrier { memory: self }) }
    }
}

impl<B, K: WindowType> BoundWindow<B, K> {
    pub(crate) fn of(inner: Box<WindowInner>) -> Self {
        debug_assert!(inner.is_type_1() == K::ONE && inner.part.is_some());
        Self { inner, brand: PhantomData, kind: PhantomData }
    }

    pub(crate) fn inner(&self) -> &WindowInner {
        &self.inner
    }

    pub(crate) fn into_inner(self) -> Box<WindowInner> {
        self.inner
    }

    fn address(&self) -> u64 {
        self.inner.part().map_or(0, Descriptor::device_addr)
    }

    /// How many bytes are behind it.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.inner.part().map_or(0, Descriptor::capacity)
    }

    /// The key that peers name.
    pub fn rkey(&self) -> Rkey {
        self.inner.rkey()
    }

    /// What a peer needs to reach the memory with the rights `W`, or some of them.
    ///
    /// # Errors
    ///
    /// [`RecordError::Rights`]: the window was bound with fewer.
    pub fn remote<W: WindowRights>(&self) -> Result<RemoteRegion<W>, RecordError> {
        if rights::<W>() & !self.inner.rights != 0 {
            return Err(RecordError::Rights { wanted: access::name::<W>() });
        }
        Ok(RemoteRegion::of(self.address(), self.len() as u64, self.rkey()))
    }

    /// Frees the window, bound or not: peers reach the memory no more by it.
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

    /// The region behind it, and where in it `len_bytes` at `offset` are.
    fn place(&self, offset: usize, len_bytes: usize) -> Result<(&RegionInner, usize), OutOfBounds> {
        let within = self.len() as u64;
        OutOfBounds::check(offset as u64, len_bytes as u64, within)?;
        let missing = OutOfBounds { offset: offset as u64, len_bytes: len_bytes as u64, within };
        let part = self.inner.part().ok_or(missing)?;
        let region = part.region();
        // Whole words before the part: both start with one.
        Ok((region, part.addr().addr() - region.addr().addr() + offset))
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
    /// As [`remote`](Self::remote), for a peer that may end the window too, by
    /// [`post_send_invalidating`](crate::QueuePair::post_send_invalidating).
    ///
    /// # Errors
    ///
    /// As there, and [`RecordError::NotInvalidated`]: the device is not one that takes that from a peer and stays well.
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

    /// For who knows more of it.
    pub(crate) fn into_inner(self) -> Box<WindowInner> {
        self.inner
    }

    /// Frees the window, bound or not: peers reach the memory no more by it.
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

/// The rights `W`, as a window has them.
pub(crate) fn rights<W: WindowRights>() -> u32 {
    RemoteRegion::<W>::rights().into()
}

macro_rules! debug {
    ($($name:ident<$($parameter:ident),*>),*) => {$(
        impl<$($parameter),*> fmt::Debug for $name<$($parameter),*> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("part", &self.inner.part).finish_non_exhaustive()
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

impl<B> fmt::Debug for Lapsed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lapsed").field("part", &self.part).finish_non_exhaustive()
    }
}
