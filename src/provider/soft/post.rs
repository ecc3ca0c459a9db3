//! Posting: the way into the work queues.
#![allow(unsafe_code, reason = "lists and pointers of the C interface")]

use super::data_path::HALF;
use super::{
    fabric::State,
    latitude::Latitudes,
    profile::Habits,
    request,
    session::Draft,
    transition::PairState,
    work::{Operation, Queue, ReceiveWork, Sges},
};
use crate::sys::{ibv_mw, ibv_mw_bind, ibv_recv_wr, ibv_send_wr};
use libc::c_int;
use std::ptr;

/// A post that was refused: all requests before `at` are posted. `at` is null where the device says nothing of it.
pub(super) struct Refused<W> {
    pub(super) errno: c_int,
    pub(super) at: *mut W,
}

/// The bytes of a request are copied.
const INLINE: u32 = crate::sys::ibv_send_flags::IBV_SEND_INLINE.0;
/// A request has a completion of its own.
const SIGNALED: u32 = crate::sys::ibv_send_flags::IBV_SEND_SIGNALED.0;

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
        let Habits { needs_signals, refuses_in_error, refuses_posts, halves_posts, .. } = self.latitudes.habits;
        self.touch_pair(index);
        // SAFETY: the first of the list, if there is one (caller).
        let is_list = unsafe { list.as_ref() }.is_some_and(|first| !first.next.is_null());
        let half = is_list && self.latitudes.once_in(halves_posts);
        let Some(pair) = self.pairs.get_mut(index) else { return Err(Refused { errno: libc::EINVAL, at: list }) };
        let sends = pair.state.takes_sends();
        let mut result = Ok(());
        let mut at = list;
        while !at.is_null() {
            // SAFETY: an element of the list (caller).
            let wr = unsafe { &*at };
            // SAFETY: the list of a request (caller).
            unsafe { self.latitudes.inspect(wr.sg_list, wr.num_sge, wr.send_flags & INLINE != 0) };
            let work = if !sends && kept.is_none() || refuses_in_error && pair.flushes_sends() {
                Err(libc::EINVAL)
            } else if self.latitudes.once_in(refuses_posts) {
                Err(libc::ENOMEM)
            } else if half && at != list {
                Err(HALF)
            } else if needs_signals && !pair.signal_all && wr.send_flags & SIGNALED == 0 {
                Err(libc::EINVAL)
            } else if pair.send.is_full() {
                Err(libc::ENOMEM)
            } else {
                // SAFETY: the caller's promise.
                unsafe { request::send_work(pair, wr) }
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
        pair.flush_withheld |= withheld && pair.flushes_sends();
        if let (Some(errno), Ok(())) = (kept, &result) {
            return Err(Refused { errno, at: ptr::null_mut() });
        }
        self.schedule(index);
        result
    }

    /// Posts the requests of a session, all of them or none. `kept` as in `post_send`.
    ///
    /// # Safety
    ///
    /// As for `ibv_wr_complete(3)`: the memory that the requests name belongs to the device until they complete.
    pub(super) unsafe fn post_session(
        &mut self,
        index: usize,
        drafts: &mut [Draft],
        kept: Option<c_int>,
    ) -> Result<(), c_int> {
        let withheld = self.faults.flush_withheld;
        self.touch_pair(index);
        let pair = self.pairs.get_mut(index).ok_or(libc::EINVAL)?;
        if !pair.state.takes_sends() && kept.is_none() {
            return Err(libc::EINVAL);
        }
        if pair.send.taken() + drafts.len() as u64 > u64::from(pair.send.depth()) {
            return Err(libc::ENOSPC);
        }
        // SAFETY: the caller's promise.
        let work = drafts.iter_mut().map(|draft| unsafe { request::send_work(pair, draft.request()) });
        for work in work.collect::<Result<Vec<_>, _>>()? {
            pair.send.push(work);
        }
        pair.flush_withheld |= withheld && pair.flushes_sends();
        if let Some(errno) = kept {
            return Err(errno);
        }
        self.schedule(index);
        Ok(())
    }

    /// Posts a bind of a window of type 1, which has its new key at once.
    ///
    /// # Safety
    ///
    /// As for `ibv_bind_mw(3)`.
    pub(super) unsafe fn post_bind(&mut self, index: usize, mw: *mut ibv_mw, bind: &ibv_mw_bind) -> Result<(), c_int> {
        self.touch_pair(index);
        let pair = self.pairs.get_mut(index).ok_or(libc::EINVAL)?;
        if !pair.state.takes_sends() {
            return Err(libc::EINVAL);
        }
        if pair.send.is_full() {
            return Err(libc::ENOMEM);
        }
        // SAFETY: the caller's promise.
        let work = unsafe { request::bind_work(pair, mw, bind) }?;
        if let Operation::Bind(bind) = work.operation {
            // SAFETY: alive, and nobody else's during the call (caller).
            unsafe { (*mw).rkey = bind.rkey };
        }
        pair.send.push(work);
        self.schedule(index);
        Ok(())
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
        self.touch_pair(index);
        let Some(pair) = self.pairs.get_mut(index) else { return Err(Refused { errno: libc::EINVAL, at: list }) };
        let refuses = self.latitudes.habits.refuses_in_error && pair.state == PairState::Error;
        let receives = pair.srq.is_none() && (pair.state != PairState::Reset || kept.is_some());
        if (!receives || refuses) && !list.is_null() {
            return Err(Refused { errno: libc::EINVAL, at: list });
        }
        // SAFETY: the caller's promise.
        let result = unsafe { push_receives(&mut self.latitudes, &mut pair.receive, list, pair.cap.max_recv_sge) };
        pair.flush_withheld |= withheld && pair.state == PairState::Error;
        if let (Some(errno), Ok(())) = (kept, &result) {
            return Err(Refused { errno, at: ptr::null_mut() });
        }
        self.schedule(index);
        result
    }

    /// Posts a list of requests to a shared receive queue.
    ///
    /// # Safety
    ///
    /// As for `ibv_post_srq_recv(3)`.
    pub(super) unsafe fn post_shared(
        &mut self,
        index: usize,
        list: *mut ibv_recv_wr,
    ) -> Result<(), Refused<ibv_recv_wr>> {
        self.touch_srq(index);
        let Some(srq) = self.srqs.get_mut(index) else { return Err(Refused { errno: libc::EINVAL, at: list }) };
        // SAFETY: the caller's promise.
        unsafe { push_receives(&mut self.latitudes, &mut srq.queue, list, srq.max_sge) }
    }
}

/// Puts a list of receives of at most `max_sge` entries each into a queue, until one does not fit.
///
/// # Safety
///
/// As for `ibv_post_recv(3)`.
unsafe fn push_receives(
    latitudes: &mut Latitudes,
    queue: &mut Queue<ReceiveWork>,
    list: *mut ibv_recv_wr,
    max_sge: u32,
) -> Result<(), Refused<ibv_recv_wr>> {
    let mut at = list;
    while !at.is_null() {
        // SAFETY: an element of the list (caller).
        let wr = unsafe { &*at };
        // SAFETY: the list of a request (caller).
        unsafe { latitudes.inspect(wr.sg_list, wr.num_sge, false) };
        let sges = if queue.is_full() || latitudes.takes(|habits| habits.refuses_posts) {
            Err(libc::ENOMEM)
        } else {
            // SAFETY: the caller's promise.
            unsafe { request::entries(wr.sg_list, wr.num_sge, max_sge) }
        };
        let sges = sges.map_err(|errno| Refused { errno, at })?;
        let sges = Sges::new(sges, || queue.spare_list());
        queue.push(ReceiveWork { id: wr.wr_id, sges });
        at = wr.next;
    }
    Ok(())
}
