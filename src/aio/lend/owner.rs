//! The side that lends: its grants, and how much the peer may still ask for. No I/O and no clock.

use super::record::Refusal;
use super::violation::Violation;
use std::collections::BTreeMap;
use std::num::NonZeroU64;

/// How much a peer may ask for. The peer's unanswered requests and the memory lent for earlier requests count together.
///
/// Lent memory counts until it is deregistered and the peer can no longer access it, even if the peer has returned it
/// earlier. (On soft iWARP, memory that the peer may read counts for ever: see [`Lent::end`](super::Lent::end).) Memory
/// that the program lends without being asked does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// How many bytes.
    pub bytes: u64,
    /// How many requests and grants together.
    pub grants: u32,
}

impl Quota {
    /// The peer may ask for nothing.
    pub const NOTHING: Self = Self { bytes: 0, grants: 0 };
}

/// Why a grant is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Over {
    /// The peer has returned it.
    Returned,
    /// The peer has returned it, and asks the program to lend the memory to somebody else.
    PassedOn {
        /// The number that the peer gave. By this number, the programs agree who is to get the memory.
        to: u64,
    },
    /// The deadline has passed.
    Expired,
    /// The peer has said goodbye, or the connection has ended.
    Closed,
}

/// The state of the side that lends.
#[derive(Debug)]
pub(super) struct Owner {
    quota: Quota,
    /// The requests that the program has not answered, and how many bytes each asks for.
    asks: BTreeMap<NonZeroU64, u64>,
    last_ask: u64,
    loans: BTreeMap<NonZeroU64, Loan>,
    last_id: u64,
}

/// Memory that the peer can reach.
#[derive(Debug)]
struct Loan {
    /// How many bytes of the quota it takes; `None` if the peer has not asked for it.
    charged: Option<u64>,
    over: Option<Over>,
}

/// A grant that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ended {
    /// Whether the peer returned the memory with a request to pass it on.
    pub(super) moved: bool,
    /// Whether the memory was the answer to a request of the peer.
    pub(super) was_asked_for: bool,
}

/// Why the program cannot lend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotLent {
    Closed,
    OverQuota,
}

impl Owner {
    pub(super) fn new(quota: Quota) -> Self {
        Self { quota, asks: BTreeMap::new(), last_ask: 0, loans: BTreeMap::new(), last_id: 0 }
    }

    pub(super) fn quota(&self) -> Quota {
        self.quota
    }

    /// How much of the quota is used: bytes, and requests and grants together.
    pub(super) fn charged(&self) -> (u64, u32) {
        let loans = self.loans.values().filter_map(|loan| loan.charged);
        let (mut bytes, mut grants) = (0_u64, 0_u32);
        for charged in self.asks.values().copied().chain(loans) {
            bytes = bytes.saturating_add(charged);
            grants += 1;
        }
        (bytes, grants)
    }

    /// The peer asks for memory. A request that fits in the quota counts against it from now on.
    pub(super) fn ask(&mut self, nonce: NonZeroU64, bytes: u64) -> Result<Result<(), Refusal>, Violation> {
        if nonce.get() <= self.last_ask {
            return Err(Violation::Replayed);
        }
        self.last_ask = nonce.get();
        let (charged, grants) = self.charged();
        if grants >= self.quota.grants {
            return Ok(Err(Refusal::TooManyGrants));
        }
        if charged.checked_add(bytes).is_none_or(|sum| sum > self.quota.bytes) {
            return Ok(Err(Refusal::TooManyBytes));
        }
        self.asks.insert(nonce, bytes);
        Ok(Ok(()))
    }

    /// The program refuses. False if the request was already answered or the peer is gone.
    pub(super) fn refuse(&mut self, nonce: NonZeroU64) -> bool {
        self.asks.remove(&nonce).is_some()
    }

    /// The program lends `bytes`. Returns the id of the grant, which is never used again.
    pub(super) fn lend(&mut self, answers: Option<NonZeroU64>, bytes: u64) -> Result<NonZeroU64, NotLent> {
        if let Some(nonce) = answers {
            let asked = *self.asks.get(&nonce).ok_or(NotLent::Closed)?;
            let others = self.charged().0 - asked;
            if others.checked_add(bytes).is_none_or(|sum| sum > self.quota.bytes) {
                return Err(NotLent::OverQuota);
            }
            self.asks.remove(&nonce);
        }
        // Each grant gets a new id: this 64-bit count would take centuries to reach its maximum, at which the ids would
        // repeat.
        let id = NonZeroU64::MIN.saturating_add(self.last_id);
        self.last_id = id.get();
        self.loans.insert(id, Loan { charged: answers.map(|_| bytes), over: None });
        Ok(id)
    }

    /// The peer returns a grant. The memory stays registered until [`end`](Self::end). False if the grant had already
    /// ended, since the return crossed the message about that end.
    pub(super) fn give_back(&mut self, id: NonZeroU64, over: Over) -> Result<bool, Violation> {
        if id.get() > self.last_id {
            return Err(Violation::UnknownGrant);
        }
        match self.loans.get_mut(&id) {
            None => Ok(false),
            Some(Loan { over: Some(_), .. }) => Err(Violation::Replayed),
            Some(loan) => {
                loan.over = Some(over);
                Ok(true)
            }
        }
    }

    /// Why the grant is over; `None` if it is not.
    pub(super) fn over(&self, id: NonZeroU64) -> Option<Over> {
        self.loans.get(&id).map_or(Some(Over::Closed), |loan| loan.over)
    }

    /// The memory was deregistered, and the peer can no longer access it. Nothing else ends its charge against the
    /// quota.
    pub(super) fn end(&mut self, id: NonZeroU64) -> Ended {
        let loan = self.loans.remove(&id);
        Ended {
            moved: matches!(loan, Some(Loan { over: Some(Over::PassedOn { .. }), .. })),
            was_asked_for: matches!(loan, Some(Loan { charged: Some(_), .. })),
        }
    }

    /// The peer will say nothing more.
    pub(super) fn close(&mut self) {
        self.asks.clear();
        for loan in self.loans.values_mut() {
            loan.over.get_or_insert(Over::Closed);
        }
    }
}
