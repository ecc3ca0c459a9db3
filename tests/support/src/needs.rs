//! Capabilities of a device that a test needs and that not every device has.

use crate::device::{Promise, context, has_extended_queues, lacks, ways};
use interlock::queue::Posting;
use std::io::Write;

/// A capability that a test needs and that some devices lack. iWARP devices lack most of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// A pair that was connected goes to Reset and is connected again. Many providers do not allow that.
    Reset,
    /// A connection is made in three steps, so the client may fail to answer the server.
    ThreeSteps,
    /// The side that accepts may agree to fewer reads than were asked for, and a query returns the number. Soft iWARP
    /// serves as many as were asked for, and reports the two depths in the wrong order.
    SmallerDepths,
    /// Another process can reach the device.
    OtherProcesses,
    /// There is an address that no host has, but to which the kernel sends packets: `tests/rxe/devices` makes one.
    SilentHost,
    /// A client sends its connect request again if the listener has dropped it. On iWARP the stream ends instead.
    Backlog,
    /// Another device of the same kind can be made, and removed: soft-RoCE.
    SpareDevice,
    /// The program itself moves a pair to Ready To Receive and Ready To Send, with the record of the peer.
    Records,
    /// A pair is its own peer.
    SelfConnection,
    /// Two devices of one machine reach each other.
    TwoDevices,
    /// A pair waits in Send Queue Drain.
    Drain,
    /// A send or a write carries a number.
    Immediates,
    /// The device does atomics on the memory of a peer.
    Atomics,
    /// Memory is granted by windows.
    Windows,
    /// Unreliable connections and datagrams.
    UnreliableTransports,
    /// A message that finds no receive is sent again until a receive is posted. On iWARP it ends the connection.
    Waiting,
    /// A pair knows what it was connected with: numbers of packets, times, retries, its path.
    Packets,
    /// The requests of a work queue complete in the order in which they were posted, so that one completion stands for
    /// several.
    Order,
    /// Requests are posted by `ibv_wr_*`.
    WorkRequestApi,
    /// Completion queues are polled through `ibv_start_poll`.
    ExtendedQueues,
    /// A completion says what happened to the request at the peer. On iWARP a send or a write is complete once its
    /// bytes are on their way, and a refusal of the peer only ends the connection.
    Acknowledgements,
    /// A pair keeps its peer from reads or writes that the memory allows. Soft iWARP looks at the memory only.
    PairRights,
    /// Peers name memory by offsets.
    ZeroBased,
    /// Memory that peers may read comes back when its registration ends.
    ReadableMemoryBack,
    /// Pairs receive from a shared receive queue.
    SharedReceives,
    /// The asynchronous events of the device can be taken.
    AsyncEvents,
    /// A shared receive queue can be queried for its size and its limit.
    SharedQueries,
    /// A completion queue changes its size.
    Resize,
    /// A completion queue that is armed for any completion stays armed for any if it is then armed for solicited ones.
    Arming,
    /// A read goes into several buffers.
    ListReads,
    /// The sends and the receives of a pair complete on two queues.
    TwoQueues,
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
            Self::Records => "connections by records",
            Self::SelfConnection => "a pair that is connected to itself",
            Self::TwoDevices => "two devices of one machine that reach each other",
            Self::Drain => "the state Send Queue Drain",
            Self::Immediates => "immediates",
            Self::Atomics => "atomics",
            Self::Windows => "windows",
            Self::UnreliableTransports => "unreliable connections and datagrams",
            Self::Waiting => "messages that wait for a receive",
            Self::Packets => "attributes of packets",
            Self::Order => "completions in the order of the requests",
            Self::WorkRequestApi => "the work request API",
            Self::ExtendedQueues => "extended completion queues",
            Self::Acknowledgements => "acknowledgements of the peer",
            Self::PairRights => "rights of a pair",
            Self::ZeroBased => "zero-based memory",
            Self::ReadableMemoryBack => "memory that comes back after peers could read it",
            Self::SharedReceives => "shared receive queues",
            Self::AsyncEvents => "asynchronous events",
            Self::SharedQueries => "queries of shared receive queues",
            Self::Resize => "completion queues that change their size",
            Self::Arming => "armings that add up",
            Self::ListReads => "reads into several buffers",
            Self::TwoQueues => "pairs whose sends and receives complete on two queues",
        }
    }
}

/// Whether the device under test lacks what the calling test needs. If so, this prints the line
/// `not applicable: needs ...`, so that the test is not counted as passed.
pub fn lacks_need(need: Need) -> bool {
    let lacks = match need {
        Need::Reset => context().is_iwarp() || !context().promises().pairs_can_be_reset(),
        Need::OtherProcesses => context().is_soft(),
        Need::SilentHost => context().is_soft(),
        Need::TwoQueues => !context().promises().pairs_may_have_two_queues(),
        Need::Order => lacks(Promise::Order),
        Need::ReadableMemoryBack => !context().promises().readable_memory_comes_back(),
        Need::SharedReceives => !context().promises().shared_receive_queues(),
        Need::AsyncEvents => !context().promises().has_events(),
        Need::WorkRequestApi => !ways().contains(&Posting::WorkRequestApi),
        Need::ExtendedQueues => !has_extended_queues(),
        Need::Resize => context().is_iwarp() || !context().promises().completion_queues_resize(),
        Need::SpareDevice => !context().name().starts_with("rxe"),
        _ => context().is_iwarp(),
    };
    if lacks {
        // The test harness hides the output of `println!` if the test passes, so this writes to standard output
        // directly.
        writeln!(std::io::stdout(), "not applicable: needs {}", need.name()).expect("standard output");
    }
    lacks
}
