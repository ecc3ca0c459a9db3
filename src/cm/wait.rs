//! Waiting for the events of one identifier.

use super::channel::Identifier;
use super::error::Cause;
use super::step::{Next, Phase, step};
use crate::provider::cm::RawEvent;
use crate::queue::error::TransitionFailure;
use crate::queue::state::DeviceState;
use crate::verb_error::VerbError;
use std::time::{Duration, Instant};

/// How long to wait for an event.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    /// Do not wait: take an event only if one has come.
    None,
    /// Wait until the deadline; `None` means for ever.
    Until(Option<Instant>),
}

impl Patience {
    pub(super) fn of(timeout: Duration) -> Self {
        Self::Until(Instant::now().checked_add(timeout))
    }
}

/// The next event that matters in `phase`, and its meaning; `None` if none comes in time.
pub(super) fn next(id: &Identifier, phase: Phase, patience: Patience) -> Result<Option<(Next, RawEvent)>, VerbError> {
    loop {
        let event = match patience {
            Patience::None => id.poll()?,
            Patience::Until(deadline) => id.wait(deadline)?,
        };
        let Some(mut event) = event else { return Ok(None) };
        match step(phase, event.kind, event.status, &mut event.said) {
            Next::Stay => {}
            found => return Ok(Some((found, event))),
        }
    }
}

/// Why a step failed: the cause that the identifier's next event gives, or `cause` if there is no event yet. When a
/// peer ends, the calls of this side fail before anybody has read the event that reports the end.
pub(super) fn why(id: &Identifier, phase: Phase, cause: Cause) -> Cause {
    match next(id, phase, Patience::None) {
        Ok(Some((Next::End(told), _))) => told,
        _ => cause,
    }
}

/// Why a pair is not in Ready To Send, although its iWARP device has connected it.
pub(super) fn why_not_adopted(id: &Identifier, phase: Phase, failure: TransitionFailure) -> Cause {
    why(
        id,
        phase,
        match failure {
            // The stream has ended. The device moves the pair before rdma_cm has an event that reports the end.
            TransitionFailure::Elsewhere { state: DeviceState::Error, .. } => Cause::Disconnected,
            failure => failure.into(),
        },
    )
}
