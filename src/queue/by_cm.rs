//! Transitions whose attributes come from rdma_cm.

use super::attributes::Modify;
use super::datagram::AddressHandle;
use super::error::{TransitionError, TransitionFailure};
use super::pair::QueuePair;
use super::state::{DeviceState, Init, ReadyToReceive, ReadyToSend, State};
use super::transport::{Reliable, Transport};
use super::untyped::UntypedPair;
use crate::device::Context;
use crate::domain::{Brand, ProtectionDomain};
use crate::sys::{self, ibv_qp_attr_mask as Mask, ibv_qp_state as raw_state};
use crate::types::{PortNumber, Psn, ReadDepth, RnrTimer};
use crate::verb_error::VerbError;

/// The attributes that rdma_cm gives for a transition, and the mask of those that it has filled in.
pub(crate) type FromCm = (sys::ibv_qp_attr, Mask);

/// Mask bits that rdma_cm sets by mistake for InfiniBand links.
const STRAY_BITS: u32 = 0b111 << 21;

/// The transition to the state `to`, with the attributes that rdma_cm gave for it. If they are the attributes of
/// another state, the device refuses them. So a pair never gets the type of a state that the device was not asked to
/// enter.
fn modify(to: raw_state, (attributes, mask): FromCm) -> Modify {
    let attributes = sys::ibv_qp_attr { qp_state: to, ..attributes };
    Modify { attributes, mask: Mask(mask.0 & !STRAY_BITS) | Mask::IBV_QP_STATE }
}

impl<B: Brand> ProtectionDomain<B> {
    /// An address handle for the path that rdma_cm has found.
    pub(crate) fn handle_by_cm(&self, mut path: sys::ibv_ah_attr) -> Result<AddressHandle<B>, VerbError> {
        AddressHandle::create(self, &mut path)
    }
}

/// A pair in Init without its brand, for a thread of `cm`: a thread takes only `'static` values, and a brand need not
/// be `'static`.
pub(crate) struct UnbrandedPair(UntypedPair);

impl UnbrandedPair {
    /// The pair again. `B` and `T` must be the types that it had.
    pub(crate) fn with_brand<B: Brand, T: Reliable>(self) -> QueuePair<B, Init, T> {
        QueuePair::assume_state(self.0)
    }
}

impl<B: Brand, T: Reliable> QueuePair<B, Init, T> {
    pub(crate) fn without_brand(self) -> UnbrandedPair {
        UnbrandedPair(self.inner)
    }
}

impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// The open device of the pair.
    pub(crate) fn context(&self) -> Context {
        Context(std::sync::Arc::clone(&self.inner.core.domain.context))
    }

    /// The port on which the pair was moved to Init.
    pub(crate) fn port_number(&self) -> PortNumber {
        self.inner.core.local.port
    }

    /// Whether the pair receives from a shared queue.
    pub(crate) fn has_shared_receives(&self) -> bool {
        self.inner.core.shared.is_some()
    }

    /// `asked`, lowered to what the device can do: the responder's depth, then the initiator's.
    pub(crate) fn depths_at_most(&self, asked: [ReadDepth; 2]) -> [ReadDepth; 2] {
        let device = self.inner.core.domain.context.limits();
        let [responder, initiator] = asked;
        [
            responder.min(ReadDepth::saturating(device.max_qp_rd_atom)),
            initiator.min(ReadDepth::saturating(device.max_qp_init_rd_atom)),
        ]
    }

    /// Moves the pair to Error, whatever its type says.
    pub(crate) fn end_traffic(&self) -> Result<(), VerbError> {
        self.inner.core.modify(Modify::to(raw_state::IBV_QPS_ERR))
    }
}

impl<B: Brand, T: Reliable> QueuePair<B, Init, T> {
    /// Whether rdma_cm's event for the peer's answer has the two depths of reads in the wrong order.
    pub(crate) fn swaps_reply_depths(&self) -> bool {
        self.inner.core.domain.context.promises().quirks.swaps_reply_depths
    }

    /// iWARP: whether an `rdma_connect` that fails without a TCP stream leaves the pair in Init.
    pub(crate) fn is_spared_by_failed_connects(&self) -> bool {
        self.inner.core.domain.context.promises().failed_connect_spares_pair
    }

    pub(crate) fn into_rtr_by_cm(
        self,
        from_cm: FromCm,
        responder_depth: ReadDepth,
        min_rnr_timer: RnrTimer,
    ) -> Result<QueuePair<B, ReadyToReceive, T>, TransitionError<Self>> {
        let mut modify = modify(raw_state::IBV_QPS_RTR, from_cm);
        modify.attributes.max_dest_rd_atomic = responder_depth.value();
        modify.set_min_rnr_timer(min_rnr_timer);
        self.transition(modify)
    }

    /// The pair of an iWARP device, after rdma_cm has moved it to Ready To Send.
    pub(crate) fn moved_by_cm(
        mut self,
        initiator_depth: ReadDepth,
    ) -> Result<QueuePair<B, ReadyToSend, T>, TransitionError<Self>> {
        let hides_state = self.inner.core.domain.context.promises().quirks.hides_state;
        match self.query_state() {
            Ok(state) if state == DeviceState::ReadyToSend || hides_state && state == DeviceState::Reset => {
                self.inner.send.set_initiator_depth(initiator_depth);
                Ok(QueuePair::assume_state(self.inner))
            }
            Ok(state) => self.fail(TransitionFailure::Elsewhere { asked: ReadyToSend::NAME, state }),
            Err(source) => self.fail(TransitionFailure::Verb { to: ReadyToSend::NAME, source }),
        }
    }
}

impl<B: Brand, T: Reliable> QueuePair<B, ReadyToReceive, T> {
    pub(crate) fn into_rts_by_cm(
        self,
        from_cm: FromCm,
        initiator_depth: ReadDepth,
    ) -> Result<QueuePair<B, ReadyToSend, T>, TransitionError<Self>> {
        let mut modify = modify(raw_state::IBV_QPS_RTS, from_cm);
        modify.attributes.max_rd_atomic = initiator_depth.value();
        let psn = Psn::clamped(modify.attributes.sq_psn);
        let mut pair = self.transition(modify)?;
        pair.inner.send.set_initiator_depth(initiator_depth);
        // rdma_cm has chosen the first packet sequence number, and `endpoint` must report it.
        if let Some(core) = pair.inner.core_mut() {
            core.local.psn = psn;
        }
        Ok(pair)
    }
}

#[cfg(all(test, feature = "soft", not(loom)))]
mod tests {
    use super::*;
    use crate::queue::attributes::{PeerPath, RtrAttributes};
    use crate::soft::{Fabric, Profile};
    use crate::{Checked, Limits, Poller, ReliableConnection};

    /// A pair in Init, on a fabric with this profile.
    fn pair(profile: Profile) -> (Context, QueuePair<Checked, Init, ReliableConnection>, Poller<Checked>) {
        let context = Context::open_on(&Fabric::with_profile(profile), "soft0").unwrap();
        let domain = context.checked_domain().unwrap();
        let (queue, poller) = domain.completion_queue(16).unwrap();
        let pair = domain.reliable(&queue, &Limits::default()).unwrap();
        let pair = pair.into_init(&context.active_port().unwrap()).unwrap();
        (context, pair, poller)
    }

    /// A pair that rdma_cm has connected may be reported in Reset only by the provider with that quirk.
    #[test]
    fn a_connected_pair_in_reset_is_believed_of_one_provider_only() {
        for (profile, is_believed) in [(Profile::Siw, true), (Profile::Irdma, false), (Profile::Specification, false)] {
            let (_context, pair, _poller) = pair(profile);
            pair.inner.core.modify(Modify::to(raw_state::IBV_QPS_RESET)).unwrap();
            match pair.moved_by_cm(ReadDepth::saturating(1)) {
                Ok(_) => assert!(is_believed, "{profile:?}"),
                Err(error) => {
                    let asked = ReadyToSend::NAME;
                    assert!(!is_believed, "{profile:?}: {error}");
                    assert!(matches!(error.source,
                        TransitionFailure::Elsewhere { asked: is, state: DeviceState::Reset } if is == asked));
                }
            }
        }
        // With `Profile::Siw`, `moved_by_cm` accepts a pair in Reset. It must still refuse a pair in Error.
        let (_context, pair, _poller) = pair(Profile::Siw);
        pair.end_traffic().unwrap();
        let failed = pair.moved_by_cm(ReadDepth::saturating(1)).map(drop).unwrap_err().source;
        assert!(matches!(failed, TransitionFailure::Elsewhere { state: DeviceState::Error, .. }), "{failed}");
    }

    #[test]
    fn attributes_of_another_state_do_not_give_the_type_of_ready_to_send() {
        let (_context, pair, _poller) = pair(Profile::Specification);
        let itself = pair.endpoint();
        let to_itself = RtrAttributes {
            path: PeerPath::to(itself.gid().unwrap()),
            path_mtu: itself.mtu(),
            destination: itself.queue_pair(),
            receive_psn: itself.psn(),
            responder_depth: ReadDepth::saturating(1),
            min_rnr_timer: RnrTimer::clamped(12),
        };
        let mut pair = pair.into_rtr(&to_itself).unwrap();
        let state = Mask::IBV_QP_STATE;
        for (qp_state, mask) in [(raw_state::IBV_QPS_RTS, Mask(0)), (raw_state::IBV_QPS_RESET, state)] {
            let from_cm = (sys::ibv_qp_attr { qp_state, ..Default::default() }, mask);
            let failed = pair.into_rts_by_cm(from_cm, ReadDepth::saturating(1));
            pair = failed.expect_err("the device was not asked for Ready To Send").queue_pair;
            assert_eq!(pair.query_state().unwrap(), DeviceState::ReadyToReceive);
        }
    }
}
