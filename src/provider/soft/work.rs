//! Work queues, and the requests in them.
#![forbid(unsafe_code)]

use super::{completion::Extra, datagram::Destination, memory::AtomicOp, window::Bind};
use crate::sys::{ibv_sge, ibv_wc_opcode};
use std::collections::VecDeque;

/// Lists of up to this many entries are stored without an allocation.
const FEW: usize = 4;

/// A scatter or gather list.
pub(super) struct Sges {
    few: [ibv_sge; FEW],
    len: usize,
    /// All entries, if there are more than `FEW`.
    many: Vec<ibv_sge>,
}

impl Sges {
    /// A copy of `list`. `spare` returns an old vector for reuse.
    #[inline(always)]
    pub(super) fn new(list: &[ibv_sge], spare: impl FnOnce() -> Vec<ibv_sge>) -> Self {
        let mut sges = Self { few: [ibv_sge::default(); FEW], len: list.len(), many: Vec::new() };
        if list.len() <= FEW {
            for (to, from) in sges.few.iter_mut().zip(list) {
                *to = *from;
            }
        } else {
            sges.many = spare();
            sges.many.clear();
            sges.many.extend_from_slice(list);
        }
        sges
    }

    pub(super) fn as_slice(&self) -> &[ibv_sge] {
        if self.len <= FEW { self.few.get(..self.len).unwrap_or(&[]) } else { &self.many }
    }

    pub(super) fn bytes(&self) -> u64 {
        total(self.as_slice())
    }
}

pub(super) fn total(list: &[ibv_sge]) -> u64 {
    list.iter().map(|entry| u64::from(entry.length)).sum()
}

/// The operation of a send-side request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Send,
    Write(Remote),
    Read(Remote),
    Atomic(Remote, AtomicOp),
    AtomicWrite(Remote),
    /// Unbinds a window. A local operation, which is not sent to the peer.
    Invalidate(u32),
    /// Binds or unbinds a window. A local operation, which is not sent to the peer.
    Bind(Bind),
}

impl Operation {
    /// Whether data goes from the requester to the peer.
    pub(super) fn is_outgoing(&self) -> bool {
        matches!(self, Self::Send | Self::Write(_) | Self::AtomicWrite(_))
    }

    /// Whether the operation stays on this side.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, Self::Invalidate(_) | Self::Bind(_))
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    pub(super) addr: u64,
    pub(super) rkey: u32,
}

/// A request in the send queue.
pub(super) struct SendWork {
    pub(super) id: u64,
    pub(super) operation: Operation,
    /// The opcode of the completion.
    pub(super) opcode: ibv_wc_opcode,
    /// The data that the request brings to the peer's receive, besides its payload.
    pub(super) extra: Extra,
    /// The destination of a datagram.
    pub(super) to: Option<Destination>,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
    pub(super) sges: Sges,
    /// The data, if it was copied when the request was posted.
    pub(super) inline: Option<Vec<u8>>,
    /// How many bytes the request carries, in either direction.
    pub(super) len: u64,
}

/// A request in the receive queue.
pub(super) struct ReceiveWork {
    pub(super) id: u64,
    pub(super) sges: Sges,
}

/// The most requests for which a new queue allocates room when it is created.
const RESERVED: usize = 64;

/// A work queue.
pub(super) struct Queue<W> {
    work: VecDeque<W>,
    depth: u64,
    posted: u64,
    /// How many of the posted requests have had their slot freed. A slot is freed when the completion of its request,
    /// or of a later one, is polled.
    freed: u64,
    /// Vectors of finished requests, kept for reuse.
    spare: Vec<Vec<ibv_sge>>,
}

impl<W> Queue<W> {
    pub(super) fn new(depth: u32) -> Self {
        // Reserve room for at most `RESERVED` requests: the queue grows when it is used. A program with many pairs uses
        // few of them at a time, so full room for all pairs would waste memory.
        let room = usize::try_from(depth).map_or(RESERVED, |depth| depth.min(RESERVED));
        Self { work: VecDeque::with_capacity(room), depth: u64::from(depth), posted: 0, freed: 0, spare: Vec::new() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.taken() >= self.depth
    }

    /// How many slots are taken.
    pub(super) fn taken(&self) -> u64 {
        self.posted - self.freed
    }

    pub(super) fn depth(&self) -> u32 {
        u32::try_from(self.depth).unwrap_or(u32::MAX)
    }

    pub(super) fn resize(&mut self, depth: u32) {
        self.depth = u64::from(depth);
    }

    /// How many requests wait in the queue.
    pub(super) fn len(&self) -> usize {
        self.work.len()
    }

    /// Takes a vector for reuse.
    pub(super) fn spare_list(&mut self) -> Vec<ibv_sge> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps the vector of a finished request, if it has one, for reuse.
    pub(super) fn recycle(&mut self, sges: Sges) {
        if sges.many.capacity() > 0 {
            self.spare.push(sges.many);
        }
    }

    /// The requests that wait in the queue.
    pub(super) fn iter(&self) -> impl Iterator<Item = &W> {
        self.work.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    pub(super) fn push(&mut self, work: W) {
        self.work.push_back(work);
        self.posted += 1;
    }

    /// Removes the oldest request. Returns it, and the argument for `free_to` when its completion is polled. Until then
    /// its slot stays taken.
    pub(super) fn pop(&mut self) -> Option<(W, u64)> {
        let work = self.work.pop_front()?;
        Some((work, self.posted - self.work.len() as u64))
    }

    /// Puts back the request that `pop` removed.
    pub(super) fn put_back(&mut self, work: W) {
        self.work.push_front(work);
    }

    pub(super) fn front(&self) -> Option<&W> {
        self.work.front()
    }

    pub(super) fn free_to(&mut self, end: u64) {
        self.freed = self.freed.max(end.min(self.posted));
    }

    /// Frees one slot. Which request it belonged to does not matter.
    pub(super) fn free_one(&mut self) {
        self.free_to(self.freed + 1);
    }

    pub(super) fn reset(&mut self) {
        self.work.clear();
        self.posted = 0;
        self.freed = 0;
    }
}
