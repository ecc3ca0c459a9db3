//! The parameters that a program chooses for a connection.

use crate::domain::Brand;
use crate::provider::cm::Parameters as RawParameters;
use crate::queue::QueuePair;
use crate::queue::attributes::ConnectAttributes;
use crate::queue::state::State;
use crate::queue::transport::Transport;
use crate::types::{ReadDepth, RetryCount, RnrRetry, RnrTimer};

/// The parameters that a program chooses for a connection. The rest comes from the path: its MTU, its timeout, its
/// addresses.
///
/// ```
/// use interlock::cm::Parameters;
/// use interlock::number::RnrRetry;
///
/// let impatient = Parameters { rnr_retry: RnrRetry::new(6)?, ..Parameters::default() };
/// # Ok::<(), interlock::error::OutOfRange>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "rdma_conn_param")]
pub struct Parameters {
    /// How many reads and atomics of the peer this side serves at once. The library lowers it to what the device
    /// supports and to what the peer asks for.
    #[doc(alias = "responder_resources")]
    pub responder_depth: ReadDepth,
    /// How many reads and atomics this side has outstanding at once. The library lowers it to what the device supports
    /// and to what the peer serves.
    pub initiator_depth: ReadDepth,
    /// How often to send again when no acknowledgement comes. The side that connects chooses for both sides.
    pub retry_count: RetryCount,
    /// How often the peer is to send again when this side has no receive posted.
    pub rnr_retry: RnrRetry,
    /// How long the peer waits before it sends again because this side has no receive posted.
    pub min_rnr_timer: RnrTimer,
}

impl Default for Parameters {
    /// The defaults of [`ConnectAttributes`]: 16 reads, 6 retries, and no limit on retries while the peer has no
    /// receive posted.
    fn default() -> Self {
        let ConnectAttributes { retry_count, rnr_retry, min_rnr_timer, read_depth, .. } = ConnectAttributes::default();
        Self { responder_depth: read_depth, initiator_depth: read_depth, retry_count, rnr_retry, min_rnr_timer }
    }
}

impl Parameters {
    /// The parameters for a call of rdma_cm. The caller has lowered the two depths to what the device supports, and for
    /// an accept also to what the peer asked for.
    pub(super) fn to_raw<'d, B: Brand, S: State, T: Transport>(
        self,
        pair: &QueuePair<B, S, T>,
        [serves, starts]: [ReadDepth; 2],
        private_data: &'d [u8],
    ) -> RawParameters<'d> {
        RawParameters {
            private_data,
            responder_resources: serves.value(),
            initiator_depth: starts.value(),
            retry_count: self.retry_count.value(),
            rnr_retry_count: self.rnr_retry.value(),
            has_shared_receives: pair.has_shared_receives(),
            queue_pair: pair.number().value(),
            qkey: 0,
        }
    }
}
