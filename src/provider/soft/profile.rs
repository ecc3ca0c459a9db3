//! Profiles: how a soft device behaves where the specification leaves a choice.
//!
//! A profile has a row of the reviewed table, and that row is all that the library knows of the device. Where the row
//! promises nothing, the device does the worst that the source of its provider allows; if there are several bad
//! choices, it takes one at random. An adversary has almost all of these habits. `docs/providers.md` names the sources.
#![forbid(unsafe_code)]

use super::random::Random;
use crate::provider::reviewed::{self, Promises, Sessions, Shared, Teardown, UNREVIEWED, Walk, Windows};
use crate::sync::lock;
use std::{collections::BTreeMap, sync::Mutex};

/// Which provider the devices of a [`Fabric`](super::Fabric) resemble, where the specification leaves a choice.
///
/// A program that works on [`Specification`](Self::Specification) may still depend on choices of its device; the other
/// profiles expose that. The library trusts a device as far as its profile's row allows, as with a real provider: for
/// example, if requests may complete in any order, the library signals every request.
///
/// The devices `soft0` and `soft1` take the profile that the environment variable `INTERLOCK_SOFT_PROFILE` names when
/// they are first used: `specification`, `rxe`, `siw`, `mlx5`, `mlx4`, `irdma`, `irdma-iwarp`, `bnxt_re`,
/// `hns`, `efa`, `adversary:SEED`, or `iwarp-adversary:SEED`. On these two devices a violation aborts the process.
///
/// # Examples
///
/// ```
/// use interlock::{Context, soft::{Fabric, Profile}};
/// let fabric = Fabric::with_profile(Profile::Adversary(0));
/// let context = Context::open_on(&fabric, "dev0")?;
/// assert!(!context.promises().windows_are_barriers(), "it promises nothing");
/// assert!(fabric.violations().is_empty());
/// # Ok::<(), interlock::error::OpenError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum Profile {
    /// Every step happens in order, every field is written, and nothing is lost.
    #[default]
    Specification,
    /// Behaves like `librxe`: a post may return an error although all its requests are queued; numbers are reused at
    /// once.
    Rxe,
    /// Behaves like `libsiw`: requests complete in any order; a post of a list may return 0 although only the beginning
    /// is queued; polls do not write all fields; after a failed destroy an object is half-destroyed.
    Siw,
    /// Behaves like `libmlx5`: short messages reach memory when their completion is polled; a destroy or reset removes
    /// completions that nobody has polled, and frees their shared receives; numbers are reused at once.
    Mlx5,
    /// Behaves like `libmlx4`: a destroy or reset removes completions; polls add to the flag bits that the array held.
    Mlx4,
    /// Behaves like `libirdma`: a poll may find nothing although there are completions; polls must not find completions
    /// of a destroyed pair; a failure may be reported for another request; the first element of an empty list is read;
    /// after a failed destroy an object is half-destroyed.
    Irdma,
    /// As [`Irdma`](Self::Irdma), on an iWARP device. The library makes no queue pairs there.
    IrdmaIwarp,
    /// Behaves like `libbnxt_re`: a failure may be reported for another request; flushes make no event.
    BnxtRe,
    /// Behaves like `libhns`: short messages reach memory when their completion is polled; polls must not find
    /// completions of a destroyed pair; it grants less inline data than was asked for.
    Hns,
    /// Behaves like `libefa`: requests complete in any order, and unsignalled ones are refused; polls must not find
    /// completions of a destroyed pair; reads complete as sends.
    Efa,
    /// An adversary with almost all of these habits, at random from a seed.
    ///
    /// Bits of the seed add more. With bit 1, posts and moves to Error sometimes fail. With bit 2, the device makes
    /// some promises, which the seed chooses; without it, the device promises nothing. With bit 4, polls and destroys
    /// sometimes fail and leave half-destroyed objects. With bits 2 and 128, the end of a registration does not wait
    /// for peers, as on soft iWARP.
    Adversary(u64),
    /// The adversary of that seed, as an iWARP device. If a connect fails because there is no TCP stream, this device
    /// moves the pair to Error all the same, during the call or after it. No seed makes the device promise otherwise.
    IwarpAdversary(u64),
}

impl Profile {
    /// The row of promises that the library sees.
    pub(super) fn row(self) -> &'static Promises {
        match self {
            Self::Specification => &reviewed::SOFT,
            Self::Rxe => &reviewed::RXE,
            Self::Siw => &reviewed::SIW,
            Self::Mlx5 => &reviewed::MLX5,
            Self::Mlx4 => &reviewed::MLX4,
            Self::Irdma | Self::IrdmaIwarp => &reviewed::IRDMA,
            Self::BnxtRe => &reviewed::BNXT_RE,
            Self::Hns => &reviewed::HNS,
            Self::Efa => &reviewed::EFA,
            Self::Adversary(seed) | Self::IwarpAdversary(seed) => match seed & SOME_PROMISES {
                0 => &UNREVIEWED,
                _ => row_of_seed(seed),
            },
        }
    }

    /// The profile of that name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "specification" => Self::Specification,
            "rxe" => Self::Rxe,
            "siw" => Self::Siw,
            "mlx5" => Self::Mlx5,
            "mlx4" => Self::Mlx4,
            "irdma" => Self::Irdma,
            "irdma-iwarp" => Self::IrdmaIwarp,
            "bnxt_re" => Self::BnxtRe,
            "hns" => Self::Hns,
            "efa" => Self::Efa,
            _ => {
                let (kind, seed) = name.split_once(':')?;
                let seed = seed.parse().ok()?;
                match kind {
                    "adversary" => Self::Adversary(seed),
                    "iwarp-adversary" => Self::IwarpAdversary(seed),
                    _ => return None,
                }
            }
        })
    }

    /// Whether the devices are iWARP ones: rdma_cm alone connects their pairs.
    pub(super) fn is_iwarp(self) -> bool {
        matches!(self, Self::Siw | Self::IrdmaIwarp | Self::IwarpAdversary(_))
    }

    /// The seed of an adversary.
    pub(super) fn seed(self) -> Option<u64> {
        if let Self::Adversary(seed) | Self::IwarpAdversary(seed) = self { Some(seed) } else { None }
    }

    pub(super) fn habits(self) -> Habits {
        const NONE: Habits = Habits::NONE;
        match self {
            Self::Specification => NONE,
            Self::Rxe => Habits { hides_posts: 256, reuses: true, ..NONE },
            Self::Siw => {
                let odd = Habits { leaves_fields: true, reuses: true, odd_codes: true, ..NONE };
                Habits { overtakes: 2, halves_posts: 32, forgets_in_error: true, ends_early: true, ..odd }
            }
            Self::Mlx5 => {
                // mlx5 can put a short payload into the completion, and copy the payload to the buffer of the request
                // only when the completion is polled: then the payload is late. With `MLX5_SCATTER_TO_CQE=0` in the
                // environment, mlx5 never does this, and `check` succeeds.
                let late = if reviewed::MLX5.shared.check().is_ok() { 0 } else { ALWAYS };
                Habits { purges: ALWAYS, late, reuses: true, grants_more: true, ..NONE }
            }
            Self::Mlx4 => {
                Habits { purges: ALWAYS, leaves_fields: true, reuses: true, odd_codes: true, grants_more: true, ..NONE }
            }
            Self::Irdma | Self::IrdmaIwarp => Habits {
                shifts_blame: true,
                empty_polls: 8,
                leaves_fields: true,
                reads_lists: true,
                grants_more: true,
                forgets_in_error: true,
                ..NONE
            },
            Self::BnxtRe => Habits {
                shifts_blame: true,
                quiet_flushes: true,
                purges: ALWAYS,
                leaves_fields: true,
                grants_more: true,
                ..NONE
            },
            Self::Hns => Habits {
                late: ALWAYS,
                purges: 2,
                false_refusals: 64,
                leaves_fields: true,
                grants_more: true,
                grants_less_inline: true,
                ..NONE
            },
            Self::Efa => {
                Habits { overtakes: 2, needs_signals: true, refuses_in_error: true, calls_all_sends: true, ..NONE }
            }
            Self::Adversary(seed) | Self::IwarpAdversary(seed) => Habits::of_adversary(seed, self.row()),
        }
    }
}

/// Bits of an adversary's seed: posts and moves to Error fail; the device makes some promises; polls and destroys fail.
const POSTS_FAIL: u64 = 1;
const SOME_PROMISES: u64 = 2;
const OBJECTS_DIE: u64 = 4;
/// Of an adversary that makes some promises: the end of a registration does not wait for peers.
const ENDS_EARLY: u64 = 128;

/// The habit of taking a latitude every time.
pub(super) const ALWAYS: u64 = 1;

/// How often a device takes each latitude. A number `n` means once in `n` times, and 0 means never. `true` means
/// always.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// A completion overtakes the last one of its work queue.
    pub(super) overtakes: u64,
    /// Completions that nobody has polled are removed when their pair is destroyed or reset.
    pub(super) purges: u64,
    /// Payload of short messages and short reads is written when the completion is polled.
    pub(super) late: u64,
    /// The memory of a receive is overwritten beyond the message, or although the receive failed.
    pub(super) scribbles: u64,
    /// A poll returns one completion although there are more.
    pub(super) short_polls: u64,
    /// A poll returns no completion although there are some.
    pub(super) empty_polls: u64,
    /// A poll removes completions and fails.
    pub(super) lossy_polls: u64,
    /// A destroy of a pair fails.
    pub(super) lame_destroys: u64,
    /// A move of a pair to Error is refused, and changes nothing.
    pub(super) refuses_moves: u64,
    /// A post returns an error and names no request, but all its requests are queued.
    pub(super) hides_posts: u64,
    /// A post names its first request as refused, but all its requests are queued.
    pub(super) false_refusals: u64,
    /// A post is refused, as if the queue were full.
    pub(super) refuses_posts: u64,
    /// A post of a list returns 0, but only the beginning of the list is queued.
    pub(super) halves_posts: u64,
    /// Arming makes an event although there is no completion.
    pub(super) spurious_events: u64,
    /// Flushes make no event.
    pub(super) quiet_flushes: bool,
    /// The failure of a send is reported for another send of the same queue.
    pub(super) shifts_blame: bool,
    /// Each request of the send side completes as a send.
    pub(super) calls_all_sends: bool,
    /// A poll leaves some fields as they were in the caller's array.
    pub(super) leaves_fields: bool,
    /// When a pair or region ends, the next one gets its number or keys.
    pub(super) reuses: bool,
    /// A request without a completion of its own is refused.
    pub(super) needs_signals: bool,
    /// A post to a pair in Error is refused.
    pub(super) refuses_in_error: bool,
    /// A request that is posted to a pair in Error is not flushed before the pair is destroyed.
    pub(super) forgets_in_error: bool,
    /// Posts return negative errnos, or -1.
    pub(super) odd_codes: bool,
    /// Queues are larger than was asked for.
    pub(super) grants_more: bool,
    /// Pairs get less room for inline data than was asked for.
    pub(super) grants_less_inline: bool,
    /// The first element of a list is read even if the list is empty; an element of 0 bytes is taken for one of 2^31.
    pub(super) reads_lists: bool,
    /// Writes of peers go on after the end of their region.
    pub(super) ends_early: bool,
    /// On iWARP: a connect that finds no TCP stream moves its pair to Error all the same.
    pub(super) breaks_unconnected: bool,
}

impl Habits {
    const NONE: Self = Self {
        overtakes: 0,
        purges: 0,
        late: 0,
        scribbles: 0,
        short_polls: 0,
        empty_polls: 0,
        lossy_polls: 0,
        lame_destroys: 0,
        refuses_moves: 0,
        hides_posts: 0,
        false_refusals: 0,
        refuses_posts: 0,
        halves_posts: 0,
        spurious_events: 0,
        quiet_flushes: false,
        shifts_blame: false,
        calls_all_sends: false,
        leaves_fields: false,
        reuses: false,
        needs_signals: false,
        refuses_in_error: false,
        forgets_in_error: false,
        odd_codes: false,
        grants_more: false,
        grants_less_inline: false,
        reads_lists: false,
        ends_early: false,
        breaks_unconnected: false,
    };

    /// All habits that the bits of the seed permit and the promises in `row` do not rule out. Two habits are left out:
    /// `grants_less_inline`, and `forgets_in_error`, which endangers no memory but would make many tests wait in vain.
    fn of_adversary(seed: u64, row: &Promises) -> Self {
        let unless = |ruled_out: bool, often: u64| if ruled_out { 0 } else { often };
        let fails = seed & POSTS_FAIL != 0;
        let dies = seed & OBJECTS_DIE != 0;
        Self {
            overtakes: unless(row.retires_prefix, 2),
            purges: unless(row.teardown == Teardown::Anytime, 2),
            late: 2,
            scribbles: 2,
            short_polls: 4,
            empty_polls: unless(row.shared != Shared::No || !row.quirks.completes_quietly, 8),
            lossy_polls: unless(!dies, 512),
            lame_destroys: unless(!dies, 4),
            refuses_moves: unless(!fails, 4),
            hides_posts: unless(!fails, 256),
            false_refusals: unless(!fails || row.refusal_is_sure, 64),
            refuses_posts: unless(!fails, 128),
            halves_posts: unless(!fails, 32),
            spurious_events: 8,
            quiet_flushes: row.quirks.completes_quietly,
            shifts_blame: !row.retires_prefix,
            calls_all_sends: true,
            leaves_fields: !row.polls_fresh,
            reuses: true,
            needs_signals: !row.retires_prefix,
            refuses_in_error: fails,
            forgets_in_error: false,
            odd_codes: true,
            grants_more: true,
            grants_less_inline: false,
            reads_lists: true,
            ends_early: row.quirks.deregisters_early,
            breaks_unconnected: !row.failed_connect_spares_pair,
        }
    }
}

/// The row that a seed chooses. Rows are never freed, so the same seed always gets the same row.
fn row_of_seed(seed: u64) -> &'static Promises {
    static ROWS: Mutex<BTreeMap<u64, &'static Promises>> = Mutex::new(BTreeMap::new());
    let mut rows = lock(&ROWS);
    rows.entry(seed).or_insert_with(|| Box::leak(Box::new(promises(seed))))
}

/// Promises that the seed chooses at random.
fn promises(seed: u64) -> Promises {
    let mut random = Random::new(seed);
    let mut one_of = |choices| random.below(choices);
    let mut coin = || one_of(2) == 0;
    let mut row = Promises {
        name: "adversary",
        retires_prefix: coin(),
        refusal_is_sure: coin(),
        pairs_can_be_reset: coin(),
        destroy_may_be_retried: coin(),
        shared: Shared::Yes,
        polls_fresh: coin(),
        resizes: coin(),
        windows: Windows::NoBarrier,
        events_change_nothing: true,
        ..UNREVIEWED
    };
    row.quirks.completes_quietly = coin();
    row.quirks.deregisters_early = seed & ENDS_EARLY != 0;
    row.teardown = match one_of(3) {
        0 => Teardown::Anytime,
        1 => Teardown::PolledIfShared,
        _ => Teardown::Polled,
    };
    row.sessions = if one_of(2) == 0 { Sessions::Yes } else { Sessions::No };
    row.walk = match one_of(3) {
        _ if row.teardown == Teardown::Polled => Walk::No,
        0 => Walk::Yes,
        1 => Walk::Singly,
        _ => Walk::No,
    };
    row
}
