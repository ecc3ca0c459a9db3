//! The fabric: the lock, the clock, the queue of runnable pairs, the timers.
#![forbid(unsafe_code)]

use super::{
    completion::{Channels, Cqs},
    datagram::Address,
    device::{ContextInfo, Contexts, Device, MAX_DEVICES, MAX_SGE, Numbers},
    events::{Events, Subject},
    fault::{Fault, Faults, Verb},
    handles,
    latitude::Latitudes,
    memory::Span,
    objects::{Pd, Table},
    pair::Pairs,
    profile::Profile,
    regions::Regions,
    srq::Srqs,
};
use crate::{
    error::VerbError,
    provider::Listed,
    sync::lock,
    sys::{self, ibv_event_type},
};
use libc::c_int;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    fmt,
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::{Duration, Instant},
};

/// A network of soft devices.
///
/// A device is made when it is first opened by name. The devices of one fabric reach each other, and no device of
/// another fabric. A clone names the same fabric, which lives as long as a clone or one of its open contexts.
#[derive(Clone)]
pub struct Fabric(Arc<Mutex<State>>);

impl Default for Fabric {
    fn default() -> Self {
        Self::new()
    }
}

impl Fabric {
    /// An automatic fabric. Each post, poll and transition does all work that can be done, in the calling thread and
    /// before it returns.
    ///
    /// Timers (retries, receiver not ready) follow the real clock and are checked in each call. There is no background
    /// thread: a program that waits for an event without polling must not wait beyond the next timer.
    pub fn new() -> Self {
        Self::with_clock(Clock::Automatic { start: Instant::now(), ahead: Duration::ZERO })
    }

    /// A manual fabric: only [`step`](Self::step) and [`run`](Self::run) do any work, and only
    /// [`advance`](Self::advance) moves the clock.
    ///
    /// The same calls give the same results each time, and a request stays in flight until the test runs the fabric.
    pub fn manual() -> Self {
        Self::with_clock(Clock::Manual(Duration::ZERO))
    }

    /// The automatic fabric that the whole process shares, with the devices `soft0` and `soft1`.
    ///
    /// Inject faults into a fabric of your own, not into this one.
    pub fn process() -> &'static Self {
        static PROCESS: OnceLock<Fabric> = OnceLock::new();
        PROCESS.get_or_init(|| {
            let fabric = Self::new();
            let mut state = fabric.lock();
            if let Ok(name) = std::env::var("INTERLOCK_SOFT_PROFILE") {
                match Profile::named(&name) {
                    Some(profile) => state.take_profile(profile, true),
                    None => {
                        eprintln!("interlock: INTERLOCK_SOFT_PROFILE={name} names no profile; using `specification`")
                    }
                }
            }
            _ = state.device("soft0");
            _ = state.device("soft1");
            drop(state);
            fabric
        })
    }

    /// A number that all clones share, and that no other living fabric has.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Makes an automatic fabric, like [`new`](Self::new), with devices of this profile.
    pub fn with_profile(profile: Profile) -> Self {
        let fabric = Self::new();
        fabric.lock().take_profile(profile, false);
        fabric
    }

    /// Makes a manual fabric, like [`manual`](Self::manual), with devices of this profile.
    pub fn manual_with_profile(profile: Profile) -> Self {
        let fabric = Self::manual();
        fabric.lock().take_profile(profile, false);
        fabric
    }

    /// The actions of the library that the profile's provider does not support. Empty, unless the library has a bug.
    pub fn violations(&self) -> Vec<String> {
        self.lock().latitudes.violations.clone()
    }

    fn with_clock(clock: Clock) -> Self {
        Self(Arc::new(Mutex::new(State {
            clock,
            latitudes: Latitudes::new(Profile::Specification, false),
            now: None,
            devices: Vec::new(),
            contexts: Table::default(),
            pds: Table::default(),
            regions: Regions::default(),
            channels: Table::default(),
            cqs: Table::default(),
            srqs: Table::default(),
            pairs: Table::default(),
            addresses: HashMap::default(),
            last_address: 0,
            groups: BTreeMap::new(),
            ready: VecDeque::with_capacity(64),
            timers: BinaryHeap::with_capacity(64),
            last_timer: 0,
            last_epoch: 0,
            #[cfg(feature = "cm")]
            cm: super::cm::Cm::default(),
            faults: Faults::default(),
            local_scratch: Vec::with_capacity(MAX_SGE as usize + 1),
            target_scratch: Vec::with_capacity(MAX_SGE as usize),
        })))
    }

    /// Does one unit of work, if there is any: carries one request to its peer, brings one answer back, flushes one
    /// request, carries one message of rdma_cm, or fires one timer that is due. Returns whether there was any.
    pub fn step(&self) -> bool {
        let mut state = self.lock();
        state.run_one() || state.fire_due(u64::MAX)
    }

    /// Does all work that can be done now, and returns how many units that was.
    ///
    /// Timers that are set during this call wait for the next call. So the call ends even if each timer sets another
    /// one.
    pub fn run(&self) -> usize {
        self.lock().run_all()
    }

    /// Moves the clock forward. The clock of an automatic fabric then runs ahead of the real one.
    ///
    /// On a manual fabric the timers that become due wait for [`step`](Self::step).
    pub fn advance(&self, time: Duration) {
        let mut state = self.lock();
        match &mut state.clock {
            Clock::Manual(now) => *now = now.saturating_add(time),
            Clock::Automatic { ahead, .. } => *ahead = ahead.saturating_add(time),
        }
        state.settle();
    }

    /// How long until the next timer fires; `None` if there is none.
    pub fn next_timer(&self) -> Option<Duration> {
        self.lock().next_timer()
    }

    /// Injects a fault.
    pub fn inject(&self, fault: Fault) {
        let mut state = self.lock();
        state.faults.add(&fault);
        if let Fault::DeviceRemoved { device }
        | Fault::DeviceFatal { device }
        | Fault::PortDown { device }
        | Fault::NeighbourChanged { device }
        | Fault::GroupsLost { device }
        | Fault::Overrun { device } = &fault
            && let Ok(number) = state.device(device)
        {
            match fault {
                Fault::PortDown { .. } => state.lower_port(number),
                Fault::Overrun { .. } => state.overrun_all(number),
                Fault::DeviceRemoved { .. } => state.break_device(number, true),
                #[cfg(feature = "cm")]
                Fault::NeighbourChanged { .. } => state.cm_change_neighbour(number),
                #[cfg(feature = "cm")]
                Fault::GroupsLost { .. } => state.cm_lose_groups(number),
                #[cfg(not(feature = "cm"))]
                Fault::NeighbourChanged { .. } | Fault::GroupsLost { .. } => {}
                _ => state.break_device(number, false),
            }
        }
        state.settle();
    }

    /// Ends all faults, including those that have not happened yet.
    ///
    /// Withheld flushes happen now. Lost packets stay lost until they are retransmitted.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.heal();
        state.settle();
    }

    /// Opens the device `device`, and creates it if it does not exist.
    pub(crate) fn open(&self, device: &str) -> Result<NonNull<sys::ibv_context>, VerbError> {
        let failed = |errno| VerbError::new(Verb::OpenDevice.name(), errno);
        let mut state = self.lock();
        if let Some(errno) = state.faults.verb(Verb::OpenDevice) {
            return Err(failed(errno));
        }
        let number = state.device(device).map_err(failed)?;
        if state.devices.get(number).is_none_or(|found| found.removed || found.fatal) {
            return Err(failed(libc::EIO));
        }
        let events = Events::new().map_err(failed)?;
        let async_fd = events.signal.fd();
        let index = state.contexts.insert(ContextInfo { device: number, children: 0, events });
        let transport = match state.latitudes.is_iwarp {
            true => sys::ibv_transport_type::IBV_TRANSPORT_IWARP,
            false => sys::ibv_transport_type::IBV_TRANSPORT_IB,
        };
        drop(state);
        Ok(handles::new_context(self.clone(), index, device, transport, async_fd))
    }

    /// The devices that exist so far.
    pub(crate) fn devices(&self) -> Vec<Listed> {
        let list = |device: &Device| Listed { name: device.name.clone(), guid_be: device.guid_be() };
        self.lock().devices.iter().map(list).collect()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&*self.0);
        state.now = None;
        state
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Fabric");
        // Perhaps this thread holds the lock, so `Debug` must not wait for it.
        match self.0.try_lock() {
            Ok(state) => {
                let names: Vec<&str> = state.devices.iter().map(|device| device.name.as_str()).collect();
                #[cfg(feature = "cm")]
                {
                    let [identifiers, events] = state.cm.counts();
                    out.field("cm_identifiers", &identifiers).field("cm_events", &events);
                    out.field("cm_blocked", &state.cm.blocked);
                }
                out.field("manual", &state.is_manual())
                    .field("devices", &names)
                    .field("regions", &state.regions.len())
                    .field("completion_queues", &state.cqs.len())
                    .field("queue_pairs", &state.pairs.len())
                    .field("shared_receive_queues", &state.srqs.len())
                    .field("windows", &state.regions.windows.len())
                    .field("address_handles", &state.addresses.len())
                    .finish()
            }
            Err(_) => out.finish_non_exhaustive(),
        }
    }
}

enum Clock {
    Automatic { start: Instant, ahead: Duration },
    Manual(Duration),
}

/// The owner of a timer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerOf {
    Pair(usize),
    /// An identifier of rdma_cm.
    #[cfg(feature = "cm")]
    Cm(u64),
}

/// A timer of a pair, or of an identifier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Timer {
    due: Duration,
    /// Counts timers, so that timers due at the same time fire in the order in which they were set.
    number: u64,
    of: TimerOf,
}

/// The state that the lock guards.
pub(super) struct State {
    clock: Clock,
    pub(super) latitudes: Latitudes,
    /// The time, if the clock was read since the lock was taken.
    now: Option<Duration>,
    pub(super) devices: Vec<Device>,
    pub(super) contexts: Contexts,
    pub(super) pds: Table<Pd>,
    pub(super) regions: Regions,
    pub(super) channels: Channels,
    pub(super) cqs: Cqs,
    pub(super) srqs: Srqs,
    pub(super) pairs: Pairs,
    /// Address handles by number. No number is used twice.
    pub(super) addresses: HashMap<u32, Address, Numbers>,
    pub(super) last_address: u32,
    /// The members of each multicast group, in the order in which they joined.
    pub(super) groups: BTreeMap<[u8; 16], Vec<usize>>,
    /// Pairs that may be runnable, in the order in which they take turns.
    ready: VecDeque<usize>,
    timers: BinaryHeap<Reverse<Timer>>,
    last_timer: u64,
    last_epoch: u64,
    #[cfg(feature = "cm")]
    pub(super) cm: super::cm::Cm,
    pub(super) faults: Faults,
    /// Vectors of spans that are kept for reuse, so that no message allocates.
    pub(super) local_scratch: Vec<Span>,
    pub(super) target_scratch: Vec<Span>,
}

impl State {
    fn take_profile(&mut self, profile: Profile, aborts: bool) {
        self.latitudes = Latitudes::new(profile, aborts);
        self.regions.has_lax_windows = self.latitudes.has_lax_windows();
        self.regions.reuses_keys = self.latitudes.habits.reuses;
        self.regions.ends_early = self.latitudes.habits.ends_early;
    }

    fn is_manual(&self) -> bool {
        matches!(self.clock, Clock::Manual(_))
    }

    fn now(&mut self) -> Duration {
        let clock = &self.clock;
        *self.now.get_or_insert_with(|| match clock {
            Clock::Automatic { start, ahead } => start.elapsed().saturating_add(*ahead),
            Clock::Manual(now) => *now,
        })
    }

    pub(super) fn next_epoch(&mut self) -> u64 {
        self.last_epoch += 1;
        self.last_epoch
    }

    /// The number of the device with that name. Creates the device if it does not exist.
    pub(super) fn device(&mut self, name: &str) -> Result<usize, c_int> {
        let number = self.devices.len();
        if let Some(found) = self.devices.iter().position(|device| device.name == name) {
            return Ok(found);
        }
        if number >= MAX_DEVICES {
            return Err(libc::ENOMEM);
        }
        self.devices.push(Device::new(name, number));
        Ok(number)
    }

    /// Removes a device (`gone`), or makes it fail. All its pairs enter Error. Pairs of a failed device flush; pairs of
    /// a removed device do not.
    fn break_device(&mut self, number: usize, gone: bool) {
        if let Some(device) = self.devices.get_mut(number) {
            device.removed |= gone;
            device.fatal |= !gone;
        }
        for index in self.pairs_where(|pair| pair.device == number) {
            self.enter_error(index);
            if gone && let Some(pair) = self.pairs.get_mut(index) {
                pair.flush_withheld = true;
            }
        }
        self.raise_all(number, ibv_event_type::IBV_EVENT_DEVICE_FATAL, Subject::Device);
        self.notify_all(number);
        #[cfg(feature = "cm")]
        if gone {
            self.cm_remove_device(number);
        }
    }

    fn lower_port(&mut self, number: usize) {
        if let Some(device) = self.devices.get_mut(number).filter(|device| !device.port_down) {
            device.port_down = true;
            self.raise_all(number, ibv_event_type::IBV_EVENT_PORT_ERR, Subject::Port);
        }
    }

    fn heal(&mut self) {
        self.faults = Faults::default();
        for number in 0..self.devices.len() {
            let Some(device) = self.devices.get_mut(number) else { continue };
            device.removed = false;
            device.fatal = false;
            if std::mem::take(&mut device.port_down) {
                self.raise_all(number, ibv_event_type::IBV_EVENT_PORT_ACTIVE, Subject::Port);
            }
        }
        for index in self.pairs_where(|pair| pair.flush_withheld) {
            if let Some(pair) = self.pairs.get_mut(index) {
                pair.flush_withheld = false;
            }
            self.schedule(index);
        }
    }

    pub(super) fn pairs_where(&self, f: impl Fn(&super::pair::Pair) -> bool) -> Vec<usize> {
        self.pairs.iter().filter(|(_, pair)| f(pair)).map(|(index, _)| index).collect()
    }

    /// Puts a pair into the queue of runnable pairs, if it is runnable.
    pub(super) fn schedule(&mut self, index: usize) {
        if let Some(pair) = self.pairs.get_mut(index)
            && !pair.scheduled
            && pair.runnable()
        {
            pair.scheduled = true;
            self.ready.push_back(index);
        }
    }

    /// Does one unit for the first runnable pair; or for rdma_cm, if no pair is runnable.
    fn run_one(&mut self) -> bool {
        while let Some(index) = self.ready.pop_front() {
            let Some(pair) = self.pairs.get_mut(index) else { continue };
            pair.scheduled = false;
            if pair.runnable() {
                self.work(index);
                self.schedule(index);
                return true;
            }
        }
        #[cfg(feature = "cm")]
        return self.cm_work();
        #[cfg(not(feature = "cm"))]
        false
    }

    /// Fires one timer that is due and was set no later than the timer `newest`.
    fn fire_due(&mut self, newest: u64) -> bool {
        while let Some(&Reverse(timer)) = self.timers.peek() {
            if self.is_stale(timer) {
                self.timers.pop();
            } else if timer.due <= self.now() && timer.number <= newest {
                self.timers.pop();
                match timer.of {
                    TimerOf::Pair(pair) => {
                        self.expire(pair);
                        self.schedule(pair);
                    }
                    #[cfg(feature = "cm")]
                    TimerOf::Cm(id) => self.cm_expire(id),
                }
                return true;
            } else {
                break;
            }
        }
        false
    }

    fn run_all(&mut self) -> usize {
        let (mut units, newest) = (0, self.last_timer);
        while self.run_one() || self.fire_due(newest) {
            units += 1;
        }
        units
    }

    /// Does all work that can be done, if the fabric is automatic. Each verb calls this at its end, and polls call it
    /// first.
    pub(super) fn settle(&mut self) {
        self.regions.carry_on();
        if !self.is_manual() {
            self.run_all();
        }
    }

    fn is_stale(&self, timer: Timer) -> bool {
        match timer.of {
            TimerOf::Pair(index) => self.pairs.get(index).is_none_or(|pair| pair.timer != timer.number),
            #[cfg(feature = "cm")]
            TimerOf::Cm(id) => self.cm.is_stale(id, timer.number),
        }
    }

    /// Starts the timer of a pair or an identifier, and cancels an earlier one.
    pub(super) fn start_timer(&mut self, of: TimerOf, delay: Duration) {
        let first = self.next_timer().is_none_or(|left| delay < left);
        let due = self.now().saturating_add(delay);
        self.last_timer += 1;
        let number = self.last_timer;
        match of {
            TimerOf::Pair(index) => {
                let Some(pair) = self.pairs.get_mut(index) else { return };
                pair.timer = number;
            }
            #[cfg(feature = "cm")]
            TimerOf::Cm(id) => self.cm.set_timer(id, number),
        }
        self.timers.push(Reverse(Timer { due, number, of }));
        // Waiting threads chose their timeouts before this timer was set. If this timer is the first to expire, wake
        // the threads, or they could sleep past this timer.
        if first && !self.is_manual() {
            self.wake_waiting();
            #[cfg(feature = "cm")]
            self.cm.wake_all();
        }
    }

    fn next_timer(&mut self) -> Option<Duration> {
        while let Some(&Reverse(timer)) = self.timers.peek() {
            if !self.is_stale(timer) {
                return Some(timer.due.saturating_sub(self.now()));
            }
            self.timers.pop();
        }
        None
    }

    /// The longest time that a thread may wait; `None` if there is no limit. A manual fabric has none, since only the
    /// program moves its clock.
    pub(super) fn next_wakeup(&mut self) -> Option<Duration> {
        if self.is_manual() { None } else { self.next_timer() }
    }
}
