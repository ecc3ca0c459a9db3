//! Protection domains, and the brands that name them.
#![allow(unsafe_code, reason = "owns the raw protection domain")]

mod blocks;
pub(crate) mod brand;
mod numbers;

pub(crate) use blocks::{Block, Blocks, Line};
pub use brand::{Brand, Checked, Named, Scoped};
pub(crate) use numbers::{Number, Numbers};

use crate::device::{Context, ContextInner};
use crate::error::{VerbError, note_leak};
use crate::sys;
use brand::{Branded, Claim};
use std::{fmt, marker::PhantomData, mem, ptr, ptr::NonNull, sync::Arc};

/// A protection domain: memory, queue pairs and completion queues that may be used together.
///
/// A handle: clones name the same domain, which goes away with the last object that bears its brand.
#[doc(alias = "ibv_pd")]
#[doc(alias = "ibv_dealloc_pd")]
pub struct ProtectionDomain<B> {
    pub(crate) inner: Arc<DomainInner>,
    brand: Branded<B>,
}

pub(crate) struct DomainInner {
    /// # Invariants
    ///
    /// 0. Came from the context's provider, and is alive until this is dropped.
    pub(crate) raw: NonNull<sys::ibv_pd>,
    /// The name, freed only after the domain is.
    claim: Option<Claim>,
    /// Of its shared receive queues.
    pub(crate) numbers: Arc<Numbers>,
    /// The memory of its ledgers.
    pub(crate) ledgers: Arc<Blocks>,
    pub(crate) context: Arc<ContextInner>,
}

// SAFETY: verbs on one protection domain may be called from any thread (see `ContextInner`).
unsafe impl Send for DomainInner {}
// SAFETY: as above.
unsafe impl Sync for DomainInner {}

/// Which domain, for as long as an object of it is around.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct DomainId(usize);

#[cfg(all(test, loom))]
impl DomainId {
    pub(crate) const NONE: Self = Self(0);
}

impl DomainInner {
    /// What tells it from other domains.
    #[inline(always)]
    pub(crate) fn id(&self) -> DomainId {
        DomainId(ptr::from_ref(self).addr())
    }

    fn new(context: &Arc<ContextInner>, claim: Option<Claim>) -> Result<Arc<Self>, VerbError> {
        // SAFETY: the context is open as long as we hold it.
        let raw = unsafe { context.provider.alloc_pd(context.raw) }?;
        Ok(Arc::new(Self {
            raw,
            claim,
            numbers: Arc::default(),
            ledgers: Arc::default(),
            context: Arc::clone(context),
        }))
    }
}

impl Drop for DomainInner {
    fn drop(&mut self) {
        // SAFETY: alive (0); all that was made in it holds a reference to this, so nothing is left.
        if let Err(error) = unsafe { self.context.provider.dealloc_pd(self.raw) } {
            // The device still knows the domain: its name stays taken and its device open.
            mem::forget(self.claim.take());
            mem::forget(Arc::clone(&self.context));
            note_leak("a protection domain", error);
        }
    }
}

/// Why there is no domain of that name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamedDomainError {
    /// Another domain of this process has it, or an object of one: a name stands for one domain at a time.
    #[error("the domain name `{name}` is taken until every object of the domain that has it is dropped")]
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

    /// A protection domain whose objects are compared at run time: see [`Checked`]. There may be any number of them.
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

    /// Lends `f` a new domain. Its objects fit with no other domain's, and none of them leaves `f`.
    ///
    /// `ibv_alloc_pd(3)`.
    ///
    /// # Errors
    ///
    /// What the device answered.
    ///
    /// # Examples
    ///
    /// An error that holds an object of the domain cannot leave either: each has a method `into_cause` for what can.
    ///
    /// ```
    /// use interlock::{Context, Limits};
    /// use std::{error::Error, time::Duration};
    ///
    /// let context = Context::open("soft0")?;
    /// let port = context.active_port()?;
    /// context.with_domain(|domain| -> Result<(), Box<dyn Error>> {
    ///     let (queue, mut poller) = domain.completion_queue(Limits::default().completions())?;
    ///     let pair = domain.reliable(&queue, &Limits::default())?.into_init(&port).map_err(|error| error.into_cause())?;
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
    /// The device that it belongs to.
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
