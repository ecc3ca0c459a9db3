//! Capabilities of a device that a test needs and that not every device has.

use crate::device::context;
use std::io::Write;

/// What some devices have: the first three those for InfiniBand and RoCE, and not those for iWARP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// A pair that was connected goes to Reset and is connected again.
    Reset,
    /// A connection is made in three steps, so the client may fail to answer the server.
    ThreeSteps,
    /// The side that accepts may agree to fewer reads than were asked for, and a query tells the number. Soft iWARP
    /// serves as many as were asked for, and reports the two depths in the wrong order.
    SmallerDepths,
    /// Another process can reach the device.
    OtherProcesses,
    /// There is an address that packets are sent to, and that nobody has: `tests/rxe/devices` makes one for soft-RoCE.
    SilentHost,
    /// What a listener does not take is asked for again by its client, and not by a stream.
    Backlog,
    /// Another device of the same kind can be made, and removed: soft-RoCE.
    SpareDevice,
}

impl Need {
    fn name(self) -> &'static str {
        match self {
            Self::Reset => "pairs that can be reset",
            Self::ThreeSteps => "connections that are made in three steps",
            Self::SmallerDepths => "read depths that the accepting side lowers",
            Self::OtherProcesses => "a device that other processes reach",
            Self::SilentHost => "a host that does not answer",
            Self::Backlog => "connect requests that are sent again",
            Self::SpareDevice => "a device that can be removed",
        }
    }
}

/// Whether the device under test lacks what the calling test needs. If so, this prints the line
/// `not applicable: needs ...`, so that the test is not counted as passed.
pub fn lacks_need(need: Need) -> bool {
    let lacks = match need {
        Need::OtherProcesses => context().is_soft(),
        Need::SilentHost | Need::SpareDevice => !context().name().starts_with("rxe"),
        Need::Backlog | Need::Reset | Need::ThreeSteps | Need::SmallerDepths => context().is_iwarp(),
    };
    if lacks {
        // The test harness hides the output of `println!` if the test passes, so this writes to standard output
        // directly.
        writeln!(std::io::stdout(), "not applicable: needs {}", need.name()).expect("standard output");
    }
    lacks
}
