//! The verbs that give out the [rights to post](super::rights), and those after which the device is done with what was
//! posted.
#![forbid(unsafe_code)]

use super::rights::{PostEnd, PostRight, Rights};
use super::{Handle, Object, Pair, SharedQueue};
use crate::provider::reviewed::Promises;
use crate::sys::inline::{PostReceive, PostSend, PostShared};
use crate::sys::{self, ibv_qp, ibv_qp_attr_mask as Mask, ibv_qp_state, ibv_srq};
use crate::verb_error::VerbError;

/// Shows that the device is done with every request of a work queue, completed or not: its queue pair was destroyed or
/// reset, or its shared receive queue was destroyed.
///
/// Without this proof, the ledger does not release a request that has not completed. Only the verbs in this file make
/// the proof. It travels with the place of the work queue to the poller that empties the ledger, and is used for the
/// ledger of that work queue only.
#[derive(Clone, Debug)]
pub(crate) struct Quiescent(());

impl Quiescent {
    /// For tests without a device.
    #[cfg(test)]
    pub(crate) fn without_device() -> Self {
        Self(())
    }
}

impl<T: Object<Kept = Rights>> Handle<T> {
    /// Ends the object with `verb`. After a success, the device accesses nothing for the object's own work queues.
    ///
    /// `rights`: all rights that were given out; `None` if none exists any more. After a failure, the caller gets the
    /// rights back. `EBUSY`: a right exists that is not in `rights`, or one of `rights` is of another object.
    fn end_with<const N: usize>(
        &mut self,
        verb: &'static str,
        rights: Option<[PostRight; N]>,
    ) -> Result<Quiescent, (VerbError, Option<[PostRight; N]>)> {
        if !rights.iter().flatten().all(|right| self.kept.owns(right)) {
            return Err((VerbError::new(verb, libc::EBUSY), rights));
        }
        let had_rights = rights.is_some();
        // Drop the rights first: `end` refuses while a right exists.
        drop(rights);
        match self.end() {
            Ok(()) => Ok(Quiescent(())),
            Err(error) => Err((error, had_rights.then(|| [(); N].map(|()| self.kept.right())))),
        }
    }
}

impl Pair {
    /// The means to post to the two queues of the pair; `None` the second time, or if the provider has no such
    /// functions.
    pub(crate) fn post_ends(&mut self) -> Option<(PostEnd<ibv_qp, PostSend>, PostEnd<ibv_qp, PostReceive>)> {
        let functions = self.needs.domain.needs().functions();
        let (post_send, post_receive) = functions.post_send.zip(functions.post_recv)?;
        if !self.is_alive || !self.kept.give_out() {
            return None;
        }
        let has_sessions = self.kept.has_sessions;
        let send = PostEnd::new(self.raw, post_send, self.kept.right(), has_sessions);
        Some((send, PostEnd::new(self.raw, post_receive, self.kept.right(), has_sessions)))
    }

    /// `ibv_destroy_qp`. `rights` are those of both queues; `None` if the queues were dropped or never made. If the
    /// pair is not destroyed, the rights come back. `EBUSY`: somebody else can post.
    pub(crate) fn destroy(
        &mut self,
        rights: Option<[PostRight; 2]>,
    ) -> Result<Quiescent, (VerbError, Option<[PostRight; 2]>)> {
        self.end_with("ibv_destroy_qp", rights)
    }

    /// Moves the pair to Reset, twice.
    ///
    /// During the first call, soft-RoCE (Linux 6.12 at least) notes where its send queue begins before it empties the
    /// queue. After the reset the pair would send what it finds from there on, and read memory that has come back to
    /// the program. A request that fails at that moment also moves the pair to Error, unnoticed by the call. The second
    /// call finds nothing in flight.
    ///
    /// The specification allows the move to Reset from every state, Reset included. If a provider without the quirk
    /// `reset_twice` refuses the second call, the success of the first counts.
    ///
    /// Returns the proof that the device is done with the requests of the pair, if a reset is a barrier on this
    /// provider. `promises` are those of the provider.
    pub(crate) fn reset(&self, promises: &Promises) -> Result<Option<Quiescent>, VerbError> {
        let to_reset = || {
            let mut attributes = sys::ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RESET, ..Default::default() };
            self.modify(&mut attributes, Mask::IBV_QP_STATE)
        };
        to_reset()?;
        match to_reset() {
            Err(error) if promises.quirks.reset_twice => Err(error),
            _ => Ok(promises.pairs_can_be_reset.then_some(Quiescent(()))),
        }
    }
}

impl SharedQueue {
    /// The means to post to the queue; `None` the second time, or if the provider has no such function.
    pub(crate) fn post_end(&mut self) -> Option<PostEnd<ibv_srq, PostShared>> {
        let verb = self.needs.needs().functions().post_srq_recv?;
        if !self.is_alive || !self.kept.give_out() {
            return None;
        }
        Some(PostEnd::new(self.raw, verb, self.kept.right(), false))
    }

    /// `ibv_destroy_srq`. `right` is that of the queue; `None` if it was dropped or never given out. If the queue is
    /// not destroyed, the right comes back. `EBUSY`: somebody else can post.
    ///
    /// That a destroy has ended every access of the device is an assumption of `inflight/raw_shared.rs`.
    pub(crate) fn destroy(&mut self, right: Option<PostRight>) -> Result<Quiescent, (VerbError, Option<PostRight>)> {
        let result = self.end_with("ibv_destroy_srq", right.map(|right| [right]));
        result.map_err(|(error, right)| (error, right.map(|[right]| right)))
    }
}
