//! Access to a remote table by reads, compare-and-swaps and writes. The server takes no part.

use crate::common::fault::{Doing, Fault};
use crate::table::{Cell, Entry, Key, Owner, SLOT_BYTES, Slot, Value, Word, home};
use interlock::attributes::{ConnectAttributes, InitAttributes, PeerRights};
use interlock::number::AckTimeout;
use interlock::{
    Brand, Buffer, Endpoint, Init, Limits, Poller, Port, ProtectionDomain, QueuePair, RemoteAll, RemoteRegion, Work,
    WorkId,
};
use std::thread;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// A device with a protection domain.
#[derive(Clone)]
pub(crate) struct Place<B> {
    pub(crate) domain: ProtectionDomain<B>,
    pub(crate) port: Port,
    pub(crate) patience: Duration,
}

/// A pair before it is connected.
pub(crate) struct Seat<B> {
    pair: QueuePair<B, Init>,
    poller: Poller<B>,
}

impl<B: Brand> Seat<B> {
    pub(crate) fn new(place: &Place<B>, peer_rights: PeerRights) -> Result<Self, Fault> {
        let limits = Limits { sends: 2, receives: 1, ..Limits::default() };
        let (queue, poller) = place.domain.completion_queue(limits.completions()).doing("no completion queue")?;
        let pair = place.domain.reliable(&queue, &limits).doing("cannot make a queue pair")?;
        let pair = pair.into_init(InitAttributes { port: place.port.clone(), pkey_index: 0, peer_rights })?;
        Ok(Self { pair, poller })
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.pair.endpoint()
    }

    pub(crate) fn connect(self, peer: &Endpoint) -> Result<Link<B>, Fault> {
        // After about two seconds, the device gives up on a peer that is gone.
        let attributes = ConnectAttributes { timeout: AckTimeout::new(16)?, ..ConnectAttributes::default() };
        Ok(Link { pair: self.pair.connect_with(peer, &attributes)?, poller: self.poller })
    }
}

pub(crate) struct Link<B> {
    pair: QueuePair<B>,
    poller: Poller<B>,
}

impl<B: Brand> Link<B> {
    #[cfg(feature = "tokio")]
    pub(crate) fn into_parts(self) -> (QueuePair<B>, Poller<B>) {
        (self.pair, self.poller)
    }

    /// Ends the link. When this returns, no request of the peer has an effect any more.
    pub(crate) fn end(self) -> Result<(), Fault> {
        self.pair.destroy().map_err(|error| Fault::from(error.source)).doing("the device keeps the queue pair")
    }
}

/// How often others got in the way.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    /// Slots that changed while they were read, and were read again.
    pub(crate) overtaken: u64,
    /// Updates that found the slot locked, or changed since they read it.
    pub(crate) waits: u64,
}

/// The content of a buffer before a read or atomic fills it: a word that nobody writes.
///
/// Soft-RoCE may report a false success (docs/conformance.md). The buffer then still holds this word, instead of an
/// older result that could be mistaken for the new one.
pub(crate) const UNANSWERED: Word = Word(u64::MAX);

/// The table of a peer, and the connection to it.
pub(crate) struct Remote<B> {
    link: Link<B>,
    /// Two buffers of one slot each, except those that are in flight.
    idle: Vec<Buffer<B>>,
    table: RemoteRegion<RemoteAll>,
    slots: u64,
    owner: Owner,
    patience: Duration,
    counts: Counts,
}

/// A slot that was read.
struct Look {
    slot: u64,
    word: Word,
    entry: Option<Entry>,
}

/// A locked slot. If it is dropped, the slot stays locked until the server frees it at the end of the session.
#[must_use = "the slot stays locked"]
pub(crate) struct Lock {
    slot: u64,
    word: Word,
    entry: Option<Entry>,
}

impl<B: Brand> Remote<B> {
    pub(crate) fn new(
        link: Link<B>,
        place: &Place<B>,
        table: RemoteRegion<RemoteAll>,
        owner: Owner,
    ) -> Result<Self, Fault> {
        let idle = place.domain.buffers(2, SLOT_BYTES as usize).doing("cannot register two buffers")?;
        let slots = table.len() / SLOT_BYTES;
        Ok(Self { link, idle, table, slots, owner, patience: place.patience, counts: Counts::default() })
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn end(self) -> Result<(), Fault> {
        self.link.end()
    }

    /// The value of `key`.
    pub(crate) fn get(&mut self, key: &Key) -> Result<Option<Value>, Fault> {
        match self.find(key)? {
            Some(Look { entry, .. }) => Ok(entry.map(|entry| entry.value)),
            None => Ok(None),
        }
    }

    /// Replaces the value of `key` by what `change` makes of it, and gives the new one.
    pub(crate) fn update(&mut self, key: &Key, change: impl FnOnce(Option<Value>) -> Value) -> Result<Value, Fault> {
        let lock = self.lock(key)?;
        let value = change(lock.entry.map(|entry| entry.value));
        self.finish(lock, Entry { key: *key, value })?;
        Ok(value)
    }

    /// Locks the slot of `key`, or the empty slot where the key belongs.
    pub(crate) fn lock(&mut self, key: &Key) -> Result<Lock, Fault> {
        let deadline = Instant::now() + self.patience;
        loop {
            let Some(Look { slot, word, entry }) = self.find(key)? else {
                return Err(Fault::new("the table is full"));
            };
            // The swap succeeds only if the word is the one that was read. Then the entry is unchanged too.
            let locked = word.locked_by(self.owner);
            if !word.is_locked() && self.swap(slot, word, locked)? == word {
                return Ok(Lock { slot, word: locked, entry });
            }
            self.counts.waits += 1;
            if Instant::now() >= deadline {
                let by = word.owner().map(|owner| format!(" by session {owner}")).unwrap_or_default();
                return Err(Fault::new(format!("\"{key}\" was locked{by} for more than {:?}", self.patience)));
            }
            thread::sleep(Duration::from_micros(50));
        }
    }

    /// Writes the new entry into the cell that is not current, then swaps the word, which makes that cell current.
    ///
    /// The word is changed by atomics only, since atomics and writes are not atomic to each other. On soft-RoCE of
    /// Linux 6.1 a failed comparison writes back what it read, and a write in between is lost.
    fn finish(&mut self, lock: Lock, entry: Entry) -> Result<(), Fault> {
        let Lock { slot, word, .. } = lock;
        let after = word.updated();
        self.write(slot, Slot::cell_offset(after.version()), Cell::new(after.version(), entry).as_bytes())?;
        match self.swap(slot, word, after)? {
            found if found == word => Ok(()),
            found => Err(Fault::new(format!("the lock of slot {slot} was broken: its word is {:#x}", found.0))),
        }
    }

    /// Unlocks a slot whose owner is gone; false if it was unlocked before.
    pub(crate) fn free(&mut self, slot: u64, locked: Word) -> Result<bool, Fault> {
        Ok(self.swap(slot, locked, locked.unlocked())? == locked)
    }

    /// The slot that has `key`, or else the empty slot where it belongs; `None` if the table is full.
    fn find(&mut self, key: &Key) -> Result<Option<Look>, Fault> {
        let home = home(key, self.slots);
        for step in 0..self.slots {
            let look = self.look((home + step) % self.slots)?;
            if look.entry.is_none_or(|entry| entry.key == *key) {
                return Ok(Some(look));
            }
        }
        Ok(None)
    }

    /// Reads a slot until all of it is of one version.
    fn look(&mut self, slot: u64) -> Result<Look, Fault> {
        let deadline = Instant::now() + self.patience;
        loop {
            let (seen, after) = self.read(slot)?;
            match seen.content() {
                Some(entry) if seen.word.version() == after.version() => {
                    return Ok(Look { slot, word: seen.word, entry });
                }
                _ => self.counts.overtaken += 1,
            }
            if Instant::now() >= deadline {
                return Err(Fault::new(format!("slot {slot} was not whole for {:?}", self.patience)));
            }
        }
    }

    /// Reads a slot, and then its word again.
    fn read(&mut self, slot: u64) -> Result<(Slot, Word), Fault> {
        let mut post = |len_bytes| {
            let (buffer, source) = (self.unanswered()?, self.part(slot, 0, len_bytes)?);
            self.link.pair.post_read(buffer, &source).doing("cannot post a read")
        };
        // The requests of one pair are executed in order: the slot is read before the word.
        let of_slot = post(SLOT_BYTES)?;
        post(size_of::<Word>() as u64)?;
        // On some devices, the completions may come in another order.
        let ((id, first), (_, second)) = (self.complete()?, self.complete()?);
        let (slot, word) = if id == of_slot { (first, second) } else { (second, first) };
        let seen = (*slot.view::<Slot>()?, *word.view::<Word>()?);
        self.idle.extend([slot, word]);
        Ok((Slot { word: answered(seen.0.word)?, ..seen.0 }, answered(seen.1)?))
    }

    fn write(&mut self, slot: u64, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let (mut buffer, target) = (self.buffer()?, self.part(slot, offset, bytes.len() as u64)?);
        buffer.write(bytes)?;
        self.link.pair.post_write(buffer, &target).doing("cannot post a write")?;
        let (_, buffer) = self.complete()?;
        self.idle.push(buffer);
        Ok(())
    }

    /// Replaces the word of a slot if it is `from`. Returns the word that was there.
    fn swap(&mut self, slot: u64, from: Word, to: Word) -> Result<Word, Fault> {
        let (buffer, target) = (self.unanswered()?, self.part(slot, 0, size_of::<Word>() as u64)?);
        self.link.pair.post_compare_and_swap(buffer, &target, from.0, to.0).doing("cannot post a compare-and-swap")?;
        match self.link.poller.wait(self.patience)?.check()?.into_work() {
            Work::Atomic { original, buffer } => {
                self.idle.push(buffer);
                answered(Word(original))
            }
            other => Err(Fault::new(format!("unexpected completion: {other:?}"))),
        }
    }

    fn part(&self, slot: u64, offset: u64, len_bytes: u64) -> Result<RemoteRegion<RemoteAll>, Fault> {
        let start = slot * SLOT_BYTES + offset;
        Ok(self.table.slice(start..start + len_bytes)?)
    }

    fn buffer(&mut self) -> Result<Buffer<B>, Fault> {
        self.idle.pop().ok_or_else(|| Fault::new("an earlier request has failed"))
    }

    /// A buffer that the device will fill from the table.
    fn unanswered(&mut self) -> Result<Buffer<B>, Fault> {
        let mut buffer = self.buffer()?;
        buffer.write(UNANSWERED.as_bytes())?;
        Ok(buffer)
    }

    fn complete(&mut self) -> Result<(WorkId, Buffer<B>), Fault> {
        let success = self.link.poller.wait(self.patience)?.check()?;
        let id = success.id();
        Ok((id, success.into_buffer().ok_or_else(|| Fault::new("a completion without its buffer"))?))
    }
}

/// Checks that the device has filled the buffer. If not, it is unknown whether a swap took place; at the end of the
/// session, the server frees the lock that it may have taken.
pub(crate) fn answered(word: Word) -> Result<Word, Fault> {
    match word {
        UNANSWERED => Err(Fault::new("the device reports success, and has brought nothing (docs/conformance.md)")),
        word => Ok(word),
    }
}
