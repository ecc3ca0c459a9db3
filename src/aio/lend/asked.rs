//! A request of the peer for memory.

use super::lending::Lending;
use super::lent::{LendError, LendFailure, Lent};
use crate::domain::Brand;
use crate::memory::{Exposed, Lease, Memory, RemoteRegion};
use crate::queue::attributes::PeerRights;
use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

/// A request of the peer for memory. It fits in the peer's [`Quota`](super::Quota), and counts against the quota.
///
/// The program answers it with a lease, or [refuses](Self::refuse). Dropping it refuses.
#[must_use = "dropping it refuses"]
pub struct Asked<B> {
    lending: Lending<B>,
    nonce: NonZeroU64,
    bytes: u64,
    rights: u8,
    duration: Duration,
}

impl<B> Lending<B> {
    /// The next request of the peer; `None` after the end of the connection.
    ///
    /// Dropping the future loses nothing. A program that gives its peer a [`Quota`](super::Quota) should always have a
    /// task that waits here, since requests of the peer stay unanswered otherwise.
    pub async fn asked(&self) -> Option<Asked<B>> {
        let next = self.shared.wait(|core| match core.next_asked() {
            Some(ask) => Some(Some(ask)),
            None => (!core.is_open()).then_some(None),
        });
        let ask = next.await?;
        Some(Asked {
            lending: self.clone(),
            nonce: ask.nonce,
            bytes: ask.bytes,
            rights: ask.rights,
            duration: ask.duration,
        })
    }
}

impl<B> Asked<B> {
    /// How many bytes the peer needs at least. It is a number of the peer's choice, within its quota.
    pub fn len_bytes(&self) -> u64 {
        self.bytes
    }

    /// The rights that the peer needs.
    pub fn rights(&self) -> PeerRights {
        PeerRights::from_sys(self.rights.into())
    }

    /// For how long the peer would like to have the memory. The program decides, by the deadline of its lease.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// Refuses: the peer's request fails with [`Refusal::Declined`](super::Refusal::Declined).
    pub fn refuse(self) {}
}

impl<B: Brand> Asked<B> {
    /// Answers the request with the memory of a lease, until the deadline of the lease. All of the memory counts
    /// against the peer's quota, even if the peer asked for less.
    ///
    /// # Errors
    ///
    /// [`LendError`]: the lease comes back, and the request is refused.
    #[allow(clippy::type_complexity, reason = "the lease comes back")]
    pub fn answer<A: Exposed, M: Memory>(
        self,
        lease: Lease<B, A, M>,
    ) -> Result<Lent<B, A, M>, LendError<Lease<B, A, M>>> {
        if (lease.len() as u64) < self.bytes || self.rights & !RemoteRegion::<A>::rights() != 0 {
            // Drop `self` here, and not at the end of the function: the drop refuses the request, which wakes tasks. If
            // a waker panics here, `lease` is dropped, which ends the lease. At the end `lease` is already being
            // returned, and a panic would leak `lease`.
            drop(self);
            return Err(LendError { lease, why: LendFailure::TooLittle });
        }
        let lent = self.lending.lend_to(Some(self.nonce), lease);
        drop(self);
        lent
    }
}

impl<B> Drop for Asked<B> {
    /// Nothing happens if the request was answered.
    fn drop(&mut self) {
        self.lending.shared.change(|core| core.refuse(self.nonce));
    }
}

impl<B> fmt::Debug for Asked<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Asked");
        debug.field("len_bytes", &self.bytes).field("rights", &self.rights()).field("duration", &self.duration);
        debug.finish_non_exhaustive()
    }
}
