//! The promises of each provider that the library may rely on: one row for each provider library, from a review of its
//! source.
//!
//! The specification and the manual pages leave much open, and providers differ: in the order of completions, in what a
//! destroy removes, in what a failed post has queued, and in when payload reaches memory. The library decides by this
//! table, never by the name of a driver. A provider without a row gets [`UNREVIEWED`], which promises nothing: every
//! request is signalled and ends only with its own completion, a refused post keeps its memory, and the poller destroys
//! the pairs.
//!
//! `docs/providers.md` has the sources that were read, and the reason for each entry.

use crate::sys::ibv_device_attr;
use std::env;

/// The promises that the library relies on from the provider of a device: a column of the table in `docs/providers.md`,
/// in the repository.
///
/// Where a promise is missing, the library works in another way, or refuses with an error that says so. A provider that
/// was not reviewed promises nothing. `Debug` shows all promises.
///
/// # Examples
///
/// ```
/// # let context = interlock::Context::open("soft0")?;
/// let promises = context.promises();
/// assert_eq!(promises.provider(), "soft");
/// assert!(promises.are_reviewed() && promises.pairs_can_be_reset());
/// println!("{promises:#?}");
/// # Ok::<(), interlock::error::OpenError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promises {
    /// The provider library, as rdma-core names it.
    pub(crate) name: &'static str,
    /// The completion of a send also completes the unsignalled sends before it.
    pub(crate) retires_prefix: bool,
    /// A post that fails and points `bad_wr` at a request has not queued that request, nor later ones.
    pub(crate) refusal_is_sure: bool,
    /// A move to Reset that returns 0 ends every access of the device, even if requests were in flight. A pair that
    /// leaves Reset or Send Queue Error is then like a new one: what happened to it before never makes a poll complete
    /// a later request.
    pub(crate) pairs_can_be_reset: bool,
    /// A request that is posted after the pair has moved to Error is flushed, at the latest with the next call that
    /// moves the pair to Error; or its post is refused.
    pub(crate) flushes_late_posts: bool,
    /// When a queue pair may be destroyed.
    pub(crate) teardown: Teardown,
    /// A failed destroy leaves the object unchanged, so it can be tried again.
    pub(crate) destroy_may_be_retried: bool,
    /// Whether shared receive queues may be used. This needs two promises. After all pairs of such a queue and then the
    /// queue itself are destroyed, no poll writes payload any more. And a poll that completes one receive never writes
    /// to the memory of a receive that was posted after it.
    pub(crate) shared: Shared,
    /// After a success, `ibv_poll_cq` has written every field that the library reads. No such field keeps the value
    /// from the caller's array.
    pub(crate) polls_fresh: bool,
    /// If `ibv_resize_cq` fails, the queue still works, and polls still find the completions that were in it.
    pub(crate) resizes: bool,
    /// Which requests may be posted through `ibv_wr_*`.
    pub(crate) sessions: Sessions,
    /// Whether and how extended completion queues may be polled.
    pub(crate) walk: Walk,
    /// The guarantees of a provider when a memory window ends.
    pub(crate) windows: Windows,
    /// On iWARP: an `rdma_connect` that fails because the TCP stream was refused, or could not be made, has done
    /// nothing to the pair, and will do nothing to it later.
    pub(crate) failed_connect_spares_pair: bool,
    /// `ibv_get_async_event` changes nothing about the object that the event names.
    pub(crate) events_change_nothing: bool,
    /// The exceptions that the library makes for this provider.
    pub(crate) quirks: Quirks,
}

impl Promises {
    /// The provider library, as rdma-core names it: `mlx5`, `rxe`. `not reviewed` if nobody has reviewed it.
    pub fn provider(&self) -> &'static str {
        self.name
    }

    /// Whether the provider's source was reviewed.
    pub fn are_reviewed(&self) -> bool {
        self.name != UNREVIEWED.name
    }

    /// Whether unsignalled sends complete together with a later send. If not, the library signals every request,
    /// whatever the program asked for.
    pub fn sends_may_be_unsignalled(&self) -> bool {
        // With `Teardown::Polled`, a pair is destroyed only after all its requests have completed. Unsignalled sends
        // without a later signalled one never complete, and would keep the pair for ever.
        self.retires_prefix && self.teardown != Teardown::Polled
    }

    /// Whether a post that the provider refuses gives its memory back at once. If not, such a post is
    /// [`PostError::Uncertain`](crate::PostError::Uncertain).
    pub fn refusals_are_sure(&self) -> bool {
        self.refusal_is_sure
    }

    /// Whether a queue pair can be moved to Reset, which ends its requests in flight, and be used again. If not,
    /// [`into_reset`](crate::QueuePair::into_reset) is refused, and so is
    /// [`resume`](crate::QueuePair::resume) of unreliable connections and datagrams: destroy such a pair, and create
    /// another.
    pub fn pairs_can_be_reset(&self) -> bool {
        self.pairs_can_be_reset
    }

    /// Whether a request that is posted after its pair has moved to Error comes out as flushed, at the latest with the
    /// next move to Error ([`into_error`](crate::QueuePair::into_error), [`drain`](crate::QueuePair::drain)). If not,
    /// such a request perhaps stays in flight as long as the pair is there. A program meets this when the device has
    /// moved the pair to Error and no completion has told the library yet.
    pub fn late_posts_are_flushed(&self) -> bool {
        self.flushes_late_posts
    }

    /// Whether a queue pair ends as soon as the program drops or destroys it. If not, the [`Poller`](crate::Poller) of
    /// its receives destroys the pair after all its requests have completed.
    pub fn pairs_end_at_once(&self, on_shared_receive_queue: bool) -> bool {
        !self.leaves_to_poller(on_shared_receive_queue)
    }

    /// Whether sends and receives of a pair may complete on two queues.
    pub fn pairs_may_have_two_queues(&self) -> bool {
        self.teardown != Teardown::Polled
    }

    /// Whether shared receive queues may be used, with the present environment variables.
    pub fn shared_receive_queues(&self) -> bool {
        self.shared.check().is_ok()
    }

    /// Whether [`Poller::resize`](crate::Poller::resize) works.
    pub fn completion_queues_resize(&self) -> bool {
        self.resizes
    }

    /// Whether the end of a [memory window](crate::window::Window) gives its memory back, as on the soft device and
    /// mlx5. If not, windows are bound over whole regions only, and the end of the region gives the memory back.
    pub fn windows_are_barriers(&self) -> bool {
        self.windows.are_barriers()
    }

    /// On an iWARP device: whether a connect leaves the pair as it was if the host refused the TCP stream, did not
    /// answer, or cannot be reached. Then the pair comes back in Init. If not, it comes back in Error.
    ///
    /// This says nothing about other devices: there, rdma_cm moves no pair.
    pub fn failed_connects_spare_pairs(&self) -> bool {
        self.failed_connect_spares_pair
    }

    /// Whether memory that peers may read comes back when its registration ends. On soft iWARP it does not: a read that
    /// has begun goes on. There, `deregister` of such memory fails (`EOPNOTSUPP`), a drop leaks it, and a scope does
    /// not grant it. The end of the registration keeps later reads out all the same.
    pub fn readable_memory_comes_back(&self) -> bool {
        !self.quirks.deregisters_early
    }

    /// Whether [`Context::events`](crate::Context::events) gives the asynchronous events of the device. If not, taking
    /// an event could make the provider report requests as flushed that the device still executes.
    pub fn has_events(&self) -> bool {
        self.events_change_nothing
    }

    /// How many inline bytes of `granted` may be used.
    pub(crate) fn inline_bytes(&self, granted: u32, is_datagram: bool) -> u32 {
        match (self.quirks.inline_in_request_only, is_datagram) {
            (false, _) => granted,
            (true, false) => granted.min(32),
            (true, true) => granted.min(8),
        }
    }

    /// Whether a queue pair is destroyed by its poller; `is_on_shared` says whether it receives from a shared receive
    /// queue.
    pub(crate) fn leaves_to_poller(&self, is_on_shared: bool) -> bool {
        match self.teardown {
            Teardown::Anytime => false,
            Teardown::PolledIfShared => is_on_shared,
            Teardown::Polled => true,
        }
    }
}

/// When a queue pair may be destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Teardown {
    /// At any time, while other threads poll its completion queues.
    Anytime,
    /// As `Anytime`, except for pairs on shared receive queues. The destroy of such a pair discards unpolled
    /// completions of shared receives, and the slots of these receives would be lost. So the poller of the pair's
    /// receives destroys the pair, after all completions of the pair have been polled.
    PolledIfShared,
    /// Only by the poller, after all requests of the pair have completed and the completion queue was seen empty.
    /// Nobody else is allowed to poll during the destroy, so such a pair has only one completion queue. Nor may anybody
    /// poll that queue while one of its pairs is being reset.
    Polled,
}

/// Whether shared receive queues may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shared {
    No,
    /// If the environment has this variable with this value.
    With(&'static str, &'static str),
    Yes,
}

impl Shared {
    /// `Ok` if they may be used now. Otherwise the environment variable that would allow it, with its value, if there
    /// is one.
    pub(crate) fn check(self) -> Result<(), Option<(&'static str, &'static str)>> {
        match self {
            Self::Yes => Ok(()),
            Self::With(variable, value) if env::var_os(variable).is_some_and(|is| is == value) => Ok(()),
            Self::With(variable, value) => Err(Some((variable, value))),
            Self::No => Err(None),
        }
    }
}

/// Which requests may be posted through `ibv_wr_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sessions {
    /// Not at all.
    No,
    /// With lists of one element only.
    SingleElement,
    /// All that the manual page allows.
    Yes,
}

impl Sessions {
    /// Whether requests of `elements` elements may be posted by `ibv_wr_*`.
    pub(crate) fn bears(self, elements: u32) -> bool {
        match self {
            Self::No => false,
            Self::SingleElement => elements <= 1,
            Self::Yes => true,
        }
    }
}

/// Whether and how extended completion queues may be polled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Walk {
    /// Not at all.
    No,
    /// One completion at a time.
    Singly,
    /// In every way that the manual page allows.
    Yes,
}

/// The guarantees of a provider when a memory window ends.
///
/// 1. Through a window, a peer reaches the bytes over which the window was bound, and no others of the region.
/// 2. When the request that ends a window has completed, or `ibv_dealloc_mw` has returned 0, the device has done its
///    last access through the window.
/// 3. Invalidating a window that is not bound does nothing but fail the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Windows {
    /// Not all of this holds. Windows are bound only over whole regions, and the end of the region gives the memory
    /// back.
    NoBarrier,
    /// All of this holds for windows of type 2. Windows of type 1 are ended only by `ibv_dealloc_mw`.
    Type2,
    /// All of this holds for both types.
    Both,
}

impl Windows {
    pub(crate) fn are_barriers(self) -> bool {
        self != Self::NoBarrier
    }
}

/// The exceptions that the library makes for a provider.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Quirks {
    /// A move to Reset may leave old requests that the device would run after the reset. The library moves every pair
    /// to Reset twice; with this quirk, both moves must succeed.
    pub(crate) reset_twice: bool,
    /// When the pair returns from Send Queue Drain, the device does not go on sending until something is posted.
    pub(crate) nudge_after_drain: bool,
    /// A resize of a shared receive queue that fails with `EINVAL` may have freed the old queue.
    pub(crate) shared_resize_loses: bool,
    /// Some completions have no event: flushed requests make none, or a poll overlooks a completion whose event was
    /// taken. So a sleeping thread polls from time to time.
    pub(crate) completes_quietly: bool,
    /// After the peer has accepted, rdma_cm swaps two numbers: the reads that this side may start, and the reads that
    /// it has to serve.
    pub(crate) swaps_reply_depths: bool,
    /// A query of a pair that rdma_cm has connected may report Reset, although the pair is in Ready To Send.
    pub(crate) hides_state: bool,
    /// `ibv_dereg_mr` does not wait for peers. A write that has begun is copied on for a moment, so the library waits
    /// for that. A read that has begun goes on until the peer has all bytes, so memory that peers may read never comes
    /// back.
    pub(crate) deregisters_early: bool,
    /// A zero-based registration succeeds, but then no peer reaches the memory. So the library refuses it.
    pub(crate) ignores_zero_based: bool,
    /// Inline bytes that do not fit into the request itself may be written past the end of a ring. See
    /// [`inline_bytes`](Promises::inline_bytes).
    pub(crate) inline_in_request_only: bool,
    /// On iWARP, polls may read completions of the last lap of the ring again. So no pairs are made there.
    pub(crate) not_on_iwarp: bool,
}

impl Quirks {
    const NONE: Self = Self {
        reset_twice: false,
        nudge_after_drain: false,
        shared_resize_loses: false,
        completes_quietly: false,
        swaps_reply_depths: false,
        hides_state: false,
        deregisters_early: false,
        ignores_zero_based: false,
        inline_in_request_only: false,
        not_on_iwarp: false,
    };
}

/// A provider that nobody has reviewed. The other rows start from this one, so that each lists what it promises.
pub(crate) const UNREVIEWED: Promises = Promises {
    name: "not reviewed",
    retires_prefix: false,
    refusal_is_sure: false,
    pairs_can_be_reset: false,
    flushes_late_posts: false,
    teardown: Teardown::Polled,
    destroy_may_be_retried: false,
    shared: Shared::No,
    polls_fresh: false,
    resizes: false,
    sessions: Sessions::No,
    walk: Walk::No,
    windows: Windows::NoBarrier,
    failed_connect_spares_pair: false,
    events_change_nothing: false,
    quirks: Quirks { reset_twice: true, shared_resize_loses: true, completes_quietly: true, ..Quirks::NONE },
};

/// The soft device, which follows the specification.
pub(crate) const SOFT: Promises = Promises {
    name: "soft",
    retires_prefix: true,
    refusal_is_sure: true,
    pairs_can_be_reset: true,
    flushes_late_posts: true,
    teardown: Teardown::Anytime,
    destroy_may_be_retried: true,
    shared: Shared::Yes,
    polls_fresh: true,
    resizes: true,
    sessions: Sessions::Yes,
    walk: Walk::Yes,
    windows: Windows::Both,
    failed_connect_spares_pair: true,
    events_change_nothing: true,
    quirks: Quirks::NONE,
};

/// Linux soft-RoCE.
pub(crate) const RXE: Promises = Promises {
    name: "rxe",
    retires_prefix: true,
    refusal_is_sure: true,
    pairs_can_be_reset: true,
    flushes_late_posts: true,
    teardown: Teardown::Anytime,
    destroy_may_be_retried: true,
    shared: Shared::Yes,
    polls_fresh: true,
    resizes: true,
    sessions: Sessions::SingleElement,
    walk: Walk::Singly,
    events_change_nothing: true,
    quirks: Quirks { completes_quietly: false, nudge_after_drain: true, ..UNREVIEWED.quirks },
    ..UNREVIEWED
};

/// Linux soft iWARP.
pub(crate) const SIW: Promises = Promises {
    name: "siw",
    refusal_is_sure: true,
    teardown: Teardown::Anytime,
    shared: Shared::Yes,
    failed_connect_spares_pair: true,
    events_change_nothing: true,
    quirks: Quirks {
        swaps_reply_depths: true,
        hides_state: true,
        deregisters_early: true,
        ignores_zero_based: true,
        ..Quirks::NONE
    },
    ..UNREVIEWED
};

/// NVIDIA, Mellanox: Connect-IB, ConnectX-4 to ConnectX-7, BlueField to BlueField-3.
pub(crate) const MLX5: Promises = Promises {
    name: "mlx5",
    retires_prefix: true,
    refusal_is_sure: true,
    pairs_can_be_reset: true,
    flushes_late_posts: true,
    teardown: Teardown::PolledIfShared,
    destroy_may_be_retried: true,
    shared: Shared::With("MLX5_SCATTER_TO_CQE", "0"),
    polls_fresh: true,
    resizes: true,
    sessions: Sessions::Yes,
    walk: Walk::Yes,
    windows: Windows::Type2,
    failed_connect_spares_pair: false,
    events_change_nothing: true,
    quirks: Quirks::NONE,
};

/// Mellanox: ConnectX-3.
pub(crate) const MLX4: Promises = Promises {
    name: "mlx4",
    retires_prefix: true,
    refusal_is_sure: true,
    pairs_can_be_reset: true,
    flushes_late_posts: true,
    teardown: Teardown::PolledIfShared,
    destroy_may_be_retried: true,
    shared: Shared::Yes,
    resizes: true,
    walk: Walk::Yes,
    events_change_nothing: true,
    quirks: Quirks::NONE,
    ..UNREVIEWED
};

/// Intel: E800, X722.
pub(crate) const IRDMA: Promises = Promises {
    name: "irdma",
    refusal_is_sure: true,
    events_change_nothing: true,
    quirks: Quirks { completes_quietly: true, not_on_iwarp: true, ..Quirks::NONE },
    ..UNREVIEWED
};

/// Broadcom.
pub(crate) const BNXT_RE: Promises = Promises {
    name: "bnxt_re",
    refusal_is_sure: true,
    quirks: Quirks { completes_quietly: true, ..Quirks::NONE },
    ..UNREVIEWED
};

/// HiSilicon.
pub(crate) const HNS: Promises = Promises {
    name: "hns",
    destroy_may_be_retried: true,
    shared: Shared::Yes,
    events_change_nothing: true,
    quirks: Quirks { inline_in_request_only: true, ..Quirks::NONE },
    ..UNREVIEWED
};

/// Amazon.
pub(crate) const EFA: Promises = Promises {
    name: "efa",
    refusal_is_sure: true,
    events_change_nothing: true,
    polls_fresh: true,
    quirks: Quirks::NONE,
    ..UNREVIEWED
};

/// A provider for measurements, which completes each request inside its post and touches no memory:
/// `benches/nullverbs`.
const NULL: Promises = Promises { name: "nullverbs", windows: Windows::NoBarrier, ..SOFT };

/// The node GUID that identifies [`NULL`].
const NULL_GUID: u64 = 0x0100_0000_00c2_5002;

// Vendors and parts, as `ibv_query_device` reports them. Each part is listed by its number, so that a new part counts
// as not reviewed.

const MELLANOX: u32 = 0x02c9;
/// Connect-IB, ConnectX-4 to ConnectX-7, BlueField to BlueField-3, with their virtual functions.
const MLX5_PARTS: [u32; 20] = [
    0x1011, 0x1012, 0x1013, 0x1014, 0x1015, 0x1016, 0x1017, 0x1018, 0x1019, 0x101a, 0x101b, 0x101c, 0x101d, 0x101e,
    0x101f, 0x1021, 0xa2d2, 0xa2d3, 0xa2d6, 0xa2dc,
];
/// ConnectX-3 and ConnectX-3 Pro, with their virtual functions.
const MLX4_PARTS: [u32; 3] = [0x1003, 0x1004, 0x1007];

const INTEL: u32 = 0x8086;
/// E810, E822, E823, C822N, and X722. A third generation (E2000) has shared receive queues, and is not reviewed.
const IRDMA_PARTS: [u32; 32] = [
    0x124c, 0x124d, 0x124e, 0x124f, 0x151d, 0x1591, 0x1592, 0x1593, 0x1599, 0x159a, 0x159b, 0x188a, 0x188b, 0x188c,
    0x188d, 0x188e, 0x1890, 0x1891, 0x1892, 0x1893, 0x1894, 0x1897, 0x1898, 0x1899, 0x189a, 0x374c, 0x37ce, 0x37cf,
    0x37d0, 0x37d1, 0x37d2, 0x37d3,
];

const BROADCOM: u32 = 0x14e4;
/// The provider's own list, and BCM57608, which the provider also handles by its number.
const BNXT_RE_PARTS: [u32; 32] = [
    0x1605, 0x1606, 0x1614, 0x16c0, 0x16c1, 0x16ce, 0x16cf, 0x16d6, 0x16d7, 0x16d8, 0x16d9, 0x16df, 0x16e2, 0x16e3,
    0x16e5, 0x16eb, 0x16ed, 0x16ef, 0x16f0, 0x16f1, 0x1750, 0x1751, 0x1752, 0x1760, 0x1803, 0x1804, 0x1805, 0x1807,
    0x1809, 0xd800, 0xd802, 0xd804,
];

const HISILICON: u32 = 0x19e5;
/// The provider's own list.
const HNS_PARTS: [u32; 8] = [0xa222, 0xa223, 0xa224, 0xa225, 0xa226, 0xa227, 0xa228, 0xa22f];

const AMAZON: u32 = 0x1d0f;
/// The part 0xefa4 is left out: it numbers its requests in another way, and was not reviewed.
const EFA_PARTS: [u32; 4] = [0xefa0, 0xefa1, 0xefa2, 0xefa3];

pub(crate) fn row_of(device: &ibv_device_attr) -> Option<&'static Promises> {
    Some(match (device.vendor_id, device.vendor_part_id) {
        (0x00ff_ffff, 0) => &RXE,
        (0, 0) if device.node_guid == NULL_GUID => &NULL,
        // siw numbers its devices and reports that number as the part, so any part matches.
        (0x0062_6d74, _) => &SIW,
        (MELLANOX, part) if MLX5_PARTS.contains(&part) => &MLX5,
        (MELLANOX, part) if MLX4_PARTS.contains(&part) => &MLX4,
        (INTEL, part) if IRDMA_PARTS.contains(&part) => &IRDMA,
        (BROADCOM, part) if BNXT_RE_PARTS.contains(&part) => &BNXT_RE,
        (HISILICON, part) if HNS_PARTS.contains(&part) => &HNS,
        (AMAZON, part) if EFA_PARTS.contains(&part) => &EFA,
        _ => return None,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const ROWS: [&Promises; 10] = [&SOFT, &RXE, &SIW, &MLX5, &MLX4, &IRDMA, &BNXT_RE, &HNS, &EFA, &UNREVIEWED];

    /// The table as `docs/providers.md` must have it.
    fn table() -> String {
        type Cell = fn(&Promises) -> String;
        let columns: [(&str, Cell); 15] = [
            ("a completion also completes the sends before it", |row| yes_or_no(row.retires_prefix)),
            ("a named refusal is not queued", |row| yes_or_no(row.refusal_is_sure)),
            ("pairs can be reset", |row| yes_or_no(row.pairs_can_be_reset)),
            ("late posts are flushed", |row| yes_or_no(row.flushes_late_posts)),
            ("pairs are destroyed", |row| {
                match row.teardown {
                    Teardown::Anytime => "at any time",
                    Teardown::PolledIfShared => "by the poller if on a shared queue",
                    Teardown::Polled => "by the poller",
                }
                .to_owned()
            }),
            ("a failed destroy can be tried again", |row| yes_or_no(row.destroy_may_be_retried)),
            ("shared receive queues", |row| match row.shared {
                Shared::No => "no".to_owned(),
                Shared::With(variable, value) => format!("with `{variable}={value}`"),
                Shared::Yes => "yes".to_owned(),
            }),
            ("polls write all fields", |row| yes_or_no(row.polls_fresh)),
            ("resizes", |row| yes_or_no(row.resizes)),
            ("`ibv_wr_*`", |row| {
                match row.sessions {
                    Sessions::No => "no",
                    Sessions::SingleElement => "of one element",
                    Sessions::Yes => "yes",
                }
                .to_owned()
            }),
            ("`ibv_next_poll`", |row| {
                match row.walk {
                    Walk::No => "no",
                    Walk::Singly => "one at a time",
                    Walk::Yes => "yes",
                }
                .to_owned()
            }),
            ("windows are barriers", |row| {
                match row.windows {
                    Windows::NoBarrier => "no",
                    Windows::Type2 => "type 2",
                    Windows::Both => "both types",
                }
                .to_owned()
            }),
            ("the end of a registration waits for peers", |row| yes_or_no(!row.quirks.deregisters_early)),
            ("a failed connect spares the pair", |row| yes_or_no(row.failed_connect_spares_pair)),
            ("events change nothing", |row| yes_or_no(row.events_change_nothing)),
        ];
        fn yes_or_no(is_so: bool) -> String {
            if is_so { "yes" } else { "no" }.to_owned()
        }
        let line = |first: &str, cells: Vec<String>| format!("| {first} | {} |\n", cells.join(" | "));
        let mut table = line("", ROWS.iter().map(|row| row.name.to_owned()).collect());
        table += &line("---", vec!["---".to_owned(); ROWS.len()]);
        for (name, cell) in columns {
            table += &line(name, ROWS.iter().map(|row| cell(row)).collect());
        }
        table
    }

    #[test]
    #[cfg_attr(miri, ignore = "slow, and compares text only")]
    fn the_document_has_the_table_that_the_code_has() {
        let document = include_str!("../../docs/providers.md");
        assert!(document.contains(&table()), "docs/providers.md should have\n\n{}", table());
    }

    fn name(vendor_id: u32, vendor_part_id: u32) -> &'static str {
        let device = ibv_device_attr { vendor_id, vendor_part_id, ..Default::default() };
        row_of(&device).map_or("", |row| row.name)
    }

    /// Polls by `ibv_start_poll` do not take the polling lock, which destroys and resets take on some providers. So
    /// extended polling is not allowed on those.
    #[test]
    fn who_needs_turns_has_no_walk() {
        assert!(ROWS.iter().all(|row| row.teardown != Teardown::Polled || row.walk == Walk::No));
    }

    #[test]
    fn on_hns_inline_bytes_fit_into_the_request() {
        assert_eq!([false, true].map(|is_datagram| HNS.inline_bytes(512, is_datagram)), [32, 8]);
        assert_eq!([false, true].map(|is_datagram| HNS.inline_bytes(4, is_datagram)), [4, 4]);
        assert_eq!([false, true].map(|is_datagram| MLX5.inline_bytes(512, is_datagram)), [512, 512]);
    }

    #[test]
    fn a_provider_is_known_by_vendor_and_part() {
        for part in [0x1013, 0x101d, 0xa2d6] {
            assert_eq!(name(0x02c9, part), "mlx5");
        }
        let others = [
            (0x00ff_ffff, 0, "rxe"),
            (0x0062_6d74, 1, "siw"),
            (0x0062_6d74, 7, "siw"),
            (0x02c9, 0x1003, "mlx4"),
            (0x8086, 0x1592, "irdma"),
            (0x8086, 0x37d0, "irdma"),
            (0x14e4, 0x1750, "bnxt_re"),
            (0x14e4, 0x1760, "bnxt_re"),
            (0x19e5, 0xa222, "hns"),
            (0x1d0f, 0xefa1, "efa"),
        ];
        for (vendor, part, row) in others {
            assert_eq!(name(vendor, part), row, "{part:#x}");
        }
        // No row matches a part of mlx5 with another vendor. Vendor 0 with part 0 matches a row only if the device has
        // the GUID of nullverbs, and `name` sets no GUID.
        for (vendor, part) in [(0x15b3, 0x1013), (0, 0)] {
            assert_eq!(name(vendor, part), "");
        }
        // No row matches a part that was not reviewed, such as ConnectX-8 (0x1023), E2000 (0x1452) or Amazon's 0xefa4.
        for (vendor, part) in [
            (0x02c9, 0x1020),
            (0x02c9, 0x1023),
            (0x8086, 0x1452),
            (0x8086, 0),
            (0x14e4, 0x1761),
            (0x19e5, 0xa229),
            (0x1d0f, 0xefa4),
        ] {
            assert_eq!(name(vendor, part), "", "{part:#x}");
        }
    }
}
