//! Brands: types that name one protection domain each.

use crate::sync::lock;
use std::any::TypeId;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Mutex;

/// Marks a type whose objects belong to the domain that `B` names. It makes the type invariant in `B`, so that one
/// brand never becomes another.
pub(crate) type Branded<B> = PhantomData<fn(B) -> B>;

/// A type that names one protection domain. Sealed: [`Scoped`], [`Checked`] and the types made by
/// [`domain!`](crate::domain!).
///
/// All objects of a domain have its brand as a type parameter, in which they are invariant. So objects of two domains
/// do not fit together. There are three kinds of brand:
///
/// | brand | made by | lives | a mismatch reads |
/// |---|---|---|---|
/// | named | [`domain!`](crate::domain!) and [`Context::named_domain`](crate::Context::named_domain) | `'static` | ``expected `Buffer<Storage>`, found `Buffer<Scratch>` `` |
/// | [`Scoped`] | [`Context::with_domain`](crate::Context::with_domain) | for one closure | `borrowed data escapes outside of closure`, or `lifetime may not live long enough` |
/// | [`Checked`] | [`Context::checked_domain`](crate::Context::checked_domain) | `'static`, for any number of domains | at run time: [`RequestFlaw::OtherDomain`](crate::error::RequestFlaw::OtherDomain) and its like |
///
/// Use a named brand for domains that the program knows when it is written, a scoped one for a domain that lives as
/// long as a function, and the checked one in a library, or where the number of devices is known only at run time.
///
/// # Examples
///
/// A function for any brand. With `+ 'static`, which excludes scoped brands, `?` turns its errors into a `Box<dyn
/// Error>`:
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
/// The compiler enforces each of them; programs that break them are in `ui-tests/domain`.
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
    /// Whether several domains may have this brand, so that their objects are compared at run time. True of [`Checked`]
    /// only.
    const CHECKED: bool = false;
}

mod sealed {
    #[allow(unnameable_types, reason = "seals `Brand`")]
    pub trait Sealed {}
}

/// The brand of a domain that exists for one closure. It differs from every other brand.
///
/// A mix-up of two scoped domains gives an error message of the compiler about lifetimes. Each closure of
/// [`with_domain`](crate::Context::with_domain) has a lifetime `'pd` of its own. Where an object of one closure meets
/// an object of another, the compiler says
///
/// - `borrowed data escapes outside of closure` (E0521) in nested closures, and for an object that is moved out of its
///   closure. The message points at the lines where the objects come from: look below for the line that brings both
///   together.
/// - `lifetime may not live long enough` in functions that name both lifetimes, and for an object that a closure
///   returns. The message points at the line of the mix-up.
#[derive(Clone, Copy, Debug)]
pub struct Scoped<'pd>(PhantomData<fn(&'pd ()) -> &'pd ()>);

impl sealed::Sealed for Scoped<'_> {}
impl Brand for Scoped<'_> {}

/// The brand of domains that are told apart at run time: for libraries, and for any number of devices or domains.
///
/// Any number of domains may have it ([`Context::checked_domain`](crate::Context::checked_domain)), and their objects
/// have the same types. So the compiler cannot refuse a mix-up, and the library does: each operation that brings two
/// objects together first compares their domains. It refuses a mix-up before anything is done, with an error that gives
/// back what was passed in. That costs a post a few instructions; with the other brands nothing is compared.
///
/// | objects | error |
/// |---|---|
/// | memory, a recipient or a window, and a queue pair, its halves, batches and scopes | [`RequestFlaw::OtherDomain`](crate::error::RequestFlaw::OtherDomain) |
/// | memory and a [`SharedReceiveQueue`](crate::shared::SharedReceiveQueue) | the same |
/// | a memory window, the memory to bind it to, and a queue pair | the same |
/// | a new queue pair and its completion queues | [`CreateError::OtherDomain`](crate::error::CreateError::OtherDomain) |
/// | a datagram that is to be [answered](crate::ProtectionDomain::sender) and a domain | [`AddressError::OtherDomain`](crate::error::AddressError::OtherDomain) |
/// | [`drain`](crate::QueuePair::drain) and a poller | [`DrainFailure::OtherDomain`](crate::error::DrainFailure::OtherDomain) |
///
/// Other operations compare more than domains, with any brand: [`Buffer::join`](crate::Buffer::join) and
/// [`SplitRegion::rejoin`](crate::memory::SplitRegion::rejoin) compare regions,
/// [`SendHalf::join`](crate::queue::SendHalf::join) queue pairs,
/// [`CompletionChannel::wait_any`](crate::completion::CompletionChannel::wait_any) channels, and
/// [`Exclusive::new`](crate::scope::Exclusive::new) completion queues. A [`BufferList`](crate::memory::BufferList) may
/// be made of buffers of several domains, but then no queue pair accepts it.
///
/// # Examples
///
/// One connection on each device of a list that is known at run time:
///
/// ```
/// use interlock::{Checked, Context, Limits, Poller, PostError, ProtectionDomain, QueuePair};
/// use interlock::error::RequestFlaw;
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

/// The brands that [`domain!`](crate::domain!) makes. A function that opens a domain with a name of its caller's choice
/// takes a `Named + Brand`, as [`Context::named_domain`](crate::Context::named_domain) does. All other functions take
/// any [`Brand`].
///
/// An implementation by hand has no advantage over the macro: a registry decides at run time which domain has the name.
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

// `Brand` itself is not implemented for all `N: Named`. With such an implementation, the compiler would advise the
// author of a function that lacks `B: Brand` to add `B: Named`. That is wrong advice: `Scoped` and `Checked` are
// brands, but not `Named`. The attribute below is about another error: if a program implements `Brand` for a type of
// its own, the compiler should name the missing `Sealed`, and not suggest implementing `Named`.
#[diagnostic::do_not_recommend]
impl<N: Named> sealed::Sealed for N {}

/// Declares types that name protection domains.
///
/// Each type stands for at most one domain of the process at a time: see
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
        impl $crate::domain::Named for $name {
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
        // `then_some` would be wrong: it makes a claim even if the name is taken, and dropping that claim would free
        // the name of another domain.
        fresh.then(|| Self(name))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&TAKEN).remove(&self.0);
    }
}
