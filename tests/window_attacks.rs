//! Attacks that use only safe calls to reach the memory behind a window. Each test is named after what never happens.
//! Each runs on a soft device of its own, whose requests stay in flight for as long as the attack needs.

use interlock::access::Windowed;
use interlock::memory::{Foreign, SplitRegion};
use interlock::request::PostedMemory;
use interlock::soft::Fabric;
use interlock::window::{Bindable, BoundWindow, Revoked, Type1};
use interlock::{
    Brand, Context, Limits, LocalWrite, Poller, ProtectionDomain, QueuePair, RemoteRegion, RemoteWrite, Status, Work,
};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{Counted, PATIENCE, filled};

/// Two connected pairs on one completion queue.
struct Stage<B> {
    fabric: Fabric,
    domain: ProtectionDomain<B>,
    poller: Poller<B>,
    left: QueuePair<B>,
    right: QueuePair<B>,
}

impl<B: Brand> Stage<B> {
    fn new(fabric: Fabric, domain: ProtectionDomain<B>) -> Self {
        let limits = Limits::default();
        let port = domain.context().active_port().unwrap();
        let (queue, poller) = domain.completion_queue(2 * limits.completions()).unwrap();
        let [left, right] = [(); 2].map(|()| domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap());
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (left, right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
        Self { fabric, domain, poller, left, right }
    }

    /// Runs the devices as far as they go, and returns the next success.
    fn next(&mut self) -> Work<B> {
        self.fabric.run();
        self.poller.poll().unwrap().expect("a completion").check().unwrap().into_work()
    }

    fn status(&mut self) -> Status {
        self.fabric.run();
        let completion = self.poller.poll().unwrap().expect("a completion");
        completion.check().map(|success| format!("{success:?}")).unwrap_err().status
    }

    fn write(&mut self, byte: u8, to: &RemoteRegion<RemoteWrite>) {
        self.left.post_write(filled(&self.domain, byte, 8), to).unwrap();
    }

    /// Binds a window of the right pair over `memory`.
    fn bind(&mut self, memory: Bindable<B>) -> BoundWindow<B> {
        let window = self.right.window().unwrap();
        self.right.post_bind::<RemoteWrite, _>(window, memory).unwrap();
        let Work::Bound(bound) = self.next() else { panic!("not a bind") };
        bound
    }
}

macro_rules! stage {
    () => {
        stage!(Fabric::manual())
    };
    ($fabric:expr) => {{
        interlock::domain! { struct Test; }
        let fabric = $fabric;
        let domain = Context::open_on(&fabric, "dev0").unwrap().named_domain(Test).unwrap();
        Stage::new(fabric, domain)
    }};
}

type Rest<B> = SplitRegion<B, Windowed<LocalWrite>, Foreign<Counted>>;

/// Registers 64 bytes for windows. The counter says how often they were freed.
fn counted<B: Brand>(domain: &ProtectionDomain<B>) -> (Rest<B>, Bindable<B>, Arc<AtomicUsize>) {
    let freed = Arc::default();
    let words = Counted::new(8, &freed);
    let (rest, memory) = domain.register::<Windowed<LocalWrite>, _>(Foreign(words)).unwrap().split_bindable();
    (rest, memory, freed)
}

fn count(freed: &Arc<AtomicUsize>) -> usize {
    freed.load(Ordering::Relaxed)
}

#[test]
fn memory_of_a_bind_in_flight_is_never_freed_before_its_end() {
    let mut stage = stage!();
    let (rest, memory, freed) = counted(&stage.domain);
    let window = stage.right.window().unwrap();
    stage.right.post_bind::<RemoteWrite, _>(window, memory).unwrap();
    drop(rest);
    let Stage { fabric, domain, mut poller, left, right, .. } = stage;
    drop((left, right, domain));
    assert_eq!(count(&freed), 0);
    fabric.run();
    let completion = poller.poll().unwrap().unwrap();
    let failure = completion.check().map(|success| format!("{success:?}")).unwrap_err();
    assert_eq!((failure.status, count(&freed)), (Status::Destroyed, 0));
    let PostedMemory::Window(window) = failure.memory else { panic!("not a window") };
    let memory = window.dealloc().unwrap().reclaim().unwrap();
    assert_eq!((memory.capacity(), count(&freed)), (64, 0));
    drop(memory);
    assert_eq!(count(&freed), 1);
}

#[test]
fn memory_of_a_bind_that_nobody_polls_is_leaked_with_its_ledger() {
    let mut stage = stage!();
    let (rest, memory, freed) = counted(&stage.domain);
    let window = stage.domain.window().unwrap();
    stage.right.post_bind::<RemoteWrite, Type1>(window, memory).unwrap();
    mem::forget(stage.right);
    drop((rest, stage.left, stage.poller, stage.domain));
    stage.fabric.run();
    assert_eq!(count(&freed), 0);
}

#[test]
fn a_forgotten_window_never_gives_its_memory_to_anybody_but_the_peer() {
    let mut stage = stage!();
    let (rest, memory, freed) = counted(&stage.domain);
    let bound = stage.bind(memory);
    let remote = bound.remote().unwrap();
    mem::forget(bound);
    drop(rest);
    stage.write(7, &remote);
    stage.next();
    assert_eq!(count(&freed), 0);
    // When the pair is destroyed, the window ends before the pair does. The memory stays allocated, because the program
    // forgot the handle that owns it.
    let Stage { fabric, domain, poller, left, right } = stage;
    right.destroy().unwrap();
    drop((left, poller));
    let mut stage = Stage::new(fabric, domain);
    stage.write(8, &remote);
    assert_eq!((stage.status(), count(&freed)), (Status::RemoteAccess, 0));
}

/// A write of the peer may be at any step when the window ends; after that, it changes nothing more.
#[test]
fn a_write_in_flight_never_changes_memory_after_its_window_has_ended() {
    for steps in (0..12).step_by(if cfg!(miri) { 3 } else { 1 }) {
        let mut stage = stage!();
        let (_rest, memory, _) = counted(&stage.domain);
        let bound = stage.bind(memory);
        let remote = bound.remote().unwrap();
        stage.write(7, &remote);
        for _ in 0..steps {
            stage.fabric.step();
        }
        stage.right.post_revoke(bound).unwrap();
        let mut memory = loop {
            let stepped = stage.fabric.step();
            match stage.poller.poll().unwrap().map(|completion| completion.check()) {
                Some(Ok(success)) => {
                    if let Work::Revoked(Revoked { memory, .. }) = success.into_work() {
                        break memory;
                    }
                }
                Some(Err(failure)) => assert_eq!(failure.status, Status::RemoteAccess, "{steps}"),
                None => assert!(stepped, "it ends"),
            }
        };
        // The program borrows the memory mutably while the devices continue. Miri checks that nothing else writes.
        let bytes = &mut memory[..];
        let before = bytes.to_vec();
        stage.fabric.run();
        assert_eq!((&*bytes, bytes[0] == 7 || bytes[0] == 0), (&before[..], true));
        bytes.fill(3);
    }
}

#[test]
fn a_window_that_a_peer_ends_twice_never_ends_the_next_binding() {
    let mut stage = stage!();
    let (_rest, memory, _) = counted(&stage.domain);
    let bound = stage.bind(memory);
    let remote = bound.remote_window::<RemoteWrite>().unwrap();
    stage.right.post_revoke(bound).unwrap();
    let Work::Revoked(Revoked { window, memory, .. }) = stage.next() else { panic!("not revoked") };
    stage.right.post_bind::<RemoteWrite, _>(window, memory).unwrap();
    let Work::Bound(bound) = stage.next() else { panic!("not a bind") };
    // The window has a new key, and the old key is no longer valid.
    stage.right.post_receive(stage.domain.buffer(8).unwrap()).unwrap();
    stage.left.post_send_invalidating(stage.domain.buffer(8).unwrap(), &remote).unwrap();
    let failures = [stage.status(), stage.status()];
    assert!(failures.contains(&Status::RemoteInvalidRequest), "{failures:?}");
    assert_eq!(bound.load(0).unwrap(), 0);
    assert!(bound.dealloc().unwrap().reclaim().is_ok());
}

#[test]
fn keys_that_come_round_never_confuse_a_window() {
    let mut stage = stage!(Fabric::new());
    let (_rest, memory, _) = counted(&stage.domain);
    let mut window = stage.right.window().unwrap();
    let mut memory = memory;
    let mut keys = Vec::new();
    let rounds = if cfg!(miri) { 20 } else { 600 };
    for _ in 0..rounds {
        stage.right.post_bind::<RemoteWrite, _>(window, memory).unwrap();
        let Work::Bound(bound) = stage.next() else { panic!("not a bind") };
        keys.push(bound.rkey().value());
        stage.write(7, &bound.remote().unwrap());
        stage.next();
        stage.right.post_revoke(bound).unwrap();
        let Work::Revoked(revoked) = stage.next() else { panic!("not revoked") };
        assert_eq!(revoked.memory[..8], [7; 8]);
        (window, memory) = (revoked.window, revoked.memory);
        memory.fill(0);
    }
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
}

/// The poller may return the window while the provider is still inside the verb that binds it.
#[test]
fn a_window_that_another_thread_polls_is_never_freed_under_the_verb_that_binds_it() {
    let stage = stage!(Fabric::new());
    let Stage { domain, mut poller, right, .. } = stage;
    let (mut send, receive) = right.split();
    let rounds = if cfg!(miri) { 5 } else { 500 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..rounds {
                let (_, memory, _) = counted(&domain);
                let window = domain.window().unwrap();
                let mut next = Some((window, memory));
                while let Some((window, memory)) = next.take() {
                    if let Err(error) = send.post_bind::<RemoteWrite, Type1>(window, memory) {
                        next = error.into_request();
                        std::thread::yield_now();
                    }
                }
            }
        });
        for _ in 0..rounds {
            let success = poller.wait(PATIENCE).unwrap().check().unwrap();
            let Work::BoundType1(bound) = success.into_work() else { panic!("not a bind") };
            assert_eq!(bound.rkey(), bound.remote::<RemoteWrite>().unwrap().rkey());
            drop(bound);
        }
    });
    drop(receive);
}

#[test]
fn a_pair_that_was_never_used_never_keeps_a_window() {
    interlock::domain! { struct Test; }
    let domain = Context::open_on(&Fabric::new(), "dev0").unwrap().named_domain(Test).unwrap();
    let (queue, _poller) = domain.completion_queue(16).unwrap();
    let mut pair = domain.reliable(&queue, &Limits::default()).unwrap();
    let kept = pair.window().unwrap();
    mem::forget(pair.window().unwrap());
    drop(pair.window().unwrap());
    pair.destroy().unwrap();
    kept.dealloc().unwrap();
}
