//! Posting through `ibv_wr_*`: the requests of a doorbell as the calls of one session.
//!
//! A batch opens its session with its first request, or where a `post_all` begins, and closes it where it rings; requests
//! go in as they are posted, while their memory is written ahead in the ledger. To keep them and replay them when the
//! batch rings costs almost half as much again. In between, the provider holds the lock of the send queue while code of the program runs.
//!
//! ASSUMPTION: nothing of a session is executed before `ibv_wr_complete` (`ibv_wr_post(3)`, USAGE). Of one for which
//! that fails nothing is sure: the page says that all of it is aborted, but rxe fails after it has queued all.
#![allow(unsafe_code, reason = "calls the provider's post functions")]

use super::all::Taking;
use super::attr::Limits;
use super::batch::Batch;
use super::error::CreateError;
use super::post::SendQueue;
use super::post_error::PostError;
use super::request::sealed::Stageable;
use super::request::{Action, WorkRequest};
use super::transport::Carries;
use crate::device::ContextInner;
use crate::domain::Brand;
use crate::error::VerbError;
use crate::inflight::ledger::CellRow;
use crate::inflight::{Entry, Operation, WorkId};
use crate::memory::Descriptor;
use crate::seal::KEY;
use crate::sys::inline as verbs;
use crate::sys::{
    self, ibv_qp_create_send_ops_flags as with, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask as mask, ibv_qp_type, ibv_send_flags,
};
use std::{mem, ptr, ptr::NonNull};

/// How the requests of a queue pair are handed to the device, as [`Limits::posting`](crate::Limits::posting) has it. What
/// can be posted is the same.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # interlock::domain! { struct Docs; }
/// # let (domain, queue): (interlock::ProtectionDomain<Docs>, interlock::CompletionQueue<Docs>) = todo!();
/// use interlock::{CreateError, Limits, Posting};
/// let limits = Limits { posting: Posting::WorkRequestApi, ..Limits::default() };
/// let pair = match domain.reliable(&queue, &limits) {
///     Err(CreateError::NoWorkRequestApi(_)) => domain.reliable(&queue, &Limits::default())?,
///     pair => pair?,
/// };
/// # drop(pair); Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum Posting {
    /// As linked lists, `ibv_post_send(3)`. Every device takes them.
    #[default]
    #[doc(alias = "ibv_post_send")]
    List,
    /// As calls of the work request API, `ibv_wr_post(3)`: some devices are faster so, and some do not have it.
    ///
    /// A provider that fails says nothing of single requests: where a list gets [`Refused`](crate::PostError::Refused),
    /// this gets [`Uncertain`](crate::PostError::Uncertain).
    ///
    /// From the first request of a [`batch`](crate::QueuePair::batch), or the beginning of a `post_all`, to its doorbell the
    /// provider may hold locks of the pair. A closure that polls or waits for another thread in between may wait for ever (hns: polling a failure of this
    /// pair does). A `post` that answers [`QueueFull`](crate::PostError::QueueFull) has just rung, so then polling is
    /// fine.
    #[doc(alias = "ibv_wr_start")]
    #[doc(alias = "ibv_wr_complete")]
    #[doc(alias = "ibv_qp_ex")]
    WorkRequestApi,
    /// The same, with [atomic writes](crate::WorkRequest::atomic_write), which few devices have; reliable connections only.
    #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_WRITE")]
    AtomicWrites,
}

impl Posting {
    /// Whether it is through `ibv_wr_*`.
    #[inline(always)]
    pub(super) fn is_in_sessions(self) -> bool {
        !matches!(self, Self::List)
    }
}

/// What is asked for of `ibv_wr_*` when a pair is made: all that the library posts on that transport.
fn operations(kind: ibv_qp_type, posting: Posting) -> with {
    let sends = with::IBV_QP_EX_WITH_SEND | with::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let writes = with::IBV_QP_EX_WITH_RDMA_WRITE | with::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let atomics = with::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | with::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    let atomic_writes = match posting {
        Posting::AtomicWrites => with::IBV_QP_EX_WITH_ATOMIC_WRITE,
        _ => with(0),
    };
    atomic_writes
        | match kind {
            ibv_qp_type::IBV_QPT_UD => sends,
            ibv_qp_type::IBV_QPT_UC => sends | writes,
            _ => sends | writes | with::IBV_QP_EX_WITH_RDMA_READ | atomics,
        }
}

/// The attributes of a pair for `ibv_wr_*`, made of those of any pair.
pub(super) fn extended(
    attributes: &ibv_qp_init_attr,
    pd: NonNull<sys::ibv_pd>,
    posting: Posting,
) -> ibv_qp_init_attr_ex {
    ibv_qp_init_attr_ex {
        qp_context: attributes.qp_context,
        send_cq: attributes.send_cq,
        recv_cq: attributes.recv_cq,
        srq: attributes.srq,
        cap: attributes.cap,
        qp_type: attributes.qp_type,
        sq_sig_all: attributes.sq_sig_all,
        comp_mask: mask::IBV_QP_INIT_ATTR_PD.0 | mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0,
        pd: pd.as_ptr(),
        send_ops_flags: u64::from(operations(attributes.qp_type, posting).0),
        ..Default::default()
    }
}

/// Whether the provider keeps to `ibv_wr_post(3)` for requests of so many elements, and the device has what is to be posted.
pub(super) fn check_device(context: &ContextInner, limits: &Limits) -> Result<(), CreateError> {
    if !context.promises().sessions.bears(limits.elements) {
        return Err(none());
    }
    if limits.posting == Posting::AtomicWrites {
        // SAFETY: open.
        let device = unsafe { context.provider.query_device_ex(context.raw) }?;
        if device.device_cap_flags_ex & sys::HAS_ATOMIC_WRITE == 0 {
            // Soft-RoCE's library posts them to any kernel.
            return Err(CreateError::NoAtomicWrites(VerbError::new("ibv_create_qp_ex", libc::EOPNOTSUPP)));
        }
    }
    Ok(())
}

/// What a device without it answers.
pub(super) fn none() -> CreateError {
    CreateError::NoWorkRequestApi(VerbError::new("ibv_create_qp_ex", libc::EOPNOTSUPP))
}

/// Why there is no pair for `ibv_wr_*`.
pub(super) fn explain(error: VerbError, posting: Posting) -> CreateError {
    match error.errno() {
        libc::EOPNOTSUPP | libc::ENOSYS if posting == Posting::AtomicWrites => CreateError::NoAtomicWrites(error),
        libc::EOPNOTSUPP | libc::ENOSYS => CreateError::NoWorkRequestApi(error),
        _ => error.into(),
    }
}

/// A pair for `ibv_wr_*`.
#[derive(Clone, Copy)]
pub(super) struct Extended {
    /// # Invariants
    ///
    /// 0. Of the pair of the queue, so alive as long. Its functions are there for the `operations` of its transport, for
    ///    their memory, for recipients if it has them, and for sessions.
    raw: NonNull<ibv_qp_ex>,
}

// SAFETY: may be used from any thread, as the pair that it is of.
unsafe impl Send for Extended {}
// SAFETY: shared access reads a pointer only.
unsafe impl Sync for Extended {}

impl Extended {
    /// The pair, which is the beginning of what was made.
    ///
    /// # Safety
    ///
    /// It [is](Self::is_there) for sessions, and alive as long as this is used.
    #[inline(always)]
    pub(super) unsafe fn of(raw: NonNull<sys::ibv_qp>) -> Self {
        Self { raw: raw.cast() }
    }

    /// Whether no function is missing all the same.
    ///
    /// # Safety
    ///
    /// `raw` is alive, and its pair, of transport `kind`, was made with [`extended`] attributes.
    pub(super) unsafe fn is_there(raw: NonNull<ibv_qp_ex>, kind: ibv_qp_type, posting: Posting) -> bool {
        // SAFETY: alive (caller).
        let qp = unsafe { raw.as_ref() };
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

    /// Rings without a request.
    ///
    /// # Safety
    ///
    /// As for [`start`](Self::start).
    #[cold]
    pub(super) unsafe fn ring_empty(self) {
        // SAFETY: the caller's promise.
        unsafe { self.start() };
        // SAFETY: open. Of nothing, so that a failure says nothing.
        let _ = unsafe { self.complete() };
    }

    /// Opens a session.
    ///
    /// # Safety
    ///
    /// The pair sends, nobody else posts, and no session is open.
    #[inline(always)]
    pub(super) unsafe fn start(self) {
        // SAFETY: there (0); the rest is the caller's promise.
        unsafe { verbs::ibv_wr_start(self.raw.as_ptr()) };
    }

    /// Closes the session, and hands its requests to the device, whose memory the ledger owns.
    ///
    /// # Safety
    ///
    /// A session is open.
    #[inline(always)]
    pub(super) unsafe fn complete(self) -> Result<(), VerbError> {
        // SAFETY: there (0); the rest is the caller's promise.
        match unsafe { verbs::ibv_wr_complete(self.raw.as_ptr()) } {
            0 => Ok(()),
            errno => Err(VerbError::new("ibv_wr_complete", errno.wrapping_abs())),
        }
    }

    /// Closes the session, and forgets its requests.
    ///
    /// # Safety
    ///
    /// A session is open.
    #[cold]
    pub(super) unsafe fn abort(self) {
        // SAFETY: there (0); the rest is the caller's promise.
        unsafe { verbs::ibv_wr_abort(self.raw.as_ptr()) };
    }

    /// Adds a request of `length` bytes at `data` to the session, of an operation that the transport has.
    ///
    /// # Safety
    ///
    /// A session is open; the ledger owns the memory, or it is inline and may be read. There is a recipient if the pair is
    /// one of datagrams, and its handle is kept.
    #[inline(always)]
    unsafe fn add(self, action: &Action, mut flags: u32, data: Data, to: Option<To>, length: u32, id: WorkId) {
        let qp = self.raw.as_ptr();
        let is_value = matches!(action.operation, Operation::AtomicWrite);
        if let (Data::Inline(_), 1.., false) = (data, length, is_value) {
            // The page asks for it by the setter only, but rxe looks for it here.
            flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let Action { rkey, remote_addr, immediate_be, compare_add, swap, .. } = *action;
        #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one request: two members, and what reads them")]
        // SAFETY: alive, and the functions are there (0); the session is ours (caller).
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
            // Came with the request.
            _ if is_value => {}
            // SAFETY: there (0).
            _ if length == 0 => unsafe { Self::nothing(qp) },
            Data::Registered(part) => {
                // SAFETY: the ledger owns it (caller).
                let part = unsafe { part.as_ref() };
                // It says `length`: what is filled, or was made so.
                let length = part.message();
                // SAFETY: there (0).
                unsafe { verbs::ibv_wr_set_sge(qp, part.lkey(), part.device_addr(), length) };
            }
            // SAFETY: there (0); so many elements, in the list that the ledger owns.
            Data::List { elements, count } => unsafe { verbs::ibv_wr_set_sge_list(qp, count, elements) },
            // SAFETY: there (0); `length` bytes that may be read (caller), which are copied.
            Data::Inline(bytes) => unsafe {
                verbs::ibv_wr_set_inline_data(qp, bytes.cast_mut().cast(), length as usize);
            },
        }
        if let Some(To { handle, number, qkey }) = to {
            // SAFETY: there, since only requests of datagrams have recipients, and only their pairs carry those (0); the handle
            // is kept (caller).
            unsafe { verbs::ibv_wr_set_ud_addr(qp, handle, number, qkey) };
        }
    }

    /// Adds an ordinary request, whose entry is the next of `row`.
    ///
    /// # Safety
    ///
    /// A session is open, of the batch; what is inline lives until it is closed. There is room in the queue and in the row;
    /// nobody else posts.
    #[inline(always)]
    pub(super) unsafe fn add_plain<B, M: Stageable<B>>(
        self,
        row: &mut CellRow<Entry>,
        mut memory: M,
        action: &Action,
        length: u32,
        id: WorkId,
    ) {
        let data = Data::of(&mut memory, action.operation, length);
        let (entry, _) = memory.into_entry(action.operation, KEY);
        // SAFETY: there is room (caller).
        unsafe { row.write(entry) };
        // SAFETY: the ledger has the memory; the rest is the caller's promise.
        unsafe { self.add(action, flags(action, false), data, None, length, id) };
    }

    /// Adds the requests that `make` makes of the next `count` of `items`, unsignalled, up to one that is no ordinary one,
    /// which comes back. `next_id` is the first one's, then the next one's, also when the program's code panics.
    ///
    /// # Safety
    ///
    /// There are so many items, so much room in the queue, and in the `row` of the next id. A session is open, if it is not
    /// for none; what is inline lives until it is closed. Nobody else posts.
    #[inline(always)]
    pub(super) unsafe fn add_some<B: Brand, X, M: Stageable<B>, K>(
        self,
        queue: &SendQueue,
        next_id: &mut WorkId,
        count: usize,
        row: &mut CellRow<Entry>,
        items: &mut Taking<'_, X>,
        make: &mut impl FnMut(X) -> WorkRequest<M, K>,
    ) -> Option<WorkRequest<M, K>> {
        let (domain, most) = (queue.domain(), queue.most());
        let end = items.after(count);
        let mut adding = Adding { id: *next_id, of_batch: next_id };
        while items.next != end {
            // SAFETY: there is one: `end` is at most theirs.
            let request = make(unsafe { items.next() }).unsignalled();
            let Some(length) = request.plain_length(domain, most) else { return Some(request) };
            let (id, WorkRequest { memory, action, .. }) = (adding.id, request);
            adding.id = id.after(1);
            // SAFETY: so much fits in the queue, and in the row; the session is open.
            unsafe { self.add_plain(row, memory, &action, length, id) };
        }
        None
    }

    /// Makes the last request one of nothing: an element of length 0 means 2^31 bytes to some devices.
    ///
    /// # Safety
    ///
    /// As for [`add`](Self::add), of `qp`.
    #[cold]
    unsafe fn nothing(qp: *mut ibv_qp_ex) {
        // SAFETY: there (caller); a list of none.
        unsafe { verbs::ibv_wr_set_sge_list(qp, 0, &sys::NO_ELEMENT) };
    }
}

/// Where the bytes of a request are.
#[derive(Clone, Copy)]
enum Data {
    /// Of a request that the ledger has: looked up late, since it takes one register until then.
    Registered(NonNull<Descriptor>),
    List {
        elements: *const sys::ibv_sge,
        count: usize,
    },
    Inline(*const u8),
}

/// To whom a datagram goes.
#[derive(Clone, Copy)]
struct To {
    handle: *mut sys::ibv_ah,
    number: u32,
    qkey: u32,
}

impl Data {
    /// Those of `memory`, which then says `length` if the request fills it.
    #[inline(always)]
    fn of<B, M: Stageable<B>>(memory: &mut M, operation: Operation, length: u32) -> Self {
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

impl SendQueue {
    /// To whom the request with this id goes, if it is a datagram. The handle is kept.
    ///
    /// # Safety
    ///
    /// The id is that of a free slot, and the caller the only one who posts.
    #[inline(always)]
    unsafe fn recipient<B, M: Stageable<B>>(&self, id: WorkId, memory: &M) -> Option<To> {
        let to = memory.recipient(KEY)?;
        // SAFETY: the caller's promise.
        unsafe { self.keep(id, to) };
        Some(To { handle: to.handle().raw(), number: to.queue_pair().value(), qkey: to.qkey().0 })
    }
}

/// The flags of a request; the `last` that the queue has room for is signalled.
#[inline(always)]
fn flags(action: &Action, last: bool) -> u32 {
    action.flags | if last { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 }
}

impl SendQueue {
    /// Posts a request in a session of its own; the `last` that the queue has room for is signalled.
    ///
    /// # Safety
    ///
    /// There is room.
    #[inline(always)]
    pub(super) unsafe fn post_in_session<B, M: Stageable<B>, K, R>(
        &mut self,
        session: Extended,
        request: WorkRequest<M, K>,
        length: u32,
        last: bool,
    ) -> Result<WorkId, PostError<R>> {
        let id = self.id();
        let WorkRequest { mut memory, action, .. } = request;
        // SAFETY: there is room, and nobody else posts.
        let to = unsafe { self.recipient(id, &memory) };
        let data = Data::of(&mut memory, action.operation, length);
        let (entry, _) = memory.into_entry(action.operation, KEY);
        // SAFETY: as above.
        unsafe { self.poster.next().push(entry) };
        // SAFETY: of this queue, whose pair sends; nobody else posts (`&mut`).
        unsafe { session.start() };
        // SAFETY: open. The ledger owns the memory; what is inline is the caller's, who is waiting.
        unsafe { session.add(&action, flags(&action, last), data, to, length, id) };
        // SAFETY: open.
        match unsafe { session.complete() } {
            Ok(()) => Ok(id),
            Err(source) => {
                self.poison();
                Err(PostError::Uncertain { id, source })
            }
        }
    }
}

/// Notes what the id of the next request is, also when the program's code panics.
struct Adding<'b> {
    id: WorkId,
    of_batch: &'b mut WorkId,
}
impl Drop for Adding<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.of_batch = self.id;
    }
}

impl<'env, B, T> Batch<'_, 'env, B, T> {
    /// Opens a session, if none is.
    #[inline(always)]
    fn open(&mut self, session: Extended) {
        if !self.open {
            // SAFETY: of this queue, whose pair sends; nobody else posts (`&mut`).
            unsafe { session.start() };
            self.open = true;
        }
    }

    /// Adds a request, which fits, to the session. A function of its own, so that it takes no registers from lists.
    ///
    /// # Safety
    ///
    /// There is room.
    #[inline(never)]
    pub(super) unsafe fn add_in_session<M: Stageable<B>, K>(
        &mut self,
        session: Extended,
        request: WorkRequest<M, K>,
        length: u32,
        last: bool,
    ) {
        self.open(session);
        let id = self.id;
        let WorkRequest { mut memory, action, .. } = request;
        // SAFETY: there is room (caller); nobody else posts.
        let to = unsafe { self.queue.recipient(id, &memory) };
        let data = Data::of(&mut memory, action.operation, length);
        let (entry, _) = memory.into_entry(action.operation, KEY);
        // SAFETY: so much fits in the queue (caller); nobody else posts.
        unsafe { self.queue.poster.write_at(id.raw(), entry) };
        self.id = id.after(1);
        // SAFETY: open. The ledger has the memory; what is inline lives for `'env`, and is copied now.
        unsafe { session.add(&action, flags(&action, last), data, to, length, id) };
    }

    /// [`post_each`](Self::post_each), in the session.
    #[inline(always)]
    pub(super) fn post_each_in_session<M: Stageable<B> + 'env, K>(
        &mut self,
        session: Extended,
        mut requests: impl Iterator<Item = WorkRequest<M, K>>,
    ) -> Result<usize, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
        T: Carries<K>,
    {
        let (before, domain, most) = (self.id, self.queue.domain(), self.queue.most());
        loop {
            let mut row = self.queue.poster.row(self.id.raw()).at_most(self.plain_room());
            if !row.is_empty() {
                self.open(session);
            }
            let mut adding = Adding { id: self.id, of_batch: &mut self.id };
            let other = loop {
                let Some(request) = requests.next() else {
                    drop(adding);
                    return Ok(self.added_since(before));
                };
                let Some(length) = request.plain_length(domain, most).filter(|_| !row.is_empty()) else {
                    break request;
                };
                let (id, WorkRequest { memory, action, .. }) = (adding.id, request);
                adding.id = id.after(1);
                // SAFETY: so much fits in the queue, and in the row; the session is open.
                unsafe { session.add_plain(&mut row, memory, &action, length, id) };
            };
            drop(adding);
            self.post_any(other)?;
        }
    }

    /// Adds the requests that `make` makes of `items`, unsignalled, as far as their entries are in a row in the ledger,
    /// and up to one that is no ordinary one, which comes back; without the last, since what is in the session cannot be
    /// signalled any more.
    #[inline(always)]
    pub(super) fn add_row<X, M: Stageable<B> + 'env, K>(
        &mut self,
        session: Extended,
        items: &mut Taking<'_, X>,
        make: &mut impl FnMut(X) -> WorkRequest<M, K>,
    ) -> Option<WorkRequest<M, K>>
    where
        B: Brand,
        T: Carries<K>,
    {
        let mut row = self.queue.poster.row(self.id.raw());
        let room = self.plain_room().min(row.len()) as usize;
        let count = room.min(items.left().saturating_sub(1));
        if count != 0 {
            self.open(session);
        }
        // SAFETY: open, if it is for any; so many items, so much room in the queue and the row.
        unsafe { session.add_some(self.queue, &mut self.id, count, &mut row, items, make) }
    }

    /// Closes the session, if one is open, and hands what is in it to the device.
    #[inline(always)]
    pub(super) fn ring_session(&mut self, session: Extended) {
        let before = self.queue.id();
        if self.id == before {
            return self.abort_session();
        }
        self.open = false;
        self.queue.poster.publish(self.id.raw());
        // SAFETY: open.
        if let Err(source) = unsafe { session.complete() } {
            self.refused(before, source, ptr::null_mut());
        }
    }

    /// Closes the session of a batch that was abandoned, if one is open.
    #[cold]
    pub(super) fn abort_session(&mut self) {
        if let (true, Some(session)) = (mem::take(&mut self.open), self.queue.session()) {
            // SAFETY: open.
            unsafe { session.abort() };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
