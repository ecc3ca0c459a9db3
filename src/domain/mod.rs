//! Protection domains, and the brands that name them.
//!
//! Memory, queue pairs and completion queues are made from a [`ProtectionDomain`] and may be used together. Each of
//! them bears the domain's brand as a type parameter, so objects of two domains do not mix: the program does not
//! compile.
//!
//! | brand | made by | for |
//! |---|---|---|
//! | a type of your own | [`domain!`](crate::domain!) and [`Context::named_domain`](crate::Context::named_domain) | programs that know their domains |
//! | [`Scoped`] | [`Context::with_domain`](crate::Context::with_domain) | one closure |
//! | [`Checked`] | [`Context::checked_domain`](crate::Context::checked_domain) | any number of domains; compared at run time |
//!
//! ```
//! use interlock::Context;
//!
//! interlock::domain! { struct Storage; }
//! let domain = Context::open("soft0")?.named_domain(Storage)?;
//! let buffer: interlock::Buffer<Storage> = domain.buffer(4096)?;
//! # drop(buffer);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod blocks;
pub(crate) mod brand;
mod numbers;
mod raw_domain;

pub(crate) use blocks::{Block, Blocks, Line};
pub use brand::{Brand, Checked, Named, Scoped};
pub(crate) use numbers::{Number, Numbers};
pub(crate) use raw_domain::DomainId;
pub(crate) use raw_domain::DomainInner;

use crate::device::Context;
use crate::verb_error::VerbError;
use brand::{Branded, Claim};
use std::{fmt, marker::PhantomData, sync::Arc};

/// A protection domain: memory, queue pairs and completion queues that may be used together.
///
/// A handle: clones name the same domain. The device frees the domain when the last handle and the last object of the
/// domain are dropped.
// The methods of `ProtectionDomain` stand next to what they make: for example, `register` in `memory/region.rs`,
// `completion_queue` in `completion/queue.rs`, and `reliable` in `queue/create.rs`.
#[doc(alias = "ibv_pd")]
#[doc(alias = "ibv_dealloc_pd")]
pub struct ProtectionDomain<B> {
    pub(crate) inner: Arc<DomainInner>,
    brand: Branded<B>,
}

/// Why there is no domain of that name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamedDomainError {
    /// Another domain of this process has the name, or had it and still has objects. A name stands for one domain at a
    /// time.
    #[error(
        "the domain name `{name}` is in use until the last object of its domain is dropped (see \
         docs/failures.md#name-taken)"
    )]
    Taken {
        /// The name.
        name: &'static str,
    },
    /// The device answered with an error.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl Context {
    /// A protection domain with a name declared by [`domain!`](crate::domain!).
    ///
    /// `ibv_alloc_pd(3)`. The name is free again once the last object of the domain is dropped.
    ///
    /// # Errors
    ///
    /// [`NamedDomainError::Taken`], or what the device answered.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn named_domain<N: Named>(&self, name: N) -> Result<ProtectionDomain<N>, NamedDomainError> {
        let _ = name;
        let claim = Claim::take::<N>().ok_or(NamedDomainError::Taken { name: N::NAME })?;
        Ok(ProtectionDomain { inner: DomainInner::new(&self.0, Some(claim))?, brand: PhantomData })
    }

    /// A protection domain whose objects are compared at run time: see [`Checked`]. There may be any number of such
    /// domains.
    ///
    /// `ibv_alloc_pd(3)`.
    ///
    /// # Errors
    ///
    /// What the device answered.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn checked_domain(&self) -> Result<ProtectionDomain<Checked>, VerbError> {
        Ok(ProtectionDomain { inner: DomainInner::new(&self.0, None)?, brand: PhantomData })
    }

    /// Lends `f` a new domain. Its objects cannot be used with those of another domain, and none of them leaves `f`.
    ///
    /// `ibv_alloc_pd(3)`.
    ///
    /// # Errors
    ///
    /// What the device answered.
    ///
    /// # Examples
    ///
    /// An error that holds an object of the domain cannot leave either. Its method `into_cause` drops the object and
    /// returns an error that can leave.
    ///
    /// ```
    /// use interlock::{Context, Limits};
    /// use std::{error::Error, time::Duration};
    ///
    /// let context = Context::open("soft0")?;
    /// let port = context.active_port()?;
    /// context.with_domain(|domain| -> Result<(), Box<dyn Error>> {
    ///     let (queue, mut poller) = domain.completion_queue(Limits::default().completions())?;
    ///     let pair = domain.reliable(&queue, &Limits::default())?;
    ///     let pair = pair.into_init(&port).map_err(|error| error.into_cause())?;
    ///     let myself = pair.endpoint();
    ///     let mut pair = pair.connect(&myself).map_err(|error| error.into_cause())?;
    ///     pair.post_receive(domain.buffer(8)?).map_err(|error| error.into_cause())?;
    ///     pair.post_send(domain.buffer(8)?).map_err(|error| error.into_cause())?;
    ///     for _ in 0..2 {
    ///         poller.wait(Duration::from_secs(1))?.check().map_err(|failure| failure.into_cause())?;
    ///     }
    ///     Ok(())
    /// })??;
    /// # Ok::<(), Box<dyn Error>>(())
    /// ```
    pub fn with_domain<R>(&self, f: impl for<'pd> FnOnce(ProtectionDomain<Scoped<'pd>>) -> R) -> Result<R, VerbError> {
        Ok(f(ProtectionDomain { inner: DomainInner::new(&self.0, None)?, brand: PhantomData }))
    }
}

impl<B: Brand> ProtectionDomain<B> {
    /// The open device that the domain was made on.
    pub fn context(&self) -> Context {
        Context(Arc::clone(&self.inner.context))
    }
}

impl<B> Clone for ProtectionDomain<B> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), brand: PhantomData }
    }
}

impl<B> fmt::Debug for ProtectionDomain<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let brand = std::any::type_name::<B>();
        f.debug_struct("ProtectionDomain").field("brand", &brand).finish_non_exhaustive()
    }
}
