//! Memory that is lent to the peer.

use super::lending::Lending;
use super::owner::{NotLent, Over};
use super::record::GrantedRecord;
use crate::domain::Brand;
use crate::memory::{Buffer, DeregisterError, Exposed, Lease, Memory, MemoryRegion, RecordError};
use std::fmt;
use std::future::poll_fn;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

/// Memory that the peer may use, until the peer returns it or the deadline of its lease has passed.
///
/// [`ended`](Self::ended) waits for that, deregisters the memory, and gives it back. Only the deregistration ends the
/// peer's access, and the peer cannot prevent it. If a peer returns memory and writes to it after the deregistration,
/// the write fails with a remote access error. (On soft iWARP, a read that the peer has begun goes on even then, so
/// memory that the peer may read never comes back: see [`end`](Self::end).)
///
/// Dropping it ends the grant at once, and drops the memory (or leaks it, where [`end`](Self::end) fails). If it is
/// forgotten, the memory is leaked, and the peer can access it for good.
///
/// # Rules
///
/// The compiler enforces each of them; programs that break them are in `ui-tests/aio`.
///
/// - G1: memory that is lent is not the program's.
#[must_use = "dropping it ends the grant at once"]
pub struct Lent<B: Brand, A: Exposed, M: Memory = Buffer<B>> {
    /// `None` only inside [`end`](Self::end) and the drop.
    lease: Option<Lease<B, A, M>>,
    lending: Lending<B>,
    id: NonZeroU64,
    /// The deadline; `None` if there is none.
    until: Option<Instant>,
}

/// A region was not lent. The lease comes back, and has not ended.
#[derive(thiserror::Error)]
#[error("the memory was not lent: {why}")]
pub struct LendError<L> {
    /// The lease.
    pub lease: L,
    /// The reason.
    pub why: LendFailure,
}

impl<L> LendError<L> {
    /// Ends the lease and keeps the reason. The reason has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> LendFailure {
        self.why
    }
}

impl<L> fmt::Debug for LendError<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LendError").field("why", &self.why).finish_non_exhaustive()
    }
}

/// Why a region was not lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LendFailure {
    /// The connection has ended, or one side has said goodbye.
    #[error(
        "the connection has ended, one side has called `Lending::say_goodbye`, or this side has dropped its \
         `LendingReceiver` (see docs/failures.md#lending-closed)"
    )]
    Closed,
    /// The memory is longer than the peer asked for. With all of it, the peer would exceed its quota.
    #[error(
        "this side's quota for the peer has too few bytes left for this memory: lend less, or raise \
         `LendingOptions::quota` (see docs/failures.md#not-lent)"
    )]
    OverQuota,
    /// The memory is less than the peer asked for: it has fewer bytes, or lacks a right.
    #[error(
        "the lease has fewer bytes or rights than the peer asked for: register `Asked::len_bytes` bytes, with all of \
         `Asked::rights` (see docs/failures.md#not-lent)"
    )]
    TooLittle,
    /// The device gave the region an address or a length that no record can have.
    #[error("the device gave the region of the lease an address or a length that cannot be sent to the peer: {0}")]
    Record(RecordError),
}

impl<B: Brand> Lending<B> {
    /// Lends the memory of a lease to the peer, until the deadline of the lease.
    ///
    /// # Errors
    ///
    /// [`LendError`]: the lease comes back.
    #[allow(clippy::type_complexity, reason = "the lease comes back")]
    pub fn lend<A: Exposed, M: Memory>(
        &self,
        lease: Lease<B, A, M>,
    ) -> Result<Lent<B, A, M>, LendError<Lease<B, A, M>>> {
        self.lend_to(None, lease)
    }

    #[allow(clippy::type_complexity, reason = "the lease comes back")]
    pub(super) fn lend_to<A: Exposed, M: Memory>(
        &self,
        answers: Option<NonZeroU64>,
        lease: Lease<B, A, M>,
    ) -> Result<Lent<B, A, M>, LendError<Lease<B, A, M>>> {
        let record = match GrantedRecord::new(lease.remote().to_bytes()) {
            Ok(record) => record,
            Err(error) => return Err(LendError { lease, why: LendFailure::Record(error) }),
        };
        let until = lease.deadline();
        let (id, wakes) = self.shared.change_with(|core| core.lend(answers, record, until));
        let lent = match id {
            Ok(id) => Ok(Lent { lease: Some(lease), lending: self.clone(), id, until }),
            Err(NotLent::Closed) => Err(LendError { lease, why: LendFailure::Closed }),
            Err(NotLent::OverQuota) => Err(LendError { lease, why: LendFailure::OverQuota }),
        };
        // The drop of `wakes` runs wakers of the program. If one panics, `lent` is dropped, which ends the grant.
        drop(wakes);
        lent
    }
}

impl<B: Brand, A: Exposed, M: Memory> Lent<B, A, M> {
    /// Waits until the grant is over, and says why: the peer has returned it, its deadline has passed, the peer has
    /// said goodbye, or the connection has ended. Dropping the future changes nothing, so a `select!` may drop it.
    ///
    /// This does not end the peer's access. The peer can still use the memory until [`end`](Self::end).
    pub async fn over(&mut self) -> Over {
        let mut deadline = self.lending.poller.sleep_until(self.until);
        let mut told = pin!(self.lending.shared.wait(|core| core.owner.over(self.id)));
        poll_fn(|context| {
            if let Poll::Ready(over) = told.as_mut().poll(context) {
                return Poll::Ready(over);
            }
            Pin::new(&mut deadline).poll(context).map(|()| Over::Expired)
        })
        .await
    }

    /// Waits until the grant is [over](Self::over), deregisters the memory, and gives it back.
    ///
    /// Dropping the future ends the grant and drops the memory. To wait in a `select!`, use [`over`](Self::over), then
    /// [`end`](Self::end).
    ///
    /// # Errors
    ///
    /// As [`end`](Self::end).
    pub async fn ended(mut self) -> Result<(M, Over), DeregisterError<Self>> {
        let over = self.over().await;
        Ok((self.end()?, over))
    }

    /// Ends the grant now, whether it is over or not, and gives the memory back. The peer cannot access it any more: a
    /// later request of the peer fails, which breaks the connection.
    ///
    /// `ibv_dereg_mr(3)`.
    ///
    /// # Errors
    ///
    /// [`DeregisterError`]: the memory stays lent, and the peer may still use it.
    ///
    /// - The device did not deregister the memory.
    /// - On soft iWARP, if the peer may read the memory, always (`EOPNOTSUPP`): the registration has ended, but the
    ///   peer may go on with a read that it has begun. Such memory never comes back, and counts against the quota for
    ///   ever.
    /// - On soft iWARP, if the peer may only write the memory and `membarrier(2)` fails: the registration has ended,
    ///   but a write that the peer has begun may go on.
    pub fn end(mut self) -> Result<M, DeregisterError<Self>> {
        match self.lease.take().map(Lease::end) {
            Some(Ok(memory)) => {
                self.lending.shared.change(|core| core.end(self.id));
                // Drop `self` here, and not at the end of the function: the drop can run code of the program. If that
                // code panics here, `memory` is dropped. At the end `memory` is already being returned, and a panic
                // would leak `memory`.
                drop(self);
                Ok(memory)
            }
            Some(Err(DeregisterError { region, source })) => {
                self.lease = Some(region);
                Err(DeregisterError { region: self, source })
            }
            None => unreachable!("{ENDED}"),
        }
    }

    /// How long until the deadline; zero once it has passed.
    pub fn remaining(&self) -> Duration {
        self.until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    }
}

const ENDED: &str = "a grant that has ended is gone";

/// The region, which the program shares with the peer: what it may do depends on the rights `A`.
impl<B: Brand, A: Exposed, M: Memory> Deref for Lent<B, A, M> {
    type Target = MemoryRegion<B, A, M>;
    fn deref(&self) -> &Self::Target {
        match &self.lease {
            Some(lease) => lease,
            None => unreachable!("{ENDED}"),
        }
    }
}

impl<B: Brand, A: Exposed, M: Memory> Drop for Lent<B, A, M> {
    fn drop(&mut self) {
        // This calls `end` twice at most. If both calls fail, `ended` holds the lease, and the drop of `ended` tries a
        // third time. If the third try fails, the memory is leaked: the peer keeps its access or, on soft iWARP, may go
        // on with what it has begun. The result of the third try is unknown here, so after two failures the memory goes
        // on counting against the quota.
        let ended = self.lease.take().map(|lease| lease.end().or_else(|error| error.region.end()));
        if let Some(Ok(_)) = ended {
            self.lending.shared.change(|core| core.end(self.id));
        }
    }
}

impl<B: Brand, A: Exposed, M: Memory> fmt::Debug for Lent<B, A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("id", &self.id).field("until", &self.until).finish_non_exhaustive()
    }
}
