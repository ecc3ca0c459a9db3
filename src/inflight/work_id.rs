//! Work ids, each of which names a request of a work queue.

use super::ledger::{NAME_BITS, STEP, after};
use std::fmt;

/// Names a posted work request.
///
/// An id shows that its request was posted, but not whether the request is still in flight. The ledger owns the memory
/// of the request until the completion with this id gives the memory back.
///
/// A C program puts a pointer into `wr_id`. Instead, use a map with this as its key. Use one map for each completion
/// queue: requests that complete on different queues may have the same id.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[doc(alias = "wr_id")]
pub struct WorkId(u64);

/// The work queue of a request, in the low bits of its id: 20 bits of slot, then 2 bits of kind. The bits above count
/// requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueueKey(u32);

/// The kinds of work queue that work ids distinguish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QueueKind {
    Send = 0,
    Receive = 1,
    /// A shared receive queue, whose ids [`WorkId::shared`] makes.
    Shared = 2,
}

const SLOT_BITS: u32 = 20;
const KIND_BITS: u32 = 2;
static_assertions::const_assert_eq!(SLOT_BITS + KIND_BITS, NAME_BITS);

/// The most work queues that one completion queue serves.
pub(crate) const MAX_SLOTS: u32 = 1 << SLOT_BITS;

/// The most requests of one shared receive queue.
pub(crate) const MAX_SHARED: u32 = 1 << 20;
/// Counts of ids are less than this, and wrap around.
pub(crate) const COUNTS: u64 = 1 << (u64::BITS - NAME_BITS);

impl QueueKey {
    /// `slot` must be less than [`MAX_SLOTS`].
    pub(crate) const fn new(kind: QueueKind, slot: u32) -> Self {
        Self((kind as u32) << SLOT_BITS | slot & (MAX_SLOTS - 1))
    }

    /// Whether its kind is [`Send`](QueueKind::Send).
    #[inline(always)]
    pub(crate) fn is_send(self) -> bool {
        self.0 >> SLOT_BITS == QueueKind::Send as u32
    }

    #[inline(always)]
    pub(crate) fn kind(self) -> QueueKind {
        match self.0 >> SLOT_BITS {
            0 => QueueKind::Send,
            1 => QueueKind::Receive,
            _ => QueueKind::Shared,
        }
    }

    #[inline(always)]
    pub(crate) fn slot(self) -> usize {
        (self.0 & (MAX_SLOTS - 1)) as usize
    }

    /// The id of the request with this count. The count wraps around after 2^42.
    pub(crate) fn first(self, count: u64) -> WorkId {
        WorkId(count << NAME_BITS | u64::from(self.0))
    }
}

impl WorkId {
    #[inline(always)]
    pub(crate) fn from_raw(wr_id: u64) -> Self {
        Self(wr_id)
    }

    #[inline(always)]
    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) fn key(self) -> QueueKey {
        QueueKey((self.0 & (STEP - 1)) as u32)
    }

    /// The count of the request. The next work queue in the slot continues this count.
    pub(crate) fn count(self) -> u64 {
        self.0 >> NAME_BITS
    }

    /// The number of requests from `first` to before this one. Both are ids of one work queue.
    pub(crate) fn count_since(self, first: Self) -> u64 {
        self.count().wrapping_sub(first.count()) % COUNTS
    }

    /// The id of a shared receive. The number of its queue is in the place of the slot, and its ticket is in the place
    /// of the count.
    #[inline(always)]
    pub(crate) fn shared(number: u32, ticket: u64) -> Self {
        QueueKey::new(QueueKind::Shared, number).first(ticket)
    }

    /// The number of the queue and the ticket, if this is the id of a shared receive.
    #[inline(always)]
    pub(crate) fn as_shared(self) -> Option<(u32, u64)> {
        // `kind()` is not called here: it also returns `Shared` if the kind bits are 3, which stands for no kind.
        let is_shared = self.key().0 >> SLOT_BITS == QueueKind::Shared as u32;
        is_shared.then_some((self.key().slot() as u32, self.count()))
    }

    /// The id of the request that is posted `count` requests later.
    #[inline(always)]
    pub(crate) fn after(self, count: u32) -> Self {
        Self(after(self.0, count))
    }

    /// The id of the request that was posted `count` requests earlier.
    #[cfg(feature = "aio")]
    pub(crate) fn before(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(u64::from(count) * STEP))
    }

    /// Whether this id is older than `other`. Both name the same slot.
    pub(crate) fn is_before(self, other: Self) -> bool {
        let ahead = other.count().wrapping_sub(self.count()) & (COUNTS - 1);
        ahead != 0 && ahead < COUNTS / 2
    }

    /// The low bits of the count.
    #[inline(always)]
    pub(crate) fn index(self) -> u32 {
        (self.0 >> NAME_BITS) as u32
    }
}

impl fmt::Debug for WorkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkId({:#x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_id_keeps_its_parts_apart() {
        let key = QueueKey::new(QueueKind::Receive, MAX_SLOTS - 1);
        let (first, last) = (key.first(5), (1 << 42) - 1);
        assert_eq!((first.key(), first.index(), first.count()), (key, 5, 5));
        assert_eq!((key.slot(), key.kind()), (MAX_SLOTS as usize - 1, QueueKind::Receive));
        assert_eq!((key.first(last).count(), key.first(last + 1)), (last, key.first(0)));
        assert_ne!(QueueKey::new(QueueKind::Send, 3), QueueKey::new(QueueKind::Receive, 3));
    }

    /// No kind has both of its bits set. If a faulty device sets both, the id names no request.
    #[test]
    fn an_id_of_no_kind_is_of_no_shared_receive() {
        let id = WorkId::shared(5, 7);
        assert_eq!(id.as_shared(), Some((5, 7)));
        assert_eq!(WorkId::from_raw(id.raw() | 1 << SLOT_BITS).as_shared(), None);
    }

    #[test]
    fn the_id_of_a_shared_receive_keeps_its_parts_apart() {
        for parts in [(0, 0), (MAX_SLOTS - 1, 0), (0, COUNTS - 1), (5, 6)] {
            let (number, ticket) = parts;
            let id = WorkId::shared(number, ticket);
            assert_eq!((id.as_shared(), id.key().kind()), (Some(parts), QueueKind::Shared));
        }
        assert_eq!(WorkId::shared(1, COUNTS), WorkId::shared(1, 0), "tickets wrap around");
        for kind in [QueueKind::Send, QueueKind::Receive] {
            assert_eq!(QueueKey::new(kind, 1).first(0).as_shared(), None);
        }
    }
}
