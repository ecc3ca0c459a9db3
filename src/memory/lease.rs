//! Leases: memory that peers may use until a deadline, and that is the program's again afterwards.

use super::{Buffer, DeregisterError, Exposed, Memory, MemoryRegion, RegisterError};
use crate::domain::{Brand, ProtectionDomain};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// Memory that peers may use with the rights `A`, until a deadline or until they report that they are done.
///
/// It is a registration of nothing but that memory, with a deadline. Nothing happens by itself at the deadline: the
/// program's loop checks [`has_expired`](Self::has_expired), or waits for completions no longer than
/// [`remaining`](Self::remaining), and calls [`end`](Self::end). That ends the registration, `ibv_dereg_mr(3)`: from
/// then on the peer's requests fail, and the memory is the program's again, in its own type.
///
/// Any memory that can be registered can be leased. A [`Buffer`], which no peer could reach before, is registered a
/// second time, so that peers reach its bytes and none around them. Until the end it is exposed like any
/// [region with such rights](MemoryRegion): the program copies and loads words, and has a `&[u8]` only where peers may
/// not write.
///
/// Dropping the lease ends it too. Forgetting it leaves the memory to the peer for good, and frees none of the memory.
///
/// # Rules
///
/// The compiler enforces each of them; programs that break them are in `ui-tests/memory`.
///
/// - M26: leased memory is the program's again when the lease has ended, and not before.
///
/// # Examples
///
/// A peer may write to part of a region for a second, or until it sends a message:
///
/// ```
/// use interlock::{Context, Limits, RemoteRegion, RemoteWrite};
/// use interlock::error::WaitError;
/// use std::time::Duration;
/// interlock::domain! { struct Docs; }
///
/// let domain = Context::open("soft0")?.named_domain(Docs)?;
/// let port = domain.context().active_port()?;
/// let (queue, mut poller) = domain.completion_queue(Limits::default().completions())?;
/// let pair = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
/// let myself = pair.endpoint();
/// let mut pair = pair.connect(&myself)?;
/// pair.post_receive(domain.buffer(8)?)?;
///
/// let (part, _rest) = domain.buffer(4096)?.split_at(64)?;
/// let lease = domain.lease::<RemoteWrite, _>(part, Duration::from_secs(1))?;
///
/// // The peer gets these bytes. Here it is the pair itself.
/// let record = RemoteRegion::<RemoteWrite>::from_bytes(&lease.remote().to_bytes())?;
/// let mut text = domain.buffer(64)?;
/// text.write(b"for you")?;
/// pair.post_write(text, &record)?;
/// pair.post_send(domain.buffer(8)?)?; // it is done
///
/// while !lease.has_expired() {
///     let completion = match poller.wait(lease.remaining()) {
///         Err(WaitError::TimedOut(_)) => break,
///         completion => completion?,
///     };
///     if completion.check()?.into_received().is_ok() {
///         break; // it has said so
///     }
/// }
/// let part = lease.end()?;
/// assert_eq!(&part[..7], b"for you"); // a slice again: no peer reaches it
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Before the end there is no slice of it:
///
/// ```compile_fail,E0277
/// # use interlock::{Brand, RemoteWrite};
/// # use interlock::memory::Lease;
/// fn look<B: Brand>(lease: &Lease<B, RemoteWrite>) -> &[u8] {
///     lease.as_bytes()
/// }
/// ```
#[must_use = "dropping the lease ends it at once"]
pub struct Lease<B, A, M = Buffer<B>> {
    region: MemoryRegion<B, A, M>,
    /// `None` if the deadline is further away than an `Instant` can be: then the lease never expires.
    until: Option<Instant>,
}

impl<B: Brand> ProtectionDomain<B> {
    /// Leaves `memory` to peers with the rights `A`, for at most `duration`: a [`Lease`].
    ///
    /// `ibv_reg_mr(3)`. A [`Buffer`] may be of this domain or of another.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register): the memory comes back. Memory that peers reach, also a part of a region, must
    /// be 8-byte aligned and a multiple of 8 bytes long:
    /// [`RegisterFailure::NotInWords`](super::RegisterFailure::NotInWords).
    #[doc(alias = "ibv_reg_mr")]
    pub fn lease<A: Exposed, M: Memory>(
        &self,
        memory: M,
        duration: Duration,
    ) -> Result<Lease<B, A, M>, RegisterError<M>> {
        let region = self.register(memory)?;
        Ok(Lease { region, until: Instant::now().checked_add(duration) })
    }
}

impl<B: Brand, A: Exposed, M: Memory> Lease<B, A, M> {
    /// Whether the deadline has passed. The peer can use the memory until [`end`](Self::end) all the same.
    pub fn has_expired(&self) -> bool {
        self.remaining().is_zero()
    }

    /// How long until the deadline; zero once it has passed. [`Duration::MAX`] if it never comes.
    pub fn remaining(&self) -> Duration {
        self.until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    }

    /// The deadline; `None` if it never comes.
    #[cfg(feature = "aio")]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// Sets a new deadline, `duration` from now.
    pub fn renew(&mut self, duration: Duration) {
        self.until = Instant::now().checked_add(duration);
    }

    /// Ends the lease, expired or not, and gives the memory back: no peer reaches it any more.
    ///
    /// `ibv_dereg_mr(3)`.
    ///
    /// # Errors
    ///
    /// [`DeregisterError`]: the lease comes back, and the peer may still use the memory. The device did not deregister
    /// it; or, on soft iWARP, the peer may go on with what it has begun. There, memory that peers may read never comes
    /// back (see [`readable_memory_comes_back`](crate::device::Promises::readable_memory_comes_back)).
    #[doc(alias = "ibv_dereg_mr")]
    pub fn end(self) -> Result<M, DeregisterError<Self>> {
        let until = self.until;
        self.region.deregister().map_err(|error| error.map(|region| Self { region, until }))
    }
}

/// The exposed region.
impl<B, A, M> Deref for Lease<B, A, M> {
    type Target = MemoryRegion<B, A, M>;
    fn deref(&self) -> &Self::Target {
        &self.region
    }
}

/// The exposed region, to write.
impl<B, A, M> DerefMut for Lease<B, A, M> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.region
    }
}

impl<B, A, M> fmt::Debug for Lease<B, A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("region", &self.region).field("until", &self.until).finish()
    }
}
