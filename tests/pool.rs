//! Pools of registered memory. The same tests run on every device.

use interlock::error::{NoBuffer, NotUniqueReason, PoolError, RegisterFailure, TooLong};
use interlock::memory::{BufferList, ClassStats, Growth, Pool, PoolOptions, PoolPages, SizeClass, Take};
use interlock::soft::{Fault, Verb};
use interlock::{Brand, Buffer, Context, ProtectionDomain, RemoteWrite, Status, Work};
use std::collections::HashSet;
use std::future::Future;
use std::mem;
use std::panic;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use support::{Link, Need, context, failure, filled, lacks_need, next, nothing_comes, own_device};

/// A deadline that no test reaches.
const LONG: Duration = Duration::from_secs(3600);

fn class(len_bytes: usize, count: u32) -> SizeClass {
    SizeClass { len_bytes, count }
}

fn fixed(classes: &[SizeClass]) -> PoolOptions {
    PoolOptions { classes: classes.to_vec(), growth: Growth::Never, ..PoolOptions::default() }
}

/// A pool of `count` buffers of 64 bytes, which grows by two buffers at a time up to `limit` buffers.
fn growing(count: u32, limit: usize) -> PoolOptions {
    PoolOptions {
        classes: vec![class(64, count)],
        chunk_bytes: 128,
        growth: Growth::UpTo(64 * limit),
        ..PoolOptions::default()
    }
}

fn first_class<B: Brand>(pool: &Pool<B>) -> ClassStats {
    pool.stats().classes[0]
}

fn free<B: Brand>(pool: &Pool<B>) -> usize {
    first_class(pool).free
}

fn address<B>(buffer: &Buffer<B>) -> usize {
    buffer.as_ptr().addr()
}

/// Takes all buffers of the first class.
fn all<B: Brand>(pool: &Pool<B>) -> Vec<Buffer<B>> {
    std::iter::from_fn(|| pool.try_take(1).ok()).collect()
}

/// Counts how often it was woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A future that is polled by hand.
struct Waiting<B> {
    take: Take<B>,
    count: Arc<Count>,
}

impl<B: Brand> Waiting<B> {
    fn on(pool: &Pool<B>) -> Self {
        let mut waiting = Self { take: pool.take(1), count: Arc::default() };
        assert!(waiting.poll().is_none());
        waiting
    }

    fn poll(&mut self) -> Option<Buffer<B>> {
        let waker = Waker::from(Arc::clone(&self.count));
        match Pin::new(&mut self.take).poll(&mut std::task::Context::from_waker(&waker)) {
            Poll::Ready(buffer) => Some(buffer.unwrap()),
            Poll::Pending => None,
        }
    }

    fn woken(&self) -> usize {
        self.count.0.load(Ordering::Relaxed)
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The smallest executor: it sleeps until the future's waker wakes it.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

// ---- Taking and dropping -----------------------------------------------------------------------------

#[test]
fn a_dropped_buffer_goes_home_and_is_taken_again() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let pool = domain.pool(&fixed(&[class(100, 3)])).unwrap();
    let mut seen = HashSet::new();
    let mut taken = all(&pool);
    for buffer in &mut taken {
        assert_eq!((buffer.len(), buffer.capacity(), address(buffer) % 64), (0, 128, 0));
        buffer.set_len(128).unwrap();
        buffer.fill(7);
        seen.insert(address(buffer));
    }
    assert_eq!((seen.len(), free(&pool)), (3, 0));
    assert!(matches!(pool.try_take(1), Err(NoBuffer::Empty { capacity: 128 })));
    taken.pop();
    assert_eq!(free(&pool), 1);
    let mut again = pool.try_take(100).unwrap();
    assert!(again.is_empty() && seen.contains(&address(&again)));
    again.set_len(128).unwrap();
    assert!(again.iter().all(|&byte| byte == 7), "what its last user left");
    drop(again);
    let mut cleared = pool.try_take_zeroed(99).unwrap();
    assert_eq!(cleared[..], [0; 99]);
    cleared.set_len(128).unwrap();
    assert_eq!(cleared[..], [0; 128]);
    drop((taken, cleared));
    assert_eq!(all(&pool).iter().map(address).collect::<HashSet<_>>(), seen);
}

#[test]
fn a_length_gets_the_shortest_class_that_it_fits_in() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let options = PoolOptions { alignment: 8, ..fixed(&[class(1000, 1), class(9, 2), class(64, 1)]) };
    let pool = domain.pool(&options).unwrap();
    let capacities: Vec<usize> = pool.stats().classes.iter().map(|class| class.capacity).collect();
    assert_eq!(capacities, [16, 64, 1000]);
    for (len_bytes, capacity) in [(0, 16), (16, 16), (17, 64), (65, 1000), (1000, 1000)] {
        let buffer = pool.try_take(len_bytes).unwrap();
        assert_eq!((buffer.capacity(), address(&buffer) % 8), (capacity, 0));
    }
    let middle = pool.try_take(64).unwrap();
    assert!(matches!(pool.try_take(17), Err(NoBuffer::Empty { capacity: 64 })), "no longer one instead");
    let too_long = TooLong { len_bytes: 1001, capacity: 1000 };
    assert!(matches!(pool.try_take(1001), Err(NoBuffer::TooLong(error)) if error == too_long));
    assert_eq!(block_on(pool.take(1001)).unwrap_err(), too_long);
    drop(middle);
    assert_eq!(block_on(pool.take(17).zeroed()).unwrap()[..], [0; 17]);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    assert!(matches!(domain.pool(&fixed(&[])), Err(PoolError::NoClass)));
    for flawed in [class(0, 1), class(1, 0), class(usize::MAX, 1), class(usize::MAX / 2, 4), class(8, u32::MAX)] {
        assert!(matches!(domain.pool(&fixed(&[flawed])), Err(PoolError::Class { class, .. }) if class == flawed));
    }
    for alignment in [0, 4, 24, 1 << 30] {
        let options = PoolOptions { alignment, ..PoolOptions::default() };
        assert!(matches!(domain.pool(&options), Err(PoolError::Alignment { .. })));
    }
    let error = domain.pool(&growing(3, 2)).unwrap_err();
    assert!(matches!(error, PoolError::AboveLimit { needed_bytes: 192, limit_bytes: 128 }), "{error}");
    // Even with chunks of 0 bytes, each chunk has one buffer.
    let options = PoolOptions { chunk_bytes: 0, ..growing(1, 3) };
    assert_eq!(all(&domain.pool(&options).unwrap()).len(), 3);
}

#[test]
fn a_scoped_domain_has_pools_too() {
    context()
        .with_domain(|domain| {
            let pool = domain.pool(&PoolOptions::default()).unwrap();
            let mut buffer = pool.try_take(5000).unwrap();
            buffer.write(&[1; 5000]).unwrap();
            drop(domain);
            drop(pool);
            assert_eq!(buffer[..], [1; 5000]);
        })
        .unwrap();
}

#[test]
fn the_pages_may_be_huge() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let options = PoolOptions { pages: PoolPages::PreferHuge, ..fixed(&[class(1 << 20, 3)]) };
    let pool = domain.pool(&options).unwrap();
    let mut taken = all(&pool);
    taken.iter_mut().for_each(|buffer| buffer.write(&[1; 4096]).unwrap());
    assert_eq!(taken.len(), 3);
    let starts: Vec<usize> = taken.iter().map(address).collect();
    assert!(cfg!(miri) || starts.iter().any(|start| start.is_multiple_of(2 << 20)));
}

// ---- Buffers on their way ----------------------------------------------------------------------------

#[test]
fn buffers_go_home_from_completions() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let pool = link.domain.pool(&fixed(&[class(64, 4)])).unwrap();
    for round in 0..20_u8 {
        link.right.post_receive(pool.try_take(64).unwrap()).unwrap();
        let mut message = pool.try_take(64).unwrap();
        message.write(&[round; 33]).unwrap();
        link.left.post_send(message).unwrap();
        for _ in 0..2 {
            if let Work::Received(received) = next(&mut link.poller).into_work() {
                assert_eq!(received.buffer[..], [round; 33]);
            }
        }
        assert_eq!(free(&pool), 4);
    }
    // Buffers also go home from a list, from a share, and from a destroyed pair.
    link.right.post_receive(BufferList::new(vec![pool.try_take(64).unwrap()])).unwrap();
    let mut message = pool.try_take(64).unwrap();
    message.write(&[9; 8]).unwrap();
    link.left.post_send(message.share()).unwrap();
    for _ in 0..2 {
        next(&mut link.poller);
    }
    assert_eq!(free(&pool), 4);
    link.right.post_receive(pool.try_take(64).unwrap()).unwrap();
    assert_eq!(free(&pool), 3);
    drop(link.right);
    // Some devices flush the requests of a pair that is destroyed.
    assert!(matches!(failure(&mut link.poller).status, Status::Destroyed | Status::Flushed));
    assert_eq!(free(&pool), 4);
}

/// A buffer in flight stays out of the pool, since the device may still write to it.
#[test]
fn a_buffer_that_the_device_has_does_not_go_home() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let pool = link.domain.pool(&fixed(&[class(64, 2)])).unwrap();
    link.right.post_receive(pool.try_take(64).unwrap()).unwrap();
    nothing_comes(&mut link.poller);
    assert_eq!(all(&pool).len(), 1);
    // The pool is dropped before the buffer comes back. When this buffer is dropped, it is freed, and its registration
    // ends.
    drop(pool);
    link.left.post_send(filled(&link.domain, 3, 8)).unwrap();
    let mut received = None;
    for _ in 0..2 {
        received = next(&mut link.poller).into_received().ok().or(received);
    }
    assert_eq!(received.unwrap()[..], [3; 8]);
}

#[test]
fn a_split_buffer_goes_home_as_a_whole() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let pool = domain.pool(&fixed(&[class(256, 2)])).unwrap();
    let whole = pool.try_take(1).unwrap();
    let start = address(&whole);
    let (left, right) = whole.split_at(64).unwrap();
    let (middle, right) = right.split_at(64).unwrap();
    assert_eq!([left.len(), middle.len(), right.capacity()], [64, 64, 128]);
    drop(left);
    drop(right);
    assert_eq!(free(&pool), 1, "a part is still away");
    drop(middle);
    assert_eq!(free(&pool), 2);

    // The parts of a buffer, joined again, are the whole buffer.
    let (whole, other) = (pool.try_take(1).unwrap(), pool.try_take(1).unwrap());
    let (whole, other) = if address(&whole) == start { (whole, other) } else { (other, whole) };
    let mut parts = whole.into_chunks(100).into_iter();
    let (one, two, three) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    let joined = two.join(three).unwrap();
    assert_eq!((joined.len(), free(&pool)), (156, 0));
    let whole = one.join(joined).unwrap();
    assert_eq!((whole.len(), whole.capacity()), (256, 256));

    // Different buffers of a pool cannot be joined, even if they are adjacent. The same holds for their parts.
    let [low, high] = if address(&whole) < address(&other) { [whole, other] } else { [other, whole] };
    assert_eq!(address(&low) + 256, address(&high));
    let refused = low.join(high).unwrap_err();
    let ((low, low_end), (high_start, high)) =
        (refused.left.split_at(128).unwrap(), refused.right.split_at(128).unwrap());
    let refused = low_end.join(high_start).unwrap_err();
    drop((low, high));
    assert_eq!(free(&pool), 0);
    drop(refused);
    assert_eq!(free(&pool), 2);

    // If a part of a buffer is dropped, the other parts cannot become the whole again.
    let parts = pool.try_take(1).unwrap().into_chunks(64);
    let Ok([one, two, three, _]) = <[_; 4]>::try_from(parts) else { panic!("four parts") };
    drop(three);
    let part = one.join(two).unwrap();
    assert_eq!((part.capacity(), free(&pool)), (128, 1));
}

#[test]
fn a_shared_buffer_goes_home_with_its_last_share_or_slice() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let pool = domain.pool(&fixed(&[class(64, 1)])).unwrap();
    let mut buffer = pool.try_take(64).unwrap();
    buffer.write(b"head and body").unwrap();
    let share = buffer.share();
    let (clone, head, body) = (share.clone(), share.slice(0..4).unwrap(), share.slice(9..13).unwrap());
    let inner = body.slice(1..3).unwrap();
    drop(body);
    assert_eq!((&head[..], &inner[..]), (&b"head"[..], &b"od"[..]));
    assert!(share.slice(9..14).is_err() && head.slice(0..5).is_err(), "only filled bytes");
    assert!(matches!((4, 3), (start, end) if share.slice(start..end).is_err()));
    drop(clone);
    // While a slice exists, no share of the buffer can become unique, that is, writable. The slice itself never can.
    let error = share.into_unique().unwrap_err();
    assert_eq!(error.reason, NotUniqueReason::Clones);
    drop(head);
    let error = error.share.into_unique().unwrap_err();
    let slice = inner.into_unique().unwrap_err();
    assert_eq!((error.reason, slice.reason), (NotUniqueReason::Clones, NotUniqueReason::Slice));
    drop(slice);
    let mut buffer = error.share.into_unique().unwrap();
    buffer.write(b"again").unwrap();
    let inner = buffer.share().slice(1..3).unwrap();
    assert_eq!((&inner[..], free(&pool)), (&b"ga"[..], 0));
    drop(inner);
    assert_eq!(free(&pool), 1);
    // While a slice exists, `into_unique` also fails for a buffer that is not from a pool.
    let share = filled(&domain, 5, 16).share();
    let slice = share.slice(4..8).unwrap();
    let share = share.into_unique().unwrap_err().share;
    drop(slice);
    assert_eq!(share.into_unique().unwrap()[..], [5; 16]);
}

#[test]
fn a_long_chain_of_slices_ends() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let pool = domain.pool(&fixed(&[class(64, 1)])).unwrap();
    let mut slice = pool.try_take_zeroed(64).unwrap().share();
    for _ in 0..if cfg!(miri) { 100 } else { 100_000 } {
        slice = slice.slice(0..64).unwrap();
    }
    drop(slice);
    assert_eq!(free(&pool), 1);
}

#[test]
fn a_leased_buffer_goes_home_after_the_lease_and_not_before() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let pool = link.domain.pool(&fixed(&[class(64, 2)])).unwrap();
    let lease = link.domain.lease::<RemoteWrite, _>(pool.try_take(64).unwrap(), LONG).unwrap();
    let remote = lease.remote();
    link.left.post_write(filled(&link.domain, 7, 64), &remote).unwrap();
    next(&mut link.poller);
    assert_eq!(free(&pool), 1);
    let mut buffer = lease.end().unwrap();
    buffer.set_len(64).unwrap();
    assert_eq!(buffer[..], [7; 64]);
    drop(buffer);
    assert_eq!(free(&pool), 2);
    drop(link.domain.lease::<RemoteWrite, _>(pool.try_take(64).unwrap(), LONG).unwrap());
    assert_eq!(free(&pool), 2);
    // The lease has ended, so its remote key gives no access to the buffer any more.
    let again = [(); 2].map(|()| pool.try_take_zeroed(64).unwrap());
    link.left.post_write(filled(&link.domain, 1, 64), &remote).unwrap();
    assert_eq!(failure(&mut link.poller).status, Status::RemoteAccess);
    assert!(again.iter().all(|buffer| buffer[..] == [0; 64]));
    drop(again);
    // A lease that is forgotten never ends.
    mem::forget(link.domain.lease::<RemoteWrite, _>(pool.try_take(64).unwrap(), LONG).unwrap());
    assert_eq!(free(&pool), 1);
}

#[test]
fn no_window_is_bound_over_a_pooled_buffer() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let pool = domain.pool(&fixed(&[class(64, 1)])).unwrap();
    let refused = pool.try_take(64).unwrap().into_bindable().unwrap_err();
    drop(refused);
    assert_eq!(free(&pool), 1);
}

/// A lease that the device does not end keeps its buffer, which never goes home.
#[test]
fn a_lease_that_does_not_end_keeps_its_buffer() {
    let (fabric, domain) = own_device!();
    let pool = domain.pool(&fixed(&[class(64, 2)])).unwrap();
    let lease = domain.lease::<RemoteWrite, _>(pool.try_take(64).unwrap(), LONG).unwrap();
    fabric.inject(Fault::VerbFails { verb: Verb::DeregMr, after: 0, count: 1, errno: libc::EBUSY });
    drop(lease);
    assert_eq!(free(&pool), 1);
}

// ---- Lifetimes ----------------------------------------------------------------------------------------

/// Whether the domain can be opened again. That works only once all objects of the domain are destroyed.
fn reopens<N: interlock::domain::Named + Brand>(context: &Context, name: N) -> bool {
    context.named_domain(name).is_ok()
}

#[test]
fn buffers_outlive_their_pool_and_end_with_their_chunk() {
    interlock::domain! { struct Test; }
    let context = context();
    let domain = context.named_domain(Test).unwrap();
    let pool = domain.pool(&growing(1, 3)).unwrap();
    let mut taken = all(&pool);
    let (share, parts) = (taken.pop().unwrap().share(), taken.pop().unwrap().split_at(8).unwrap());
    drop(domain);
    drop(pool.clone());
    drop(pool);
    let mut last = taken.pop().unwrap();
    last.write(b"still here").unwrap();
    assert!(!reopens(&context, Test));
    drop(last);
    drop(share);
    assert!(!reopens(&context, Test), "a part of a buffer is still away");
    drop(parts);
    assert!(reopens(&context, Test));
}

#[test]
fn a_pool_without_buffers_away_ends_with_its_last_handle() {
    interlock::domain! { struct Test; }
    let context = context();
    let pool = context.named_domain(Test).unwrap().pool(&PoolOptions::default()).unwrap();
    let mut waiting = pool.take(1);
    drop(pool);
    assert!(!reopens(&context, Test), "the future has a handle");
    assert_eq!(block_on(&mut waiting).unwrap().capacity(), 4096);
    drop(waiting);
    assert!(reopens(&context, Test));
}

#[test]
fn a_pool_grows_to_its_limit_and_is_trimmed() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let pool = domain.pool(&growing(1, 6)).unwrap();
    let mut taken = all(&pool);
    assert_eq!(taken.iter().map(address).collect::<HashSet<_>>().len(), 6);
    let error = pool.try_take(1).unwrap_err();
    assert!(matches!(error, NoBuffer::AtLimit { capacity: 64, registered_bytes: 384, limit_bytes: 384 }), "{error}");
    let stats = pool.stats();
    assert_eq!((stats.registered_bytes, stats.limit_bytes, stats.refusals), (384, 384, 0));
    assert_eq!((first_class(&pool).buffers, pool.trim()), (6, 0));
    // After the first buffer, the pool has registered chunks of 2, 2 and 1 buffers. `trim` frees each chunk whose
    // buffers are all at home, but never the first buffer.
    let kept = taken.remove(1);
    drop(taken);
    assert_eq!((free(&pool), pool.trim()), (5, 192));
    assert_eq!((first_class(&pool).buffers, free(&pool), pool.stats().registered_bytes), (3, 2, 192));
    drop(kept);
    assert_eq!((pool.trim(), free(&pool)), (128, 1));
    // The pool can grow to its limit again.
    assert_eq!(all(&pool).len(), 6);
    assert_eq!((pool.trim(), free(&pool)), (320, 1));
    // A buffer that is forgotten keeps its chunk for good.
    let mut taken = all(&pool);
    mem::forget(taken.pop());
    drop(taken);
    let trimmed = pool.trim();
    assert!(trimmed == 192 || trimmed == 256, "{trimmed}");
    assert_eq!(pool.stats().registered_bytes, 384 - trimmed);
}

#[test]
fn growth_that_is_refused_is_an_answer_and_not_an_end() {
    let (fabric, domain) = own_device!();
    let pool = domain.pool(&growing(1, 5)).unwrap();
    let first = pool.try_take(1).unwrap();
    fabric.inject(Fault::VerbFails { verb: Verb::RegMr, after: 0, count: 2, errno: libc::ENOMEM });
    match pool.try_take(1) {
        Err(NoBuffer::NotGrown { capacity: 64, source }) => {
            assert!(matches!(*source, RegisterFailure::LockedMemoryLimit(_) | RegisterFailure::Verb(_)), "{source}");
        }
        other => panic!("{other:?}"),
    }
    // A future does not fail when the pool cannot grow: it waits for a buffer.
    let mut waiting = Waiting::on(&pool);
    assert_eq!(pool.stats().refusals, 2);
    drop(first);
    assert_eq!((waiting.woken(), waiting.poll().is_some()), (1, true));
    assert_eq!(all(&pool).len(), 5, "the device has memory again");

    fabric.inject(Fault::VerbFails { verb: Verb::RegMr, after: 0, count: 1, errno: libc::EAGAIN });
    assert!(matches!(domain.pool(&growing(1, 5)), Err(PoolError::Register(RegisterFailure::Verb(_)))));
    fabric.inject(Fault::VerbFails { verb: Verb::RegMr, after: 1, count: 1, errno: libc::EAGAIN });
    assert!(domain.pool(&PoolOptions::default()).is_err(), "the second class is refused");
}

#[test]
fn room_that_a_trim_makes_is_for_those_who_wait() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let classes = vec![class(64, 1), class(128, 1)];
    let options = PoolOptions { classes, chunk_bytes: 1, growth: Growth::UpTo(320), ..PoolOptions::default() };
    let pool = domain.pool(&options).unwrap();
    let long = [pool.try_take(128).unwrap(), pool.try_take(128).unwrap()];
    let short = pool.try_take(64).unwrap();
    let mut waiting = Waiting::on(&pool);
    drop(long);
    assert_eq!((waiting.poll().is_none(), waiting.woken()), (true, 0));
    assert_eq!(pool.trim(), 128);
    assert_eq!(waiting.woken(), 1);
    assert_eq!(waiting.poll().map(|buffer| buffer.capacity()), Some(64));
    drop(short);
}

// ---- Waiting ------------------------------------------------------------------------------------------

#[test]
fn those_who_wait_are_served_in_order_and_not_overtaken() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let pool = domain.pool(&fixed(&[class(64, 2)])).unwrap();
    let mut taken = all(&pool);
    let mut waiting: Vec<Waiting<Test>> = (0..3).map(|_| Waiting::on(&pool)).collect();
    assert_eq!(first_class(&pool).waiting, 3);
    let home = taken.pop().unwrap();
    let start = address(&home);
    drop(home);
    assert_eq!(waiting.iter().map(Waiting::woken).collect::<Vec<_>>(), [1, 0, 0]);
    // The buffer is set aside for the first future, so nobody else gets it.
    assert!(pool.try_take(1).is_err() && waiting[1].poll().is_none() && waiting[2].poll().is_none());
    assert!(Waiting::on(&pool).poll().is_none());
    let first = waiting[0].poll().unwrap();
    assert_eq!((address(&first), first.len()), (start, 0));
    drop((first, taken));
    assert_eq!(waiting.iter().map(Waiting::woken).collect::<Vec<_>>(), [1, 1, 1]);
    // The other two futures can be polled in any order.
    let (third, second) = (waiting[2].poll().unwrap(), waiting[1].poll().unwrap());
    assert_ne!(address(&third), address(&second));
    drop((second, third));
    assert_eq!((free(&pool), all(&pool).len()), (2, 2));
}

#[test]
fn a_wait_may_be_given_up_at_any_time() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let pool = domain.pool(&fixed(&[class(64, 1)])).unwrap();
    drop(pool.take(1)); // before its first poll
    let taken = pool.try_take(1).unwrap();
    let (first, second, mut third) = (Waiting::on(&pool), Waiting::on(&pool), Waiting::on(&pool));
    drop(second); // while it waits
    drop(taken);
    assert_eq!((first.woken(), third.woken()), (1, 0));
    drop(first); // after a buffer was set aside for it
    assert_eq!(third.woken(), 1);
    let taken = third.poll().unwrap();
    // `last` gives up its wait. After that, `taken` goes home as if nobody had ever waited.
    let last = Waiting::on(&pool);
    drop(last);
    drop(taken);
    assert_eq!((free(&pool), first_class(&pool).waiting), (1, 0));
    // A forgotten future keeps the buffer that is set aside for it. Other futures still get a buffer.
    let pool = domain.pool(&fixed(&[class(64, 2)])).unwrap();
    let taken = all(&pool);
    mem::forget(Waiting::on(&pool));
    let mut next = Waiting::on(&pool);
    drop(taken);
    assert!(next.poll().is_some());
}

#[test]
fn the_waker_of_the_last_poll_is_woken() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let pool = domain.pool(&fixed(&[class(64, 1)])).unwrap();
    let taken = pool.try_take(1).unwrap();
    let mut waiting = Waiting::on(&pool);
    let old = mem::take(&mut waiting.count);
    assert!(waiting.poll().is_none() && waiting.poll().is_none());
    assert_eq!(Arc::strong_count(&old), 1, "the old waker is dropped");
    drop(taken);
    assert_eq!((old.0.load(Ordering::Relaxed), waiting.woken()), (0, 1));
    assert!(waiting.poll().is_some());
}

/// A waker that uses the pool while it is woken, and one that panics.
#[test]
fn wakers_may_do_anything() {
    struct Greedy(Pool<Test>, AtomicUsize);
    impl Wake for Greedy {
        fn wake(self: Arc<Self>) {
            assert!(self.0.try_take(1).is_err());
            self.1.fetch_add(self.0.stats().classes[0].buffers + self.0.trim(), Ordering::Relaxed);
        }
    }
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker panics");
        }
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let pool = domain.pool(&growing(1, 1)).unwrap();
    let taken = pool.try_take(1).unwrap();
    let greedy = Arc::new(Greedy(pool.clone(), AtomicUsize::new(0)));
    let mut take = pool.take(1);
    let mut poll = |waker: Waker| Pin::new(&mut take).poll(&mut std::task::Context::from_waker(&waker));
    assert!(poll(Arc::clone(&greedy).into()).is_pending());
    drop(taken);
    assert_eq!(greedy.1.load(Ordering::Relaxed), 1);
    let Poll::Ready(Ok(taken)) = poll(Arc::new(Panics).into()) else { panic!("it was woken") };
    let mut take = pool.take(1);
    let waker = Waker::from(Arc::new(Panics));
    assert!(Pin::new(&mut take).poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    let dropped = panic::catch_unwind(panic::AssertUnwindSafe(|| drop(taken)));
    assert!(dropped.is_ok(), "no panic comes out of a drop");
    assert!(block_on(take).is_ok());
    drop(greedy);
}

/// Threads take, wait, give up, split and drop, on one small pool.
#[test]
fn no_buffer_is_lost_or_owned_twice_by_threads() {
    interlock::domain! { struct Test; }
    let context = context();
    let domain = context.named_domain(Test).unwrap();
    let pool = domain.pool(&growing(2, 3)).unwrap();
    let rounds: u32 = if cfg!(miri) { 25 } else { 20_000 };
    let work = |thread: u32| {
        for round in 0..rounds {
            let mut buffer = match (round + thread) % 5 {
                0 => {
                    let mut take = pool.take(1);
                    let waker = Waker::noop();
                    match Pin::new(&mut take).poll(&mut std::task::Context::from_waker(waker)) {
                        Poll::Ready(buffer) => buffer.unwrap(),
                        Poll::Pending => continue, // drops `take`
                    }
                }
                1 => match pool.try_take(1) {
                    Ok(buffer) => buffer,
                    Err(_) => continue,
                },
                _ => block_on(pool.take(1)).unwrap(),
            };
            let mark = (thread << 24 | round).to_ne_bytes();
            buffer.write(&mark).unwrap();
            if round % 3 == 0 {
                thread::yield_now();
            }
            assert_eq!(buffer[..], mark);
            match round % 7 {
                0 => drop(buffer.split_at(8)),
                1 => drop(buffer.share().slice(1..3)),
                2 => {
                    pool.trim();
                }
                _ => {}
            }
        }
    };
    thread::scope(|scope| {
        let work = &work;
        (0..4).for_each(|thread| drop(scope.spawn(move || work(thread))));
    });
    assert_eq!((first_class(&pool).waiting, all(&pool).len()), (0, 3));
    // The last buffers are dropped while another thread drops the pool.
    for _ in 0..if cfg!(miri) { 3 } else { 300 } {
        let pool = domain.pool(&growing(2, 3)).unwrap();
        let taken = all(&pool);
        thread::scope(|scope| {
            taken.into_iter().for_each(|buffer| drop(scope.spawn(move || drop(buffer))));
            scope.spawn(move || drop(pool));
        });
    }
    drop((pool, domain));
    assert!(reopens(&context, Test));
}

/// The number of buffers bounds the requests in flight: a sender waits for the completions of its own requests.
#[test]
fn a_sender_is_held_back_by_its_pool() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 8);
    let pool = link.domain.pool(&fixed(&[class(64, 3)])).unwrap();
    let received = link.domain.pool(&fixed(&[class(64, 8)])).unwrap();
    for _ in 0..8 {
        link.right.post_receive(received.try_take(64).unwrap()).unwrap();
    }
    let mut sent = 0;
    for _ in 0..8 {
        let mut take = pool.take(64);
        let buffer = loop {
            let waker = Waker::noop();
            if let Poll::Ready(buffer) = Pin::new(&mut take).poll(&mut std::task::Context::from_waker(waker)) {
                break buffer.unwrap();
            }
            drop(next(&mut link.poller));
        };
        sent += 1;
        link.left.post_send(buffer).unwrap();
    }
    assert_eq!(sent, 8);
    while free(&pool) < 3 || free(&received) < 8 {
        next(&mut link.poller);
    }
}

#[test]
fn a_pool_shows_what_it_has() {
    interlock::domain! { struct Test; }
    let domain: ProtectionDomain<Test> = context().named_domain(Test).unwrap();
    let pool = domain.pool(&fixed(&[class(64, 2)])).unwrap();
    let taken = pool.try_take(1).unwrap();
    let text = format!("{pool:?}, {:?}", pool.take(3));
    for part in ["capacity: 64", "buffers: 2", "free: 1", "waiting: 0", "registered_bytes: 128", "len_bytes: 3"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(pool.stats().locked_memory_limit, interlock::memory::locked_memory_limit());
    drop(taken);
}
