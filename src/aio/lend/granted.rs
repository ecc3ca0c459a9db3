//! Memory of the peer that this side may use for a time.

use super::lending::Lending;
use super::record::Refusal;
use super::shared::{Answer, Grant, Shared};
use crate::aio::{Fetched, LentSender, Posted, Returned};
use crate::domain::Brand;
use crate::inflight::{PostError, WorkRequest};
use crate::memory::{
    Buffer, Exposed, OutOfBounds, PeerMayAtomic, PeerMayRead, PeerMayWrite, RecordError, RemoteRegion,
};
use crate::queue::SendMemory;
use crate::queue::attributes::PeerRights;
use std::fmt;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory that the peer has lent to this side, with the rights `A`, for a time.
///
/// A program posts requests to this memory by the methods of [`GrantedPart`]. The requests use the connection that the
/// grant came over. The methods refuse a request if the peer has ended the grant, or if the deadline is less than a
/// [margin](super::LendingOptions::margin) away. This side does not know the peer's clock, so a request may still
/// arrive too late. Then the peer's device refuses it, which ends the connection.
///
/// Dropping it returns the grant to the peer. The message that returns it is posted after all requests of the grant,
/// with a fence, so the reads and atomics among them are done before. If it is forgotten, the grant ends at its
/// deadline.
///
/// # Rules
///
/// The compiler enforces each of them; programs that break them are in `ui-tests/aio`.
///
/// - G2: a part of a grant ends before the grant is returned.
/// - G3: a grant has one holder.
#[must_use = "dropping it returns the grant"]
pub struct Granted<B, A> {
    hold: Hold<B>,
    region: RemoteRegion<A>,
}
static_assertions::assert_impl_all!(Granted<(), ()>: Send, Sync);
static_assertions::assert_not_impl_any!(Granted<(), ()>: Clone);

/// A grant that this side has not returned. Its drop returns it.
struct Hold<B> {
    lending: Lending<B>,
    id: NonZeroU64,
    until: Option<Instant>,
}

impl<B> Hold<B> {
    fn new(lending: &Lending<B>, grant: &Grant) -> Self {
        Self { lending: lending.clone(), id: grant.id, until: grant.until }
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
            || !self.lending.shared.with(|core| core.holder.has(self.id))
    }

    fn remaining(&self) -> Duration {
        if self.is_over() {
            return Duration::ZERO;
        }
        self.until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    }

    fn give_back(self, pass_on_to: Option<u64>) -> Returning {
        let shared = Arc::clone(&self.lending.shared);
        shared.with(|core| core.watch(self.id));
        let returning = Returning { shared, id: self.id };
        returning.shared.change(|core| core.give_back(self.id, pass_on_to));
        drop(self);
        returning
    }
}

impl<B> Drop for Hold<B> {
    /// Nothing happens if the grant was returned.
    fn drop(&mut self) {
        self.lending.shared.change(|core| core.give_back(self.id, None));
    }
}

/// Memory that the peer has lent without being asked. Dropping it returns it.
#[must_use = "dropping it returns the grant"]
pub struct Offer<B> {
    hold: Hold<B>,
    grant: Grant,
}

/// Why there is no memory for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The peer refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The peer granted fewer bytes, or fewer rights. What it granted was returned.
    #[error("the peer granted less than was asked for (see docs/failures.md#not-lent)")]
    TooLittle,
    /// There are too many requests and grants at once: see
    /// [`LendingOptions::most_held`](super::LendingOptions::most_held).
    #[error(
        "this side holds too many grants of the peer, or has too many requests under way: return grants, or raise \
         `LendingOptions::most_held` (see docs/failures.md#too-many-grants)"
    )]
    TooManyHeld,
    /// The connection has ended, or one side has said goodbye.
    #[error(
        "the connection has ended, one side has called `Lending::say_goodbye`, or this side has dropped its \
         `LendingReceiver` (see docs/failures.md#lending-closed)"
    )]
    Closed,
}

/// A request that was not posted. The memory comes back.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum UseError<M> {
    /// The grant is over: its time has passed, or the peer has ended it.
    #[error("the grant has ended (at its deadline, by the peer, or with the connection): ask for a new one")]
    Over(M),
    /// The request was not posted, for a reason that every post may have.
    #[error(transparent)]
    Post(PostError<M>),
}

impl<M> UseError<M> {
    /// The memory, unless the device may have it.
    pub fn into_memory(self) -> Option<M> {
        match self {
            Self::Over(memory) => Some(memory),
            Self::Post(error) => error.into_request(),
        }
    }

    /// Drops the memory and keeps the cause. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> UseError<()> {
        match self {
            Self::Over(_) => UseError::Over(()),
            Self::Post(error) => UseError::Post(error.into_cause()),
        }
    }
}

impl<M> fmt::Debug for UseError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Over(_) => f.write_str("Over"),
            Self::Post(error) => f.debug_tuple("Post").field(error).finish(),
        }
    }
}

impl<B: Brand> Lending<B> {
    /// Asks the peer for at least `bytes` of memory with the rights `A`. The peer need not agree to `duration`, and may
    /// lend for another time.
    ///
    /// If the future is dropped, the request goes on. Memory that the peer then grants is returned at once.
    ///
    /// # Errors
    ///
    /// [`AskError`].
    pub async fn request<A: Exposed>(&self, bytes: NonZeroU64, duration: Duration) -> Result<Granted<B, A>, AskError> {
        /// Notes, when it is dropped, that nobody waits for the answer. Memory that was granted is then returned.
        struct Waiting<'s>(&'s Shared, NonZeroU64);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.change(|core| core.drop_answer(self.1));
            }
        }
        let rights = RemoteRegion::<A>::rights();
        let (asked, wakes) = self.shared.change_with(|core| match core.is_open() {
            true => core.ask(bytes, rights, duration).ok_or(AskError::TooManyHeld),
            false => Err(AskError::Closed),
        });
        let nonce = asked?;
        let waiting = Waiting(&self.shared, nonce);
        drop(wakes);
        let answer = self.shared.wait(|core| match core.take_answer(nonce) {
            Some(answer) => Some(Some(answer)),
            None => (!core.is_open()).then_some(None),
        });
        let answer = match answer.await {
            None => Err(AskError::Closed),
            Some(Answer::Refused(why)) => Err(AskError::Refused(why)),
            Some(Answer::TooLittle) => Err(AskError::TooLittle),
            Some(Answer::Granted(grant)) => Ok((Hold::new(self, &grant), grant)),
        };
        // Dropping `waiting` can wake other tasks. If a waker panics, the hold in `answer` is dropped, which returns
        // the grant.
        drop(waiting);
        let (hold, grant) = answer?;
        // `from_bytes` does not fail here: the record is valid, and `Holder::grant` has checked that the rights of the
        // record include those of `A`.
        let region = RemoteRegion::from_bytes(grant.region.bytes()).map_err(|_| AskError::TooLittle)?;
        Ok(Granted { hold, region })
    }

    /// The next memory that the peer lends without being asked; `None` after the end of the connection.
    ///
    /// Dropping the future loses nothing.
    pub async fn granted(&self) -> Option<Offer<B>> {
        let next = self.shared.wait(|core| match core.next_offer() {
            Some(grant) => Some(Some(grant)),
            None => (!core.is_open()).then_some(None),
        });
        let grant = next.await?;
        Some(Offer { hold: Hold::new(self, &grant), grant })
    }
}

impl<B: Brand> Offer<B> {
    /// Its length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.grant.region.len_bytes()
    }

    /// The rights that the peer gives.
    pub fn rights(&self) -> PeerRights {
        PeerRights::from_sys(self.grant.region.rights().into())
    }

    /// The memory with the rights `A`.
    ///
    /// # Errors
    ///
    /// [`RecordError::Rights`]: the peer gives fewer rights, and the grant is returned to it. Call
    /// [`rights`](Self::rights) first to find out which rights the peer gives.
    pub fn accept<A: Exposed>(self) -> Result<Granted<B, A>, RecordError> {
        let Self { hold, grant } = self;
        Ok(Granted { hold, region: RemoteRegion::from_bytes(grant.region.bytes())? })
    }
}

impl<B: Brand, A: Exposed> Granted<B, A> {
    /// Its length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.region.len()
    }

    /// How long this side may still use it, which is until the margin before the deadline. Zero if it is over.
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Whether this side may no longer use it: its time has passed, or the peer has ended it.
    pub fn is_over(&self) -> bool {
        self.hold.is_over()
    }

    /// All of it.
    pub fn whole(&self) -> GrantedPart<'_, B, A> {
        GrantedPart { hold: &self.hold, region: self.region }
    }

    /// The part of it in `range`, in bytes from its start.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    pub fn slice(&self, range: Range<u64>) -> Result<GrantedPart<'_, B, A>, OutOfBounds> {
        self.whole().slice(range)
    }

    /// Returns the grant, as dropping it does. The program can wait on the result until the peer has ended the grant.
    pub fn give_back(self) -> Returning {
        self.hold.give_back(None)
    }

    /// Returns the grant and asks the peer, which owns the memory, to lend it to somebody else. `to` is a number by
    /// which the programs agree who that is. The peer decides. If it agrees, it makes a new grant for that one.
    pub fn pass_on(self, to: u64) -> Returning {
        self.hold.give_back(Some(to))
    }
}

/// A part of a [`Granted`], to write or read.
pub struct GrantedPart<'g, B, A> {
    hold: &'g Hold<B>,
    region: RemoteRegion<A>,
}

impl<B, A> Clone for GrantedPart<'_, B, A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<B, A> Copy for GrantedPart<'_, B, A> {}

impl<B: Brand, A: Exposed> GrantedPart<'_, B, A> {
    /// Its length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.region.len()
    }

    /// The part of it in `range`, in bytes from its start.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    pub fn slice(&self, range: Range<u64>) -> Result<Self, OutOfBounds> {
        Ok(Self { hold: self.hold, region: self.region.slice(range)? })
    }

    fn post<M, R>(
        &self,
        memory: M,
        post: impl FnOnce(&mut LentSender<'_, B>, M) -> Result<R, PostError<M>>,
    ) -> Result<R, UseError<M>> {
        if self.hold.is_over() {
            return Err(UseError::Over(memory));
        }
        self.hold.lending.sender.with(|sender| post(sender, memory)).map_err(UseError::Post)
    }

    /// Writes the filled part of `memory`: see [`Sender::write`](crate::aio::Sender::write).
    ///
    /// # Errors
    ///
    /// [`UseError`]: the memory comes back.
    pub fn write<M: SendMemory<B> + Returned<B>>(&self, memory: M) -> Result<Posted<B, M::Back>, UseError<M>>
    where
        A: PeerMayWrite,
    {
        self.post(memory, |sender, memory| sender.write(memory, &self.region))
    }

    /// Like [`write`](Self::write); the peer also receives the immediate.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_with_immediate(
        &self,
        memory: Buffer<B>,
        immediate: u32,
    ) -> Result<Posted<B, Buffer<B>>, UseError<Buffer<B>>>
    where
        A: PeerMayWrite,
    {
        self.post(memory, |sender, memory| {
            let request = WorkRequest::write(memory, &self.region).with_immediate(immediate);
            sender.post(request).map_err(|error| error.map(WorkRequest::into_inner))
        })
    }

    /// Reads all of it into `buffer`: see [`Sender::read`](crate::aio::Sender::read).
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn read(&self, buffer: Buffer<B>) -> Result<Posted<B, Buffer<B>>, UseError<Buffer<B>>>
    where
        A: PeerMayRead,
    {
        self.post(buffer, |sender, buffer| sender.read(buffer, &self.region))
    }

    /// Compares and swaps the first word of the part: see
    /// [`Sender::compare_and_swap`](crate::aio::Sender::compare_and_swap).
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn compare_and_swap(
        &self,
        result: Buffer<B>,
        compare: u64,
        swap: u64,
    ) -> Result<Posted<B, Fetched<B>>, UseError<Buffer<B>>>
    where
        A: PeerMayAtomic,
    {
        self.post(result, |sender, result| sender.compare_and_swap(result, &self.region, compare, swap))
    }

    /// Adds to the first word of the part: see [`Sender::fetch_and_add`](crate::aio::Sender::fetch_and_add).
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn fetch_and_add(&self, result: Buffer<B>, addend: u64) -> Result<Posted<B, Fetched<B>>, UseError<Buffer<B>>>
    where
        A: PeerMayAtomic,
    {
        self.post(result, |sender, result| sender.fetch_and_add(result, &self.region, addend))
    }
}

/// A grant that was returned.
pub struct Returning {
    shared: Arc<Shared>,
    id: NonZeroU64,
}

impl Returning {
    /// Waits until the peer has ended the grant, or the connection has ended. True if the peer ended the grant after it
    /// had received a [`pass_on`](Granted::pass_on). False after [`give_back`](Granted::give_back), if the peer had
    /// ended the grant before the `pass_on` arrived, and if the connection ended first.
    pub async fn confirmed(self) -> bool {
        self.shared.wait(|core| core.watched(self.id)).await
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        self.shared.with(|core| core.unwatch(self.id));
    }
}

impl fmt::Debug for Returning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Returning").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<B, A> fmt::Debug for Granted<B, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Granted");
        debug.field("id", &self.hold.id).field("len_bytes", &self.region.len()).field("until", &self.hold.until);
        debug.finish_non_exhaustive()
    }
}

impl<B, A> fmt::Debug for GrantedPart<'_, B, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrantedPart").field("len_bytes", &self.region.len()).finish_non_exhaustive()
    }
}

impl<B> fmt::Debug for Offer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer").field("len_bytes", &self.grant.region.len_bytes()).finish_non_exhaustive()
    }
}
