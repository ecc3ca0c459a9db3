//! Brands: types that name one protection domain each.

use crate::sync::lock;
use std::any::TypeId;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Mutex;

/// The mark of whatever belongs to the domain that `B` names: invariant in `B`, so that no brand becomes another.
pub(crate) type Branded<B> = PhantomData<fn(B) -> B>;

/// A type that names one protection domain. Sealed: [`Scoped`], [`Checked`] and the types made by [`domain!`](crate::domain!).
///
/// Everything of a domain bears its brand, invariantly, so that objects of two domains do not fit together. A brand is one
/// of three kinds:
///
/// | brand | made by | lives | a mismatch reads |
/// |---|---|---|---|
/// | named | [`domain!`](crate::domain!) and [`Context::named_domain`](crate::Context::named_domain) | `'static` | ``expected `Buffer<Storage>`, found `Buffer<Scratch>` `` |
/// | [`Scoped`] | [`Context::with_domain`](crate::Context::with_domain) | for one closure | `borrowed data escapes outside of closure`, or `lifetime may not live long enough` |
/// | [`Checked`] | [`Context::checked_domain`](crate::Context::checked_domain) | `'static`, for any number of domains | at run time: [`RequestFlaw::OtherDomain`](crate::RequestFlaw::OtherDomain) and its like |
///
/// Take a named one where the program knows its domains, a scoped one for a domain of its own in a function, and the checked one
/// for a library that opens what it is told to, or for as many devices as there are.
///
/// # Examples
///
/// A function for any brand; with `+ 'static`, which all but scoped ones are, errors go into a `Box<dyn Error>` by `?`:
///
/// ```
/// use interlock::{Brand, Limits, Poller, ProtectionDomain, QueuePair};
///
/// fn loopback<B: Brand + 'static>(
///     domain: &ProtectionDomain<B>,
/// ) -> Result<(QueuePair<B>, Poller<B>), Box<dyn std::error::Error>> {
///     let (queue, poller) = domain.completion_queue(Limits::default().completions())?;
///     let pair = domain.reliable(&queue, &Limits::default())?.into_init(&domain.context().active_port()?)?;
///     let myself = pair.endpoint();
///     Ok((pair.connect(&myself)?, poller))
/// }
/// ```
///
/// # Rules
///
/// Each is kept by the compiler; programs that break them are in `ui-tests/domain`.
///
/// - D1: memory is posted to queue pairs of its own protection domain only.
/// - D2: a queue pair completes on completion queues of its own domain.
/// - D3: the brands of two scoped domains never unify, whatever follows.
/// - D4: nothing of a scoped domain leaves its closure.
/// - D5: everything of a domain is invariant in its brand.
/// - D6: a brand cannot be made up.
/// - D7: the run-time brand does not mix with other brands.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a protection domain",
    label = "not a brand",
    note = "declare a brand with `interlock::domain! {{ struct Name; }}`, or use the one that `Context::with_domain` lends, or `Checked`"
)]
pub trait Brand: Sized + sealed::Sealed {
    /// Whether several domains bear it, so that objects compare theirs at run time wherever they meet: of [`Checked`] only.
    const CHECKED: bool = false;
}

mod sealed {
    #[allow(unnameable_types, reason = "seals `Brand`")]
    pub trait Sealed {}
}

/// The brand of a domain that exists for one closure; equals no other brand.
///
/// The compiler has no text of ours for a mix-up of two scoped domains. Each closure of
/// [`with_domain`](crate::Context::with_domain) has a `'pd` of its own, and neither may become the other, so where an object
/// of one meets an object of the other it says
///
/// - `borrowed data escapes outside of closure` (E0521) inside nested closures, also for what is carried out of its closure.
///   It points at lines where the objects come from: look below them for the one that brings both together.
/// - `lifetime may not live long enough` in functions that name both lifetimes, also for what a closure returns. It points at
///   the line of the mix-up.
#[derive(Clone, Copy, Debug)]
pub struct Scoped<'pd>(PhantomData<fn(&'pd ()) -> &'pd ()>);

impl sealed::Sealed for Scoped<'_> {}
impl Brand for Scoped<'_> {}

/// The brand of domains that are told apart at run time: for libraries, and for as many devices or domains as there are.
///
/// Any number of domains may bear it ([`Context::checked_domain`](crate::Context::checked_domain)), and their objects have one type.
/// So the compiler lets objects of two of them meet, and the library does not: each operation that brings two objects together
/// first compares their domains, by the addresses of what both are made from. A mix-up is refused before anything is done,
/// with an error that gives back what was passed in. That costs a post five instructions; with the other brands nothing is
/// compared.
///
/// | what meets | the error |
/// |---|---|
/// | memory, a recipient or a window, and a queue pair, its halves, batches and scopes | [`RequestFlaw::OtherDomain`](crate::RequestFlaw::OtherDomain) |
/// | memory and a [`SharedReceiveQueue`](crate::SharedReceiveQueue) | the same |
/// | a memory window, what it shall be bound over, and a queue pair | the same |
/// | a new queue pair and its completion queues | [`CreateError::OtherDomain`](crate::CreateError::OtherDomain) |
/// | a datagram that is to be [answered](crate::ProtectionDomain::sender) and a domain | [`AddressError::OtherDomain`](crate::AddressError::OtherDomain) |
/// | [`drain`](crate::QueuePair::drain) and a poller | [`DrainFailure::OtherDomain`](crate::DrainFailure::OtherDomain) |
///
/// The other places compare more than domains, with any brand: [`Buffer::join`](crate::Buffer::join) and
/// [`SplitRegion::rejoin`](crate::SplitRegion::rejoin) regions, [`SendHalf::join`](crate::SendHalf::join) queue pairs,
/// [`CompletionChannel::wait_any`](crate::CompletionChannel::wait_any) channels,
/// [`Exclusive::new`](crate::scope::Exclusive::new) completion queues. A [`BufferList`](crate::BufferList) may be made of
/// buffers of several domains, and is then posted nowhere.
///
/// # Examples
///
/// One connection on each device of a list that is known at run time:
///
/// ```
/// use interlock::{Checked, Context, Limits, Poller, PostError, ProtectionDomain, QueuePair, RequestFlaw};
///
/// struct Lane {
///     domain: ProtectionDomain<Checked>,
///     pair: QueuePair<Checked>,
///     poller: Poller<Checked>,
/// }
///
/// fn open(device: &str) -> Result<Lane, Box<dyn std::error::Error>> {
///     let context = Context::open(device)?;
///     let domain = context.checked_domain()?;
///     let (queue, poller) = domain.completion_queue(Limits::default().completions())?;
///     let pair = domain.reliable(&queue, &Limits::default())?.into_init(&context.active_port()?)?;
///     let myself = pair.endpoint(); // its own peer, to be short
///     Ok(Lane { pair: pair.connect(&myself)?, domain, poller })
/// }
///
/// let devices = ["soft0", "soft1", "soft0"];
/// let mut lanes = devices.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
/// for lane in &mut lanes {
///     lane.pair.post_receive(lane.domain.buffer(64)?)?;
/// }
/// let elsewhere = lanes[1].domain.buffer(64)?;
/// match lanes[0].pair.post_send(elsewhere) {
///     Err(PostError::Flawed { request, flaw: RequestFlaw::OtherDomain }) => lanes[1].pair.post_send(request)?,
///     other => other?,
/// };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Checked {}

impl sealed::Sealed for Checked {}
impl Brand for Checked {
    const CHECKED: bool = true;
}

/// The brands that [`domain!`](crate::domain!) makes, for functions that open a domain under a name of their caller's:
/// [`Context::named_domain`](crate::Context::named_domain) takes what is `Named + Brand`. All else is written for any [`Brand`].
///
/// Implementing it by hand gives nothing that the macro does not: which domain has the name is decided by a registry at run time.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the name of a protection domain",
    label = "not a name",
    note = "declare one with `interlock::domain! {{ struct Name; }}` and pass `Name`"
)]
pub trait Named: 'static + Sized {
    /// The name, as printed.
    #[doc(hidden)]
    const NAME: &'static str;
}

// There is no such impl of `Brand`: the compiler would tell a function that forgot its `B: Brand` to ask for `B: Named`, which
// `Scoped` and `Checked` are not.
#[diagnostic::do_not_recommend]
impl<N: Named> sealed::Sealed for N {}

/// Declares types that name protection domains.
///
/// Each stands for at most one domain of the process at a time: see
/// [`Context::named_domain`](crate::Context::named_domain).
///
/// # Examples
///
/// ```
/// interlock::domain! {
///     /// Where the blocks live.
///     pub struct Storage;
///     struct Scratch;
/// }
/// let storage = interlock::Context::open("soft0")?.named_domain(Storage)?;
/// let scratch = interlock::Context::open("soft0")?.named_domain(Scratch)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[macro_export]
macro_rules! domain {
    ($($(#[$attribute:meta])* $visibility:vis struct $name:ident;)+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        $visibility struct $name;

        impl $crate::Brand for $name {}
        impl $crate::Named for $name {
            const NAME: &'static str = stringify!($name);
        }
    )+};
}

/// The names that are taken.
static TAKEN: Mutex<BTreeSet<TypeId>> = Mutex::new(BTreeSet::new());

/// The right of one domain to a name, from before `ibv_alloc_pd` until after `ibv_dealloc_pd` returned 0.
#[derive(Debug)]
pub(crate) struct Claim(TypeId);

impl Claim {
    /// Takes the name; `None` if a domain has it.
    pub(crate) fn take<N: Named>() -> Option<Self> {
        let name = TypeId::of::<N>();
        let fresh = lock(&TAKEN).insert(name);
        // Not `then_some`: a claim that was not taken must not exist, for its drop would free the name.
        fresh.then(|| Self(name))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&TAKEN).remove(&self.0);
    }
}
