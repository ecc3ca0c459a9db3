//! A request on its way to the provider: taken apart into what the device reads and what the ledger keeps.
#![allow(unsafe_code, reason = "writes the provider's structs, which point into themselves")]

use super::request::Action;
use super::request::sealed::Stageable;
use crate::inflight::{Entry, Operation, QueueKind, WorkId};
use crate::seal::KEY;
use crate::sys::{self, ibv_send_flags};

/// A request as the provider reads it.
#[repr(C)]
pub(super) struct Staged {
    pub(super) wr: sys::ibv_send_wr,
    /// The element of an inline request. Others have it in their descriptor.
    element: sys::ibv_sge,
    /// How much of the memory was filled before, in case it comes back.
    filled_before: usize,
}

impl Staged {
    /// Makes the request point to `next`.
    ///
    /// # Safety
    ///
    /// `this` may be written.
    #[inline(always)]
    pub(super) unsafe fn link(this: *mut Self, next: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { (*this).wr.next = next.cast() };
    }

    /// Takes a request apart: into `this` for the device, and into an entry for the ledger. The device does not know it yet.
    /// The `last` that the queue has room for is signalled. The `length` is not 0.
    ///
    /// # Safety
    ///
    /// `this` may be written, was linked, and stays where it is until it was rung: the request may point to its own element.
    #[inline(always)]
    pub(super) unsafe fn stage<B, M: Stageable<B>>(
        this: *mut Self,
        mut memory: M,
        action: &Action,
        length: u32,
        id: WorkId,
        last: bool,
    ) -> (Entry, M::Rest) {
        let mut flags = action.flags | if last { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        let mut count = 1;
        let sg_list = if let Some(part) = memory.part(KEY) {
            if action.operation.fills() {
                // SAFETY: may be written (caller).
                unsafe { (*this).filled_before = part.filled() };
                part.set_filled(length as usize);
            }
            // It says `length`: what is filled, or was made so.
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
            // The provider reads them when the request is posted.
            let addr = memory.bytes(KEY).as_ptr().expose_provenance() as u64;
            // SAFETY: may be written (caller).
            unsafe { (*this).element = sys::ibv_sge { addr, length, lkey: 0 } };
            // SAFETY: as above.
            unsafe { &raw mut (*this).element }
        };
        #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one struct, member by member")]
        // SAFETY: may be written (caller); each member is written in place. What the opcode does not use is left alone.
        unsafe {
            let wr = &raw mut (*this).wr;
            (&raw mut (*wr).wr_id).write(id.raw());
            (&raw mut (*wr).sg_list).write(sg_list);
            (&raw mut (*wr).num_sge).write(count as i32);
            (&raw mut (*wr).opcode).write(action.opcode);
            (&raw mut (*wr).send_flags).write(flags);
            if action.has_immediate() {
                (&raw mut (*wr).__bindgen_anon_1.imm_data).write(action.immediate_be);
            }
            if let Some(to) = memory.recipient(KEY) {
                (&raw mut (*wr).wr.ud.ah).write(to.handle().raw());
                (&raw mut (*wr).wr.ud.remote_qpn).write(to.queue_pair().value());
                (&raw mut (*wr).wr.ud.remote_qkey).write(to.qkey().0);
            }
            match action.operation {
                Operation::Write | Operation::Read => {
                    (&raw mut (*wr).wr.rdma.remote_addr).write(action.remote_addr);
                    (&raw mut (*wr).wr.rdma.rkey).write(action.rkey);
                }
                Operation::CompareAndSwap | Operation::FetchAndAdd => {
                    (&raw mut (*wr).wr.atomic.remote_addr).write(action.remote_addr);
                    (&raw mut (*wr).wr.atomic.rkey).write(action.rkey);
                    (&raw mut (*wr).wr.atomic.compare_add).write(action.compare_add);
                    (&raw mut (*wr).wr.atomic.swap).write(action.swap);
                }
                // An atomic write goes in sessions only, and what is about windows is posted otherwise.
                Operation::Send | Operation::Receive | Operation::AtomicWrite | Operation::Bind | Operation::Revoke => {
                }
            }
        }
        memory.into_entry(action.operation, KEY)
    }

    /// [`stage`](Self::stage) of a request that may be one of nothing: an element of length 0 means 2^31 bytes to some
    /// devices.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn stage_any<B, M: Stageable<B>>(
        this: *mut Self,
        memory: M,
        action: &Action,
        length: u32,
        id: WorkId,
        last: bool,
    ) -> (Entry, M::Rest) {
        // SAFETY: the caller's promise.
        let staged = unsafe { Self::stage(this, memory, action, length, id, last) };
        if length == 0 {
            // SAFETY: may be written (caller).
            unsafe { (*this).wr.num_sge = 0 };
        }
        staged
    }

    /// Lets it make a completion.
    ///
    /// # Safety
    ///
    /// `this` is staged.
    #[inline(always)]
    pub(super) unsafe fn signal(this: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { (*this).wr.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0 };
    }

    /// Lets a send end a window of the peer.
    ///
    /// # Safety
    ///
    /// `this` is a staged send.
    pub(super) unsafe fn invalidate(this: *mut Self, rkey: u32) {
        // SAFETY: the caller's promise.
        let wr = unsafe { &mut (*this).wr };
        wr.opcode = sys::ibv_wr_opcode::IBV_WR_SEND_WITH_INV;
        wr.__bindgen_anon_1.invalidate_rkey = rkey;
    }

    /// Undoes what [`stage`](Self::stage) did to the memory of `entry`.
    ///
    /// # Safety
    ///
    /// It was staged in `this`.
    pub(super) unsafe fn unstage(this: *const Self, entry: &Entry) {
        if !entry.operation(QueueKind::Send).fills() {
            return;
        }
        if let Some(part) = entry.part() {
            // SAFETY: written when it was staged (caller).
            part.set_filled(unsafe { (*this).filled_before });
        } else if let Some(list) = entry.as_list() {
            list.restore();
        }
    }
}
