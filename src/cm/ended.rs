//! How a connection, or the membership in a group, learns that it has ended.

use super::advice::Advice;
use super::channel::Events;
use super::error::{Cause, RejectReason};
use super::meaning::{Meaning, Phase};
use super::private_data::PeerData;
use super::wait::{Patience, next};
use crate::verb_error::VerbError;

/// The end that was found, if any. Each later look gives it again.
#[derive(Debug, Default)]
pub(super) struct Ended(Option<End>);

/// How something ends that this side does not end.
#[derive(Debug)]
enum End {
    Disconnected,
    DeviceRemoved,
    Rejected(RejectReason, PeerData),
    Failed(VerbError),
}

impl Ended {
    pub(super) fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// Looks for the end in `events`. Advice that comes before it replaces `advice`.
    pub(super) fn look(
        &mut self,
        events: &Events,
        phase: Phase,
        patience: Patience,
        advice: &mut Option<Advice>,
    ) -> Result<Option<Cause>, VerbError> {
        // After the end there is nothing to wait for. But still call `next`, since it also takes the events of the
        // other identifiers from the channel. Otherwise the descriptor of the channel could stay readable.
        let patience = if self.is_known() { Patience::None } else { patience };
        loop {
            let found = match next(events, phase, patience) {
                Err(_) if self.is_known() => None,
                found => found?,
            };
            match found {
                None => return Ok(self.cause()),
                Some((Meaning::Advise(newer), _)) => *advice = Some(newer),
                Some((Meaning::End(cause), _)) if !self.is_known() => {
                    self.0 = Some(cause.into());
                    return Ok(self.cause());
                }
                Some(_) => {}
            }
        }
    }

    fn cause(&self) -> Option<Cause> {
        Some(match self.0.as_ref()? {
            End::Disconnected => Cause::Disconnected,
            End::DeviceRemoved => Cause::DeviceRemoved,
            End::Rejected(reason, data) => Cause::Rejected { reason: *reason, data: data.clone() },
            End::Failed(error) => Cause::Failed(*error),
        })
    }
}

impl From<Cause> for End {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::DeviceRemoved => Self::DeviceRemoved,
            Cause::Rejected { reason, data } => Self::Rejected(reason, data),
            Cause::Failed(error) => Self::Failed(error),
            _ => Self::Disconnected,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_in_the_same_words_each_time() {
        let failed = VerbError::new("rdma_connect", libc::ENOMEM);
        for (cause, text) in [
            (Cause::Disconnected, Cause::Disconnected.to_string()),
            (Cause::DeviceRemoved, Cause::DeviceRemoved.to_string()),
            (Cause::rejected(10, vec![7]), Cause::rejected(10, Vec::new()).to_string()),
            (Cause::Failed(failed), Cause::Failed(failed).to_string()),
        ] {
            let ended = Ended(Some(cause.into()));
            let told = || ended.cause().unwrap().to_string();
            assert_eq!((told(), told()), (text.clone(), text));
        }
        let ended = Ended(Some(Cause::rejected(10, vec![7]).into()));
        let Some(Cause::Rejected { data, .. }) = ended.cause() else { panic!() };
        assert_eq!(data.padded(), [7]);
    }
}
