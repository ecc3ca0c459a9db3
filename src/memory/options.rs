//! Ways to register memory, as types that wrap the rights.
//!
//! A region's rights say who may do what with it. How the region was registered can change what the program may rely
//! on. So that is part of the same type parameter: an operation that relies on more than the region guarantees does not
//! compile.
//!
//! ASSUMPTION: with relaxed ordering, too, a completion comes after all data of its request and of those before it
//! (`ibv_reg_mr(3)`). A deregistration and the end of a pair prove the same as without it.

use super::access::{Access, sealed::Sealed};
use super::{
    DeviceMayWrite, Exposed, LocalRead, LocalWrite, PeerCannotWrite, PeerMayAtomic, PeerMayChange, PeerMayRead,
    PeerMayWrite, RemoteAll, RemoteAtomic, RemoteRead, RemoteReadWrite, RemoteWrite, Unexposed,
};
use crate::sys::ibv_access_flags as flags;
use std::{convert::Infallible, marker::PhantomData};

pub(super) const RELAXED_ORDERING: u32 = flags::IBV_ACCESS_RELAXED_ORDERING.0;
const ON_DEMAND: u32 = flags::IBV_ACCESS_ON_DEMAND.0;
pub(super) const MW_BIND: u32 = flags::IBV_ACCESS_MW_BIND.0;
/// Flags that give peers no access.
pub(super) const FLAGS: u32 = RELAXED_ORDERING | ON_DEMAND;

/// The writes of one peer become visible in the order in which it posted them, as far as the device keeps order at all.
///
/// All rights have this except those in [`RelaxedOrdering`].
#[diagnostic::on_unimplemented(
    message = "writes to memory registered as `{Self}` become visible in any order",
    label = "relaxed ordering",
    note = "wait for a completion instead (such as a write with immediate), or register without `RelaxedOrdering`"
)]
pub trait KeepsOrder: Access {}
impl KeepsOrder for LocalRead {}
impl KeepsOrder for LocalWrite {}
impl KeepsOrder for RemoteRead {}
impl KeepsOrder for RemoteWrite {}
impl KeepsOrder for RemoteReadWrite {}
impl KeepsOrder for RemoteAtomic {}
impl KeepsOrder for RemoteAll {}

/// The rights `A`, registered so that the device may write there in any order: `RelaxedOrdering<LocalWrite>`.
///
/// `IBV_ACCESS_RELAXED_ORDERING` of `ibv_reg_mr(3)`. On some machines (PCI Express with many memory channels) this is
/// much faster. A device that does not know the flag ignores it.
///
/// | with it | |
/// |---|---|
/// | a completion | still comes after all data of its request, and of those before it. So buffers work as without it: whoever holds a [`Buffer`](crate::Buffer) has the bytes |
/// | deregistration | still ends every access |
/// | two writes of a peer | become visible in any order; where they overlap, either may stay |
/// | the bytes of one write | become visible in any order: a flag at its end says nothing of what stands before it |
/// | atomics | are not overtaken by writes before them |
///
/// So a program must not look at a flag in memory that peers write and then trust the data:
/// [`Word::load_acquire`](crate::memory::Word::load_acquire) does not exist there. The peer reports by a completion
/// that it is done, with [`post_write_with_immediate`](crate::QueuePair::post_write_with_immediate) or a send.
///
/// # Rules
///
/// The compiler enforces each of them; programs that break them are in `ui-tests/memory`.
///
/// - M21: what relies on the order of a peer's writes is not offered where they have none.
///
/// # Examples
///
/// ```
/// use interlock::{Context, LocalWrite, RemoteWrite};
/// use interlock::access::RelaxedOrdering;
/// interlock::domain! { struct Docs; }
/// let domain = Context::open("soft0")?.named_domain(Docs)?;
/// let (_, buffer) = domain.register::<RelaxedOrdering<LocalWrite>, _>(vec![0_u8; 4096])?.split();
/// let region = domain.register::<RelaxedOrdering<RemoteWrite>, _>(vec![0_u64; 8])?;
/// assert_eq!((buffer.len(), region.word(56)?.load()), (4096, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A flag in such memory cannot be trusted:
///
/// ```compile_fail,E0277
/// # use interlock::{Brand, MemoryRegion, RemoteWrite};
/// # use interlock::access::RelaxedOrdering;
/// fn is_done<B: Brand>(region: &MemoryRegion<B, RelaxedOrdering<RemoteWrite>>) -> bool {
///     region.word(0).is_ok_and(|flag| flag.load_acquire() == 1)
/// }
/// ```
#[derive(Debug)]
#[doc(alias = "IBV_ACCESS_RELAXED_ORDERING")]
pub struct RelaxedOrdering<A>(Infallible, PhantomData<fn() -> A>);
impl<A: Access> Sealed for RelaxedOrdering<A> {
    const FLAGS: flags = flags(A::FLAGS.0 | RELAXED_ORDERING);
    const ZERO_BASED: bool = A::ZERO_BASED;
}
#[diagnostic::do_not_recommend]
impl<A: Access> Access for RelaxedOrdering<A> {}
#[diagnostic::do_not_recommend]
impl<A: DeviceMayWrite> DeviceMayWrite for RelaxedOrdering<A> {}
#[diagnostic::do_not_recommend]
impl<A: PeerCannotWrite> PeerCannotWrite for RelaxedOrdering<A> {}
#[diagnostic::do_not_recommend]
impl<A: Unexposed> Unexposed for RelaxedOrdering<A> {}
#[diagnostic::do_not_recommend]
impl<A: Exposed> Exposed for RelaxedOrdering<A> {}
#[diagnostic::do_not_recommend]
impl<A: PeerMayRead> PeerMayRead for RelaxedOrdering<A> {}
#[diagnostic::do_not_recommend]
impl<A: PeerMayWrite> PeerMayWrite for RelaxedOrdering<A> {}
#[diagnostic::do_not_recommend]
impl<A: PeerMayAtomic> PeerMayAtomic for RelaxedOrdering<A> {}
#[diagnostic::do_not_recommend]
impl<A: PeerMayChange> PeerMayChange for RelaxedOrdering<A> {}

/// The rights `A`, registered without pinning: the device faults the pages in as it needs them.
///
/// `IBV_ACCESS_ON_DEMAND` of `ibv_reg_mr(3)`, on-demand paging. Registration is quick, does not count against the limit
/// of locked memory, and lets the memory be swapped out; the first access to each page is slow. The rules of ownership
/// stay the same.
///
/// [`Context::on_demand`](crate::Context::on_demand) tells which transports and operations of a device fault pages in.
/// The others fail with a protection error. A device without on-demand paging refuses the registration:
/// [`RegisterFailure::Unsupported`](crate::error::RegisterFailure::Unsupported).
///
/// While a page is faulted in, messages of unreliable transports (datagrams, unreliable connections) are lost.
#[derive(Debug)]
#[doc(alias = "IBV_ACCESS_ON_DEMAND")]
#[doc(alias = "ODP")]
pub struct OnDemand<A>(Infallible, PhantomData<fn() -> A>);
impl<A: Access> Sealed for OnDemand<A> {
    const FLAGS: flags = flags(A::FLAGS.0 | ON_DEMAND);
    const ZERO_BASED: bool = A::ZERO_BASED;
}
#[diagnostic::do_not_recommend]
impl<A: Access> Access for OnDemand<A> {}
#[diagnostic::do_not_recommend]
impl<A: KeepsOrder> KeepsOrder for OnDemand<A> {}
#[diagnostic::do_not_recommend]
impl<A: DeviceMayWrite> DeviceMayWrite for OnDemand<A> {}
#[diagnostic::do_not_recommend]
impl<A: PeerCannotWrite> PeerCannotWrite for OnDemand<A> {}
#[diagnostic::do_not_recommend]
impl<A: Unexposed> Unexposed for OnDemand<A> {}
#[diagnostic::do_not_recommend]
impl<A: Exposed> Exposed for OnDemand<A> {}
#[diagnostic::do_not_recommend]
impl<A: PeerMayRead> PeerMayRead for OnDemand<A> {}
#[diagnostic::do_not_recommend]
impl<A: PeerMayWrite> PeerMayWrite for OnDemand<A> {}
#[diagnostic::do_not_recommend]
impl<A: PeerMayAtomic> PeerMayAtomic for OnDemand<A> {}
#[diagnostic::do_not_recommend]
impl<A: PeerMayChange> PeerMayChange for OnDemand<A> {}

/// The rights `A` of peers, registered so that peers address the first byte as 0, and not by its address in this
/// process.
///
/// So a peer learns no address, and its [`RemoteRegion::address`](crate::RemoteRegion::address) is an offset. The
/// memory must start on a page, as that of [`Pages`](crate::memory::Pages) does:
/// [`RegisterFailure::NotInPages`](crate::error::RegisterFailure::NotInPages).
///
/// This is `ibv_reg_mr_iova(3)` with the address 0. It works also on devices that lack the flag
/// `IBV_ACCESS_ZERO_BASED`.
///
/// The local key addresses the first byte as 0, too, while requests name buffers by address. So this memory cannot be
/// posted: it gives no buffers.
///
/// # Examples
///
/// ```
/// use interlock::{Context, RemoteRead};
/// use interlock::access::ZeroBased;
/// use interlock::memory::Pages;
/// interlock::domain! { struct Docs; }
/// let domain = Context::open("soft0")?.named_domain(Docs)?;
/// let region = domain.register::<ZeroBased<RemoteRead>, _>(Pages::new(4096)?)?;
/// assert_eq!(region.remote().address(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[doc(alias = "IBV_ACCESS_ZERO_BASED")]
#[doc(alias = "ibv_reg_mr_iova")]
pub struct ZeroBased<A>(Infallible, PhantomData<fn() -> A>);
impl<A: Exposed> Sealed for ZeroBased<A> {
    const FLAGS: flags = A::FLAGS;
    const ZERO_BASED: bool = true;
}
#[diagnostic::do_not_recommend]
impl<A: Exposed> Access for ZeroBased<A> {}
#[diagnostic::do_not_recommend]
impl<A: Exposed + KeepsOrder> KeepsOrder for ZeroBased<A> {}
#[diagnostic::do_not_recommend]
impl<A: Exposed> Exposed for ZeroBased<A> {}
#[diagnostic::do_not_recommend]
impl<A: PeerMayRead> PeerMayRead for ZeroBased<A> {}
#[diagnostic::do_not_recommend]
impl<A: PeerMayWrite> PeerMayWrite for ZeroBased<A> {}
#[diagnostic::do_not_recommend]
impl<A: PeerMayAtomic> PeerMayAtomic for ZeroBased<A> {}
#[diagnostic::do_not_recommend]
impl<A: Exposed + PeerMayChange> PeerMayChange for ZeroBased<A> {}

/// The rights `A`, registered so that [memory windows](crate::window::Window) may be bound over parts of the memory:
/// `Windowed<LocalWrite>`.
///
/// `IBV_ACCESS_MW_BIND` of `ibv_reg_mr(3)`. Peers get access by windows only, so `A` has no rights of peers. Since
/// peers reach it, the memory must be 8-byte aligned and a multiple of 8 bytes long.
///
/// # Examples
///
/// ```
/// use interlock::{Context, LocalWrite};
/// use interlock::access::Windowed;
/// use interlock::memory::Pages;
/// interlock::domain! { struct Docs; }
/// let domain = Context::open("soft0")?.named_domain(Docs)?;
/// let (_, memory) = domain.register::<Windowed<LocalWrite>, _>(Pages::new(4096)?)?.split_bindable();
/// assert_eq!(memory.capacity(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[doc(alias = "IBV_ACCESS_MW_BIND")]
pub struct Windowed<A>(Infallible, PhantomData<fn() -> A>);
impl<A: Unexposed> Sealed for Windowed<A> {
    const FLAGS: flags = flags(A::FLAGS.0 | MW_BIND);
}
#[diagnostic::do_not_recommend]
impl<A: Unexposed> Access for Windowed<A> {}
#[diagnostic::do_not_recommend]
impl<A: Unexposed + KeepsOrder> KeepsOrder for Windowed<A> {}
#[diagnostic::do_not_recommend]
impl<A: Unexposed + DeviceMayWrite> DeviceMayWrite for Windowed<A> {}
#[diagnostic::do_not_recommend]
impl<A: Unexposed> PeerCannotWrite for Windowed<A> {}
#[diagnostic::do_not_recommend]
impl<A: Unexposed> Unexposed for Windowed<A> {}

/// Rights of memory over which windows may be bound. Sealed.
///
/// These are the rights [`Windowed`] with local write, because a window may grant write only where the device may
/// write. [`RelaxedOrdering`] is excluded: with it, a peer's write could arrive after the end of its window.
#[diagnostic::on_unimplemented(
    message = "no window is bound over memory registered as `{Self}`",
    label = "not for windows",
    note = "register it as `Windowed<LocalWrite>`",
    note = "a window lets peers write only where the device may write: `Windowed<LocalRead>` is not enough",
    note = "with `RelaxedOrdering`, what peers wrote could arrive after the end of their window"
)]
pub trait MayBind: DeviceMayWrite + Unexposed {}
#[diagnostic::do_not_recommend]
impl<A: Unexposed + DeviceMayWrite + KeepsOrder> MayBind for Windowed<A> {}

/// Rights that a window can give to peers: the presets that start with `Remote`, without a wrapper. Sealed.
#[diagnostic::on_unimplemented(
    message = "a window does not give the rights `{Self}`",
    label = "not rights of peers alone",
    note = "use `RemoteRead`, `RemoteWrite`, `RemoteReadWrite`, `RemoteAtomic` or `RemoteAll`"
)]
pub trait WindowRights: Exposed {}
impl WindowRights for RemoteRead {}
impl WindowRights for RemoteWrite {}
impl WindowRights for RemoteReadWrite {}
impl WindowRights for RemoteAtomic {}
impl WindowRights for RemoteAll {}
