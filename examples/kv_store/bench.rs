//! Many clients update a few keys at the same time, and check each value that they read.
//!
//! Every value counts the updates of its key, and has a seal that a mixture of two values does not have. So the bench
//! proves that no value was torn, that no client saw an older value of a key after a newer one, and that no update was
//! lost.

use crate::client::{Address, Client};
use crate::common::fault::Fault;
use crate::remote::{Counts, Place, Remote};
use crate::table::{Key, Value};
use crate::{Asking, say};
use std::ops::AddAssign;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) struct Bench {
    pub(crate) clients: usize,
    pub(crate) keys: usize,
    pub(crate) until: Until,
}

/// When each client stops.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    Operations(u64),
    Time(Duration),
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) gets: u64,
    pub(crate) puts: u64,
    pub(crate) counts: Counts,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.gets += other.gets;
        self.puts += other.puts;
        self.counts.overtaken += other.counts.overtaken;
        self.counts.waits += other.counts.waits;
    }
}

/// The content of a value of the bench.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    /// The number of updates of the key, including this one.
    pub(crate) count: u64,
    /// The client that wrote it.
    client: u64,
}

impl Mark {
    const NONE: Self = Self { count: 0, client: 0 };

    /// The mark as text of 48 bytes, the longest value. Each word of the seal depends on the whole mark.
    fn to_value(self) -> Value {
        let Self { count, client } = self;
        let seal = |part: u64| {
            let mixed = (count ^ client.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(part);
            (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        };
        let text = format!("{count:010}/{client:04}/{:016x}{:016x}", seal(1), seal(2));
        Value::new(text.as_bytes()).unwrap_or_else(Value::empty)
    }

    /// The value that a client writes after it has read `value`.
    pub(crate) fn after(key: &Key, value: Option<Value>, client: u64) -> Value {
        // A torn value gives an empty value here. The callers check `value` with `of` too, and report the error.
        Self::of(key, value).map_or_else(|_| Value::empty(), |mark| Self { count: mark.count + 1, client }.to_value())
    }

    pub(crate) fn of(key: &Key, value: Option<Value>) -> Result<Self, Fault> {
        let Some(value) = value else { return Ok(Self::NONE) };
        Self::parse(&value)
            .filter(|mark| mark.to_value() == value)
            .ok_or_else(|| Fault::new(format!("TORN: \"{key}\" came back as \"{value}\"")))
    }

    fn parse(value: &Value) -> Option<Self> {
        let mut fields = std::str::from_utf8(value.text()).ok()?.split('/');
        Some(Self { count: fields.next()?.parse().ok()?, client: fields.next()?.parse().ok()? })
    }
}

/// What a client does, turn by turn, and what it has seen.
pub(crate) struct Turns<'keys> {
    keys: &'keys [Key],
    until: Until,
    start: Instant,
    chance: u64,
    /// The key of this turn.
    at: usize,
    /// The number of updates that the client has seen of each key.
    seen: Vec<u64>,
    pub(crate) tally: Tally,
}

impl<'keys> Turns<'keys> {
    /// The key of the next turn, and whether the client gets or puts it; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<(&'keys Key, bool)> {
        let goes_on = match self.until {
            Until::Operations(count) => self.tally.gets + self.tally.puts < count,
            Until::Time(time) => self.start.elapsed() < time,
        };
        self.chance = self.chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        self.at = (self.chance >> 33) as usize % self.keys.len();
        let is_get = self.chance >> 63 == 0;
        if goes_on {
            *if is_get { &mut self.tally.gets } else { &mut self.tally.puts } += 1;
        }
        goes_on.then(|| (&self.keys[self.at], is_get))
    }

    /// Notes what the client has read or written in this turn.
    pub(crate) fn see(&mut self, mark: Mark) -> Result<(), Fault> {
        let Self { keys, at, seen, .. } = self;
        if mark.count < seen[*at] {
            let key = &keys[*at];
            return Err(Fault::new(format!("\"{key}\" went back from {} updates to {}", seen[*at], mark.count)));
        }
        seen[*at] = mark.count;
        Ok(())
    }
}

impl Bench {
    pub(crate) fn keys(&self) -> Vec<Key> {
        (0..self.keys).filter_map(|number| Key::new(format!("bench/{number}").as_bytes())).collect()
    }

    /// The turns of the client with this number.
    pub(crate) fn turns<'keys>(&self, keys: &'keys [Key], number: u64) -> Turns<'keys> {
        let (until, start, seen, tally) = (self.until, Instant::now(), vec![0; keys.len()], Tally::default());
        Turns { keys, until, start, chance: number, at: 0, seen, tally }
    }

    pub(crate) fn run(&self, place: &Place<Asking>, server: &Address) -> Result<String, Fault> {
        let keys = self.keys();
        let before = count(place, server, &keys)?;
        let start = Instant::now();
        let tallies: Vec<Result<Tally, Fault>> = thread::scope(|scope| {
            let clients: Vec<_> = (0..self.clients)
                .map(|number| {
                    let keys = &keys;
                    scope.spawn(move || self.hammer(place, server, keys, number as u64 + 1))
                })
                .collect();
            let ends = clients.into_iter().map(|client| client.join());
            ends.map(|end| end.unwrap_or_else(|_| Err(Fault::new("a client's thread panicked")))).collect()
        });
        let took = start.elapsed();
        let mut all = Tally::default();
        for tally in tallies {
            all += tally?;
        }
        let updates = count(place, server, &keys)? - before;
        self.report(all, updates, took)
    }

    /// The report, unless an update was lost.
    pub(crate) fn report(&self, all: Tally, updates: u64, took: Duration) -> Result<String, Fault> {
        if updates != all.puts {
            return Err(Fault::new(format!("{} puts were done, but the values tell of {updates}", all.puts)));
        }
        let Tally { gets, puts, counts: Counts { overtaken, waits } } = all;
        let rate = (gets + puts) as f64 / took.as_secs_f64();
        Ok(format!(
            "{gets} gets and {puts} puts by {} clients in {:.2} s = {rate:.0} a second\n\
             reads repeated because an update came between: {overtaken}; waits for a lock: {waits}\n\
             no value was torn, none went back, no update was lost",
            self.clients,
            took.as_secs_f64(),
        ))
    }

    fn hammer(&self, place: &Place<Asking>, server: &Address, keys: &[Key], number: u64) -> Result<Tally, Fault> {
        let mut client = Client::connect(place, server)?;
        say(format!("client {number} begins"));
        let mut tally = client.with(|table| self.take_turns(table, keys, number))?;
        tally.counts = client.bye()?;
        Ok(tally)
    }

    fn take_turns(&self, table: &mut Remote<Asking>, keys: &[Key], number: u64) -> Result<Tally, Fault> {
        let mut turns = self.turns(keys, number);
        while let Some((key, is_get)) = turns.next() {
            let mark = if is_get {
                Mark::of(key, table.get(key)?)?
            } else {
                let mut old = None;
                let new = table.update(key, |value| {
                    old = value;
                    Mark::after(key, value, number)
                })?;
                Mark::of(key, old)?;
                Mark::of(key, Some(new))?
            };
            turns.see(mark)?;
        }
        Ok(turns.tally)
    }
}

/// The number of updates of all keys.
fn count(place: &Place<Asking>, server: &Address, keys: &[Key]) -> Result<u64, Fault> {
    let mut client = Client::connect(place, server)?;
    let counts = client.with(|table| keys.iter().map(|key| Ok(Mark::of(key, table.get(key)?)?.count)).sum());
    let counts: u64 = counts?;
    client.bye()?;
    Ok(counts)
}
