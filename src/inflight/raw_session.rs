//! Posting through `ibv_wr_*`: the requests of one doorbell as the calls of one session.
//!
//! A batch opens its session with its first request, or where a `post_all` begins, and closes the session where it
//! rings the doorbell. Each request goes into the session when it is posted, and its memory is written ahead in the
//! ledger. (To keep the requests and replay them at the doorbell costs almost half as much again.) In between, the
//! provider holds the lock of the send queue while code of the program runs.
//!
//! ASSUMPTION: nothing of a session is executed before `ibv_wr_complete` (`ibv_wr_post(3)`, USAGE). Where that call
//! fails, nothing is sure: the page says that all of the session is aborted, but rxe fails after it has queued all of
//! it.
#![allow(unsafe_code, reason = "calls the functions of `ibv_wr_*`")]

use super::request::{Accepted, Action, Postable, SIGNALED};
use super::{Entry, Operation, Posting, WorkId};
use crate::memory::Descriptor;
use crate::seal::KEY;
use crate::sys::inline as verbs;
use crate::sys::{self, ibv_qp_ex, ibv_qp_type, ibv_send_flags};
use crate::verb_error::VerbError;
use std::ptr::NonNull;

/// Shows that a queue posts in sessions, and opens them.
#[derive(Clone, Copy)]
pub(crate) struct Sessions {
    /// # Invariants
    ///
    /// 0. A pair that is alive when a session is opened. It has the functions for the operations of its transport, for
    ///    their memory, for recipients if it has them, and for sessions ([`has_all_functions`]).
    raw: NonNull<ibv_qp_ex>,
}

/// Whether the provider filled every function that requests on a pair of transport `kind` call.
pub(crate) fn has_all_functions(qp: &ibv_qp_ex, kind: ibv_qp_type, posting: Posting) -> bool {
    let writes = || qp.wr_rdma_write.is_some() && qp.wr_rdma_write_imm.is_some();
    let reads = || qp.wr_rdma_read.is_some() && qp.wr_atomic_cmp_swp.is_some() && qp.wr_atomic_fetch_add.is_some();
    let sessions = qp.wr_start.is_some() && qp.wr_complete.is_some() && qp.wr_abort.is_some();
    let sends = qp.wr_send.is_some() && qp.wr_send_imm.is_some();
    let memory = qp.wr_set_sge.is_some() && qp.wr_set_sge_list.is_some() && qp.wr_set_inline_data.is_some();
    let others = match kind {
        ibv_qp_type::IBV_QPT_UD => qp.wr_set_ud_addr.is_some(),
        ibv_qp_type::IBV_QPT_UC => writes(),
        _ => writes() && reads(),
    };
    let atomic_writes = posting != Posting::AtomicWrites || qp.wr_atomic_write.is_some();
    sessions && sends && memory && others && atomic_writes
}

/// An open session. It is completed or aborted.
#[must_use]
pub(super) struct Session {
    /// # Invariants
    ///
    /// 0. As in [`Sessions`]. The session is open, and whoever has this value owns it.
    raw: NonNull<ibv_qp_ex>,
}

impl Sessions {
    /// The `ibv_qp` is the first member of the `ibv_qp_ex` that was made.
    ///
    /// # Safety
    ///
    /// The pair [was made](has_all_functions) for sessions, and is alive whenever one is opened.
    #[inline(always)]
    pub(super) unsafe fn of(raw: NonNull<sys::ibv_qp>) -> Self {
        Self { raw: raw.cast() }
    }

    /// Opens a session.
    ///
    /// # Safety
    ///
    /// The pair is in a state that sends, nobody else posts to it, and no session of it is open.
    #[inline(always)]
    pub(super) unsafe fn open(self) -> Session {
        // SAFETY: the function is there (0); the rest is the caller's promise.
        unsafe { verbs::ibv_wr_start(self.raw.as_ptr()) };
        Session { raw: self.raw }
    }
}

impl Session {
    /// Closes the session, and hands its requests to the device.
    #[inline(always)]
    pub(super) fn complete(self) -> Result<(), VerbError> {
        // SAFETY: the function is there, and the session is open (0).
        match unsafe { verbs::ibv_wr_complete(self.raw.as_ptr()) } {
            0 => Ok(()),
            errno => Err(VerbError::new("ibv_wr_complete", errno.wrapping_abs())),
        }
    }

    /// Closes the session, and forgets its requests.
    #[cold]
    pub(super) fn abort(self) {
        // SAFETY: the function is there, and the session is open (0).
        unsafe { verbs::ibv_wr_abort(self.raw.as_ptr()) };
    }

    /// Adds a request.
    ///
    /// # Safety
    ///
    /// The transport has the operation. The ledger has the entry that came with `call`; what is inline may be read
    /// until the session is closed. A pair of datagrams gets a recipient, whose handle is kept; other pairs get none.
    #[inline(always)]
    pub(super) unsafe fn add(&mut self, call: Call, id: WorkId) {
        let Call { action, mut flags, data, length, to } = call;
        let qp = self.raw.as_ptr();
        let is_value = matches!(action.operation, Operation::AtomicWrite);
        if let (Data::Inline(_), 1.., false) = (data, length, is_value) {
            // The page asks only for the setter, but rxe looks at the flag.
            flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let Action { rkey, remote_addr, immediate_be, compare_add, swap, .. } = action;
        #[allow(
            clippy::multiple_unsafe_ops_per_block,
            reason = "one request: two members, and the call that reads them"
        )]
        // SAFETY: alive, and the functions are there (0); the operation is one of the transport's (caller).
        unsafe {
            (*qp).wr_id = id.raw();
            (*qp).wr_flags = flags;
            match action.operation {
                Operation::Send | Operation::Receive if action.has_immediate() => {
                    verbs::ibv_wr_send_imm(qp, immediate_be);
                }
                Operation::Send | Operation::Receive | Operation::Bind | Operation::Revoke => verbs::ibv_wr_send(qp),
                Operation::Write if action.has_immediate() => {
                    verbs::ibv_wr_rdma_write_imm(qp, rkey, remote_addr, immediate_be);
                }
                Operation::Write => verbs::ibv_wr_rdma_write(qp, rkey, remote_addr),
                Operation::Read => verbs::ibv_wr_rdma_read(qp, rkey, remote_addr),
                Operation::CompareAndSwap => verbs::ibv_wr_atomic_cmp_swp(qp, rkey, remote_addr, compare_add, swap),
                Operation::FetchAndAdd => verbs::ibv_wr_atomic_fetch_add(qp, rkey, remote_addr, compare_add),
                Operation::AtomicWrite => {
                    verbs::ibv_wr_atomic_write(qp, rkey, remote_addr, (&raw const compare_add).cast());
                }
            }
        }
        match data {
            // The value came with the request.
            _ if is_value => {}
            _ if length == 0 => self.add_nothing(),
            Data::Registered(part) => {
                // SAFETY: the ledger owns the descriptor (caller).
                let part = unsafe { part.as_ref() };
                // The element has `length` bytes: those that are filled, or that count as filled from here on.
                let length = part.message();
                // SAFETY: the function is there (0).
                unsafe { verbs::ibv_wr_set_sge(qp, part.lkey(), part.device_addr(), length) };
            }
            // SAFETY: the function is there (0); the list, which the ledger owns (caller), has `count` elements.
            Data::List { elements, count } => unsafe { verbs::ibv_wr_set_sge_list(qp, count, elements) },
            // SAFETY: the function is there (0). It copies `length` bytes, which may be read (caller).
            Data::Inline(bytes) => unsafe {
                verbs::ibv_wr_set_inline_data(qp, bytes.cast_mut().cast(), length as usize);
            },
        }
        if let Some(RawTo { handle, number, qkey }) = to {
            // SAFETY: the function is there, since the pair is one of datagrams; the handle is kept (caller, 0).
            unsafe { verbs::ibv_wr_set_ud_addr(qp, handle, number, qkey) };
        }
    }

    /// Makes the last request an empty one: an element of length 0 means 2^31 bytes to some devices.
    #[cold]
    fn add_nothing(&mut self) {
        // SAFETY: the function is there (Sessions 0); the list has no elements.
        unsafe { verbs::ibv_wr_set_sge_list(self.raw.as_ptr(), 0, &sys::NO_ELEMENT) };
    }
}

/// A request as the calls of a session read it.
pub(super) struct Call {
    action: Action,
    flags: u32,
    data: Data,
    length: u32,
    to: Option<RawTo>,
}

impl Call {
    /// Takes a request apart: into this for the device, and into an entry for the ledger. If it is the `last` that the
    /// queue has room for, it is signalled.
    #[inline(always)]
    pub(super) fn of<const PLAIN: bool, B, M: Postable<B>>(request: Accepted<M, PLAIN>, last: bool) -> (Self, Entry) {
        let to = request.recipient().map(|to| RawTo {
            handle: to.handle.raw(),
            number: to.queue_pair.value(),
            qkey: to.qkey.0,
        });
        let (mut memory, action, length) = request.into_parts();
        let data = Data::of(&mut memory, action.operation, length);
        let (entry, _) = memory.into_entry(action.operation, KEY);
        let flags = action.flags | if last { SIGNALED } else { 0 };
        (Self { action, flags, data, length, to }, entry)
    }
}

/// Where the bytes of a request are.
#[derive(Clone, Copy)]
enum Data {
    /// In one buffer. Its descriptor is read late: until then it takes one register.
    Registered(NonNull<Descriptor>),
    List {
        elements: *const sys::ibv_sge,
        count: usize,
    },
    Inline(*const u8),
}

/// The recipient of a datagram, as the provider reads it.
#[derive(Clone, Copy)]
struct RawTo {
    handle: *mut sys::ibv_ah,
    number: u32,
    qkey: u32,
}

impl Data {
    /// The bytes of `memory`. If the operation fills the memory, `length` bytes count as filled afterwards.
    #[inline(always)]
    fn of<B, M: Postable<B>>(memory: &mut M, operation: Operation, length: u32) -> Self {
        if let Some(part) = memory.part(KEY) {
            if operation.fills() {
                part.set_filled(length as usize);
            }
            return Self::Registered(NonNull::from(part));
        }
        let Some(list) = memory.list(KEY) else { return Self::Inline(memory.bytes(KEY).as_ptr()) };
        if operation.fills() {
            list.fill(length as usize);
        }
        let (elements, count) = list.filled_elements();
        Self::List { elements, count }
    }
}
