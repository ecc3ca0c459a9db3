//! Extended completion queues: `ibv_start_poll` and the functions that read the fields of a completion.
#![allow(unsafe_code, reason = "C functions on raw objects")]

use super::{
    completion,
    data_path::failure,
    fault::Verb,
    handles::{Object, find},
};
use crate::sys::{
    ibv_cq, ibv_cq_ex, ibv_create_cq_wc_flags as Fields, ibv_poll_cq_attr, ibv_wc, ibv_wc_opcode, ibv_wc_status,
};
use libc::{c_int, c_uint};

/// The C struct of a completion queue, followed by the state of its poller.
#[repr(C)]
pub(super) struct SoftQueue {
    pub(super) base: ibv_cq_ex,
    progress: Progress,
}

/// The state of a poller.
struct Progress {
    lock: PollLock,
    /// The completion whose fields can be read. Between polls, all its fields are junk.
    current: ibv_wc,
}

/// The lock that a provider holds from `ibv_start_poll` to `ibv_end_poll`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PollLock {
    Free,
    Held,
    /// The lock was released while nobody held it. From then on nobody can take it.
    Broken,
}

/// The fields that this device has.
const FIELDS: Fields = Fields(
    Fields::IBV_WC_EX_WITH_BYTE_LEN.0
        | Fields::IBV_WC_EX_WITH_IMM.0
        | Fields::IBV_WC_EX_WITH_QP_NUM.0
        | Fields::IBV_WC_EX_WITH_SRC_QP.0
        | Fields::IBV_WC_EX_WITH_SLID.0
        | Fields::IBV_WC_EX_WITH_SL.0
        | Fields::IBV_WC_EX_WITH_DLID_PATH_BITS.0,
);

impl SoftQueue {
    /// A queue with the functions that were asked for. The other function pointers are null, as with any provider.
    pub(super) fn new(cq: ibv_cq, asked: Option<u64>) -> Result<Self, c_int> {
        let ibv_cq { context, channel, cq_context, cqe, .. } = cq;
        let mut base = ibv_cq_ex { context, channel, cq_context, cqe, ..ibv_cq_ex::default() };
        if let Some(asked) = asked {
            if asked & !u64::from(FIELDS.0) != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            fill(&mut base, |bit| asked & u64::from(bit.0) != 0);
        }
        Ok(Self { base, progress: Progress { lock: PollLock::Free, current: completion::undefined() } })
    }

    /// Sets the handle and the size of the queue.
    pub(super) fn name(&mut self, handle: u32, cqe: c_int) {
        self.base.handle = handle;
        self.base.cqe = cqe;
    }
}

/// Sets the functions of a queue. Functions that read a field are set only if `has` names the field.
fn fill(cq: &mut ibv_cq_ex, has: impl Fn(Fields) -> bool) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_byte_len = has(Fields::IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len as _);
    cq.read_imm_data = has(Fields::IBV_WC_EX_WITH_IMM).then_some(read_imm_data as _);
    cq.read_qp_num = has(Fields::IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num as _);
    cq.read_src_qp = has(Fields::IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp as _);
    cq.read_slid = has(Fields::IBV_WC_EX_WITH_SLID).then_some(read_slid as _);
    cq.read_sl = has(Fields::IBV_WC_EX_WITH_SL).then_some(read_sl as _);
    cq.read_dlid_path_bits = has(Fields::IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits as _);
}

/// The parts of a queue that its poller owns.
struct Polled<'a> {
    object: Object<'a, SoftQueue>,
    wr_id: &'a mut u64,
    status: &'a mut ibv_wc_status,
    progress: &'a mut Progress,
}

/// The parts of a queue that its poller owns.
///
/// # Safety
///
/// A live completion queue of this provider, which nobody else polls while the result is used.
unsafe fn polled<'a>(cq: *mut ibv_cq_ex) -> Polled<'a> {
    // Every queue of this provider is the beginning of a `SoftQueue`.
    let queue = cq.cast::<SoftQueue>();
    Polled {
        // SAFETY: the queue is alive (caller).
        object: unsafe { find(queue) },
        // SAFETY: the queue is alive, and only its poller uses this field (caller).
        wr_id: unsafe { &mut (*queue).base.wr_id },
        // SAFETY: the queue is alive, and only its poller uses this field (caller).
        status: unsafe { &mut (*queue).base.status },
        // SAFETY: the queue is alive, and only its poller uses this field (caller).
        progress: unsafe { &mut (*queue).progress },
    }
}

impl Polled<'_> {
    /// Makes a completion the current one, and copies two of its fields to the members of the C struct where C reads
    /// them.
    fn set_current(&mut self, wc: ibv_wc) {
        *self.wr_id = wc.wr_id;
        *self.status = wc.status;
        self.progress.current = wc;
    }

    /// Takes the next completion; `starts` is true for the first completion of a poll.
    fn advance(&mut self, starts: bool) -> c_int {
        let (fabric, index) = (self.object.context.fabric, self.object.index);
        let mut state = fabric.lock();
        state.latitudes.walks(!starts);
        if starts {
            let device = state.cqs.get(index).map(|cq| cq.device);
            if let Some(errno) = failure(&mut state, device, Verb::PollCq) {
                return errno;
            }
            state.settle();
        }
        let (wc, answer) = match state.poll(index) {
            Ok(Some(wc)) => (wc, 0),
            Ok(None) => (completion::undefined(), libc::ENOENT),
            Err(errno) => (completion::undefined(), errno),
        };
        self.set_current(wc);
        answer
    }
}

/// # Safety
///
/// This holds for this function and all below: the caller does as `ibv_create_cq_ex(3)` requires, on a live completion
/// queue of this provider.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attributes: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: `attributes` points to readable memory (caller).
    if unsafe { (*attributes).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the queue is alive, and nobody else polls it (caller).
    let mut queue = unsafe { polled(cq) };
    if queue.progress.lock != PollLock::Free {
        return libc::EDEADLK;
    }
    let answer = queue.advance(true);
    if answer == 0 {
        queue.progress.lock = PollLock::Held;
    }
    answer
}

/// Defines functions of `ibv_cq_ex`. Each body gets the parts of its queue that the poller owns.
macro_rules! functions {
    ($(fn $name:ident($queue:ident) $(-> $type:ty)? $body:block)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) $(-> $type)? {
            // SAFETY: the queue is alive, and nobody else polls it (caller).
            #[allow(unused_mut, reason = "some only read")]
            let mut $queue = unsafe { polled(cq) };
            $body
        }
    )*};
}
functions! {
    fn next_poll(queue) -> c_int {
        if queue.progress.lock == PollLock::Held { queue.advance(false) } else { libc::EINVAL }
    }

    fn end_poll(queue) {
        let was_held = queue.progress.lock == PollLock::Held;
        queue.progress.lock = if was_held { PollLock::Free } else { PollLock::Broken };
        // After the end of a poll, a program must not read the fields of the last completion. Set them to junk, so that
        // tests notice such a read.
        queue.set_current(completion::undefined());
    }

    fn read_opcode(queue) -> ibv_wc_opcode { queue.progress.current.opcode }

    fn read_vendor_err(queue) -> u32 { queue.progress.current.vendor_err }

    fn read_byte_len(queue) -> u32 { queue.progress.current.byte_len }

    fn read_imm_data(queue) -> u32 {
        // SAFETY: each member of the union is a number of 4 bytes. The device sets these bytes in every completion.
        unsafe { queue.progress.current.__bindgen_anon_1.imm_data }
    }

    fn read_qp_num(queue) -> u32 { queue.progress.current.qp_num }

    fn read_src_qp(queue) -> u32 { queue.progress.current.src_qp }

    fn read_wc_flags(queue) -> c_uint { queue.progress.current.wc_flags }

    fn read_slid(queue) -> u32 { u32::from(queue.progress.current.slid) }

    fn read_sl(queue) -> u8 { queue.progress.current.sl }

    fn read_dlid_path_bits(queue) -> u8 { queue.progress.current.dlid_path_bits }
}
