//! Capabilities of a device that a test needs and that not every device has.

use crate::device::context;
use std::io::Write;

/// A capability that devices for InfiniBand and RoCE have, and devices for iWARP do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// A pair that was connected goes to Reset and is connected again.
    Reset,
    /// A connection is made in three steps, so the client may fail to answer the server.
    ThreeSteps,
    /// The side that accepts may agree to fewer reads than were asked for, and a query tells the number. Soft iWARP
    /// serves as many as were asked for, and reports the two depths in the wrong order.
    SmallerDepths,
}

impl Need {
    fn name(self) -> &'static str {
        match self {
            Self::Reset => "pairs that can be reset",
            Self::ThreeSteps => "connections that are made in three steps",
            Self::SmallerDepths => "read depths that the accepting side lowers",
        }
    }
}

/// Whether the device under test lacks what the calling test needs. If so, this prints the line
/// `not applicable: needs ...`, so that the test is not counted as passed.
pub fn lacks_need(need: Need) -> bool {
    let lacks = context().is_iwarp();
    if lacks {
        // The test harness hides the output of `println!` if the test passes, so this writes to standard output
        // directly.
        writeln!(std::io::stdout(), "not applicable: needs {}", need.name()).expect("standard output");
    }
    lacks
}
