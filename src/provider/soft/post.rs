//! Posting: checks requests and puts them into the work queues.
#![forbid(unsafe_code)]

use super::{
    fabric::State,
    handles::Handle,
    latitude::Latitudes,
    posted::{BindRequest, Post},
    profile::Habits,
    request,
    session::Draft,
    transition::PairState,
    work::{Operation, Queue, ReceiveWork, Sges},
};
use crate::sys::{ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_srq};
use libc::c_int;
use std::ptr;

/// A post that was refused. All requests before `at` are posted. `at` is null if the device does not name a request.
pub(super) struct Refused<W> {
    pub(super) errno: c_int,
    pub(super) at: *mut W,
}

/// The result of a post that queued only the beginning of its list: success.
const HALF: c_int = 0;

impl State {
    /// Posts a list of requests to the send queue. If an injected fault gives the error `kept`, the post returns that
    /// error, but queues the requests, in any state and without starting them.
    pub(super) fn post_send(
        &mut self,
        list: &Post<'_, ibv_qp, ibv_send_wr>,
        kept: Option<c_int>,
    ) -> Result<(), Refused<ibv_send_wr>> {
        let index = list.object.index;
        let withheld = self.faults.flush_withheld || self.latitudes.habits.forgets_in_error;
        let Habits { needs_signals, refuses_in_error, refuses_posts, halves_posts, .. } = self.latitudes.habits;
        self.touch_pair(index);
        let has_several = list.iter().nth(1).is_some();
        let half = has_several && self.latitudes.once_in(halves_posts);
        let first = list.first();
        let Some(pair) = self.pairs.get_mut(index) else { return Err(Refused { errno: libc::EINVAL, at: first }) };
        let sends = pair.state.takes_sends();
        let mut result = Ok(());
        for wr in list.iter() {
            let has = |flag: ibv_send_flags| wr.send_flags & flag.0 != 0;
            self.latitudes.inspect(&wr, has(ibv_send_flags::IBV_SEND_INLINE));
            let work = if !sends && kept.is_none() || refuses_in_error && pair.flushes_sends() {
                Err(libc::EINVAL)
            } else if self.latitudes.once_in(refuses_posts) {
                Err(libc::ENOMEM)
            } else if half && wr.at != first {
                Err(HALF)
            } else if needs_signals && !pair.signal_all && !has(ibv_send_flags::IBV_SEND_SIGNALED) {
                Err(libc::EINVAL)
            } else if pair.send.is_full() {
                Err(libc::ENOMEM)
            } else {
                request::send_work(pair, &wr)
            };
            match work {
                Ok(work) => pair.send.push(work),
                Err(errno) => {
                    result = Err(Refused { errno, at: wr.at });
                    break;
                }
            }
        }
        pair.flush_withheld |= withheld && pair.flushes_sends();
        if let (Some(errno), Ok(())) = (kept, &result) {
            return Err(Refused { errno, at: ptr::null_mut() });
        }
        self.schedule(index);
        result
    }

    /// Posts all requests of a session, or none of them. `kept` is as in `post_send`.
    pub(super) fn post_session(&mut self, index: usize, drafts: &[Draft], kept: Option<c_int>) -> Result<(), c_int> {
        let withheld = self.faults.flush_withheld || self.latitudes.habits.forgets_in_error;
        let Habits { needs_signals, refuses_in_error, refuses_posts, .. } = self.latitudes.habits;
        self.touch_pair(index);
        let pair = self.pairs.get_mut(index).ok_or(libc::EINVAL)?;
        let refuses = refuses_in_error && pair.flushes_sends();
        let lacks_signal = needs_signals && !pair.signal_all && !drafts.iter().all(Draft::is_signaled);
        if !pair.state.takes_sends() && kept.is_none() || refuses || lacks_signal {
            return Err(libc::EINVAL);
        }
        if self.latitudes.once_in(refuses_posts) {
            return Err(libc::ENOMEM);
        }
        if pair.send.taken() + drafts.len() as u64 > u64::from(pair.send.depth()) {
            return Err(libc::ENOSPC);
        }
        let work = drafts.iter().map(|draft| draft.work(pair));
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

    /// Posts a bind of a window of type 1. The window has its new key when this function returns.
    pub(super) fn post_bind(&mut self, index: usize, request: &mut BindRequest<'_>) -> Result<(), c_int> {
        self.touch_pair(index);
        let pair = self.pairs.get_mut(index).ok_or(libc::EINVAL)?;
        if !pair.state.takes_sends() {
            return Err(libc::EINVAL);
        }
        if pair.send.is_full() {
            return Err(libc::ENOMEM);
        }
        let work = request::bind_work(pair, request)?;
        if let Operation::Bind(bind) = &work.operation {
            request.grant(bind);
        }
        pair.send.push(work);
        self.schedule(index);
        Ok(())
    }

    /// Posts a list of requests to the receive queue. `kept` is as in `post_send`.
    pub(super) fn post_receive(
        &mut self,
        list: &Post<'_, ibv_qp, ibv_recv_wr>,
        kept: Option<c_int>,
    ) -> Result<(), Refused<ibv_recv_wr>> {
        let index = list.object.index;
        let withheld = self.faults.flush_withheld || self.latitudes.habits.forgets_in_error;
        self.touch_pair(index);
        let first = list.first();
        let Some(pair) = self.pairs.get_mut(index) else { return Err(Refused { errno: libc::EINVAL, at: first }) };
        let refuses = self.latitudes.habits.refuses_in_error && pair.state == PairState::Error;
        let receives = pair.srq.is_none() && (pair.state != PairState::Reset || kept.is_some());
        if (!receives || refuses) && !first.is_null() {
            return Err(Refused { errno: libc::EINVAL, at: first });
        }
        let result = push_receives(&mut self.latitudes, &mut pair.receive, list, pair.cap.max_recv_sge);
        pair.flush_withheld |= withheld && pair.state == PairState::Error;
        if let (Some(errno), Ok(())) = (kept, &result) {
            return Err(Refused { errno, at: ptr::null_mut() });
        }
        self.schedule(index);
        result
    }

    /// Posts a list of requests to a shared receive queue.
    pub(super) fn post_shared(&mut self, list: &Post<'_, ibv_srq, ibv_recv_wr>) -> Result<(), Refused<ibv_recv_wr>> {
        let index = list.object.index;
        self.touch_srq(index);
        let first = list.first();
        let Some(srq) = self.srqs.get_mut(index) else { return Err(Refused { errno: libc::EINVAL, at: first }) };
        push_receives(&mut self.latitudes, &mut srq.queue, list, srq.max_sge)
    }
}

/// Appends receives of at most `max_sge` elements each to a queue, until one is refused.
fn push_receives<T: Handle>(
    latitudes: &mut Latitudes,
    queue: &mut Queue<ReceiveWork>,
    list: &Post<'_, T, ibv_recv_wr>,
    max_sge: u32,
) -> Result<(), Refused<ibv_recv_wr>> {
    for wr in list.iter() {
        latitudes.inspect(&wr, false);
        let elements = if queue.is_full() || latitudes.takes(|habits| habits.refuses_posts) {
            Err(libc::ENOMEM)
        } else {
            wr.elements(max_sge)
        };
        let elements = elements.map_err(|errno| Refused { errno, at: wr.at })?;
        let sges = Sges::new(elements, || queue.spare_list());
        queue.push(ReceiveWork { id: wr.wr_id, sges });
    }
    Ok(())
}
