//! Posting through `ibv_wr_*`: one session for each doorbell, and a few calls in it for each request.
//!
//! A batch opens its session when it adds its first request; a `post_all` opens its session at its beginning. The
//! session is closed where the doorbell rings. Each request goes into the session when it is posted, and its entry is
//! written to the ledger without being published. (Keeping the requests and replaying them at the doorbell would cost
//! almost half as much again.) While the session is open, the provider holds the lock of the send queue, and code of
//! the program may run.
//!
//! ASSUMPTION: no request of a session is executed before `ibv_wr_complete` (`ibv_wr_post(3)`, USAGE). If that call
//! fails, nothing is certain: the page says that the whole session is aborted, but rxe queues the whole session and
//! then fails.
#![allow(unsafe_code, reason = "calls the functions of `ibv_wr_*`")]

use super::entry::sealed::Postable;
use super::request::{Accepted, Action, SIGNALED};
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
    /// 0. The pair is alive whenever a session is opened. It has the functions for sessions, for the operations of its
    ///    transport and their memory, and for recipients if the transport has them ([`has_all_functions`]).
    raw: NonNull<ibv_qp_ex>,
}

/// Whether the provider set every function pointer that requests on a pair of transport `kind` use.
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

/// An open session. Its owner completes or aborts it.
#[must_use]
pub(super) struct Session {
    /// # Invariants
    ///
    /// 0. `raw` is as in [`Sessions`]. The session is open, and whoever has this value owns it.
    raw: NonNull<ibv_qp_ex>,
}

impl Sessions {
    /// `raw` is the first member of the `ibv_qp_ex` that the provider made.
    ///
    /// # Safety
    ///
    /// [`has_all_functions`] holds for the pair, and the pair is alive whenever a session is opened.
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
        // SAFETY: the pair has this function (0). It is in a state that sends, nobody else posts, and no session is
        // open (caller).
        unsafe { verbs::ibv_wr_start(self.raw.as_ptr()) };
        Session { raw: self.raw }
    }
}

impl Session {
    /// Closes the session, and hands its requests to the device.
    #[inline(always)]
    pub(super) fn complete(self) -> Result<(), VerbError> {
        // SAFETY: the pair has this function, and the session is open (0).
        match unsafe { verbs::ibv_wr_complete(self.raw.as_ptr()) } {
            0 => Ok(()),
            failed => Err(VerbError::of_data_path("ibv_wr_complete", failed)),
        }
    }

    /// Closes the session, and forgets its requests.
    #[cold]
    pub(super) fn abort(self) {
        // SAFETY: the pair has this function, and the session is open (0).
        unsafe { verbs::ibv_wr_abort(self.raw.as_ptr()) };
    }

    /// Adds a request.
    ///
    /// # Safety
    ///
    /// The transport has the operation. The ledger has the entry that came with `call`; inline bytes may be read until
    /// the session is closed. A request of a datagram pair has a recipient, whose handle is kept; other requests have
    /// none.
    #[inline(always)]
    pub(super) unsafe fn add(&mut self, call: Call, id: WorkId) {
        let Call { action, mut flags, data, length, to } = call;
        let qp = self.raw.as_ptr();
        let is_value = matches!(action.operation, Operation::AtomicWrite);
        if let (Data::Inline(_), 1.., false) = (data, length, is_value) {
            // The manual page requires only `ibv_wr_set_inline_data`, but rxe also checks this flag.
            flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let Action { rkey, remote_addr, immediate_be, compare_add, swap, .. } = action;
        #[allow(
            clippy::multiple_unsafe_ops_per_block,
            reason = "one request: two members, and the call that reads them"
        )]
        // SAFETY: the pair is alive, and has the functions for all operations of its transport (0). This operation is
        // one of them (caller).
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
            // An atomic write needs no elements: its value was an argument of `ibv_wr_atomic_write`.
            _ if is_value => {}
            _ if length == 0 => self.add_nothing(),
            Data::Registered(part) => {
                // SAFETY: the descriptor is alive, since the ledger owns it (caller).
                let part = unsafe { part.as_ref() };
                // `message_bytes` is the number of filled bytes, which equals `length`. For a send or a write, the
                // check has set `length` to that number. For a read or an atomic, `Data::of` has set that number to
                // `length`.
                let filled = part.message_bytes();
                // SAFETY: the pair has this function (0).
                unsafe { verbs::ibv_wr_set_sge(qp, part.lkey(), part.device_addr(), filled) };
            }
            // SAFETY: the pair has this function (0). The list has `count` elements, and the ledger owns it (caller).
            Data::List { elements, count } => unsafe { verbs::ibv_wr_set_sge_list(qp, count, elements) },
            // SAFETY: the pair has this function (0). The function copies `length` bytes, which are alive (caller).
            Data::Inline(bytes) => unsafe {
                verbs::ibv_wr_set_inline_data(qp, bytes.cast_mut().cast(), length as usize);
            },
        }
        if let Some(RawTo { handle, number, qkey }) = to {
            // SAFETY: the pair has this function (0), since it is a datagram pair. The handle is kept (caller).
            unsafe { verbs::ibv_wr_set_ud_addr(qp, handle, number, qkey) };
        }
    }

    /// Leaves the newest request without elements: an element of length 0 means 2^31 bytes to some devices.
    #[cold]
    fn add_nothing(&mut self) {
        // SAFETY: the pair has this function (0), and the list has no elements.
        unsafe { verbs::ibv_wr_set_sge_list(self.raw.as_ptr(), 0, &sys::NO_ELEMENT) };
    }
}

/// A request in the form that the calls of a session read.
pub(super) struct Call {
    action: Action,
    flags: u32,
    data: Data,
    length: u32,
    to: Option<RawTo>,
}

impl Call {
    /// Splits a request into the device's part and the entry for the ledger. `last`: the request takes the queue's last
    /// free slot, so it is signalled.
    #[inline(always)]
    pub(super) fn of<const PLAIN: bool, B, M: Postable<B>>(request: Accepted<M, PLAIN>, last: bool) -> (Self, Entry) {
        let to = request.recipient().map(|to| RawTo {
            handle: to.handle.raw(),
            number: to.queue_pair.value(),
            qkey: to.qkey.0,
        });
        let (mut memory, action, length) = request.into_parts();
        let data = Data::of(&mut memory, action.operation, length);
        let (entry, _) = Entry::of(memory, action.operation);
        let flags = action.flags | if last { SIGNALED } else { 0 };
        (Self { action, flags, data, length, to }, entry)
    }
}

/// The place of a request's bytes.
#[derive(Clone, Copy)]
enum Data {
    /// In one buffer. Its descriptor is read late: until then the request takes only one register for it.
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
    /// Where the bytes of `memory` are. If the device writes to `memory` (a read or an atomic), this call also marks
    /// `length` bytes as filled: that sets the lengths of the elements that the request names.
    #[inline(always)]
    fn of<B, M: Postable<B>>(memory: &mut M, operation: Operation, length: u32) -> Self {
        if let Some(part) = memory.descriptor(KEY) {
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
