//! Posting: the queues of a pair, and the way into them from the lists of the C interface.
#![allow(unsafe_code, reason = "lists, pointers and unions of the C interface")]

use super::{
    device::MAX_MESSAGE,
    fabric::State,
    memory::AtomicOp,
    pair::{Pair, PairState},
};
use crate::sys::{ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc_opcode, ibv_wr_opcode};
use libc::c_int;
use std::{collections::VecDeque, ptr, slice};

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
    fn new(list: &[ibv_sge]) -> Self {
        let mut sges = Self { few: [ibv_sge::default(); FEW], len: list.len(), many: Vec::new() };
        if list.len() <= FEW {
            for (to, from) in sges.few.iter_mut().zip(list) {
                *to = *from;
            }
        } else {
            sges.many.extend_from_slice(list);
        }
        sges
    }

    pub(super) fn as_slice(&self) -> &[ibv_sge] {
        self.few.get(..self.len).unwrap_or(&self.many)
    }

    pub(super) fn bytes(&self) -> u64 {
        total(self.as_slice())
    }
}

fn total(list: &[ibv_sge]) -> u64 {
    list.iter().map(|entry| u64::from(entry.length)).sum()
}

/// What a send-side request asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Send,
    Write(Remote),
    Read(Remote),
    Atomic(Remote, AtomicOp),
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
    /// In network byte order.
    pub(super) immediate: Option<u32>,
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
}

impl<W> Queue<W> {
    pub(super) fn new(depth: u32) -> Self {
        // Larger ones grow when used: most pairs of a large set are idle.
        let room = usize::try_from(depth).map_or(RESERVED, |depth| depth.min(RESERVED));
        Self { work: VecDeque::with_capacity(room), depth: u64::from(depth), posted: 0, freed: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.posted - self.freed >= self.depth
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

    pub(super) fn reset(&mut self) {
        self.work.clear();
        self.posted = 0;
        self.freed = 0;
    }
}

/// A post that was refused: all requests before `at` are posted. `at` is null where the device says nothing of it.
pub(super) struct Refused<W> {
    pub(super) errno: c_int,
    pub(super) at: *mut W,
}

/// The entries of a list of at most `max`.
///
/// # Safety
///
/// As for `ibv_post_send(3)`: `len` entries at `list`, unless `len` is not positive.
unsafe fn entries<'a>(list: *const ibv_sge, len: c_int, max: u32) -> Result<&'a [ibv_sge], c_int> {
    match u32::try_from(len) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's promise.
        Ok(len) if len <= max && !list.is_null() => Ok(unsafe { slice::from_raw_parts(list, len as usize) }),
        _ => Err(libc::EINVAL),
    }
}

/// # Safety
///
/// The operation has immediate data.
unsafe fn immediate(wr: &ibv_send_wr) -> u32 {
    // SAFETY: the member that the caller filled.
    unsafe { wr.__bindgen_anon_1.imm_data }
}

/// # Safety
///
/// The operation is a read or a write.
unsafe fn remote(wr: &ibv_send_wr) -> Remote {
    // SAFETY: the member that the caller filled.
    let rdma = unsafe { wr.wr.rdma };
    Remote { addr: rdma.remote_addr, rkey: rdma.rkey }
}

/// # Safety
///
/// The operation is an atomic.
unsafe fn atomic(wr: &ibv_send_wr) -> (Remote, u64, u64) {
    // SAFETY: the member that the caller filled.
    let atomic = unsafe { wr.wr.atomic };
    (Remote { addr: atomic.remote_addr, rkey: atomic.rkey }, atomic.compare_add, atomic.swap)
}

/// The request of `wr`, if this device can do it at all.
///
/// # Safety
///
/// As for `ibv_post_send(3)`; inline data can be read.
unsafe fn send_work(pair: &mut Pair, wr: &ibv_send_wr) -> Result<SendWork, c_int> {
    let has = |flag: ibv_send_flags| wr.send_flags & flag.0 != 0;
    // SAFETY: the caller's promise.
    let list = unsafe { entries(wr.sg_list, wr.num_sge, pair.cap.max_send_sge) }?;
    // Only the members that the operation has are read.
    let (operation, opcode, immediate) = match wr.opcode {
        ibv_wr_opcode::IBV_WR_SEND => (Operation::Send, ibv_wc_opcode::IBV_WC_SEND, None),
        ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => {
            // SAFETY: an operation with immediate data.
            (Operation::Send, ibv_wc_opcode::IBV_WC_SEND, Some(unsafe { immediate(wr) }))
        }
        ibv_wr_opcode::IBV_WR_RDMA_WRITE => {
            // SAFETY: an operation on the peer's memory.
            (Operation::Write(unsafe { remote(wr) }), ibv_wc_opcode::IBV_WC_RDMA_WRITE, None)
        }
        ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
            // SAFETY: an operation with immediate data.
            let immediate = unsafe { immediate(wr) };
            // SAFETY: an operation on the peer's memory.
            (Operation::Write(unsafe { remote(wr) }), ibv_wc_opcode::IBV_WC_RDMA_WRITE, Some(immediate))
        }
        ibv_wr_opcode::IBV_WR_RDMA_READ => {
            // SAFETY: an operation on the peer's memory.
            (Operation::Read(unsafe { remote(wr) }), ibv_wc_opcode::IBV_WC_RDMA_READ, None)
        }
        ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: an atomic.
            let (remote, add, _) = unsafe { atomic(wr) };
            (Operation::Atomic(remote, AtomicOp::Add(add)), ibv_wc_opcode::IBV_WC_FETCH_ADD, None)
        }
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => {
            // SAFETY: an atomic.
            let (remote, compare, swap) = unsafe { atomic(wr) };
            let operation = Operation::Atomic(remote, AtomicOp::CompareAndSwap { compare, swap });
            (operation, ibv_wc_opcode::IBV_WC_COMP_SWAP, None)
        }
        _ => return Err(libc::EINVAL),
    };
    let len = total(list);
    let inline = if has(ibv_send_flags::IBV_SEND_INLINE) {
        let outgoing = matches!(operation, Operation::Send | Operation::Write(_));
        if !outgoing || len > u64::from(pair.cap.max_inline_data) {
            return Err(libc::EINVAL);
        }
        let mut data = pair.spare.pop().unwrap_or_default();
        data.clear();
        for entry in list.iter().filter(|entry| entry.length > 0) {
            let addr = usize::try_from(entry.addr).ok().filter(|&addr| addr != 0).ok_or(libc::EFAULT)?;
            let from = ptr::with_exposed_provenance::<u8>(addr);
            // SAFETY: inline data, which the caller lends for this call.
            data.extend_from_slice(unsafe { slice::from_raw_parts(from, entry.length as usize) });
        }
        Some(data)
    } else {
        None
    };
    Ok(SendWork {
        id: wr.wr_id,
        operation,
        opcode,
        immediate,
        signaled: pair.signal_all || has(ibv_send_flags::IBV_SEND_SIGNALED),
        solicited: has(ibv_send_flags::IBV_SEND_SOLICITED),
        sges: if inline.is_some() { Sges::new(&[]) } else { Sges::new(list) },
        inline,
        len,
    })
}

impl SendWork {
    /// Whether it is longer than a message can be.
    pub(super) fn too_long(&self) -> bool {
        self.len > u64::from(MAX_MESSAGE)
    }
}

impl State {
    /// Posts a list of requests to the send queue. With `kept`, a fault: they are queued, but not started, in any state.
    ///
    /// # Safety
    ///
    /// As for `ibv_post_send(3)`: `list` is a list of requests; the memory that they name belongs to the device until
    /// they complete.
    pub(super) unsafe fn post_send(
        &mut self,
        index: usize,
        list: *mut ibv_send_wr,
        kept: Option<c_int>,
    ) -> Result<(), Refused<ibv_send_wr>> {
        let withheld = self.faults.flush_withheld;
        let Some(pair) = self.pairs.get_mut(index) else { return Err(Refused { errno: libc::EINVAL, at: list }) };
        let sends = matches!(pair.state, PairState::ReadyToSend | PairState::Drain | PairState::Error);
        let mut result = Ok(());
        let mut at = list;
        while !at.is_null() {
            // SAFETY: an element of the list (caller).
            let wr = unsafe { &*at };
            let work = if !sends && kept.is_none() {
                Err(libc::EINVAL)
            } else if pair.send.is_full() {
                Err(libc::ENOMEM)
            } else {
                // SAFETY: the caller's promise.
                unsafe { send_work(pair, wr) }
            };
            match work {
                Ok(work) => pair.send.push(work),
                Err(errno) => {
                    result = Err(Refused { errno, at });
                    break;
                }
            }
            at = wr.next;
        }
        pair.flush_withheld |= withheld && pair.state == PairState::Error;
        if let (Some(errno), Ok(())) = (kept, &result) {
            return Err(Refused { errno, at: ptr::null_mut() });
        }
        self.schedule(index);
        result
    }

    /// Posts a list of requests to the receive queue. `kept` as in `post_send`.
    ///
    /// # Safety
    ///
    /// As for `ibv_post_recv(3)`.
    pub(super) unsafe fn post_receive(
        &mut self,
        index: usize,
        list: *mut ibv_recv_wr,
        kept: Option<c_int>,
    ) -> Result<(), Refused<ibv_recv_wr>> {
        let withheld = self.faults.flush_withheld;
        let Some(pair) = self.pairs.get_mut(index) else { return Err(Refused { errno: libc::EINVAL, at: list }) };
        let receives = pair.state != PairState::Reset;
        let mut result = Ok(());
        let mut at = list;
        while !at.is_null() {
            // SAFETY: an element of the list (caller).
            let wr = unsafe { &*at };
            let sges = if !receives && kept.is_none() {
                Err(libc::EINVAL)
            } else if pair.receive.is_full() {
                Err(libc::ENOMEM)
            } else {
                // SAFETY: the caller's promise.
                unsafe { entries(wr.sg_list, wr.num_sge, pair.cap.max_recv_sge) }
            };
            match sges {
                Ok(sges) => pair.receive.push(ReceiveWork { id: wr.wr_id, sges: Sges::new(sges) }),
                Err(errno) => {
                    result = Err(Refused { errno, at });
                    break;
                }
            }
            at = wr.next;
        }
        pair.flush_withheld |= withheld && pair.state == PairState::Error;
        if let (Some(errno), Ok(())) = (kept, &result) {
            return Err(Refused { errno, at: ptr::null_mut() });
        }
        self.schedule(index);
        result
    }
}
