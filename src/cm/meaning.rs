//! What each event means for an identifier that waits. One pure function decides this for all waits.

use super::advice::Advice;
use super::error::{Cause, LookupReason};
use super::private_data::PeerData;
use crate::provider::cm::{EventParameters, RawEventKind as Kind};
use crate::verb_error::VerbError;

/// What an identifier waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    ResolvingAddress,
    ResolvingRoute,
    /// The side that connects.
    Connecting,
    /// The side that accepts.
    Accepting,
    Listening,
    Connected,
    /// The side that looks up the pair of a service.
    LookingUp,
    JoiningGroup,
    /// A member of a group.
    Member,
}

/// The meaning of an event.
#[derive(Debug)]
pub(super) enum Meaning {
    /// Ignore the event in this phase, and keep waiting.
    Nothing,
    /// The wait has ended with success.
    Done,
    /// The peer has answered: bring the queue pair up, then establish the connection.
    Respond,
    /// The network below a connection has changed. The connection stays up.
    Advise(Advice),
    /// The wait has failed, or the connection has ended.
    End(Cause),
    /// iWARP: `rdma_connect` has failed.
    NotAsked(VerbError),
}

/// The meaning of the event `kind` for an identifier in `phase`.
pub(super) fn meaning_of(phase: Phase, kind: Kind, status: i32, parameters: &mut EventParameters) -> Meaning {
    let errno = |call| VerbError::new(call, status.saturating_abs());
    match (phase, kind) {
        (_, Kind::DEVICE_REMOVAL) => Meaning::End(Cause::DeviceRemoved),
        (Phase::ResolvingAddress, Kind::ADDR_RESOLVED)
        | (Phase::ResolvingRoute, Kind::ROUTE_RESOLVED)
        | (Phase::Connecting | Phase::Accepting | Phase::LookingUp, Kind::ESTABLISHED)
        | (Phase::Listening, Kind::CONNECT_REQUEST) => Meaning::Done,
        (Phase::JoiningGroup, Kind::MULTICAST_JOIN) if status == 0 => Meaning::Done,
        (Phase::JoiningGroup, Kind::MULTICAST_JOIN | Kind::MULTICAST_ERROR)
        | (Phase::Member, Kind::MULTICAST_ERROR) => Meaning::End(Cause::Failed(errno("rdma_join_multicast"))),
        (Phase::Connecting, Kind::CALL_FAILED) => Meaning::NotAsked(errno("rdma_connect")),
        (Phase::Connecting, Kind::CONNECT_RESPONSE) => Meaning::Respond,
        (Phase::ResolvingAddress, Kind::ADDR_ERROR) => Meaning::End(Cause::Address(errno("rdma_resolve_addr"))),
        (Phase::ResolvingRoute, Kind::ROUTE_ERROR) => Meaning::End(Cause::Route(errno("rdma_resolve_route"))),
        (Phase::Connecting | Phase::Accepting | Phase::Connected, Kind::REJECTED) => {
            Meaning::End(Cause::rejected(status, std::mem::take(&mut parameters.private_data)))
        }
        (Phase::LookingUp, Kind::UNREACHABLE) if status > 0 => {
            let data = PeerData(std::mem::take(&mut parameters.private_data));
            Meaning::End(Cause::NotServed { reason: LookupReason(status), data })
        }
        // For an established connection, Linux reports `UNREACHABLE` when the peer's IP address gets another link-layer
        // address.
        (Phase::Connected, Kind::UNREACHABLE) => Meaning::Advise(Advice::NeighbourChanged),
        (Phase::Connected, Kind::ADDR_CHANGE) => Meaning::Advise(Advice::AddressChanged),
        (Phase::Connecting | Phase::Accepting | Phase::LookingUp, Kind::UNREACHABLE) => {
            Meaning::End(Cause::Unreachable { status })
        }
        (Phase::Connecting | Phase::Accepting | Phase::Connected, Kind::CONNECT_ERROR) => {
            Meaning::End(Cause::Failed(errno("rdma_connect")))
        }
        (Phase::Connecting | Phase::Accepting | Phase::Connected, Kind::DISCONNECTED) => {
            Meaning::End(Cause::Disconnected)
        }
        _ => Meaning::Nothing,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PHASES: [Phase; 9] = [
        Phase::ResolvingAddress,
        Phase::ResolvingRoute,
        Phase::Connecting,
        Phase::Accepting,
        Phase::Listening,
        Phase::Connected,
        Phase::LookingUp,
        Phase::JoiningGroup,
        Phase::Member,
    ];

    /// One letter for each meaning; `.` for `Nothing`.
    fn letter(phase: Phase, kind: u32) -> char {
        match meaning_of(phase, Kind(kind), -110, &mut EventParameters::default()) {
            Meaning::Nothing => '.',
            Meaning::Done => 'D',
            Meaning::Respond => 'R',
            Meaning::Advise(_) => 'A',
            Meaning::End(_) => 'E',
            Meaning::NotAsked(_) => 'N',
        }
    }

    #[test]
    fn each_phase_knows_its_events() {
        // One line for each phase, one column for each event. The events are 0 (ADDR_RESOLVED) to 15 (TIMEWAIT_EXIT),
        // then 16, which this library does not know, and CALL_FAILED.
        let expected = [
            "DE.........E......",
            "..DE.......E......",
            ".....REEEDEE.....N",
            "......EEEDEE......",
            "....D......E......",
            "......EAE.EE..A...",
            ".......E.D.E......",
            "...........EEE....",
            "...........E.E....",
        ];
        for (phase, expected) in PHASES.into_iter().zip(expected) {
            let found: String = (0..17).chain([u32::MAX]).map(|kind| letter(phase, kind)).collect();
            assert_eq!(found, expected, "{phase:?}");
        }
    }
}
