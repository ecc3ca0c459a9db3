//! The client as a task of tokio: the same session, the same table and the same steps as in `client.rs` and
//! `remote.rs`.
//!
//! What is different: both reads of a slot are futures, which are awaited together. A client notices at once that the
//! server has gone, in a `select!`, and not only when a request fails. Its buffers come from a pool, so a request that
//! was given up loses none.

use crate::bench::{Bench, Mark, Tally};
use crate::client::Address;
use crate::common::fault::{Doing, Fault};
use crate::control::{BYE, Welcome, introduction};
use crate::remote::{Counts, Place, Seat, UNANSWERED, answered};
use crate::table::{Cell, Entry, Key, Owner, SLOT_BYTES, Slot, Value, Word, home};
use crate::{Asking, say};
use interlock::aio::{self, Receiver, Sender, SharedPoller};
use interlock::attributes::PeerRights;
use interlock::memory::{Growth, Pool, PoolOptions, SizeClass};
use interlock::{Buffer, RemoteAll, RemoteRegion};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use zerocopy::IntoBytes;

/// Runs a client to its end, on a runtime of its own.
pub(crate) fn block_on<F: Future>(client: F) -> Result<F::Output, Fault> {
    Ok(Builder::new_multi_thread().enable_all().build()?.block_on(client))
}

/// A client of a server's table. If it is dropped without [`bye`](Self::bye), the server takes it for dead.
pub(crate) struct TaskClient {
    table: TaskTable,
    stream: TcpStream,
}

/// The table of the server, and the connection to it.
struct TaskTable {
    sender: Sender<Asking>,
    /// The other half of the pair.
    _receiver: Receiver<Asking>,
    pool: Pool<Asking>,
    table: RemoteRegion<RemoteAll>,
    slots: u64,
    owner: Owner,
    patience: Duration,
    counts: Counts,
}

impl TaskClient {
    pub(crate) async fn connect(place: &Place<Asking>, server: &Address) -> Result<Self, Fault> {
        let name = format!("cannot reach {} on TCP port {}", server.host, server.port);
        let connected = timeout(place.patience, TcpStream::connect((server.host.as_str(), server.port))).await;
        let mut stream = connected.doing(&name)?.doing(&name)?;
        stream.set_nodelay(true)?;
        // The server gets no rights to this side's memory.
        let seat = Seat::new(place, PeerRights::NONE)?;
        let mut welcome = [0; Welcome::BYTES];
        let exchanged = timeout(place.patience, async {
            stream.write_all(&introduction(&seat.endpoint())).await?;
            stream.read_exact(&mut welcome).await
        });
        exchanged.await.doing("no session: the other side says nothing")?.doing("no session")?;
        let Welcome { endpoint, table, owner } = Welcome::from_bytes(&welcome)?;
        let (pair, poller) = seat.connect(&endpoint)?.into_parts();
        let poller = SharedPoller::new(poller);
        let driver = poller.driver().ok_or_else(|| Fault::new("the poller has a driver"))?;
        drop(aio::spawn(driver)?);
        let (sender, receiver) = poller.split(pair)?;
        let classes = vec![SizeClass { len_bytes: SLOT_BYTES as usize, count: 2 }];
        let pool = place.domain.pool(&PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() })?;
        let slots = table.len() / SLOT_BYTES;
        let (patience, counts) = (place.patience, Counts::default());
        let table = TaskTable { sender, _receiver: receiver, pool, table, slots, owner, patience, counts };
        Ok(Self { table, stream })
    }

    /// The value of `key`.
    pub(crate) async fn get(&mut self, key: &Key) -> Result<Option<Value>, Fault> {
        let Self { table, stream } = self;
        while_served(stream, async { Ok(table.find(key).await?.and_then(|look| look.entry).map(|entry| entry.value)) })
            .await
    }

    /// Replaces the value of `key` by what `change` makes of it, and gives the new one.
    pub(crate) async fn update(
        &mut self,
        key: &Key,
        change: impl FnOnce(Option<Value>) -> Value,
    ) -> Result<Value, Fault> {
        let Self { table, stream } = self;
        while_served(stream, table.update(key, change)).await
    }

    /// Ends the session. When this returns, the server has destroyed its queue pair.
    pub(crate) async fn bye(self) -> Result<Counts, Fault> {
        let Self { table, mut stream } = self;
        let (counts, patience) = (table.counts, table.patience);
        drop(table);
        let mut answer = [0; BYE.len()];
        let said = timeout(patience, async {
            stream.write_all(&BYE).await?;
            stream.read_exact(&mut answer).await
        });
        said.await
            .doing("the server does not answer the bye")?
            .doing("the server closed the connection without a bye")?;
        if answer == BYE { Ok(counts) } else { Err(Fault::new("the other side speaks out of turn")) }
    }
}

/// Runs `access`, but no longer than the server stays. A request in flight then goes on, and its buffer goes home.
async fn while_served<R>(stream: &TcpStream, access: impl Future<Output = Result<R, Fault>>) -> Result<R, Fault> {
    let mut nothing = [0];
    tokio::select! {
        result = access => result,
        // The server sends nothing meanwhile. So the stream is readable only if the server has closed it.
        _ = stream.peek(&mut nothing) => Err(Fault::new("the server closed the connection")),
    }
}

/// A slot that was read.
struct Look {
    slot: u64,
    word: Word,
    entry: Option<Entry>,
}

/// See `remote.rs` for the reasons of each step.
impl TaskTable {
    async fn update(&mut self, key: &Key, change: impl FnOnce(Option<Value>) -> Value) -> Result<Value, Fault> {
        let Look { slot, word, entry } = self.lock(key).await?;
        let entry = Entry { key: *key, value: change(entry.map(|entry| entry.value)) };
        let after = word.updated();
        let offset = Slot::cell_offset(after.version());
        self.write(slot, offset, Cell::new(after.version(), entry).as_bytes()).await?;
        match self.swap(slot, word, after).await? {
            found if found == word => Ok(entry.value),
            found => Err(Fault::new(format!("the lock of slot {slot} was broken: its word is {:#x}", found.0))),
        }
    }

    /// Locks the slot of `key`, or the empty slot where the key belongs.
    async fn lock(&mut self, key: &Key) -> Result<Look, Fault> {
        let deadline = Instant::now() + self.patience;
        loop {
            let Some(Look { slot, word, entry }) = self.find(key).await? else {
                return Err(Fault::new("the table is full"));
            };
            let locked = word.locked_by(self.owner);
            if !word.is_locked() && self.swap(slot, word, locked).await? == word {
                return Ok(Look { slot, word: locked, entry });
            }
            self.counts.waits += 1;
            if Instant::now() >= deadline {
                let by = word.owner().map(|owner| format!(" by session {owner}")).unwrap_or_default();
                return Err(Fault::new(format!("\"{key}\" was locked{by} for more than {:?}", self.patience)));
            }
            sleep(Duration::from_micros(50)).await;
        }
    }

    /// The slot that has `key`, or else the empty slot where it belongs; `None` if the table is full.
    async fn find(&mut self, key: &Key) -> Result<Option<Look>, Fault> {
        let home = home(key, self.slots);
        for step in 0..self.slots {
            let look = self.look((home + step) % self.slots).await?;
            if look.entry.is_none_or(|entry| entry.key == *key) {
                return Ok(Some(look));
            }
        }
        Ok(None)
    }

    /// Reads a slot until all of it is of one version.
    async fn look(&mut self, slot: u64) -> Result<Look, Fault> {
        let deadline = Instant::now() + self.patience;
        loop {
            let (seen, after) = self.read(slot).await?;
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

    /// Reads a slot, and then its word again: two requests in flight, which are executed in order.
    async fn read(&mut self, slot: u64) -> Result<(Slot, Word), Fault> {
        let (whole, word) = (self.part(slot, 0, SLOT_BYTES)?, self.part(slot, 0, size_of::<Word>() as u64)?);
        let (first, second) = (self.buffer(UNANSWERED.as_bytes())?, self.buffer(UNANSWERED.as_bytes())?);
        let whole = self.sender.read(first, &whole).doing("cannot post a read")?;
        let word = self.sender.read(second, &word).doing("cannot post a read")?;
        let (whole, word) = timeout(self.patience, async { tokio::try_join!(whole, word) }).await??;
        let (seen, after) = (*whole.view::<Slot>()?, *word.view::<Word>()?);
        Ok((Slot { word: answered(seen.word)?, ..seen }, answered(after)?))
    }

    async fn write(&mut self, slot: u64, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let (buffer, target) = (self.buffer(bytes)?, self.part(slot, offset, bytes.len() as u64)?);
        let written = self.sender.write(buffer, &target).doing("cannot post a write")?;
        timeout(self.patience, written).await??;
        Ok(())
    }

    /// Replaces the word of a slot if it is `from`. Returns the word that was there.
    async fn swap(&mut self, slot: u64, from: Word, to: Word) -> Result<Word, Fault> {
        let (buffer, target) = (self.buffer(UNANSWERED.as_bytes())?, self.part(slot, 0, size_of::<Word>() as u64)?);
        let swapped = self.sender.compare_and_swap(buffer, &target, from.0, to.0);
        let swapped = timeout(self.patience, swapped.doing("cannot post a compare-and-swap")?).await??;
        answered(Word(swapped.original))
    }

    fn part(&self, slot: u64, offset: u64, len_bytes: u64) -> Result<RemoteRegion<RemoteAll>, Fault> {
        let start = slot * SLOT_BYTES + offset;
        Ok(self.table.slice(start..start + len_bytes)?)
    }

    /// A buffer that holds `bytes`. One is free, because the buffers of awaited requests are home again.
    fn buffer(&self, bytes: &[u8]) -> Result<Buffer<Asking>, Fault> {
        let mut buffer = self.pool.try_take(SLOT_BYTES as usize)?;
        buffer.write(bytes)?;
        Ok(buffer)
    }
}

impl Bench {
    /// As [`run`](Self::run), with a task for each client.
    pub(crate) async fn run_tasks(&self, place: &Place<Asking>, server: &Address) -> Result<String, Fault> {
        let keys = self.keys();
        let before = count(place, server, &keys).await?;
        let start = Instant::now();
        let mut clients = JoinSet::new();
        for number in 0..self.clients {
            let (place, server, keys, until) = (place.clone(), server.clone(), keys.clone(), self.until);
            clients.spawn(async move {
                let mut client = TaskClient::connect(&place, &server).await?;
                say(format!("client {} begins", number + 1));
                let bench = Bench { clients: 1, keys: keys.len(), until };
                let mut tally = bench.hammer_as_task(&mut client, &keys, number as u64 + 1).await?;
                tally.counts = client.bye().await?;
                Ok::<_, Fault>(tally)
            });
        }
        let mut all = Tally::default();
        while let Some(ended) = clients.join_next().await {
            all += ended??;
        }
        let took = start.elapsed();
        let updates = count(place, server, &keys).await? - before;
        self.report(all, updates, took)
    }

    async fn hammer_as_task(&self, client: &mut TaskClient, keys: &[Key], number: u64) -> Result<Tally, Fault> {
        let mut turns = self.turns(keys, number);
        while let Some((key, is_get)) = turns.next() {
            let mark = if is_get {
                Mark::of(key, client.get(key).await?)?
            } else {
                let mut old = None;
                let new = client.update(key, |value| {
                    old = value;
                    Mark::after(key, value, number)
                });
                let new = new.await?;
                Mark::of(key, old)?;
                Mark::of(key, Some(new))?
            };
            turns.see(mark)?;
        }
        Ok(turns.tally)
    }
}

/// The number of updates of all keys.
async fn count(place: &Place<Asking>, server: &Address, keys: &[Key]) -> Result<u64, Fault> {
    let mut client = TaskClient::connect(place, server).await?;
    let mut updates = 0;
    for key in keys {
        updates += Mark::of(key, client.get(key).await?)?.count;
    }
    client.bye().await?;
    Ok(updates)
}
