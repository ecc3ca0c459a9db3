//! The meaning of each event for an identifier that waits, as a pure function that all waits share.

use super::advice::Advice;
use super::error::{Cause, LookupReason};
use super::private_data::PeerData;
use crate::provider::cm::{RawEventKind as Kind, Said};
use crate::verb_error::VerbError;

/// The event that an identifier waits for.
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
}

/// The meaning of an event.
#[derive(Debug)]
pub(super) enum Next {
    /// Ignore the event in this phase, and keep waiting.
    Stay,
    /// The wait has ended with success.
    Done,
    /// The peer has answered: bring the queue pair up, then establish the connection.
    Respond,
    /// The network below a connection has changed. The connection stays up.
    Advise(Advice),
    /// The identifier has ended.
    End(Cause),
}

/// The meaning of the event `kind` for an identifier in `phase`.
pub(super) fn step(phase: Phase, kind: Kind, status: i32, said: &mut Said) -> Next {
    let errno = |call| VerbError::new(call, status.saturating_abs());
    match (phase, kind) {
        (_, Kind::DEVICE_REMOVAL) => Next::End(Cause::DeviceRemoved),
        (Phase::ResolvingAddress, Kind::ADDR_RESOLVED)
        | (Phase::ResolvingRoute, Kind::ROUTE_RESOLVED)
        | (Phase::Connecting | Phase::Accepting | Phase::LookingUp, Kind::ESTABLISHED)
        | (Phase::Listening, Kind::CONNECT_REQUEST) => Next::Done,
        (Phase::JoiningGroup, Kind::MULTICAST_JOIN) if status == 0 => Next::Done,
        (Phase::JoiningGroup, Kind::MULTICAST_JOIN | Kind::MULTICAST_ERROR) => {
            Next::End(Cause::Failed(errno("rdma_join_multicast")))
        }
        (Phase::Connecting, Kind::CONNECT_RESPONSE) => Next::Respond,
        (Phase::ResolvingAddress, Kind::ADDR_ERROR) => Next::End(Cause::Address(errno("rdma_resolve_addr"))),
        (Phase::ResolvingRoute, Kind::ROUTE_ERROR) => Next::End(Cause::Route(errno("rdma_resolve_route"))),
        (Phase::Connecting | Phase::Accepting | Phase::Connected, Kind::REJECTED) => {
            Next::End(Cause::rejected(status, std::mem::take(&mut said.private_data)))
        }
        (Phase::LookingUp, Kind::UNREACHABLE) if status > 0 => {
            let data = PeerData(std::mem::take(&mut said.private_data));
            Next::End(Cause::NotServed { reason: LookupReason(status), data })
        }
        // Linux reports this for a connection when the address of a neighbour changes.
        (Phase::Connected, Kind::UNREACHABLE) => Next::Advise(Advice::NeighbourChanged),
        (Phase::Connected, Kind::ADDR_CHANGE) => Next::Advise(Advice::AddressChanged),
        (Phase::Connecting | Phase::Accepting | Phase::LookingUp, Kind::UNREACHABLE) => {
            Next::End(Cause::Unreachable { status })
        }
        (Phase::Connecting | Phase::Accepting | Phase::Connected, Kind::CONNECT_ERROR) => {
            Next::End(Cause::Failed(errno("rdma_connect")))
        }
        (Phase::Connecting | Phase::Accepting | Phase::Connected, Kind::DISCONNECTED) => Next::End(Cause::Disconnected),
        _ => Next::Stay,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PHASES: [Phase; 8] = [
        Phase::ResolvingAddress,
        Phase::ResolvingRoute,
        Phase::Connecting,
        Phase::Accepting,
        Phase::Listening,
        Phase::Connected,
        Phase::LookingUp,
        Phase::JoiningGroup,
    ];

    /// The first letter of the outcome.
    fn letter(phase: Phase, kind: u32) -> char {
        match step(phase, Kind(kind), -110, &mut Said::default()) {
            Next::Stay => '.',
            Next::Done => 'D',
            Next::Respond => 'R',
            Next::Advise(_) => 'A',
            Next::End(_) => 'E',
        }
    }

    #[test]
    fn each_phase_knows_its_events() {
        // The events from ADDR_RESOLVED to TIMEWAIT_EXIT, and a number that no release uses yet.
        let expected = [
            "DE.........E.....",
            "..DE.......E.....",
            ".....REEEDEE.....",
            "......EEEDEE.....",
            "....D......E.....",
            "......EAE.EE..A..",
            ".......E.D.E.....",
            "...........EEE...",
        ];
        for (phase, expected) in PHASES.into_iter().zip(expected) {
            let found: String = (0..17).map(|kind| letter(phase, kind)).collect();
            assert_eq!(found, expected, "{phase:?}");
        }
    }
}
