//! The side that borrows: its open requests, and the grants that it holds. No I/O and no clock.

use super::violation::Violation;
use std::collections::BTreeMap;
use std::num::NonZeroU64;

/// What the side that borrows knows.
#[derive(Debug)]
pub(super) struct Holder {
    /// How many requests and grants together there may be at once. A returned grant counts until the owner has
    /// confirmed its end.
    limit: usize,
    asks: BTreeMap<NonZeroU64, Ask>,
    last_ask: u64,
    held: BTreeMap<NonZeroU64, Held>,
    last_id: u64,
}

/// A request that the owner has not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) bytes: u64,
    pub(super) rights: u8,
    /// Whether nobody waits for the answer any more.
    pub(super) is_abandoned: bool,
}

/// The state of a grant that this side holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    /// The program has it.
    Here,
    /// It was returned, and the owner has not confirmed.
    Leaving,
}

/// What to do with a grant that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reception {
    /// Give it to the program, as the answer to a request or as an offer.
    Here,
    /// Return it: nobody waits for the answer any more.
    SendBack,
    /// Return it: it is less than the program asked for.
    TooLittle,
}

impl Holder {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, asks: BTreeMap::new(), last_ask: 0, held: BTreeMap::new(), last_id: 0 }
    }

    /// The program asks. `None`: there are too many requests and grants.
    pub(super) fn ask(&mut self, bytes: u64, rights: u8) -> Option<NonZeroU64> {
        if self.asks.len() + self.held.len() >= self.limit {
            return None;
        }
        let nonce = NonZeroU64::MIN.saturating_add(self.last_ask);
        self.last_ask = nonce.get();
        self.asks.insert(nonce, Ask { bytes, rights, is_abandoned: false });
        Some(nonce)
    }

    /// The program no longer waits for the answer.
    pub(super) fn abandon(&mut self, nonce: NonZeroU64) {
        if let Some(ask) = self.asks.get_mut(&nonce) {
            ask.is_abandoned = true;
        }
    }

    /// A grant of the owner has arrived.
    pub(super) fn grant(
        &mut self,
        id: NonZeroU64,
        answers: Option<NonZeroU64>,
        bytes: u64,
        rights: u8,
    ) -> Result<Reception, Violation> {
        if id.get() <= self.last_id {
            return Err(Violation::Replayed);
        }
        let ask = match answers {
            Some(nonce) => Some(self.asks.remove(&nonce).ok_or(Violation::UnknownRequest)?),
            None => None,
        };
        self.last_id = id.get();
        let taken = match ask {
            Some(Ask { is_abandoned: true, .. }) => Reception::SendBack,
            Some(ask) if bytes < ask.bytes || ask.rights & !rights != 0 => Reception::TooLittle,
            Some(_) => Reception::Here,
            None if self.asks.len() + self.held.len() >= self.limit => return Err(Violation::Flood),
            None => Reception::Here,
        };
        self.held.insert(id, if taken == Reception::Here { Held::Here } else { Held::Leaving });
        Ok(taken)
    }

    /// The owner has no memory for a request. Returns whether somebody waits for the answer.
    pub(super) fn refused(&mut self, nonce: NonZeroU64) -> Result<bool, Violation> {
        let ask = self.asks.remove(&nonce).ok_or(Violation::UnknownRequest)?;
        Ok(!ask.is_abandoned)
    }

    /// The program returns a grant. False if the program has returned it before, or the owner has ended it.
    pub(super) fn give_back(&mut self, id: NonZeroU64) -> bool {
        match self.held.get_mut(&id) {
            Some(held @ Held::Here) => {
                *held = Held::Leaving;
                true
            }
            _ => false,
        }
    }

    /// The owner has ended a grant.
    pub(super) fn returned(&mut self, id: NonZeroU64) -> Result<(), Violation> {
        if id.get() > self.last_id {
            return Err(Violation::UnknownGrant);
        }
        // If `grant` has answered this id with `Violation::Flood`, there is no entry to remove. The owner does not know
        // that, so its message is no violation.
        self.held.remove(&id);
        Ok(())
    }

    /// True until the owner has ended the grant, also while its return is on the way.
    pub(super) fn has(&self, id: NonZeroU64) -> bool {
        self.held.contains_key(&id)
    }

    /// How many requests and grants count towards the limit.
    pub(super) fn len(&self) -> usize {
        self.asks.len() + self.held.len()
    }

    /// The owner will say nothing more.
    pub(super) fn close(&mut self) {
        self.asks.clear();
        self.held.clear();
    }
}
