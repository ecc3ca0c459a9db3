//! Memory windows: the same tests run on every device, as far as the device has what they need.

use interlock::access::{WindowRights, Windowed};
use interlock::error::{RecordError, RequestFlaw};
use interlock::memory::{Lapsed, Pages, SplitRegion};
use interlock::queue::Posting;
use interlock::request::PostedMemory;
use interlock::soft::{Fabric, Fault, Verb};
use interlock::window::{
    Bindable, BoundWindow, RemoteWindow, Revoked, Type1, Type2, UnsettledWindow, Window, WindowType,
};
use interlock::{
    Brand, Context, Failure, Limits, LocalWrite, PostError, ProtectionDomain, QueuePair, RemoteAll, RemoteAtomic,
    RemoteRead, RemoteReadWrite, RemoteRegion, RemoteWrite, Status, Work,
};
use std::any::TypeId;
use std::mem;
use support::{
    Link, Need, PATIENCE, Promise, Queues, context, deviates, failure, filled, lacks, lacks_need, moved, next,
};

type Rest<B> = SplitRegion<B, Windowed<LocalWrite>, Pages>;

/// A page for windows, which is a region of its own.
fn page<B: Brand>(domain: &ProtectionDomain<B>) -> (Rest<B>, Bindable<B>) {
    domain.register::<Windowed<LocalWrite>, _>(Pages::new(4096).unwrap()).unwrap().split_bindable()
}

fn unsettled<B: Brand>(failure: Failure<B>) -> UnsettledWindow<B> {
    let PostedMemory::Window(window) = failure.memory else { panic!("not a window") };
    window
}

/// The differences between the two types of window.
trait Kind: WindowType + Sized {
    fn alloc<B: Brand>(domain: &ProtectionDomain<B>, pair: &mut QueuePair<B>) -> Window<B, Self>;
    fn bound<B: Brand>(work: Work<B>) -> BoundWindow<B, Self>;
    fn revoked<B: Brand>(work: Work<B>) -> Revoked<B, Self>;
}
impl Kind for Type1 {
    fn alloc<B: Brand>(domain: &ProtectionDomain<B>, _: &mut QueuePair<B>) -> Window<B, Self> {
        domain.window().unwrap()
    }
    fn bound<B: Brand>(work: Work<B>) -> BoundWindow<B, Self> {
        let Work::BoundType1(window) = work else { panic!("{work:?}") };
        window
    }
    fn revoked<B: Brand>(work: Work<B>) -> Revoked<B, Self> {
        let Work::RevokedType1(revoked) = work else { panic!("{work:?}") };
        revoked
    }
}
impl Kind for Type2 {
    fn alloc<B: Brand>(_: &ProtectionDomain<B>, pair: &mut QueuePair<B>) -> Window<B, Self> {
        pair.window().unwrap()
    }
    fn bound<B: Brand>(work: Work<B>) -> BoundWindow<B, Self> {
        let Work::Bound(window) = work else { panic!("{work:?}") };
        window
    }
    fn revoked<B: Brand>(work: Work<B>) -> Revoked<B, Self> {
        let Work::Revoked(revoked) = work else { panic!("{work:?}") };
        revoked
    }
}

/// Binds a new window on the right pair.
fn bind<W: WindowRights, K: Kind, B: Brand>(link: &mut Link<B>, memory: Bindable<B>) -> BoundWindow<B, K> {
    let window = K::alloc(&link.domain, &mut link.right);
    rebind::<W, K, B>(link, window, memory)
}

fn rebind<W: WindowRights, K: Kind, B: Brand>(
    link: &mut Link<B>,
    window: Window<B, K>,
    memory: Bindable<B>,
) -> BoundWindow<B, K> {
    let id = link.right.post_bind::<W, K>(window, memory).unwrap();
    let success = next(&mut link.poller);
    assert_eq!((success.id(), success.queue_pair()), (id, link.right.number()));
    K::bound(success.into_work())
}

/// Writes from the left pair.
fn write<B: Brand>(link: &mut Link<B>, byte: u8, len: usize, to: &RemoteRegion<RemoteWrite>) {
    link.left.post_write(filled(&link.domain, byte, len), to).unwrap();
}

macro_rules! link {
    () => {
        Link::new(context().checked_domain().unwrap(), 4)
    };
}

/// Makes a link of a soft device that takes injected faults.
macro_rules! soft {
    () => {
        soft!(Fabric::new())
    };
    ($fabric:expr) => {{
        let fabric = $fabric;
        let link = Link::new(Context::open_on(&fabric, "dev0").unwrap().checked_domain().unwrap(), 4);
        (fabric, link)
    }};
}

#[test]
fn c082_windows_come_and_go() {
    let mut link = link!();
    assert_eq!(link.domain.context().promises().windows_are_barriers(), !deviates("C082"));
    for _ in 0..3 {
        link.domain.window().unwrap().dealloc().unwrap();
        link.right.window().unwrap().dealloc().unwrap();
    }
    drop((link.domain.window().unwrap(), link.right.window().unwrap()));
    mem::forget(link.right.window().unwrap());
}

#[test]
fn c083_a_peer_reaches_what_a_window_is_bound_over() {
    fn reaches<K: Kind>() {
        let mut link = link!();
        let (rest, memory) = page(&link.domain);
        let mut bound: BoundWindow<_, K> = bind::<RemoteReadWrite, _, _>(&mut link, memory);
        assert_eq!(bound.len(), 4096);
        let remote = bound.remote::<RemoteReadWrite>().unwrap();
        assert_eq!((remote.len(), remote.rkey()), (4096, bound.rkey()));
        write(&mut link, 7, 16, &remote.restrict().unwrap());
        next(&mut link.poller);
        // The program can access the memory while it is bound.
        bound.store(16, 9).unwrap();
        bound.write_from(24, b"text").unwrap();
        let mut text = [0; 4];
        bound.read_into(24, &mut text).unwrap();
        assert_eq!((bound.load(8).unwrap(), &text), (0x0707_0707_0707_0707, b"text"));
        // Accesses of any plain type are checked against the length in bytes: two `u64` fit at 4080, but not at 4088.
        bound.write_slice(4080, &[1_u64, 2]).unwrap();
        let mut words = [0_u64; 2];
        bound.read_slice(4080, &mut words).unwrap();
        assert_eq!(words, [1, 2]);
        assert!(bound.write_slice(4088, &words).is_err() && bound.read_slice(4088, &mut words).is_err());
        assert!(bound.load(4096).is_err() && bound.load(4).is_err() && bound.read_into(4095, &mut text).is_err());
        link.left.post_read(link.domain.buffer(32).unwrap(), &remote.slice(0..32).unwrap()).unwrap();
        let Work::Read(read) = next(&mut link.poller).into_work() else { panic!("not a read") };
        assert_eq!((&read[..16], read[16], &read[24..28]), (&[7; 16][..], 9, &b"text"[..]));
        // Freeing the window and then deregistering the region ends the peer's access on every device.
        let lapsed = bound.dealloc().unwrap();
        let pages = rest.rejoin_lapsed(lapsed).unwrap().deregister().unwrap();
        write(&mut link, 1, 8, &remote.restrict().unwrap());
        assert_eq!((failure(&mut link.poller).status, &pages[..16]), (Status::RemoteAccess, &[7; 16][..]));
    }
    reaches::<Type1>();
    reaches::<Type2>();
}

#[test]
fn a_freed_window_lets_nobody_in() {
    fn freed<K: Kind>() {
        let mut link = link!();
        let (rest, memory) = page(&link.domain);
        let bound: BoundWindow<_, K> = bind::<RemoteWrite, _, _>(&mut link, memory);
        let remote = bound.remote().unwrap();
        write(&mut link, 7, 8, &remote);
        next(&mut link.poller);
        // The window is freed, but the region is still registered.
        let lapsed = bound.dealloc().unwrap();
        write(&mut link, 8, 8, &remote);
        assert_eq!(failure(&mut link.poller).status, Status::RemoteAccess);
        let pages = rest.rejoin_lapsed(lapsed).unwrap().deregister().unwrap();
        assert_eq!(pages[..16], [[7; 8], [0; 8]].concat());
    }
    freed::<Type1>();
    freed::<Type2>();
}

#[test]
fn a_window_that_is_dropped_lets_nobody_in_and_its_region_ends() {
    fn dropped<K: Kind>() {
        let mut link = link!();
        let (rest, memory) = page(&link.domain);
        let bound: BoundWindow<_, K> = bind::<RemoteWrite, _, _>(&mut link, memory);
        let remote = bound.remote().unwrap();
        drop((bound, rest));
        write(&mut link, 8, 8, &remote);
        assert_eq!(failure(&mut link.poller).status, Status::RemoteAccess);
    }
    dropped::<Type1>();
    dropped::<Type2>();
}

#[test]
fn a_bind_and_the_message_that_tells_of_it_are_posted_together() {
    let mut link = link!();
    let (_rest, memory) = page(&link.domain);
    link.left.post_receive(link.domain.buffer(64).unwrap()).unwrap();
    let window = link.right.window().unwrap();
    link.right.post_bind::<RemoteWrite, _>(window, memory).unwrap();
    let Work::Bound(bound) = next(&mut link.poller).into_work() else { panic!("not a bind") };
    let mut record = link.domain.buffer(24).unwrap();
    record.write(&bound.remote::<RemoteWrite>().unwrap().to_bytes()).unwrap();
    link.right.post_send(record).unwrap();
    let mut told = None;
    for _ in 0..2 {
        told = next(&mut link.poller).into_received().ok().or(told);
    }
    let remote = RemoteRegion::<RemoteWrite>::from_bytes(&told.unwrap()).unwrap();
    write(&mut link, 7, 8, &remote);
    next(&mut link.poller);
    assert_eq!(bound.load(0).unwrap(), 0x0707_0707_0707_0707);
}

/// C087: the device refuses an access for which the window has no right.
#[test]
fn m5_a_window_permits_what_it_was_bound_for() {
    let mut link = link!();
    let (_rest, memory) = page(&link.domain);
    let bound: BoundWindow<_, Type2> = bind::<RemoteRead, _, _>(&mut link, memory);
    let error = bound.remote::<RemoteWrite>().unwrap_err();
    assert!(matches!(error, RecordError::Rights { .. }));
    assert!(bound.remote::<RemoteAll>().is_err() && bound.remote::<RemoteAtomic>().is_err());
    if lacks(Promise::Windows) {
        return;
    }
    // A peer can change the record to claim more rights.
    let mut record = bound.remote::<RemoteRead>().unwrap().to_bytes();
    record[3] = 0b1110;
    write(&mut link, 7, 8, &RemoteRegion::from_bytes(&record).unwrap());
    assert_eq!(failure(&mut link.poller).status, Status::RemoteAccess);
    assert_eq!(bound.load(0).unwrap(), 0);
}

/// C091.
#[test]
fn m6_a_window_of_type_2_serves_one_pair_and_one_of_type_1_all() {
    fn through_another<K: Kind>() -> Result<(), Status> {
        let mut link = link!();
        let (_rest, memory) = page(&link.domain);
        let bound: BoundWindow<_, K> = bind::<RemoteWrite, _, _>(&mut link, memory);
        let mut other = Link::new(link.domain.clone(), 4);
        write(&mut other, 7, 8, &bound.remote().unwrap());
        other.poller.wait(PATIENCE).unwrap().check().map(drop).map_err(|failure| failure.status)
    }
    assert_eq!(through_another::<Type1>(), Ok(()));
    let serves_one = !lacks(Promise::Windows);
    assert_eq!(through_another::<Type2>(), if serves_one { Err(Status::RemoteAccess) } else { Ok(()) });
}

#[test]
fn a_window_is_bound_on_an_unreliable_connection() {
    let mut link = link!();
    let limits = Limits::default();
    let (queue, mut poller) = link.domain.queue(limits.completions()).unwrap();
    let pair = link.domain.unreliable(&queue, &limits).unwrap().into_init(&link.port).unwrap();
    let myself = pair.endpoint();
    let mut pair = pair.connect(&myself).unwrap();
    let (_rest, memory) = page(&link.domain);
    let window = pair.window().unwrap();
    pair.post_bind::<RemoteWrite, _>(window, memory).unwrap();
    let Work::Bound(bound) = next(&mut poller).into_work() else { panic!("not a bind") };
    pair.post_write(filled(&link.domain, 7, 8), &bound.remote::<RemoteWrite>().unwrap()).unwrap();
    next(&mut poller);
    drop(pair);
    drop(bound);
    link.domain.window().unwrap();
    let (_rest, memory) = page(&link.domain);
    let bound: BoundWindow<_, Type1> = bind::<RemoteWrite, _, _>(&mut link, memory);
    assert_eq!(bound.len(), 4096);
}

/// On soft-RoCE the destruction of a pair with a bound window of type 2 takes 51 seconds, unless the library frees the
/// window first (quirk Q3).
#[test]
fn m12_a_pair_with_bound_windows_is_destroyed_at_once() {
    let started = std::time::Instant::now();
    let mut link = link!();
    let (rest, memory) = page(&link.domain);
    let bound: BoundWindow<_, Type2> = bind::<RemoteWrite, _, _>(&mut link, memory);
    let (_rest, memory) = page(&link.domain);
    let forgotten: BoundWindow<_, Type2> = bind::<RemoteWrite, _, _>(&mut link, memory);
    mem::forget(forgotten);
    let unbound = link.right.window().unwrap();
    let Link { domain, right, .. } = link;
    right.destroy().unwrap();
    assert!(started.elapsed() < std::time::Duration::from_secs(30));
    // `bound` still owns its memory. The window was freed with the pair, and `dealloc` accepts that.
    let lapsed = bound.dealloc().unwrap();
    assert_eq!(rest.rejoin_lapsed(lapsed).unwrap().deregister().unwrap().len(), 4096);
    unbound.dealloc().unwrap();
    drop(domain);
}

#[test]
fn a_pair_that_was_never_used_is_destroyed_with_its_windows() {
    let link = link!();
    let (queue, _poller) = link.domain.queue(Limits::default().completions()).unwrap();
    let mut pair = link.domain.reliable(&queue, &Limits::default()).unwrap();
    let kept = pair.window().unwrap();
    mem::forget(pair.window().unwrap());
    pair.destroy().unwrap();
    kept.dealloc().unwrap();
}

#[test]
fn a_window_goes_on_through_a_reset_of_its_pair() {
    if lacks_need(Need::Reset) {
        return;
    }
    let mut link = link!();
    let (_rest, memory) = page(&link.domain);
    let window = link.right.window().unwrap();
    let Link { domain, port, queue, mut poller, left, right } = link;
    let (left, right) = (left.into_reset().unwrap(), right.into_reset().unwrap());
    let (left, right) = (left.into_init(&port).unwrap(), right.into_init(&port).unwrap());
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (left, mut right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
    right.post_bind::<RemoteWrite, _>(window, memory).unwrap();
    let Work::Bound(bound) = next(&mut poller).into_work() else { panic!("not a bind") };
    let mut link = Link { domain, port, queue, poller, left, right };
    write(&mut link, 7, 8, &bound.remote().unwrap());
    next(&mut link.poller);
    assert_eq!(bound.load(0).unwrap(), 0x0707_0707_0707_0707);
}

// ---- Where windows are barriers ----------------------------------------------------------------------

/// C088, m8 and m9 with type 2; C093, m4 with type 1.
#[test]
fn the_end_of_a_window_gives_memory_back_where_it_is_a_barrier() {
    fn ends<K: Kind>()
    where
        interlock::ReliableConnection: interlock::transport::Carries<interlock::request::Revoke<K>>,
    {
        let mut link = link!();
        let (_rest, memory) = page(&link.domain);
        let bound: BoundWindow<_, K> = bind::<RemoteWrite, _, _>(&mut link, memory);
        let remote = bound.remote().unwrap();
        // On mlx5, only `ibv_dealloc_mw` is known to end a window of type 1, so the library refuses to post a
        // revocation of that type.
        let is_posted =
            TypeId::of::<K>() == TypeId::of::<Type2>() || link.domain.context().promises().provider() != "mlx5";
        if deviates("C088") || !is_posted {
            let error = link.right.post_revoke(bound).unwrap_err();
            assert!(matches!(error, PostError::Flawed { flaw: RequestFlaw::NoBarrier, .. }), "{error}");
            // The request was refused before it was posted, so the window is still bound.
            write(&mut link, 7, 8, &remote);
            next(&mut link.poller);
            let lapsed = error.into_request().unwrap().dealloc().unwrap();
            assert_eq!(lapsed.reclaim().is_ok(), !is_posted);
            return;
        }
        write(&mut link, 7, 8, &remote);
        next(&mut link.poller);
        link.right.post_revoke(bound).unwrap();
        let Revoked { window, mut memory, .. } = K::revoked(next(&mut link.poller).into_work());
        assert_eq!(memory[..8], [7; 8]);
        memory.fill(3);
        // When the window is bound again, it gets another key.
        let bound = rebind::<RemoteWrite, K, _>(&mut link, window, memory);
        assert_ne!(bound.rkey(), remote.rkey());
        let again = bound.remote().unwrap();
        write(&mut link, 8, 8, &again);
        next(&mut link.poller);
        write(&mut link, 9, 8, &remote);
        assert_eq!(failure(&mut link.poller).status, Status::RemoteAccess, "the old key");
        let memory = bound.dealloc().unwrap().reclaim().unwrap();
        assert_eq!(memory[..9], [8, 8, 8, 8, 8, 8, 8, 8, 3]);
    }
    ends::<Type1>();
    ends::<Type2>();
}

/// C089.
#[test]
fn a_peer_ends_a_window_with_its_message_where_that_does_no_harm() {
    let mut link = link!();
    let (_rest, memory) = page(&link.domain);
    let bound: BoundWindow<_, Type2> = bind::<RemoteWrite, _, _>(&mut link, memory);
    if deviates("C089") {
        // On such a device `remote_window` makes no record of the window, and `post_send_invalidating` refuses a record
        // that was made in another way.
        assert_eq!(bound.remote_window::<RemoteWrite>().unwrap_err(), RecordError::NotInvalidated);
        let mut record = bound.remote::<RemoteWrite>().unwrap().to_bytes();
        record[1] = b'W';
        let remote = RemoteWindow::<RemoteWrite>::from_bytes(&record).unwrap();
        let error = link.left.post_send_invalidating(filled(&link.domain, 1, 8), &remote).unwrap_err();
        assert!(matches!(error, PostError::Flawed { flaw: RequestFlaw::NoBarrier, .. }), "{error}");
        return;
    }
    let remote = RemoteWindow::from_bytes(&bound.remote_window::<RemoteWrite>().unwrap().to_bytes()).unwrap();
    write(&mut link, 7, 8, &remote.region());
    next(&mut link.poller);
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    link.left.post_send_invalidating(filled(&link.domain, 1, 8), &remote).unwrap();
    let mut invalidated = None;
    for _ in 0..2 {
        match next(&mut link.poller).into_work() {
            Work::Received(received) => {
                assert_eq!((&received.buffer[..], received.immediate), (&[1; 8][..], None));
                invalidated = received.invalidated;
            }
            Work::Sent(memory) => assert!(memory.into_buffer().is_some()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(invalidated, Some(bound.rkey()));
    let memory = bound.dealloc().unwrap().reclaim().unwrap();
    assert_eq!(memory[..8], [7; 8]);
    write(&mut link, 9, 8, &remote.region());
    assert_eq!((failure(&mut link.poller).status, memory[0]), (Status::RemoteAccess, 7));
}

/// m7: soft-RoCE does not check the bounds of a window (quirk Q6), so a window is over a whole region there.
#[test]
fn a_window_is_over_a_whole_region_where_bounds_are_not_kept() {
    let mut link = link!();
    let (rest, memory) = page(&link.domain);
    let (left, right) = memory.split_at(64).unwrap();
    let window = link.right.window().unwrap();
    if deviates("C082") {
        let error = link.right.post_bind::<RemoteWrite, _>(window, left).unwrap_err();
        let expected = RequestFlaw::WindowOverPart { len_bytes: 64, region_bytes: 4096 };
        assert!(matches!(&error, PostError::Flawed { flaw, .. } if *flaw == expected), "{error}");
        let (window, left) = error.into_request().unwrap();
        // Register this part once more, by itself. It is now a whole region, so a window over it can be bound.
        let part = link.domain.register::<Windowed<LocalWrite>, _>(left.into_buffer()).unwrap();
        let (_part, memory) = part.split_bindable();
        let bound = rebind::<RemoteWrite, Type2, _>(&mut link, window, memory);
        write(&mut link, 7, 8, &moved(&bound.remote().unwrap(), 64));
        assert_eq!(failure(&mut link.poller).status, Status::RemoteAccess);
        assert!(right.iter().all(|&byte| byte == 0));
        return;
    }
    let bound = rebind::<RemoteWrite, Type2, _>(&mut link, window, left);
    write(&mut link, 7, 8, &moved(&bound.remote().unwrap(), 56));
    next(&mut link.poller);
    // The neighbouring memory still belongs to the program.
    assert!(right.iter().all(|&byte| byte == 0));
    write(&mut link, 8, 8, &moved(&bound.remote().unwrap(), 64));
    assert_eq!(failure(&mut link.poller).status, Status::RemoteAccess);
    let left = bound.dealloc().unwrap().reclaim().unwrap();
    let whole = left.join(right).unwrap().into_buffer();
    let pages = rest.rejoin(whole).unwrap().deregister().unwrap();
    assert_eq!((&pages[56..64], pages[64]), (&[7; 8][..], 0));
}

// ---- What goes wrong --------------------------------------------------------------------------------------------

#[test]
fn what_cannot_be_bound_comes_back() {
    let (_fabric, mut link) = soft!();
    let (_rest, memory) = page(&link.domain);
    let (odd, memory) = memory.split_at(60).unwrap();
    for memory in [odd, memory] {
        let window = link.domain.window().unwrap();
        let (address, len) = (memory.as_ptr().addr() as u64, memory.capacity() as u64);
        let error = link.right.post_bind::<RemoteRead, _>(window, memory).unwrap_err();
        let expected = RequestFlaw::NotInWords { address, len_bytes: len };
        assert!(matches!(&error, PostError::Flawed { flaw, .. } if *flaw == expected), "{error}");
        assert_eq!(error.into_request().unwrap().1.capacity() as u64, len);
    }
    // The window belongs to the left pair. The right pair refuses to bind it, before and after the left pair is
    // destroyed.
    let (_rest, memory) = page(&link.domain);
    let window = link.left.window().unwrap();
    let error = link.right.post_bind::<RemoteRead, _>(window, memory).unwrap_err();
    assert!(matches!(error, PostError::Flawed { flaw: RequestFlaw::WindowOfAnotherPair, .. }), "{error}");
    let (window, memory) = error.into_request().unwrap();
    link.left.destroy().unwrap();
    let error = link.right.post_bind::<RemoteRead, _>(window, memory).unwrap_err();
    assert!(matches!(error, PostError::Flawed { flaw: RequestFlaw::WindowEnded, .. }), "{error}");
    // A buffer is not bindable if its region was not registered for windows.
    let buffer = link.domain.buffer(64).unwrap();
    assert_eq!(buffer.into_bindable().unwrap_err().buffer.len(), 64);
    let buffer = error.into_request().unwrap().1.into_buffer();
    assert!(buffer.into_bindable().is_ok());
}

#[test]
fn a_full_queue_gives_windows_back() {
    let (fabric, mut link) = soft!(Fabric::manual());
    for _ in 0..4 {
        link.right.post_send(link.domain.buffer(8).unwrap()).unwrap();
    }
    let (_rest, memory) = page(&link.domain);
    let window = link.right.window().unwrap();
    let error = link.right.post_bind::<RemoteRead, _>(window, memory).unwrap_err();
    assert!(matches!(error, PostError::QueueFull(_)), "{error}");
    let (window, memory) = error.into_request().unwrap();
    for _ in 0..4 {
        link.left.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    }
    fabric.run();
    while let Some(completion) = link.poller.poll().unwrap() {
        completion.check().unwrap();
    }
    link.right.post_bind::<RemoteRead, _>(window, memory).unwrap();
    fabric.run();
    assert!(matches!(next(&mut link.poller).into_work(), Work::Bound(_)));
}

#[test]
fn a_refused_bind_gives_all_back_and_an_uncertain_one_breaks_the_pair() {
    let (fabric, mut link) = soft!();
    let (_rest, memory) = page(&link.domain);
    let window = link.right.window().unwrap();
    fabric.inject(Fault::VerbFails { verb: Verb::PostSend, after: 0, count: 1, errno: libc::ENOMEM });
    let error = link.right.post_bind::<RemoteWrite, _>(window, memory).unwrap_err();
    assert!(matches!(error, PostError::Refused { .. }), "{error}");
    let (window, memory) = error.into_request().unwrap();
    // The pair works as before.
    let bound = rebind::<RemoteWrite, Type2, _>(&mut link, window, memory);
    fabric.inject(Fault::VerbFails { verb: Verb::PostSend, after: 0, count: 1, errno: libc::ENOMEM });
    let error = link.right.post_revoke(bound).unwrap_err();
    assert!(matches!(error, PostError::Refused { .. }), "{error}");
    let bound = error.into_request().unwrap();
    write(&mut link, 7, 8, &bound.remote().unwrap());
    next(&mut link.poller);
    link.right.post_revoke(bound).unwrap();
    let Work::Revoked(Revoked { memory, .. }) = next(&mut link.poller).into_work() else { panic!("not revoked") };
    assert_eq!(memory[..8], [7; 8]);
    // `ibv_bind_mw` has no `bad_wr` to name a request that the device has not got. So each failure of it is
    // `PostError::Uncertain`.
    fabric.inject(Fault::VerbFails { verb: Verb::BindMw, after: 0, count: 1, errno: libc::ENOMEM });
    let window = link.domain.window().unwrap();
    let error = link.right.post_bind::<RemoteWrite, _>(window, memory).unwrap_err();
    let PostError::Uncertain { id, .. } = error else { panic!("{error}") };
    let (_rest, memory) = page(&link.domain);
    let window = link.domain.window().unwrap();
    assert!(matches!(link.right.post_bind::<RemoteRead, _>(window, memory), Err(PostError::Broken { .. })));
    link.right.destroy().unwrap();
    let failure = failure(&mut link.poller);
    assert_eq!((failure.id, failure.status), (id, Status::Destroyed));
    assert!(unsettled(failure).dealloc().unwrap().reclaim().is_ok());
}

#[test]
fn a_flushed_bind_comes_back_unsettled() {
    fn flushed<K: Kind>() {
        let (fabric, mut link) = soft!(Fabric::manual());
        let (rest, memory) = page(&link.domain);
        let window = K::alloc(&link.domain, &mut link.right);
        link.right.post_bind::<RemoteWrite, K>(window, memory).unwrap();
        let _right = link.right.into_error().unwrap();
        fabric.run();
        let failure = failure(&mut link.poller);
        assert_eq!((failure.operation, failure.status), (interlock::request::Operation::Bind, Status::Flushed));
        let lapsed = unsettled(failure).dealloc().unwrap();
        rest.rejoin_lapsed(lapsed).unwrap().deregister().unwrap();
    }
    flushed::<Type1>();
    flushed::<Type2>();
}

#[test]
fn a_window_that_the_peer_ended_first_is_not_ended_again() {
    let (_fabric, mut link) = soft!();
    let (_rest, memory) = page(&link.domain);
    let bound: BoundWindow<_, Type2> = bind::<RemoteWrite, _, _>(&mut link, memory);
    let remote = bound.remote_window::<RemoteWrite>().unwrap();
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    link.left.post_send_invalidating(link.domain.buffer(8).unwrap(), &remote).unwrap();
    for _ in 0..2 {
        next(&mut link.poller);
    }
    // If the program revokes a window that the peer has already ended, the request fails and does no harm.
    link.right.post_revoke(bound).unwrap();
    let failure = failure(&mut link.poller);
    assert_eq!(
        (failure.operation, failure.status),
        (interlock::request::Operation::Revoke, Status::LocalQueuePairOperation)
    );
    assert!(unsettled(failure).dealloc().unwrap().reclaim().is_ok());
}

#[test]
fn a_window_that_cannot_be_freed_keeps_its_memory() {
    let (fabric, mut link) = soft!();
    let busy = |count| Fault::VerbFails { verb: Verb::DeallocMw, after: 0, count, errno: libc::EBUSY };
    let (rest, memory) = page(&link.domain);
    let bound: BoundWindow<_, Type1> = bind::<RemoteWrite, _, _>(&mut link, memory);
    let remote = bound.remote().unwrap();
    fabric.inject(busy(1));
    let error = bound.dealloc().unwrap_err();
    assert_eq!((error.source.verb(), error.source.errno()), ("ibv_dealloc_mw", libc::EBUSY));
    write(&mut link, 7, 8, &remote);
    next(&mut link.poller);
    // If a dropped window cannot be freed, it leaks together with its memory, and the peer still reaches the memory.
    fabric.inject(busy(1));
    drop((error.window, rest));
    write(&mut link, 8, 8, &remote);
    next(&mut link.poller);
}

#[test]
fn a_pair_whose_windows_cannot_be_freed_is_not_destroyed() {
    let (fabric, mut link) = soft!();
    let (_rest, memory) = page(&link.domain);
    let bound: BoundWindow<_, Type2> = bind::<RemoteWrite, _, _>(&mut link, memory);
    fabric.inject(Fault::VerbFails { verb: Verb::DeallocMw, after: 0, count: 1, errno: libc::EBUSY });
    let error = link.right.destroy().unwrap_err();
    assert_eq!((error.source.verb(), error.source.errno()), ("ibv_dealloc_mw", libc::EBUSY));
    // The library had reset the pair before it tried to free the window. So the pair takes no requests any more.
    let mut pair = error.queue_pair;
    let error = pair.post_send(link.domain.buffer(8).unwrap()).unwrap_err();
    assert!(matches!(error, PostError::Broken { .. }), "{error}");
    pair.destroy().unwrap();
    assert!(bound.dealloc().unwrap().reclaim().is_ok());
}

#[test]
fn windows_are_not_posted_in_sessions() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let limits = Limits { posting: Posting::WorkRequestApi, ..Limits::default() };
    let (queue, _poller) = domain.queue(limits.completions()).unwrap();
    let port = domain.context().active_port().unwrap();
    let Ok(pair) = domain.reliable(&queue, &limits) else {
        assert!(!support::on_hardware(), "soft-RoCE has them");
        return;
    };
    let pair = pair.into_init(&port).unwrap();
    let myself = pair.endpoint();
    let mut pair = pair.connect(&myself).unwrap();
    let (_rest, memory) = page(&domain);
    let window = pair.window().unwrap();
    let error = pair.post_bind::<RemoteWrite, _>(window, memory).unwrap_err();
    assert!(matches!(error, PostError::Flawed { flaw: RequestFlaw::NotInSession, .. }), "{error}");
    let (_, memory) = error.into_request().unwrap();
    let error = pair.post_bind::<RemoteWrite, _>(domain.window().unwrap(), memory).unwrap_err();
    assert!(matches!(error, PostError::Flawed { flaw: RequestFlaw::NotInSession, .. }), "{error}");
}

/// The rest of one region and the memory of a window over another region are not joined.
#[test]
fn a_region_is_not_rejoined_with_what_another_ones_window_left() {
    let mut link = link!();
    let ((one, first), (other, second)) = (page(&link.domain), page(&link.domain));
    let mut lapsed = |memory| -> Lapsed<_> {
        let bound: BoundWindow<_, Type1> = bind::<RemoteWrite, _, _>(&mut link, memory);
        bound.dealloc().unwrap()
    };
    let (first, second) = (lapsed(first), lapsed(second));
    let error = one.rejoin_lapsed(second).unwrap_err();
    let one = error.region.rejoin_lapsed(first).unwrap();
    let other = other.rejoin_lapsed(error.buffer).unwrap();
    one.deregister().unwrap();
    other.deregister().unwrap();
}

support::also_extended![
    c082_windows_come_and_go,
    c083_a_peer_reaches_what_a_window_is_bound_over,
    a_freed_window_lets_nobody_in,
    a_window_that_is_dropped_lets_nobody_in_and_its_region_ends,
    a_bind_and_the_message_that_tells_of_it_are_posted_together,
    m5_a_window_permits_what_it_was_bound_for,
    m6_a_window_of_type_2_serves_one_pair_and_one_of_type_1_all,
    a_window_is_bound_on_an_unreliable_connection,
    m12_a_pair_with_bound_windows_is_destroyed_at_once,
    a_pair_that_was_never_used_is_destroyed_with_its_windows,
    a_window_goes_on_through_a_reset_of_its_pair,
    the_end_of_a_window_gives_memory_back_where_it_is_a_barrier,
    a_peer_ends_a_window_with_its_message_where_that_does_no_harm,
    a_window_is_over_a_whole_region_where_bounds_are_not_kept,
    what_cannot_be_bound_comes_back,
    a_full_queue_gives_windows_back,
    a_refused_bind_gives_all_back_and_an_uncertain_one_breaks_the_pair,
    a_flushed_bind_comes_back_unsettled,
    a_window_that_the_peer_ended_first_is_not_ended_again,
    a_window_that_cannot_be_freed_keeps_its_memory,
    a_pair_whose_windows_cannot_be_freed_is_not_destroyed,
    windows_are_not_posted_in_sessions,
    a_region_is_not_rejoined_with_what_another_ones_window_left,
];
