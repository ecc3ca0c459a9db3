//! Work queues, and the requests in them.
#![forbid(unsafe_code)]

use super::{completion::Extra, datagram::Destination, memory::AtomicOp, window::Bind};
use crate::sys::{ibv_sge, ibv_wc_opcode};
use std::collections::VecDeque;

/// Entries that need no allocation of their own.
const FEW: usize = 4;

/// A scatter or gather list.
pub(super) struct Sges {
    few: [ibv_sge; FEW],
    len: usize,
    /// All of them, if they are more than a few.
    many: Vec<ibv_sge>,
}

impl Sges {
    /// A copy of `list`; `spare` is a list to use again.
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

/// What a send-side request asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Send,
    Write(Remote),
    Read(Remote),
    Atomic(Remote, AtomicOp),
    AtomicWrite(Remote),
    /// Local: ends the binding of a window.
    Invalidate(u32),
    /// Local: binds or unbinds a window.
    Bind(Bind),
}

impl Operation {
    /// Whether data goes from here to the peer.
    pub(super) fn is_outgoing(&self) -> bool {
        matches!(self, Self::Send | Self::Write(_) | Self::AtomicWrite(_))
    }

    /// Whether the peer has no part in it.
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
    /// What its completion calls it.
    pub(super) opcode: ibv_wc_opcode,
    /// What it brings to the receive that it takes.
    pub(super) extra: Extra,
    /// Where a datagram goes.
    pub(super) to: Option<Destination>,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
    pub(super) sges: Sges,
    /// The data itself, copied when posted.
    pub(super) inline: Option<Vec<u8>>,
    /// Bytes to carry, in either direction.
    pub(super) len: u64,
}

/// A request in the receive queue.
pub(super) struct ReceiveWork {
    pub(super) id: u64,
    pub(super) sges: Sges,
}

/// Requests for which a new queue has room at once.
const RESERVED: usize = 64;

/// One of the two work queues.
pub(super) struct Queue<W> {
    work: VecDeque<W>,
    depth: u64,
    posted: u64,
    /// Of those posted, the ones whose slots were given back: by a polled completion of theirs, or of a later one.
    freed: u64,
    /// Lists of requests that are done, used again.
    spare: Vec<Vec<ibv_sge>>,
}

impl<W> Queue<W> {
    pub(super) fn new(depth: u32) -> Self {
        // Larger ones grow when used: most pairs of a large set are idle.
        let room = usize::try_from(depth).map_or(RESERVED, |depth| depth.min(RESERVED));
        Self { work: VecDeque::with_capacity(room), depth: u64::from(depth), posted: 0, freed: 0, spare: Vec::new() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.taken() >= self.depth
    }

    /// Slots that are taken.
    pub(super) fn taken(&self) -> u64 {
        self.posted - self.freed
    }

    pub(super) fn depth(&self) -> u32 {
        u32::try_from(self.depth).unwrap_or(u32::MAX)
    }

    pub(super) fn resize(&mut self, depth: u32) {
        self.depth = u64::from(depth);
    }

    /// Requests that wait.
    pub(super) fn len(&self) -> usize {
        self.work.len()
    }

    /// A list to use again.
    pub(super) fn spare_list(&mut self) -> Vec<ibv_sge> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps the list of a request that is done, if it has one of its own.
    pub(super) fn recycle(&mut self, sges: Sges) {
        if sges.many.capacity() > 0 {
            self.spare.push(sges.many);
        }
    }

    /// Those that wait.
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

    /// Takes the oldest request out; its slot stays taken. With it, what a completion of it gives to `free_to`.
    pub(super) fn pop(&mut self) -> Option<(W, u64)> {
        let work = self.work.pop_front()?;
        Some((work, self.posted - self.work.len() as u64))
    }

    /// Undoes `pop`.
    pub(super) fn put_back(&mut self, work: W) {
        self.work.push_front(work);
    }

    pub(super) fn front(&self) -> Option<&W> {
        self.work.front()
    }

    pub(super) fn free_to(&mut self, end: u64) {
        self.freed = self.freed.max(end.min(self.posted));
    }

    /// Gives back one slot, of whichever request.
    pub(super) fn free_one(&mut self) {
        self.free_to(self.freed + 1);
    }

    pub(super) fn reset(&mut self) {
        self.work.clear();
        self.posted = 0;
        self.freed = 0;
    }
}
