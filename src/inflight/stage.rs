//! Requests in the form that the provider reads, and the stage where a batch keeps such requests until it rings.
//!
//! The members of a request are [`Cell`]s: the requests of a stage point to each other, so shared references to all of
//! them exist at once. Members that the provider does not always read are `MaybeUninit`, so that they need not be
//! initialized.
#![forbid(unsafe_code)]

use super::cell::with_local;
use super::request::{Accepted, Postable, SIGNALED};
use super::{Entry, Operation, QueueKind, WorkId};
use crate::seal::KEY;
use crate::sys::{self, ibv_send_flags, ibv_send_wr, ibv_wr_opcode};
use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::mem::{MaybeUninit, offset_of};
use std::ptr;

/// The most requests that a batch hands to the device at once.
pub(crate) const STAGED: usize = 32;

type Immediate = sys::ibv_send_wr__bindgen_ty_1;
type Target = sys::ibv_send_wr__bindgen_ty_2;
type Rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1;
type Atomic = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2;
type Datagram = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_3;
type Shared = sys::ibv_send_wr__bindgen_ty_3;
type Other = sys::ibv_send_wr__bindgen_ty_4;
type Bind = sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1;

/// A request in the form that the provider reads: the members of an [`ibv_send_wr`], and behind them the element of an
/// inline request. Of the unions the provider reads only the member that the opcode uses, with one exception: the
/// provider of rxe reads the immediate of each request, and refuses a bind whose immediate is not 0.
#[repr(C)]
pub(super) struct Staged {
    wr_id: Cell<u64>,
    next: Cell<*mut ibv_send_wr>,
    sg_list: Cell<*mut sys::ibv_sge>,
    num_sge: Cell<c_int>,
    opcode: Cell<ibv_wr_opcode>,
    send_flags: Cell<c_uint>,
    immediate: Cell<Immediate>,
    target: Cell<MaybeUninit<Target>>,
    _shared: Cell<MaybeUninit<Shared>>,
    other: Cell<MaybeUninit<Other>>,
    /// The element of an inline request. Other requests point to an element in a descriptor.
    element: Cell<MaybeUninit<sys::ibv_sge>>,
}
const _: () = {
    assert!(offset_of!(Staged, wr_id) == offset_of!(ibv_send_wr, wr_id));
    assert!(offset_of!(Staged, next) == offset_of!(ibv_send_wr, next));
    assert!(offset_of!(Staged, sg_list) == offset_of!(ibv_send_wr, sg_list));
    assert!(offset_of!(Staged, num_sge) == offset_of!(ibv_send_wr, num_sge));
    assert!(offset_of!(Staged, opcode) == offset_of!(ibv_send_wr, opcode));
    assert!(offset_of!(Staged, send_flags) == offset_of!(ibv_send_wr, send_flags));
    assert!(offset_of!(Staged, immediate) == offset_of!(ibv_send_wr, __bindgen_anon_1));
    assert!(offset_of!(Staged, target) == offset_of!(ibv_send_wr, wr));
    assert!(offset_of!(Staged, _shared) == offset_of!(ibv_send_wr, qp_type));
    assert!(offset_of!(Staged, other) == offset_of!(ibv_send_wr, __bindgen_anon_2));
    assert!(offset_of!(Staged, element) >= size_of::<ibv_send_wr>());
    assert!(align_of::<Staged>() >= align_of::<ibv_send_wr>());
};

/// The memory of a request that was staged, taken apart.
pub(super) struct Taken<R> {
    /// The entry for the ledger, which must have it before the doorbell rings.
    pub(super) entry: Entry,
    pub(super) rest: R,
    /// If the request fills one buffer: how many bytes of the buffer were filled before. Otherwise 0.
    pub(super) filled_before: usize,
}

impl Staged {
    pub(super) const fn new() -> Self {
        Self {
            wr_id: Cell::new(0),
            next: Cell::new(ptr::null_mut()),
            sg_list: Cell::new(ptr::null_mut()),
            num_sge: Cell::new(0),
            opcode: Cell::new(ibv_wr_opcode::IBV_WR_RDMA_WRITE),
            send_flags: Cell::new(0),
            immediate: Cell::new(Immediate { imm_data: 0 }),
            target: Cell::new(MaybeUninit::uninit()),
            _shared: Cell::new(MaybeUninit::uninit()),
            other: Cell::new(MaybeUninit::uninit()),
            element: Cell::new(MaybeUninit::uninit()),
        }
    }

    /// A pointer to the request, for the provider.
    #[inline(always)]
    pub(super) fn as_wr(&self) -> *mut ibv_send_wr {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// Splits a request: writes the device's part into `self`, and returns the entry for the ledger. `last`: the
    /// request takes the queue's last free slot, so it is signalled.
    ///
    /// An inline request points to the element in `self`.
    #[inline(always)]
    pub(super) fn fill<const PLAIN: bool, B, M: Postable<B>>(
        &self,
        request: Accepted<M, PLAIN>,
        id: WorkId,
        last: bool,
    ) -> Taken<M::Rest> {
        let (mut memory, action, length) = request.into_parts();
        let mut flags = action.flags | if last { SIGNALED } else { 0 };
        let (mut count, mut filled_before) = (1, 0);
        let sg_list = if let Some(part) = memory.part(KEY) {
            if action.operation.fills() {
                filled_before = part.filled();
                part.set_filled(length as usize);
            }
            // The element covers the filled bytes, which are `length` bytes. For a send or a write, `length` is the
            // number of filled bytes. For a read or an atomic, `set_filled` has just set that number to `length`.
            part.element()
        } else if let Some(list) = memory.list(KEY) {
            if action.operation.fills() {
                list.note();
                list.fill(length as usize);
            }
            let (elements, filled) = list.filled_elements();
            count = filled;
            elements
        } else {
            flags |= ibv_send_flags::IBV_SEND_INLINE.0;
            // The provider makes a pointer of this address, and reads the bytes through it when the request is posted.
            let addr = memory.bytes(KEY).as_ptr().expose_provenance() as u64;
            self.element.set(MaybeUninit::new(sys::ibv_sge { addr, length, lkey: 0 }));
            self.element.as_ptr().cast()
        };
        if !PLAIN && length == 0 {
            // An element of length 0 means 2^31 bytes to some devices.
            count = 0;
        }
        self.wr_id.set(id.raw());
        self.sg_list.set(sg_list);
        self.num_sge.set(count as c_int);
        self.opcode.set(action.opcode);
        self.send_flags.set(flags);
        if action.has_immediate() {
            self.immediate.set(Immediate { imm_data: action.immediate_be });
        }
        if let Some(to) = memory.recipient(KEY) {
            let (ah, remote_qpn, remote_qkey) = (to.handle.raw(), to.queue_pair.value(), to.qkey.0);
            self.aim(Target { ud: Datagram { ah, remote_qpn, remote_qkey } });
        }
        match action.operation {
            Operation::Write | Operation::Read => {
                let (remote_addr, rkey) = (action.remote_addr, action.rkey);
                self.aim(Target { rdma: Rdma { remote_addr, rkey } });
            }
            Operation::CompareAndSwap | Operation::FetchAndAdd => {
                let (remote_addr, rkey) = (action.remote_addr, action.rkey);
                let (compare_add, swap) = (action.compare_add, action.swap);
                self.aim(Target { atomic: Atomic { remote_addr, compare_add, swap, rkey } });
            }
            // Sends have no remote address. The others never come here: receives are not staged, atomic writes go in
            // sessions only, and requests about windows are filled by other functions.
            Operation::Send | Operation::Receive | Operation::AtomicWrite | Operation::Bind | Operation::Revoke => {}
        }
        let (entry, rest) = memory.into_entry(action.operation, KEY);
        Taken { entry, rest, filled_before }
    }

    #[inline(always)]
    fn aim(&self, target: Target) {
        self.target.set(MaybeUninit::new(target));
    }

    /// Makes this a signalled request without bytes.
    pub(super) fn fill_empty(&self, wr_id: u64, opcode: ibv_wr_opcode) {
        self.wr_id.set(wr_id);
        self.sg_list.set((&raw const sys::NO_ELEMENT).cast_mut());
        self.num_sge.set(0);
        self.opcode.set(opcode);
        self.send_flags.set(SIGNALED);
    }

    /// Makes the request invalidate the key `rkey`, by an `opcode` that does so.
    pub(super) fn invalidate(&self, opcode: ibv_wr_opcode, rkey: u32) {
        self.opcode.set(opcode);
        self.immediate.set(Immediate { invalidate_rkey: rkey });
    }

    /// Makes the request bind a window of type 2.
    pub(super) fn bind(&self, mw: *mut sys::ibv_mw, rkey: u32, bind_info: sys::ibv_mw_bind_info) {
        self.opcode.set(ibv_wr_opcode::IBV_WR_BIND_MW);
        self.immediate.set(Immediate { imm_data: 0 });
        self.other.set(MaybeUninit::new(Other { bind_mw: Bind { mw, rkey, bind_info } }));
    }
}

/// Restores the filled length of memory that a request would have filled. The request was not posted.
#[cold]
pub(super) fn undo_fill(entry: &Entry, filled_before: usize) {
    if !entry.operation(QueueKind::Send).fills() {
        return;
    }
    if let Some(part) = entry.part() {
        part.set_filled(filled_before);
    } else if let Some(list) = entry.as_list() {
        list.restore();
    }
}

/// A place for one request in a stage.
pub(super) struct Slot {
    staged: Staged,
    /// See [`Taken::filled_before`].
    filled_before: Cell<usize>,
}
// A pointer to a slot is also a pointer to its request.
const _: () = assert!(offset_of!(Slot, staged) == 0);

impl Slot {
    const fn new() -> Self {
        Self { staged: Staged::new(), filled_before: Cell::new(0) }
    }

    /// [Fills](Staged::fill) the slot. Returns the entry for the ledger.
    #[inline(always)]
    pub(super) fn fill<const PLAIN: bool, B, M: Postable<B>>(
        &self,
        request: Accepted<M, PLAIN>,
        id: WorkId,
        last: bool,
    ) -> Entry {
        let fills = request.action().operation.fills();
        let Taken { entry, filled_before, .. } = self.staged.fill(request, id, last);
        if fills {
            self.filled_before.set(filled_before);
        }
        entry
    }

    /// Makes the request a signalled one.
    #[inline(always)]
    pub(super) fn signal(&self) {
        let flags = &self.staged.send_flags;
        flags.set(flags.get() | SIGNALED);
    }

    /// Undoes what [`fill`](Self::fill) did to the memory of `entry`.
    pub(super) fn undo_fill(&self, entry: &Entry) {
        undo_fill(entry, self.filled_before.get());
    }
}

/// The next slots of a stage, in order.
pub(super) type Slots<'s> = std::slice::Iter<'s, Slot>;

/// The slots for the requests of a batch. Each request is linked to the next one.
struct Stage([Slot; STAGED]);

impl Stage {
    const fn new() -> Self {
        Self([const { Slot::new() }; STAGED])
    }

    #[cold]
    fn link(&self) {
        for (slot, next) in self.0.iter().zip(&self.0[1..]) {
            slot.staged.next.set(next.staged.as_wr());
        }
    }
}

/// The first requests of a stage, as a list. While this exists, the last of them is not linked to the next slot.
pub(super) struct Chain<'s> {
    first: &'s Slot,
    last: &'s Slot,
    /// A pointer to the end of the last slot. It is derived from the slice of all slots: a pointer derived from the
    /// last slot may not be used to read the next slot.
    after: *const Slot,
}

impl<'s> Chain<'s> {
    /// The first `count` of the slots; `None` if there are fewer, or if `count` is 0.
    #[inline(always)]
    pub(super) fn of(slots: &'s [Slot], count: usize) -> Option<Self> {
        let last = slots.get(count.wrapping_sub(1))?;
        last.staged.next.set(ptr::null_mut());
        Some(Self { first: slots.first()?, last, after: slots.as_ptr().wrapping_add(count) })
    }

    #[inline(always)]
    pub(super) fn first(&self) -> &'s Staged {
        &self.first.staged
    }
}

impl Drop for Chain<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // After the last slot of the stage, `after` points past the end of the stage. No provider follows that link: a
        // list cannot go on after the last slot, so `Chain::of` sets the link to null before such a list is posted.
        self.last.staged.next.set(self.after.cast_mut().cast());
    }
}

/// How a thread's stage is used now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Usage {
    Unlinked,
    Free,
    Taken,
}

type ThreadStage = (Cell<Usage>, Stage);

thread_local! {
    /// One stage serves all batches of a thread, so it is linked only once, and queue pairs need no stages.
    static THREAD_STAGE: ThreadStage = const { (Cell::new(Usage::Unlinked), Stage::new()) };
}

/// Restores the usage of the thread's stage when a batch is over.
struct RestoreUsage<'t>(&'t Cell<Usage>, Usage);

impl Drop for RestoreUsage<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Lends `f` a linked stage that nobody else uses: the thread's stage, or a new one while another batch uses the
/// thread's.
#[inline(always)]
pub(super) fn with_stage<R>(f: impl FnOnce(&[Slot]) -> R) -> R {
    with_local(&THREAD_STAGE, |(usage, of_thread)| {
        let mut spare = None;
        let (stage, after) = match usage.replace(Usage::Taken) {
            Usage::Free => (of_thread, Usage::Free),
            before => linked(before, of_thread, &mut spare),
        };
        let _restore = RestoreUsage(usage, after);
        f(&stage.0)
    })
}

#[cold]
#[inline(never)]
fn linked<'s>(before: Usage, of_thread: &'s Stage, spare: &'s mut Option<Stage>) -> (&'s Stage, Usage) {
    let (stage, after): (&Stage, _) =
        if before == Usage::Taken { (spare.insert(Stage::new()), Usage::Taken) } else { (of_thread, Usage::Free) };
    stage.link();
    (stage, after)
}
