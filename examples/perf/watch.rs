//! Waits with a limit: for completions, and for bytes that the peer writes.

use crate::Perf;
use crate::common::fault::Fault;
use crate::line::{Line, Said};
use interlock::{Completion, MemoryRegion, Poller, RemoteReadWrite};
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

/// How a side waits for completions.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) event: bool,
    /// Whether the client is a task that awaits futures.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "there are no tasks"))]
    pub(crate) futures: bool,
    /// Whether both ends are in this process, perhaps on one processor.
    pub(crate) yields: bool,
    pub(crate) patience: Duration,
}

/// How often the connection to the other side is checked.
const LOOK: Duration = Duration::from_millis(10);
/// How often the other side gets an `Alive`.
const LIFE: Duration = Duration::from_secs(1);

/// Watches the other side while this side waits or works.
pub(crate) struct Watch<'round> {
    pub(crate) line: &'round mut Line,
    manner: Manner,
    gives_life: bool,
    gave_life: Instant,
    /// How many messages the other side counted, once it has said that it is done.
    pub(crate) stop: Option<u64>,
}

/// The deadlines of one wait.
#[derive(Default)]
struct Wait {
    since: Option<Instant>,
    looked: Option<Instant>,
}

impl<'round> Watch<'round> {
    pub(crate) fn of_client(line: &'round mut Line, manner: Manner) -> Self {
        Self { line, manner, gives_life: true, gave_life: Instant::now(), stop: None }
    }

    pub(crate) fn of_server(line: &'round mut Line, manner: Manner) -> Self {
        Self { gives_life: false, ..Self::of_client(line, manner) }
    }

    /// How often to poll before checking anything else.
    fn looks(&self) -> u32 {
        if self.manner.yields { 50 } else { 1000 }
    }

    /// The next completion.
    pub(crate) fn next(&mut self, poller: &mut Poller<Perf>) -> Result<Completion<Perf>, Fault> {
        let found = self.wait_for(poller, false)?;
        found.ok_or_else(|| Fault::new("unexpected end of a wait"))
    }

    /// The next completion; `None` when the other side is done and none is left.
    pub(crate) fn next_unless_stopped(&mut self, poller: &mut Poller<Perf>) -> Result<Option<Completion<Perf>>, Fault> {
        self.wait_for(poller, true)
    }

    #[inline]
    fn wait_for(&mut self, poller: &mut Poller<Perf>, may_stop: bool) -> Result<Option<Completion<Perf>>, Fault> {
        let mut wait = Wait::default();
        loop {
            if self.manner.event {
                if let Some(completion) = poller.wait_for(LOOK)? {
                    return Ok(Some(completion));
                }
            } else {
                for _ in 0..self.looks() {
                    if let Some(completion) = poller.poll()? {
                        return Ok(Some(completion));
                    }
                }
            }
            self.look_around(&mut wait, "a completion")?;
            if may_stop && self.stop.is_some() {
                return Ok(None);
            }
        }
    }

    /// Waits until the byte at `offset` is `wanted`; false if the other side is done before.
    ///
    /// This reads only one byte. It assumes only that a write of the device becomes visible to a relaxed load in the
    /// end. No specification says that the rest of the message has arrived when its last byte has. A program that needs
    /// the rest waits for a completion instead.
    pub(crate) fn until_byte(
        &mut self,
        region: &MemoryRegion<Perf, RemoteReadWrite>,
        offset: usize,
        wanted: u8,
    ) -> Result<bool, Fault> {
        let mut wait = Wait::default();
        let (word, byte) = (offset & !7, offset % 8);
        loop {
            for _ in 0..self.looks() {
                if region.load(word)?.to_ne_bytes()[byte] == wanted {
                    return Ok(true);
                }
            }
            self.look_around(&mut wait, "a write of the other side")?;
            if self.stop.is_some() {
                return Ok(false);
            }
        }
    }

    #[cold]
    fn look_around(&mut self, wait: &mut Wait, what: &str) -> Result<(), Fault> {
        if self.manner.yields {
            thread::yield_now();
        }
        let now = Instant::now();
        let since = *wait.since.get_or_insert(now);
        if now - *wait.looked.get_or_insert(now) < LOOK && !self.manner.event {
            return Ok(());
        }
        wait.looked = Some(now);
        if now - since > self.manner.patience {
            return Err(Fault::new(format!("nothing happened for {:?}, while waiting for {what}", now - since)));
        }
        self.give_life(now)?;
        while self.stop.is_none() && self.line.is_talking()? {
            match self.line.hear("a word of the other side")? {
                Said::Alive => {}
                Said::Stop(count) if !self.gives_life => self.stop = Some(count),
                _ => return Err(Fault::new("the other side speaks out of turn")),
            }
        }
        Ok(())
    }

    /// Sends the other side an `Alive`, if it is time.
    pub(crate) fn give_life(&mut self, now: Instant) -> Result<(), Fault> {
        if self.gives_life && now - self.gave_life >= LIFE {
            self.gave_life = now;
            self.line.say(Said::Alive)?;
        }
        Ok(())
    }
}

/// A progress line on a terminal.
pub(crate) struct Progress {
    shows: bool,
    name: String,
    told: Instant,
    is_on_screen: bool,
}

impl Progress {
    /// Prints at most 10 times a second.
    pub(crate) const PAUSE: Duration = Duration::from_millis(100);

    pub(crate) fn new(name: String, quiet: bool) -> Self {
        let shows = !quiet && io::stderr().is_terminal();
        Self { shows, name, told: Instant::now(), is_on_screen: false }
    }

    pub(crate) fn tell(&mut self, now: Instant, done: u64, of: impl FnOnce() -> String) {
        if self.shows && now - self.told >= Self::PAUSE {
            self.told = now;
            self.is_on_screen = true;
            _ = write!(io::stderr(), "\r\x1b[K{}: {done} of {}", self.name, of());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_on_screen {
            _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
