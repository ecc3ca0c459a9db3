//! Threads that poll, post, use halves and shared queues, and destroy pairs, all at the same time.

use super::profiles;
use interlock::queue::Posting;
use interlock::request::PostedMemory;
use interlock::shared::{Messages, SharedLimits, SharedReceiveQueue};
use interlock::soft::{Fabric, Profile};
use interlock::{
    Buffer, Checked, Completion, CompletionQueue, Context, Inline, Limits, Poller, Port, ProtectionDomain, QueuePair,
    RemoteAll, RemoteRegion, WorkRequest,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

const LIMITS: Limits = Limits { sends: 4, receives: 4, inline_bytes: 16, elements: 2, posting: Posting::List };

/// The objects that all threads use.
struct Shop {
    domain: ProtectionDomain<Checked>,
    port: Port,
    /// Buffers that the program holds. Each is overwritten completely when it comes back, and again when it is posted.
    buffers: Mutex<Vec<Buffer<Checked>>>,
    shared: Mutex<Option<SharedReceiveQueue<Checked, Messages>>>,
    remote: RemoteRegion<RemoteAll>,
    is_over: AtomicBool,
}

const IDLE: u8 = 9;

impl Shop {
    fn take(&self) -> Option<Buffer<Checked>> {
        let mut buffer = lock(&self.buffers).pop()?;
        buffer.write(&[7; 24]).unwrap();
        Some(buffer)
    }

    fn give(&self, memory: PostedMemory<Checked>) {
        if let PostedMemory::Unique(mut buffer) = memory {
            buffer.write(&[IDLE; 24]).unwrap();
            lock(&self.buffers).push(buffer);
        }
    }

    /// Posts a buffer, if there is one. A refused buffer comes back.
    fn with_buffer(&self, post: impl FnOnce(Buffer<Checked>) -> Option<Buffer<Checked>>) {
        if let Some(refused) = self.take().and_then(post) {
            self.give(PostedMemory::Unique(refused));
        }
    }

    fn took(&self, completion: Completion<Checked>) {
        self.give(match completion.check() {
            Ok(success) => success.into_memory(),
            Err(failure) => failure.memory,
        });
    }

    fn poll(&self, poller: &mut Poller<Checked>) {
        let (mut turn, mut taken) = (0_u32, 0_u32);
        while !self.is_over.load(Ordering::Acquire) {
            turn += 1;
            let polled = match turn % 3 {
                0 => poller.poll_retired(|mut retired| {
                    for success in retired.unsignalled() {
                        self.give(success.into_memory());
                    }
                    // Forget every fifth `retired`. The requests that were not taken from it come again.
                    taken += 1;
                    match taken % 5 {
                        0 => std::mem::forget(retired),
                        _ => self.took(retired.into_completion()),
                    }
                }),
                _ => poller.poll_each(|completion| self.took(completion)),
            };
            if polled.is_err() {
                return;
            }
            thread::yield_now();
        }
    }

    /// Connects two pairs, uses them and ends them; where the device has shared queues, two more pairs do the same.
    fn live(&self, queue: &CompletionQueue<Checked>, receives: &CompletionQueue<Checked>, ends_by_reset: bool) {
        let Self { domain, port, .. } = self;
        let make = || domain.reliable_on(queue, receives, &LIMITS).or_else(|_| domain.reliable(queue, &LIMITS));
        let (Ok(left), Ok(right)) = (make(), make()) else { return thread::yield_now() };
        let (left, right) = (left.into_init(port).unwrap(), right.into_init(port).unwrap());
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (mut left, right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
        let server = lock(&self.shared).as_ref().and_then(|shared| shared.reliable(queue, &LIMITS).ok());
        let mut guests = server.and_then(|server| {
            let client = domain.reliable(queue, &LIMITS).ok()?.into_init(port).unwrap();
            let server = server.into_init(port).unwrap();
            let (to_client, to_server) = (client.endpoint(), server.endpoint());
            Some((client.connect(&to_server).ok()?, server.connect(&to_client).ok()?))
        });
        let (mut send, mut receive) = right.split();
        thread::scope(|inner| {
            inner.spawn(move || {
                for _ in 0..3 {
                    self.with_buffer(|buffer| receive.post_receive(buffer).err()?.into_request());
                    if let Some(shared) = lock(&self.shared).as_mut() {
                        self.with_buffer(|buffer| shared.post_receive(buffer).err()?.into_request());
                    }
                }
            });
            inner.spawn(move || {
                self.with_buffer(|buffer| {
                    let write = WorkRequest::write(buffer, &self.remote).unsignalled();
                    Some(send.post(write).err()?.into_request()?.into_memory())
                });
                let _ = send.post_send(Inline(b"x"));
            });
            for _ in 0..2 {
                let _ = left.post_send(Inline(b"hello"));
                if let Some((client, _)) = &mut guests {
                    let _ = client.post_send(Inline(b"you all"));
                }
                self.with_buffer(|buffer| left.post_read(buffer, &self.remote).err()?.into_request());
            }
        });
        if ends_by_reset {
            reset(left, port);
        }
    }
}

/// Resets the pair, if the device supports that.
fn reset(pair: QueuePair<Checked>, port: &Port) {
    if let Ok(pair) = pair.into_error()
        && let Ok(pair) = pair.into_reset()
    {
        drop(pair.into_init(port));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

fn run(profile: Profile, rounds: usize) {
    let fabric = Fabric::with_profile(profile);
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let domain = context.checked_domain().unwrap();
    let (one, mut first) = domain.completion_queue(256).unwrap();
    let (two, mut second) = domain.completion_queue(256).unwrap();
    let shared = domain.shared_receive_queue(&SharedLimits { receives: 8, ..SharedLimits::default() }).ok();
    let region = domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
    let shop = Shop {
        port: context.active_port().unwrap(),
        buffers: Mutex::new(domain.buffers(40, 24).unwrap()),
        shared: Mutex::new(shared),
        remote: region.remote().slice(0..24).unwrap(),
        is_over: AtomicBool::new(false),
        domain,
    };
    thread::scope(|scope| {
        scope.spawn(|| shop.poll(&mut first));
        scope.spawn(|| shop.poll(&mut second));
        let working = [(&one, &two), (&two, &one)].map(|(queue, other)| {
            let shop = &shop;
            scope.spawn(move || {
                for round in 0..rounds {
                    shop.live(queue, if round % 2 == 0 { queue } else { other }, round % 3 == 0);
                }
            })
        });
        working.into_iter().for_each(|thread| thread.join().unwrap());
        shop.is_over.store(true, Ordering::Release);
    });
    let until = Instant::now() + Duration::from_millis(200);
    while (one.room() != one.capacity() || two.room() != two.capacity()) && Instant::now() < until {
        let polled = [&mut first, &mut second].map(|poller| poller.poll_each(|completion| shop.took(completion)));
        if polled.iter().any(Result::is_err) {
            break;
        }
    }
    if let Some(shared) = lock(&shop.shared).take()
        && let Ok(buffers) = shared.destroy()
    {
        buffers.into_iter().map(PostedMemory::Unique).for_each(|memory| shop.give(memory));
    }
    // All bytes of a buffer are `IDLE`, if the program has written it, or 0, if it is new.
    let is_idle = |buffer: &Buffer<_>| [IDLE, 0].iter().any(|idle| buffer.iter().all(|byte| byte == idle));
    assert!(lock(&shop.buffers).iter().all(is_idle), "{profile:?}");
    drop((first, second, one, two, region, shop));
    assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}");
}

#[test]
fn all_at_once_on_threads() {
    let chosen = if cfg!(miri) { vec![Profile::Adversary(2), Profile::Hns, Profile::Efa] } else { profiles() };
    for profile in chosen {
        run(profile, if cfg!(miri) { 2 } else { 20 });
    }
}
