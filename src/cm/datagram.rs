//! Datagrams: looking up the queue pair that receives the datagrams of a service, and the path to that pair.

use super::channel::Identifier;
use super::client::Resolved;
use super::error::{Cause, Failed};
use super::meaning::Phase;
use super::parameters::Parameters;
use super::private_data::{AnswerData, LookupData, PeerData};
use super::server::Request;
use super::wait::{Patience, answer_with_path};
use super::{Datagrams, Progress, name_of_other, not_for_iwarp, same_device, wrong_device};
use crate::domain::{Brand, ProtectionDomain};
use crate::provider::cm::{BoundDevice, Parameters as RawParameters};
use crate::queue::QueuePair;
use crate::queue::datagram::Recipient;
use crate::queue::state::ReadyToSend;
use crate::queue::transport::Connectionless;
use crate::sys::ibv_ah_attr;
use crate::types::{Qkey, Qpn};
use crate::verb_error::VerbError;
use std::fmt;
use std::time::Duration;

impl Resolved<Datagrams> {
    /// Asks the peer which of its queue pairs takes the datagrams of the service.
    ///
    /// `rdma_connect(3)`, which does a lookup if the identifier is for datagrams.
    ///
    /// # Errors
    ///
    /// [`Cause::NotOnIwarp`]; [`Cause::DeviceRemoved`]; [`Cause::Call`]. The identifier comes back.
    #[doc(alias = "rdma_connect")]
    pub fn look_up(mut self, data: &LookupData) -> Result<LookingUp, Failed<Self>> {
        if let Err(cause) = not_for_iwarp(&self.id) {
            return Err(Failed { value: self, cause });
        }
        match self.id.raw.connect(&parameters_of(0, data.as_bytes())) {
            Ok(()) => {
                self.id.events.set_polled(true);
                Ok(LookingUp { id: self.id, device: self.device })
            }
            Err(error) => Err(Failed { cause: self.id.events.cause_of(error), value: self }),
        }
    }
}

/// The parameters of `rdma_connect` or `rdma_accept` for datagrams. `queue_pair` is 0 on the side that looks up.
fn parameters_of(queue_pair: u32, private_data: &[u8]) -> RawParameters<'_> {
    let Parameters { retry_count, rnr_retry, .. } = Parameters::default();
    RawParameters {
        private_data,
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: retry_count.value(),
        rnr_retry_count: rnr_retry.value(),
        has_shared_receives: false,
        queue_pair,
        // Only the soft rdma_cm reads this member. The real rdma_cm always gives this key to the peer: its
        // `rdma_conn_param` has no member for a key.
        qkey: Qkey::CONNECTION_MANAGER.0,
    }
}

/// An identifier that has asked the peer which of its queue pairs takes the datagrams of the service. Dropping it gives
/// up at once.
#[derive(Debug)]
pub struct LookingUp {
    id: Identifier,
    device: BoundDevice,
}

impl LookingUp {
    /// Waits for the answer, at most for `timeout`.
    ///
    /// # Errors
    ///
    /// [`Cause::NotServed`]: nobody listens, or the peer refused. [`Cause::Unreachable`], [`Cause::TimedOut`].
    pub fn wait(self, timeout: Duration) -> Result<Service, Cause> {
        match self.go_on(Patience::of(timeout))? {
            Progress::Done(service) => Ok(service),
            Progress::Pending(_) => Err(Cause::TimedOut(timeout)),
        }
    }

    /// Checks whether the answer has arrived, without waiting.
    ///
    /// # Errors
    ///
    /// The same as those of [`wait`](Self::wait).
    pub fn poll(self) -> Result<Progress<Self, Service>, Cause> {
        self.go_on(Patience::None)
    }

    fn go_on(self, patience: Patience) -> Result<Progress<Self, Service>, Cause> {
        let Some((path, answer)) = answer_with_path(&self.id.events, Phase::LookingUp, patience)? else {
            return Ok(Progress::Pending(self));
        };
        let (queue_pair, data) = (Qpn::from_device(answer.queue_pair), PeerData(answer.private_data));
        Ok(Progress::Done(Service { queue_pair, qkey: Qkey(answer.qkey), data, path, device: self.device }))
    }
}

/// The queue pair that takes the datagrams of a service, and the path to it.
///
/// A `Service` stays usable until the peer destroys that pair. Dropping a `Service` does not tell the peer.
pub struct Service {
    /// The pair of the peer.
    pub queue_pair: Qpn,
    /// The key that datagrams to the pair must carry.
    pub qkey: Qkey,
    /// The private data that the peer sent with its answer.
    pub data: PeerData,
    path: ibv_ah_attr,
    device: BoundDevice,
}

impl Service {
    /// The name of the device that leads to the peer. The queue pair that sends must be on that device.
    pub fn device(&self) -> &str {
        &self.device.name
    }

    /// The port of that device, from 1.
    pub fn port(&self) -> u8 {
        self.device.port
    }

    /// The recipient for datagrams from pairs of `domain`. Keep the recipient: each call creates another address handle
    /// on the device.
    ///
    /// `ibv_create_ah(3)`.
    ///
    /// # Errors
    ///
    /// [`Cause::OtherDevice`], [`Cause::Call`].
    #[doc(alias = "ibv_create_ah")]
    pub fn recipient<B: Brand>(&self, domain: &ProtectionDomain<B>) -> Result<Recipient<B>, Cause> {
        let handle = handle_of(domain, &self.device, self.path)?;
        Ok(Recipient::new(handle, self.queue_pair, self.qkey))
    }
}

/// Creates an address handle in the domain, from the path that rdma_cm found.
pub(super) fn handle_of<B: Brand>(
    domain: &ProtectionDomain<B>,
    device: &BoundDevice,
    path: ibv_ah_attr,
) -> Result<crate::queue::datagram::AddressHandle<B>, Cause> {
    if let Some(other) = name_of_other(device, &domain.context()) {
        return Err(wrong_device(device, other));
    }
    domain.handle_by_cm(path).map_err(Cause::Call)
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("queue_pair", &self.queue_pair)
            .field("qkey", &self.qkey)
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}

impl Request<Datagrams> {
    /// Answers a lookup with `pair`, to which the peer then sends its datagrams. One pair may answer any number of
    /// lookups.
    ///
    /// `rdma_accept(3)`. The request is consumed even if this call fails. Then the library refuses the lookup, and the
    /// peer learns of the refusal.
    ///
    /// # Errors
    ///
    /// [`Cause::OtherDevice`]; [`Cause::OtherKey`]: the queue key of the pair is not [`Qkey::CONNECTION_MANAGER`], the
    /// only key that rdma_cm gives to peers; [`Cause::DeviceRemoved`]; [`Cause::Call`].
    #[doc(alias = "rdma_accept")]
    pub fn answer<B: Brand, T: Connectionless>(
        mut self,
        pair: &QueuePair<B, ReadyToSend, T>,
        data: &AnswerData,
    ) -> Result<(), Cause> {
        same_device(&self.device, pair)?;
        takes(pair, Qkey::CONNECTION_MANAGER)?;
        let answered = self.id.raw.accept(&parameters_of(pair.number().value(), data.as_bytes()));
        answered.map_err(|error| self.id.events.cause_of(error))
    }

    /// Refuses a lookup, with data for the peer.
    ///
    /// `rdma_reject(3)`.
    ///
    /// # Errors
    ///
    /// The system refused.
    #[doc(alias = "rdma_reject")]
    pub fn refuse(mut self, data: &AnswerData) -> Result<(), VerbError> {
        self.id.raw.reject(data.as_bytes())
    }
}

/// Checks that the pair takes datagrams with this key.
pub(super) fn takes<B: Brand, T: Connectionless>(
    pair: &QueuePair<B, ReadyToSend, T>,
    wanted: Qkey,
) -> Result<(), Cause> {
    let found = pair.query().map_err(Cause::Call)?.qkey;
    if found == wanted { Ok(()) } else { Err(Cause::OtherKey { wanted: wanted.0, found: found.0 }) }
}
