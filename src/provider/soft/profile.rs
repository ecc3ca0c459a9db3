//! What a soft device does where the specification leaves it open.
//!
//! A profile comes with a row of the reviewed table, which is all that the library is told. What the row does not promise
//! the device does otherwise, at random where that is the worst. `docs/providers.md` names the providers that do so.

use super::{
    completion::{Entry, Side},
    fabric::State,
    memory::{self, Span},
};
use crate::device::reviewed::{self, Row};

/// Whose latitudes the devices of a [`Fabric`](super::Fabric) take: what providers do differently, within the specification.
///
/// A program that works on [`Specification`](Self::Specification) may lean on what its device happens to do. On the others it
/// is found out. What the library believes of a device changes with the profile, as it does with a provider:
/// where a provider's devices complete requests in any order, say, each request is signalled.
///
/// The devices `soft0` and `soft1` take the profile that the environment variable `INTERLOCK_SOFT_PROFILE` names when they
/// are first used: `specification`, `rxe`, `siw`, `mlx5`, `efa`, or `adversary:SEED`. On these two a violation ends the process.
///
/// # Examples
///
/// ```
/// use interlock::{Context, soft::{Fabric, Profile}};
/// let fabric = Fabric::with_profile(Profile::Adversary(7));
/// let context = Context::open_on(&fabric, "dev0")?;
/// assert!(!context.windows_are_barriers(), "an adversary promises nothing");
/// assert!(fabric.violations().is_empty());
/// # Ok::<(), interlock::OpenError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum Profile {
    /// Each step in order, each field written, nothing lost.
    #[default]
    Specification,
    /// As `librxe`: a post may answer an error though all is queued; numbers are used again at once.
    Rxe,
    /// As `libsiw`: a post of a list may answer 0 though only its beginning is queued; polls add to the flags that were there.
    Siw,
    /// As `libmlx5`: short messages reach memory when their completion is polled; a destroy or reset removes completions that
    /// nobody has polled, and the shared receives that they were of; numbers are used again at once.
    Mlx5,
    /// As `libefa`: requests complete in any order, and unsignalled ones are refused; no poll may meet a destroyed pair.
    Efa,
    /// All of these, at random from a seed, and nothing is promised. With an odd seed posts fail now and then, too.
    Adversary(u64),
}

impl Profile {
    /// What the library is told.
    pub(super) fn row(self) -> &'static Row {
        match self {
            Self::Specification => &reviewed::SOFT,
            Self::Rxe => &reviewed::RXE,
            Self::Siw => &reviewed::SIW,
            Self::Mlx5 => &reviewed::MLX5,
            Self::Efa => &reviewed::EFA,
            Self::Adversary(_) => &reviewed::UNREVIEWED,
        }
    }

    /// Of that name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "specification" => Self::Specification,
            "rxe" => Self::Rxe,
            "siw" => Self::Siw,
            "mlx5" => Self::Mlx5,
            "efa" => Self::Efa,
            _ => Self::Adversary(name.strip_prefix("adversary:")?.parse().ok()?),
        })
    }
}

/// What a device may do differently, decided each time anew.
pub(super) struct Latitudes {
    pub(super) profile: Profile,
    /// Never 0.
    random: u64,
    /// What was done that no provider has to bear.
    pub(super) violations: Vec<String>,
    /// A violation ends the process.
    pub(super) aborts: bool,
    /// What the receive that is completed next gets when it is polled.
    late: Option<Box<Late>>,
}

/// Payload that is written when its completion is polled.
pub(super) struct Late {
    bytes: Vec<u8>,
    to: Vec<Span>,
}

/// The longest message that a completion can carry.
const LATE_BYTES: usize = 64;
/// What a device leaves in memory that it has not written yet.
const NOT_YET: u8 = 0xee;

impl Latitudes {
    pub(super) fn new(profile: Profile, aborts: bool) -> Self {
        let seed = if let Profile::Adversary(seed) = profile { seed } else { 0 };
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { profile, random, violations: Vec::new(), aborts, late: None }
    }

    /// True once in so many times.
    fn once_in(&mut self, times: u64) -> bool {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16).is_multiple_of(times)
    }

    fn is_adversary(&self) -> bool {
        matches!(self.profile, Profile::Adversary(_))
    }

    fn fails_posts(&self) -> bool {
        matches!(self.profile, Profile::Adversary(seed) if seed % 2 == 1)
    }

    /// A completion goes before the last one of its work queue.
    pub(super) fn overtakes(&mut self) -> bool {
        (self.profile == Profile::Efa || self.is_adversary()) && self.once_in(2)
    }

    /// What a pair leaves unpolled is removed when it ends.
    fn purges(&mut self) -> bool {
        self.profile == Profile::Mlx5 || self.is_adversary() && self.once_in(2)
    }

    /// No poll may meet a pair that was destroyed.
    fn forbids_late_polls(&self) -> bool {
        self.profile == Profile::Efa || self.is_adversary()
    }

    fn is_late(&mut self, len: usize) -> bool {
        len <= LATE_BYTES && len != 0 && (self.profile == Profile::Mlx5 || self.is_adversary() && self.once_in(2))
    }

    /// A poll leaves fields as they were.
    pub(super) fn leaves_fields(&self) -> bool {
        self.profile == Profile::Siw || self.is_adversary()
    }

    /// How much of `room` a poll fills: at least 1.
    pub(super) fn filled(&mut self, room: usize) -> usize {
        if self.is_adversary() && self.once_in(4) { room.min(1) } else { room }
    }

    /// The number of a pair that ends is the next to be given out.
    pub(super) fn reuses_numbers(&self) -> bool {
        matches!(self.profile, Profile::Mlx5 | Profile::Rxe | Profile::Siw) || self.is_adversary()
    }

    /// A request without a completion of its own is refused.
    pub(super) fn needs_signals(&self) -> bool {
        self.profile == Profile::Efa
    }

    /// A post answers an error, and all of it is queued.
    pub(super) fn hides_posts(&mut self) -> bool {
        (self.profile == Profile::Rxe || self.fails_posts()) && self.once_in(256)
    }

    /// A post of a list answers 0, and only its beginning is queued.
    pub(super) fn halves_posts(&mut self) -> bool {
        (self.profile == Profile::Siw || self.fails_posts()) && self.once_in(32)
    }

    fn violate(&mut self, what: String) {
        if self.aborts {
            eprintln!("interlock: the soft device met what a provider need not bear: {what}");
            std::process::abort();
        }
        self.violations.push(what);
    }
}

impl State {
    /// After the payload of a receive was written to `to`: perhaps it comes only when its completion is polled.
    #[allow(unsafe_code, reason = "copies bytes")]
    pub(super) fn delay(&mut self, to: &[Span]) {
        let len = to.iter().map(Span::len).sum();
        if self.latitudes.profile == Profile::Specification || !self.latitudes.is_late(len) {
            return;
        }
        let mut bytes = vec![0; len];
        // SAFETY: spans that were written just now, under this lock; the vector has room for their bytes.
        unsafe { memory::copy(to, &[Span::of_bytes_mut(&mut bytes)]) };
        // SAFETY: as above.
        unsafe { memory::copy(&[Span::of_bytes(&vec![NOT_YET; len])], to) };
        self.latitudes.late = Some(Box::new(Late { bytes, to: to.to_vec() }));
    }

    /// What [`delay`](Self::delay) kept of the receive that is completed now.
    pub(super) fn take_late(&mut self) -> Option<Box<Late>> {
        self.latitudes.late.take()
    }

    /// The completion is polled: what was kept is written, wherever that memory belongs by now.
    #[allow(unsafe_code, reason = "copies bytes")]
    pub(super) fn write_late(late: &Late) {
        // SAFETY: none that the device could give. As providers do it, the bytes go where the receive said when it was posted. It is the
        // library's duty that this memory is still the device's; tests under Miri and AddressSanitizer see whether it is.
        unsafe { memory::copy(&[Span::of_bytes(&late.bytes)], &late.to) };
    }

    /// A pair ends, or one life of it: what becomes of its completions that nobody has polled.
    pub(super) fn leave_completions(&mut self, index: usize) {
        if self.latitudes.profile == Profile::Specification {
            return;
        }
        let Some(pair) = self.pairs.get(index) else { return };
        let (epoch, qpn, queues) = (pair.epoch, pair.qpn, [pair.send_cq, pair.receive_cq]);
        let is_of_pair = |entry: &Entry| match entry.slot.side {
            Side::Shared => entry.wc.qp_num == qpn,
            Side::Send | Side::Receive => entry.slot.owner == index && entry.slot.epoch == epoch,
        };
        let (purges, forbids) = (self.latitudes.purges(), self.latitudes.forbids_late_polls());
        let mut freed = Vec::new();
        for queue in queues {
            let Some(cq) = self.cqs.get_mut(queue) else { continue };
            if purges {
                freed.extend(cq.entries.iter().filter(|entry| is_of_pair(entry)).map(|entry| entry.slot));
                cq.entries.retain(|entry| !is_of_pair(entry));
            } else if forbids {
                cq.entries.iter_mut().filter(|entry| is_of_pair(entry)).for_each(|entry| entry.is_dead = true);
            }
        }
        // The entries of a shared queue are free again; their requests never complete.
        for slot in freed.iter().filter(|slot| slot.side == Side::Shared) {
            if let Some(srq) = self.srqs.get_mut(slot.owner).filter(|srq| srq.epoch == slot.epoch) {
                srq.queue.free_one();
            }
        }
    }

    /// A completion is polled.
    pub(super) fn meet(&mut self, entry: &Entry) {
        if entry.is_dead {
            let (id, qpn) = (entry.wc.wr_id, entry.wc.qp_num);
            self.latitudes.violate(format!("a poll met request {id:#x} of pair {qpn:#x}, which was destroyed before"));
        }
        if let Some(late) = &entry.late {
            Self::write_late(late);
        }
    }
}
