//! Waiting for the events of one identifier.

use super::channel::Events;
use super::error::Cause;
use super::meaning::{Meaning, Phase, meaning_of};
use crate::provider::cm::{EventParameters, RawEvent};
use crate::queue::error::TransitionFailure;
use crate::queue::state::DeviceState;
use crate::sys::ibv_ah_attr;
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
pub(super) fn next(
    events: &Events,
    phase: Phase,
    patience: Patience,
) -> Result<Option<(Meaning, RawEvent)>, VerbError> {
    loop {
        let event = match patience {
            Patience::None => events.poll()?,
            Patience::Until(deadline) => events.wait(deadline)?,
        };
        let Some(mut event) = event else { return Ok(None) };
        match meaning_of(phase, event.kind, event.status, &mut event.parameters) {
            Meaning::Nothing => {}
            found => return Ok(Some((found, event))),
        }
    }
}

/// The answer that gives the path to a service or a group; `None` if it does not come in time.
pub(super) fn answer_with_path(
    events: &Events,
    phase: Phase,
    patience: Patience,
) -> Result<Option<(ibv_ah_attr, EventParameters)>, Cause> {
    match next(events, phase, patience).map_err(Cause::Call)? {
        None => Ok(None),
        Some((Meaning::End(cause), _)) => Err(cause),
        Some((_, RawEvent { parameters, .. })) => match parameters.path {
            Some(path) => Ok(Some((path, parameters))),
            None => Err(Cause::Call(VerbError::new("rdma_get_cm_event", libc::EPROTO))),
        },
    }
}

/// Why a step failed. If the next event of the identifier has come and reports an end, this is the cause of that end;
/// otherwise it is `cause`. When a peer ends, calls of this side may fail before anybody has read the event that
/// reports the end.
pub(super) fn why(events: &Events, phase: Phase, cause: Cause) -> Cause {
    match next(events, phase, Patience::None) {
        Ok(Some((Meaning::End(told), _))) => told,
        _ => cause,
    }
}

/// Why a pair is not in Ready To Send, although its iWARP device has connected it.
pub(super) fn why_not_adopted(events: &Events, phase: Phase, failure: TransitionFailure) -> Cause {
    why(
        events,
        phase,
        match failure {
            // The device has moved the pair to Error, because the TCP stream has ended. rdma_cm perhaps has no event of
            // that end yet, so the cause is given here.
            TransitionFailure::Elsewhere { state: DeviceState::Error, .. } => Cause::Disconnected,
            failure => failure.into(),
        },
    )
}
