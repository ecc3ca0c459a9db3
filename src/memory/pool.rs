//! Pools: registered memory in buffers of a few lengths, which go home when they are dropped.

use super::buffer::{Buffer, TooLong};
use super::huge::HugePageSize;
use super::part::{Descriptor, UniquePart};
use super::region::Whole;
use super::shelf::{MOST_SPOTS, Shelf, Ticket, wake};
use super::{LocalWrite, Pages, RegisterFailure, locked_memory_limit};
use crate::domain::brand::Branded;
use crate::domain::{Brand, DomainInner, ProtectionDomain};
use crate::os::page_bytes;
use crate::sync::lock;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Registered memory in buffers of a few lengths, ready to be taken. A dropped buffer goes home to its pool.
///
/// Registering memory takes a system call and pins pages, so a program registers once and then uses the memory again
/// and again. A pool does that: [`try_take`](Self::try_take) gives a [`Buffer`] like any other, to be filled, posted,
/// shared, leased or split. Wherever it is dropped in the end, on any thread, it is free again. Taking and dropping a
/// buffer cost a few dozen instructions: they do not allocate, lock or make a system call.
///
/// ```text
///   Pool ──try_take, take──▶ Buffer ──post──▶ (in flight) ──▶ Completion ──▶ Buffer
///    ▲                          │                                              │
///    └───────────────────── drop, on any thread ◀──────────────────────────────┘
/// ```
///
/// A handle: clones name the same pool.
///
/// # Lengths
///
/// A pool has one or more [classes](SizeClass) of buffers. A length gets a buffer of the shortest class that it fits
/// in, and never of a longer one, so long buffers remain for those who need them. A taken buffer has nothing filled,
/// and holds what its last user left there; [`try_take_zeroed`](Self::try_take_zeroed) clears it.
///
/// # Growing and shrinking
///
/// When a class has no buffer left, the pool registers another chunk of memory for it, as far as [`Growth`] allows.
/// `ibv_reg_mr(3)` pins the memory, and the limit of locked memory applies (`RLIMIT_MEMLOCK`, `getrlimit(2)`;
/// [`locked_memory_limit`]). If the registration is refused, the pool stays as it is, and the caller learns why:
/// [`NoBuffer::NotGrown`]. [`trim`](Self::trim) gives such chunks back when all their buffers are at home.
///
/// # Waiting
///
/// [`take`](Self::take) is a future that waits until a buffer comes home. It needs no runtime. Whoever has waited
/// longest gets the next buffer of the class, and nobody overtakes, `try_take` included.
///
/// So a pool bounds what a program has in flight: a sender that takes its buffers here goes no faster than its
/// completions come back.
///
/// # Whose the memory is
///
/// The memory is private ([`LocalWrite`]): no peer ever reaches a buffer of a pool by the pool's own keys. To leave a
/// buffer to peers, make a [`Lease`](super::Lease), which registers the bytes once more. The buffer comes back with the
/// end of the lease, and no earlier. No [window](crate::window) is bound over it.
///
/// | what happens to a buffer | what happens to its memory |
/// |---|---|
/// | it is dropped | it goes home |
/// | it is [shared](Buffer::share) | it goes home with the last share and the last [slice](super::SharedBuffer::slice) |
/// | it is [split](Buffer::split_at) | it goes home as a whole, when the last of its parts is dropped |
/// | it is in flight, or its lease has not ended | the device or the peer has it |
/// | it is forgotten, or the device never completes its request | it stays away for good, registered, and so does its chunk |
/// | its pool is dropped | it stays valid. Its chunk is deregistered when the last buffer of the chunk is dropped |
///
/// A child of `fork(2)` has a copy of the memory, which the device does not know, so it must not post buffers of its
/// parent: see [`fork_support`](crate::device::fork_support).
///
/// # Examples
///
/// ```
/// use interlock::memory::{Growth, PoolOptions, SizeClass};
/// use interlock::{Context, Limits};
/// use std::time::Duration;
/// interlock::domain! { struct Docs; }
///
/// let domain = Context::open("soft0")?.named_domain(Docs)?;
/// let port = domain.context().active_port()?;
/// let (queue, mut poller) = domain.completion_queue(Limits::default().completions())?;
/// let pair = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
/// let myself = pair.endpoint();
/// let mut pair = pair.connect(&myself)?;
///
/// let classes = vec![SizeClass { len_bytes: 256, count: 16 }, SizeClass { len_bytes: 8192, count: 4 }];
/// let pool = domain.pool(&PoolOptions { classes, growth: Growth::UpTo(1 << 20), ..PoolOptions::default() })?;
///
/// for round in 0..100 {
///     pair.post_receive(pool.try_take(200)?)?;
///     let mut message = pool.try_take(200)?;
///     message.write(format!("message {round}").as_bytes())?;
///     pair.post_send(message)?;
///     for _ in 0..2 {
///         let success = poller.wait(Duration::from_secs(1))?.check()?;
///         drop(success); // the buffer of the request goes home
///     }
/// }
/// assert_eq!(pool.stats().classes[0].free, 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pool<B> {
    inner: Arc<PoolInner>,
    brand: Branded<B>,
}

static_assertions::assert_impl_all!(Pool<()>: Clone, Send, Sync, Unpin);

/// Options of a new pool.
///
/// # Examples
///
/// ```
/// use interlock::memory::{Growth, PoolOptions, SizeClass};
///
/// let options = PoolOptions {
///     classes: vec![SizeClass { len_bytes: 4096, count: 128 }],
///     growth: Growth::Never,
///     ..PoolOptions::default()
/// };
/// assert_eq!(options.alignment, 64);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolOptions {
    /// The lengths of buffers, at least one, in any order.
    pub classes: Vec<SizeClass>,
    /// About how many bytes the pool registers each time it grows. A chunk has at least one buffer.
    pub chunk_bytes: usize,
    /// The alignment of each buffer's address: a power of two from 8 to the length of a page. Lengths are rounded up to
    /// it.
    ///
    /// 64 keeps two buffers out of one cache line. With 8, buffers can be shorter, and can still be leased.
    pub alignment: usize,
    /// Whether the pool registers more memory when a class has no buffer left.
    pub growth: Growth,
    /// The pages of its memory.
    pub pages: PoolPages,
}

/// Buffers of one length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeClass {
    /// The least length of a buffer; not 0.
    pub len_bytes: usize,
    /// How many there are from the start, at least 1. They stay registered as long as the pool exists.
    pub count: u32,
}

/// Whether a pool registers more memory when it is short of buffers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Growth {
    /// It has only the buffers that it started with.
    #[default]
    Never,
    /// It registers up to this many bytes in all, those from the start included.
    UpTo(usize),
}

/// The pages of a pool's memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum PoolPages {
    /// Ordinary pages: [`Pages::new`].
    #[default]
    Ordinary,
    /// Huge pages if the kernel has some at hand: [`Pages::prefer_huge`].
    PreferHuge,
    /// Huge pages, which the machine must have set aside: [`Pages::huge`]. Choose a
    /// [`chunk_bytes`](PoolOptions::chunk_bytes) of whole pages, since the rest of the last page stays unused.
    Huge(HugePageSize),
}

impl Default for PoolOptions {
    /// 64 buffers of 4 KiB and 16 of 64 KiB. The pool grows by 1 MiB at a time, up to 64 MiB.
    fn default() -> Self {
        Self {
            classes: vec![SizeClass { len_bytes: 4 << 10, count: 64 }, SizeClass { len_bytes: 64 << 10, count: 16 }],
            chunk_bytes: 1 << 20,
            alignment: 64,
            growth: Growth::UpTo(64 << 20),
            pages: PoolPages::default(),
        }
    }
}

/// Why a pool was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// There is no class.
    #[error("a pool must have at least one size class")]
    NoClass,
    /// A class has buffers of no bytes, has no buffers, or has more than a pool can count.
    #[error(
        "a size class must have 1 to {most} buffers of at least one byte, not {} of {} bytes",
        .class.count, .class.len_bytes
    )]
    Class {
        /// The class.
        class: SizeClass,
        /// The greatest number of buffers.
        most: u32,
    },
    /// The alignment is not a power of two from 8 to the length of a page.
    #[error("the alignment of a pool must be a power of two from 8 to {page_bytes}, not {alignment}")]
    Alignment {
        /// The alignment.
        alignment: usize,
        /// The length of a page.
        page_bytes: usize,
    },
    /// The buffers that the pool starts with need more memory than it may register.
    #[error(
        "the size classes need {needed_bytes} bytes, but the pool may grow to {limit_bytes} only: raise \
         `Growth::UpTo`, or start with fewer buffers"
    )]
    AboveLimit {
        /// What they need.
        needed_bytes: usize,
        /// What [`Growth::UpTo`] says.
        limit_bytes: usize,
    },
    /// The memory was not registered.
    #[error(transparent)]
    Register(#[from] RegisterFailure),
}

/// Why a pool gave no buffer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoBuffer {
    /// The pool has no buffers that long. Waiting does not help.
    #[error(transparent)]
    TooLong(TooLong),
    /// All buffers of the class are taken, or set aside for those who wait, and the pool does not grow.
    #[error("all buffers of {capacity} bytes are taken: drop some, wait with `Pool::take`, or let the pool grow")]
    Empty {
        /// The length of the buffers.
        capacity: usize,
    },
    /// All buffers of the class are taken, and the pool has grown to its limit.
    #[error(
        "all buffers of {capacity} bytes are taken, and the pool has registered {registered_bytes} of at most \
         {limit_bytes} bytes: drop some, wait with `Pool::take`, trim the pool, or let it grow further"
    )]
    AtLimit {
        /// The length of the buffers.
        capacity: usize,
        /// How much the pool has registered.
        registered_bytes: usize,
        /// What [`Growth::UpTo`] says.
        limit_bytes: usize,
    },
    /// All buffers of the class are taken, and the device or the system refused more memory.
    #[error(
        "all buffers of {capacity} bytes are taken, and the device or the system refused memory for more: drop some, wait \
         with `Pool::take`, or remove the cause"
    )]
    NotGrown {
        /// The length of the buffers.
        capacity: usize,
        /// Why it did not.
        source: Box<RegisterFailure>,
    },
}

/// What a pool has, and how much of that is free. Other threads may have changed the numbers since.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolStats {
    /// Each class, the shortest first.
    pub classes: Vec<ClassStats>,
    /// How many bytes the pool has registered.
    pub registered_bytes: usize,
    /// How many bytes it may register. If it never grows: the bytes from the start.
    pub limit_bytes: usize,
    /// How often the pool tried to grow, and the device or the system refused.
    pub refusals: u64,
    /// The limit of locked memory of the process, as
    /// [`locked_memory_limit`](crate::memory::locked_memory_limit) says.
    pub locked_memory_limit: Option<u64>,
}

/// What a class of a pool has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClassStats {
    /// How many bytes fit in one of its buffers.
    pub capacity: usize,
    /// How many buffers there are.
    pub buffers: usize,
    /// How many of them are at home.
    pub free: usize,
    /// How many futures wait for one.
    pub waiting: usize,
}

/// A pool without its brand.
struct PoolInner {
    /// The shortest first.
    classes: Box<[Class]>,
    pages: PoolPages,
    /// How many bytes may be registered.
    limit_bytes: usize,
    /// Whether the pool grows at all.
    grows: bool,
    grown: Mutex<Grown>,
    domain: Arc<DomainInner>,
}

struct Class {
    /// Its place among the classes.
    index: usize,
    /// The length of a buffer.
    capacity: usize,
    /// How many buffers there are from the start. Their spots come first.
    count: u32,
    /// The most buffers of a chunk, and how many spots of the shelf are set aside for each chunk. (A spot is the number
    /// of a buffer on the shelf.) The spots of the first chunk begin at `count`.
    per_chunk: u32,
    shelf: Arc<Shelf<Descriptor>>,
}

/// How far a pool has grown.
struct Grown {
    /// How many bytes are registered.
    bytes: usize,
    /// For each class and each of its chunks, how many buffers the chunk has; 0 for a chunk that was given back.
    chunks: Box<[Vec<u32>]>,
    refusals: u64,
}

impl<B: Brand> ProtectionDomain<B> {
    /// A pool of buffers, registered now.
    ///
    /// `ibv_reg_mr(3)`, once for each class. The pool keeps the domain.
    ///
    /// # Errors
    ///
    /// [`PoolError`]: options that do not make sense, or why the memory was not registered.
    #[doc(alias = "ibv_reg_mr")]
    pub fn pool(&self, options: &PoolOptions) -> Result<Pool<B>, PoolError> {
        Ok(Pool { inner: Arc::new(PoolInner::new(&self.inner, options)?), brand: PhantomData })
    }
}

impl<B: Brand> Pool<B> {
    /// Takes a buffer that holds at least `len_bytes`. Nothing of it is filled.
    ///
    /// If all buffers of the class are taken and the pool may grow, this registers memory, which takes a while.
    ///
    /// # Errors
    ///
    /// [`NoBuffer`] says why there is none.
    #[inline]
    pub fn try_take(&self, len_bytes: usize) -> Result<Buffer<B>, NoBuffer> {
        self.inner.try_take(len_bytes).map(Buffer::new)
    }

    /// Takes a buffer of which `len_bytes` zeros are filled. The rest of its capacity is zero, too.
    ///
    /// # Errors
    ///
    /// As [`try_take`](Self::try_take).
    pub fn try_take_zeroed(&self, len_bytes: usize) -> Result<Buffer<B>, NoBuffer> {
        let mut buffer = self.try_take(len_bytes)?;
        clear(&mut buffer, len_bytes);
        Ok(buffer)
    }

    /// Takes a buffer that holds at least `len_bytes`, and waits if there is none. Nothing of it is filled.
    ///
    /// See [`Take`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use interlock::{Brand, Buffer};
    /// # use interlock::memory::{Growth, Pool, PoolOptions, SizeClass};
    /// # use std::pin::pin;
    /// # use std::task::{Context, Poll, Waker};
    /// # interlock::domain! { struct Docs; }
    /// # let domain = interlock::Context::open("soft0")?.named_domain(Docs)?;
    /// let classes = vec![SizeClass { len_bytes: 64, count: 1 }];
    /// let pool = domain.pool(&PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() })?;
    /// let first = pool.try_take(64)?;
    ///
    /// // An executor does this; in an async function it reads `pool.take(64).await?`.
    /// let mut second = pin!(pool.take(64));
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert!(second.as_mut().poll(&mut context).is_pending());
    /// drop(first); // it goes home, and on to whoever waits
    /// assert!(matches!(second.as_mut().poll(&mut context), Poll::Ready(Ok(buffer)) if buffer.is_empty()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take(&self, len_bytes: usize) -> Take<B> {
        Take { pool: self.clone(), len_bytes, zeroed: false, ticket: None }
    }

    #[cfg(feature = "aio")]
    pub(crate) fn domain(&self) -> crate::domain::DomainId {
        self.inner.domain.id()
    }

    /// Fails if the pool has no class for this length.
    #[cfg(feature = "aio")]
    pub(crate) fn holds(&self, len_bytes: usize) -> Result<(), TooLong> {
        self.inner.class(len_bytes).map(|_| ())
    }

    /// Deregisters the chunks by which the pool has grown and whose buffers are all at home. Returns how many bytes
    /// they had.
    ///
    /// `ibv_dereg_mr(3)`. The buffers from the start stay. If somebody waits for a buffer of another class, the pool
    /// uses the room to grow there. A chunk that the device refuses to deregister is leaked, and counts as gone.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn trim(&self) -> usize {
        self.inner.trim()
    }

    /// What the pool has, and how much of that is free. This call counts the free buffers one by one.
    pub fn stats(&self) -> PoolStats {
        self.inner.stats()
    }
}

/// Fills the whole buffer with zeros, of which `len_bytes` count as filled.
fn clear<B>(buffer: &mut Buffer<B>, len_bytes: usize) {
    // `set_len` fails only for a length above the capacity. Both calls below pass at most the capacity.
    let _ = buffer.set_len(buffer.capacity());
    buffer.fill(0);
    let _ = buffer.set_len(len_bytes);
}

impl PoolInner {
    fn new(domain: &Arc<DomainInner>, options: &PoolOptions) -> Result<Self, PoolError> {
        let &PoolOptions { ref classes, chunk_bytes, alignment, growth, pages } = options;
        let page_bytes = page_bytes();
        if !alignment.is_power_of_two() || !(8..=page_bytes).contains(&alignment) {
            return Err(PoolError::Alignment { alignment, page_bytes });
        }
        let mut made = Vec::new();
        let mut bytes: usize = 0;
        for &class in classes {
            let flaw = || PoolError::Class { class, most: MOST_SPOTS };
            let capacity = class.len_bytes.checked_next_multiple_of(alignment).filter(|&len_bytes| len_bytes > 0);
            let capacity = capacity.ok_or_else(flaw)?;
            let in_all = capacity.checked_mul(class.count as usize).ok_or_else(flaw)?;
            if !(1..=MOST_SPOTS).contains(&class.count) {
                return Err(flaw());
            }
            bytes = bytes.checked_add(in_all).ok_or_else(flaw)?;
            let per_chunk = (chunk_bytes / capacity).clamp(1, MOST_SPOTS as usize) as u32;
            made.push(Class {
                index: 0,
                capacity,
                count: class.count,
                per_chunk,
                shelf: Arc::new(Shelf::new(class.count)),
            });
        }
        if made.is_empty() {
            return Err(PoolError::NoClass);
        }
        made.sort_by_key(|class| class.capacity);
        made.iter_mut().zip(0..).for_each(|(class, index)| class.index = index);
        let (grows, limit_bytes) = match growth {
            Growth::Never => (false, bytes),
            Growth::UpTo(limit_bytes) => (true, limit_bytes),
        };
        if bytes > limit_bytes {
            return Err(PoolError::AboveLimit { needed_bytes: bytes, limit_bytes });
        }
        let chunks = made.iter().map(|_| Vec::new()).collect();
        let grown = Mutex::new(Grown { bytes, chunks, refusals: 0 });
        let (classes, domain) = (made.into_boxed_slice(), Arc::clone(domain));
        let pool = Self { classes, pages, limit_bytes, grows, grown, domain };
        for class in &pool.classes {
            pool.register(class, class.count, 0)?;
        }
        Ok(pool)
    }

    /// Registers `count` more buffers of the class, with spots from `first` on. Returns the wakers of those who get one
    /// of them. A waker runs code of the program, which may call the pool again, so the caller wakes outside of any
    /// lock.
    fn register(&self, class: &Class, count: u32, first: u32) -> Result<Vec<Waker>, RegisterFailure> {
        let len_bytes = class.capacity.saturating_mul(count as usize);
        let pages = match self.pages {
            PoolPages::Ordinary => Pages::new(len_bytes)?,
            PoolPages::PreferHuge => Pages::prefer_huge(len_bytes)?,
            PoolPages::Huge(size) => Pages::huge(len_bytes, size)?,
        };
        let whole = Whole::<LocalWrite, Pages>::register(&self.domain, pages)?;
        Ok(whole.split().1.stock(&class.shelf, class.capacity, first))
    }

    /// The shortest class that the length fits in.
    #[inline]
    fn class(&self, len_bytes: usize) -> Result<&Class, TooLong> {
        let found = self.classes.iter().find(|class| class.capacity >= len_bytes);
        found.ok_or_else(|| self.too_long(len_bytes))
    }

    #[cold]
    fn too_long(&self, len_bytes: usize) -> TooLong {
        TooLong { len_bytes, capacity: self.classes.last().map_or(0, |class| class.capacity) }
    }

    #[inline]
    fn try_take(&self, len_bytes: usize) -> Result<UniquePart, NoBuffer> {
        let class = self.class(len_bytes).map_err(NoBuffer::TooLong)?;
        let part = match class.shelf.take() {
            Some(taken) => UniquePart::from_home(taken),
            None => self.take_slowly(class)?,
        };
        part.set_filled(0);
        Ok(part)
    }

    #[cold]
    fn take_slowly(&self, class: &Class) -> Result<UniquePart, NoBuffer> {
        loop {
            if let Some(taken) = class.shelf.take_in_turn() {
                return Ok(UniquePart::from_home(taken));
            }
            // After `grow` the class has new buffers. If others get all of them first, the loop calls `grow` again.
            self.grow(class)?;
        }
    }

    /// Adds a chunk to the class, or finds that another thread has added some buffers.
    fn grow(&self, class: &Class) -> Result<(), NoBuffer> {
        let capacity = class.capacity;
        if !self.grows {
            return Err(NoBuffer::Empty { capacity });
        }
        let mut grown = lock(&self.grown);
        if class.shelf.has_some() {
            return Ok(());
        }
        let limit = NoBuffer::AtLimit { capacity, registered_bytes: grown.bytes, limit_bytes: self.limit_bytes };
        let room = self.limit_bytes.saturating_sub(grown.bytes) / capacity;
        let Some(chunks) = grown.chunks.get_mut(class.index) else { return Err(limit) };
        let chunk = chunks.iter().position(|&buffers| buffers == 0).unwrap_or(chunks.len());
        let first = u64::from(class.count) + chunk as u64 * u64::from(class.per_chunk);
        let spots = u64::from(class.count + MOST_SPOTS).saturating_sub(first);
        let count = (room as u64).min(u64::from(class.per_chunk)).min(spots) as u32;
        if count == 0 {
            return Err(limit);
        }
        let wakers = match self.register(class, count, first as u32) {
            Ok(wakers) => wakers,
            Err(source) => {
                grown.refusals += 1;
                return Err(NoBuffer::NotGrown { capacity, source: Box::new(source) });
            }
        };
        match chunks.get_mut(chunk) {
            Some(buffers) => *buffers = count,
            None => chunks.push(count),
        }
        grown.bytes += count as usize * capacity;
        drop(grown);
        wakers.into_iter().for_each(wake);
        Ok(())
    }

    fn trim(&self) -> usize {
        let mut grown = lock(&self.grown);
        let mut trimmed = 0;
        for (class, chunks) in self.classes.iter().zip(&mut grown.chunks) {
            let chunk_of = |spot: u32| {
                let chunk = spot.checked_sub(class.count)? / class.per_chunk;
                Some((chunk, *chunks.get(chunk as usize)?))
            };
            let (gone, parts) = class.shelf.remove(chunk_of);
            trimmed += parts.len() * class.capacity;
            parts.into_iter().for_each(|taken| UniquePart::from_home(taken).free());
            for chunk in gone {
                chunks[chunk as usize] = 0;
            }
            while chunks.last() == Some(&0) {
                chunks.pop();
            }
        }
        grown.bytes -= trimmed;
        drop(grown);
        for class in &self.classes {
            while class.shelf.count().1 > 0 && self.grow(class).is_ok() {}
        }
        trimmed
    }

    fn stats(&self) -> PoolStats {
        let grown = lock(&self.grown);
        let classes = self.classes.iter().zip(&grown.chunks).map(|(class, chunks)| {
            let grown: usize = chunks.iter().map(|&buffers| buffers as usize).sum();
            let (free, waiting) = class.shelf.count();
            ClassStats { capacity: class.capacity, buffers: class.count as usize + grown, free, waiting }
        });
        PoolStats {
            classes: classes.collect(),
            registered_bytes: grown.bytes,
            limit_bytes: self.limit_bytes,
            refusals: grown.refusals,
            locked_memory_limit: locked_memory_limit(),
        }
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        // A part at home and its shelf keep each other alive, so the shelves must be emptied. A part that is still away
        // finds its shelf closed when it comes home, and is freed then.
        for class in &self.classes {
            let home = class.shelf.close();
            home.into_iter().for_each(|taken| UniquePart::from_home(taken).free());
        }
    }
}

impl<B> Clone for Pool<B> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), brand: PhantomData }
    }
}

impl<B> fmt::Debug for Pool<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("stats", &self.inner.stats()).finish_non_exhaustive()
    }
}

/// A wait for a buffer of a pool: [`Pool::take`].
///
/// Its first poll takes a buffer, or lets the pool grow, which registers memory inside the poll. If neither gives a
/// buffer, it enters the queue of its class. From then on it need not be polled until its waker is called. The queue is
/// first in, first out.
///
/// It may be dropped at any time: it leaves the queue, and a buffer that was already set aside for it goes to whoever
/// waits next. It keeps the pool, and borrows nothing. If it is forgotten instead, one buffer stays set aside for good.
///
/// The waker is called wherever a buffer is dropped, on the thread that drops it.
///
/// # Errors
///
/// [`TooLong`]: the pool has no class for that length. There is no other error: if the pool cannot grow, this waits for
/// a buffer to come home. [`PoolStats::refusals`] counts how often the device or the system refused.
#[must_use = "a future does nothing unless it is polled"]
pub struct Take<B> {
    pool: Pool<B>,
    len_bytes: usize,
    zeroed: bool,
    /// `Some` while it is in the queue.
    ticket: Option<Ticket>,
}

static_assertions::assert_impl_all!(Take<()>: Send, Sync, Unpin);
static_assertions::assert_not_impl_any!(Take<()>: Clone);

impl<B: Brand> Take<B> {
    /// The same, but the buffer has `len_bytes` zeros filled, and the rest of its capacity is zero, too.
    pub fn zeroed(self) -> Self {
        let mut this = self;
        this.zeroed = true;
        this
    }
}

impl<B: Brand> Future for Take<B> {
    type Output = Result<Buffer<B>, TooLong>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let inner = &this.pool.inner;
        let class = inner.class(this.len_bytes)?;
        let tried = if this.ticket.is_none() { Some(inner.try_take(this.len_bytes)) } else { None };
        let was_at_limit = matches!(tried, Some(Err(NoBuffer::AtLimit { .. })));
        let at_once = tried.and_then(Result::ok);
        let mut wait = || class.shelf.wait(&mut this.ticket, context.waker()).map(UniquePart::from_home);
        let mut found = at_once.or_else(&mut wait);
        // The first try found the pool at its limit. Perhaps a `trim` has made room since then. A `trim` grows a class
        // only if futures wait for it, and this future did not wait yet. So try to grow once more.
        if found.is_none() && was_at_limit && inner.grow(class).is_ok() {
            found = wait();
        }
        let Some(part) = found else { return Poll::Pending };
        part.set_filled(0);
        let mut buffer = Buffer::new(part);
        if this.zeroed {
            clear(&mut buffer, this.len_bytes);
        }
        Poll::Ready(Ok(buffer))
    }
}

impl<B> Drop for Take<B> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        // The pool has a class for this length: otherwise `poll` would not have made a ticket.
        if let Ok(class) = self.pool.inner.class(self.len_bytes)
            && let Some(taken) = class.shelf.leave(ticket)
        {
            drop(UniquePart::from_home(taken));
        }
    }
}

impl<B> fmt::Debug for Take<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Take").field("len_bytes", &self.len_bytes).field("waits", &self.ticket.is_some()).finish()
    }
}
