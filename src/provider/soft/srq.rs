//! Shared receive queues: several queue pairs take their receives from one queue.
#![forbid(unsafe_code)]

use super::{
    completion::{Side, Slot},
    device,
    events::Subject,
    fabric::State,
    objects::{Raw, Table},
    work::{Queue, ReceiveWork},
};
use crate::sys::{ibv_event_type, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask as Mask};
use libc::c_int;

/// Shared receive queues.
pub(super) type Srqs = Table<Srq>;

/// A shared receive queue.
pub(super) struct Srq {
    pub(super) raw: Raw<ibv_srq>,
    /// The protection domain of the receives' memory. The domain of the receiving pair does not matter.
    pub(super) pd: usize,
    pub(super) device: usize,
    pub(super) queue: Queue<ReceiveWork>,
    /// Identifies the queue in the whole fabric.
    pub(super) epoch: u64,
    pub(super) max_sge: u32,
    /// An event is raised once, when fewer receives than this are left. 0 if no event is wanted.
    limit: u32,
    /// How many queue pairs use the queue.
    pub(super) users: u32,
    /// Whether a destroy of the queue failed, on a device where no verb may use the queue after that.
    pub(super) is_half_dead: bool,
}

impl State {
    /// Creates a queue.
    pub(super) fn create_srq(&mut self, pd: usize, attributes: &ibv_srq_attr) -> Result<usize, c_int> {
        let ibv_srq_attr { max_wr, max_sge, .. } = *attributes;
        if max_wr == 0 || max_wr > device::MAX_SRQ_WR || max_sge > device::MAX_SGE {
            return Err(libc::EINVAL);
        }
        let max_wr = self.latitudes.round_up(max_wr, device::MAX_SRQ_WR);
        let device = self.adopt(pd)?;
        let epoch = self.next_epoch();
        Ok(self.srqs.insert(Srq {
            raw: Raw::default(),
            pd,
            device,
            queue: Queue::new(max_wr),
            epoch,
            max_sge,
            limit: 0,
            users: 0,
            is_half_dead: false,
        }))
    }

    /// Checks everything, then changes size and limit. If there are already fewer receives than the limit, this raises
    /// the event.
    pub(super) fn modify_srq(&mut self, index: usize, new: &ibv_srq_attr, mask: Mask) -> Result<(), c_int> {
        let has = |bit: Mask| (mask & bit).0 != 0;
        let srq = self.srqs.get_mut(index).ok_or(libc::EINVAL)?;
        if mask.0 & !(Mask::IBV_SRQ_MAX_WR | Mask::IBV_SRQ_LIMIT).0 != 0 {
            return Err(libc::EINVAL);
        }
        let depth = if has(Mask::IBV_SRQ_MAX_WR) { new.max_wr } else { srq.queue.depth() };
        let limit = if has(Mask::IBV_SRQ_LIMIT) { new.srq_limit } else { srq.limit };
        let fits = depth > 0 && depth <= device::MAX_SRQ_WR && srq.queue.taken() <= u64::from(depth);
        if !fits || limit > depth {
            return Err(libc::EINVAL);
        }
        srq.queue.resize(depth);
        srq.limit = limit;
        self.tell_limit(index);
        Ok(())
    }

    pub(super) fn query_srq(&self, index: usize) -> Result<ibv_srq_attr, c_int> {
        let srq = self.srqs.get(index).ok_or(libc::EINVAL)?;
        Ok(ibv_srq_attr { max_wr: srq.queue.depth(), max_sge: srq.max_sge, srq_limit: srq.limit })
    }

    /// Destroys a queue. Receives in it are dropped silently.
    pub(super) fn destroy_srq(&mut self, index: usize) -> Result<(), c_int> {
        self.touch_srq(index);
        if self.srqs.get(index).ok_or(libc::EINVAL)?.users > 0 {
            return Err(libc::EBUSY);
        }
        self.forget(Subject::Srq(index));
        let srq = self.srqs.remove(index).ok_or(libc::EINVAL)?;
        self.release_pd(srq.pd);
        Ok(())
    }

    /// Raises the event once, if there are fewer receives than the limit.
    fn tell_limit(&mut self, index: usize) {
        let Some(srq) = self.srqs.get_mut(index) else { return };
        if srq.queue.len() < srq.limit as usize {
            srq.limit = 0;
            self.raise(ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED, Subject::Srq(index));
        }
    }

    /// The receive that the next message to a pair takes, and the protection domain of its memory.
    pub(super) fn next_receive(&self, pair: usize) -> Option<(&ReceiveWork, usize)> {
        let pair = self.pairs.get(pair)?;
        match pair.srq {
            Some(srq) => {
                let srq = self.srqs.get(srq)?;
                Some((srq.queue.front()?, srq.pd))
            }
            None => Some((pair.receive.front()?, pair.pd)),
        }
    }

    /// Removes the receive that [`next_receive`](Self::next_receive) returns. Returns its id and its slot.
    pub(super) fn pop_receive(&mut self, index: usize) -> Option<(u64, Slot)> {
        let pair = self.pairs.get_mut(index)?;
        let Some(shared) = pair.srq else {
            let (work, end) = pair.receive.pop()?;
            let id = work.id;
            pair.receive.recycle(work.sges);
            return Some((id, pair.slot(index, Side::Receive, end)));
        };
        let srq = self.srqs.get_mut(shared)?;
        let (work, end) = srq.queue.pop()?;
        let id = work.id;
        srq.queue.recycle(work.sges);
        let slot = Slot { side: Side::Shared, owner: shared, epoch: srq.epoch, end };
        self.tell_limit(shared);
        Some((id, slot))
    }
}
