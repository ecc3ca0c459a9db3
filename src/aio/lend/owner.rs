//! The side that lends: which grants there are, and how much the peer may still ask for. No I/O and no clock.

use super::record::Refusal;
use super::violation::Violation;
use std::collections::BTreeMap;
use std::num::NonZeroU64;

/// How much a peer may ask for, all its requests and the memory that it holds by them together.
///
/// What the peer holds counts until the device has deregistered it, whatever the peer says. What the program lends
/// without being asked does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// How many bytes.
    pub bytes: u64,
    /// How many requests and grants.
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
    /// The peer has returned it, and asks that somebody else should have it. Who that is, the programs agree on.
    PassedOn {
        /// The number that the peer gave.
        to: u64,
    },
    /// The deadline has passed.
    Expired,
    /// The peer has said goodbye, or the connection has ended.
    Closed,
}

/// What the side that lends knows.
#[derive(Debug)]
pub(super) struct Owner {
    quota: Quota,
    /// The requests that the program has not answered, and how many bytes each is for.
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
    /// Whether the peer asked that somebody else should have the memory.
    pub(super) moved: bool,
    /// Whether the peer had asked for the memory.
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

    /// How many bytes of the quota are taken, and how many grants.
    pub(super) fn charged(&self) -> (u64, u32) {
        let loans = self.loans.values().filter_map(|loan| loan.charged);
        let (mut bytes, mut grants) = (0_u64, 0_u32);
        for charged in self.asks.values().copied().chain(loans) {
            bytes = bytes.saturating_add(charged);
            grants += 1;
        }
        (bytes, grants)
    }

    /// The peer asks. If it may, the request takes its part of the quota.
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

    /// The program refuses. False if the request is gone already.
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
        // Counting takes centuries to wrap around.
        let id = NonZeroU64::MIN.saturating_add(self.last_id);
        self.last_id = id.get();
        self.loans.insert(id, Loan { charged: answers.map(|_| bytes), over: None });
        Ok(id)
    }

    /// The peer says that it is done. Nothing is given back yet. Returns whether the peer was early enough: otherwise
    /// its message has crossed the end of the grant.
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

    /// What ended the grant, if anything did.
    pub(super) fn over(&self, id: NonZeroU64) -> Option<Over> {
        self.loans.get(&id).map_or(Some(Over::Closed), |loan| loan.over)
    }

    /// The memory was deregistered. This is the only thing that frees the quota of a grant.
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
