//! Registered memory: who can reach which bytes, in parts and in shares, and when the memory is dropped.

use super::{LIMITS, Stage, all, assert_disjoint, fails_for_ever, settle, small};
use interlock::soft::{Fabric, Fault, Profile, Verb};
use interlock::{
    Context, LocalRead, LocalWrite, RemoteAll, RemoteRead, RemoteReadWrite, RemoteRegion, RemoteWrite, Status,
};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use support::{Queues, own_device};
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[test]
fn memory_that_cannot_be_deregistered_is_never_freed() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    interlock::domain! { struct Test; }
    let fabric = Fabric::manual();
    let context = Context::open_on(&fabric, "dev").unwrap();
    let mut stage = Stage::new(fabric, context.named_domain(Test).unwrap());
    let region = stage.domain.register::<RemoteWrite, _>(counted::<0>(&DROPS, 2)).unwrap();
    let target = region.remote();
    stage.fabric.inject(fails_for_ever(Verb::DeregMr));
    let error = region.deregister().unwrap_err();
    assert_eq!(error.region.load(0).unwrap(), 0);
    drop(error);
    assert_eq!(DROPS.load(Ordering::Relaxed), 0);
    // The peer can still reach the region.
    stage.left.post_write(small(&stage.domain), &target).unwrap();
    settle(&stage.fabric, &mut stage.poller).pop().unwrap().check().unwrap();
    stage.fabric.heal();
    drop((stage.left, stage.right, stage.poller, stage.queue, stage.domain));
    assert!(context.named_domain(Test).is_err());
    assert_eq!(DROPS.load(Ordering::Relaxed), 0);
}

/// Devices on which the end of a registration does not wait for peers.
const IMPATIENT: [Profile; 3] = [Profile::Siw, Profile::Adversary(130), Profile::IwarpAdversary(130)];

/// On these devices, `ibv_dereg_mr` does not wait for the rest of a write that a peer has begun.
#[test]
fn the_rest_of_a_write_never_reaches_memory_whose_region_has_ended() {
    IMPATIENT.into_iter().for_each(the_rest_of_a_write_on);
}

fn the_rest_of_a_write_on(profile: Profile) {
    let (fabric, domain) = own_device!(Fabric::with_profile(profile));
    let exposed = || domain.register::<RemoteWrite, _>(vec![1_u64; 8]).unwrap();
    // The device continues an unfinished write whenever a verb is called.
    let verbs = || (0..3).for_each(|_| drop(domain.completion_queue(8).unwrap()));
    let mut memory = exposed().deregister().unwrap();
    memory.fill(7);
    verbs();
    assert_eq!(memory, [7; 8]);
    // `membarrier` fails twice. Then the library cannot wait for the rest of a write, and the region stays. The third
    // call succeeds.
    fabric.inject(Fault::VerbFails { verb: Verb::Membarrier, after: 0, count: 2, errno: libc::EINVAL });
    let error = exposed().deregister().unwrap_err();
    assert_eq!((error.source.verb(), error.source.errno()), ("membarrier", libc::EINVAL));
    let region = error.region.deregister().unwrap_err().region;
    let mut memory = region.deregister().unwrap();
    memory.fill(7);
    verbs();
    assert_eq!(memory, [7; 8]);
    // The verbs of each thread also continue unfinished writes to the memory of the other thread.
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                std::mem::forget(exposed());
                for _ in 0..if cfg!(miri) { 1 } else { 50 } {
                    let mut memory = exposed().deregister().unwrap();
                    memory.fill(7);
                    verbs();
                    assert_eq!(memory, [7; 8]);
                }
            });
        }
    });
    // `membarrier` always fails from here on, so the memory is never given back.
    fabric.inject(fails_for_ever(Verb::Membarrier));
    let lease = domain.lease::<RemoteWrite, _>(vec![1_u64; 8], Duration::from_secs(60)).unwrap();
    drop((lease.end().unwrap_err(), exposed()));
    verbs();
}

/// On these devices, a read that a peer has begun goes on after `ibv_dereg_mr`, for as long as the peer likes.
#[test]
fn memory_that_a_peer_may_go_on_reading_never_comes_back() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    for profile in IMPATIENT {
        let (_fabric, domain) = own_device!(Fabric::with_profile(profile));
        assert!(!domain.context().promises().readable_memory_comes_back());
        let lease = domain.lease::<RemoteReadWrite, _>(vec![1_u64; 8], Duration::from_secs(60)).unwrap();
        assert_eq!(lease.end().unwrap_err().region.load(0).unwrap(), 1);
    }
    let (_fabric, domain) = own_device!(Fabric::with_profile(Profile::Siw));
    let error = domain.register::<RemoteRead, _>(counted::<2>(&DROPS, 2)).unwrap().deregister().unwrap_err();
    assert_eq!(error.source.errno(), libc::EOPNOTSUPP);
    assert!(error.source.to_string().contains("docs/providers.md"), "{}", error.source);
    let error = error.region.deregister().unwrap_err();
    assert_eq!(error.region.as_bytes(), [0; 16]);
    drop((error, domain));
    assert_eq!(DROPS.load(Ordering::Relaxed), 0);
}

/// A type that has drop glue and accepts any bytes.
#[derive(FromBytes, IntoBytes, Immutable, Debug)]
#[repr(transparent)]
struct Counted<const SITE: usize>(u64);

static SITES: [OnceLock<&'static AtomicUsize>; 3] = [const { OnceLock::new() }; 3];

impl<const SITE: usize> Drop for Counted<SITE> {
    fn drop(&mut self) {
        SITES[SITE].get().unwrap().fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes memory whose drops are counted in `drops`.
fn counted<const SITE: usize>(drops: &'static AtomicUsize, count: usize) -> Vec<Counted<SITE>> {
    SITES[SITE].set(drops).unwrap();
    (0..count).map(|_| Counted(0)).collect()
}

#[test]
fn memory_with_drop_glue_is_never_dropped_in_flight_nor_twice() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    let mut stage = stage!();
    let region = stage.domain.register::<LocalWrite, _>(counted::<1>(&DROPS, 4)).unwrap();
    let (rest, whole) = region.split();
    drop(rest);
    for buffer in whole.into_chunks(8) {
        stage.right.post_receive(buffer).unwrap();
    }
    stage.left.post_send(small(&stage.domain)).unwrap();
    drop(settle(&stage.fabric, &mut stage.poller));
    assert_eq!(DROPS.load(Ordering::Relaxed), 0);
    drop(stage.right);
    assert_eq!(DROPS.load(Ordering::Relaxed), 0);
    drop(all(&mut stage.poller));
    assert_eq!(DROPS.load(Ordering::Relaxed), 4);
}

#[test]
fn drop_glue_that_calls_the_library_never_deadlocks() {
    interlock::domain! { struct Test; struct Inner; }
    #[derive(FromBytes, IntoBytes, Immutable)]
    #[repr(transparent)]
    struct Calls(u64);
    impl Drop for Calls {
        fn drop(&mut self) {
            let domain = Context::open_on(Fabric::process(), "soft0").unwrap().named_domain(Inner).unwrap();
            let (queue, _poller) = domain.queue(8).unwrap();
            drop((domain.reliable(&queue, &LIMITS).unwrap(), domain.buffer(8).unwrap()));
        }
    }
    // Nobody polls, so the memory of the receive is dropped when its completion queue is dropped.
    let fabric = Fabric::process().clone();
    let mut stage = Stage::new(fabric, Context::open("soft0").unwrap().named_domain(Test).unwrap());
    let region = stage.domain.register::<LocalWrite, _>(vec![Calls(0)]).unwrap();
    stage.right.post_receive(region.split().1).unwrap();
    drop((stage.right, stage.left, stage.poller, stage.domain));
    drop(stage.queue);
}

///
#[test]
fn r_1_spare_capacity_is_never_reached_by_a_peer() {
    let mut stage = stage!();
    let mut memory = vec![5_u64; 2];
    memory.reserve_exact(6);
    let region = stage.domain.register::<RemoteAll, _>(memory).unwrap();
    assert_eq!(region.len(), 16);
    let mut record = region.remote().to_bytes();
    record[23] = 24;
    let beyond = RemoteRegion::<RemoteWrite>::from_bytes(&record).unwrap().slice(16..24).unwrap();
    stage.left.post_write(small(&stage.domain), &beyond).unwrap();
    assert_eq!(
        settle(&stage.fabric, &mut stage.poller).pop().unwrap().check().unwrap_err().status,
        Status::RemoteAccess
    );
    assert_eq!(region.deregister().unwrap(), [5, 5]);
}

///
#[test]
fn r_2_memory_that_a_peer_is_writing_to_is_never_freed_before_it_is_deregistered() {
    let mut stage = stage!();
    let region = stage.domain.register::<RemoteWrite, _>(vec![0_u64; 512]).unwrap();
    let stale = region.remote();
    stage.left.post_write(stage.domain.buffer(4096).unwrap(), &stale).unwrap();
    drop(region);
    // The new vector can get the memory that the region had. A late write of the device would change it.
    let mut reused = vec![3_u64; 512];
    assert_eq!(
        settle(&stage.fabric, &mut stage.poller).pop().unwrap().check().unwrap_err().status,
        Status::RemoteAccess
    );
    reused.push(3);
    assert!(reused.iter().all(|&word| word == 3));
}

///
#[test]
fn r_3_memory_of_one_domain_is_never_reached_through_a_pair_of_another() {
    interlock::domain! { struct Other; }
    let mut stage = stage!();
    let other = stage.domain.context().named_domain(Other).unwrap();
    let region = other.register::<RemoteAll, _>(vec![5_u64; 1]).unwrap();
    stage.left.post_write(small(&stage.domain), &region.remote()).unwrap();
    assert_eq!(
        settle(&stage.fabric, &mut stage.poller).pop().unwrap().check().unwrap_err().status,
        Status::RemoteAccess
    );
    assert_eq!(region.load(0).unwrap(), 5);
}

/// a posted buffer has moved away, so its neighbours cannot be joined across it.
#[test]
fn r_4_a_part_in_flight_is_never_covered_by_another_buffer() {
    let mut stage = stage!();
    let region = stage.domain.register::<LocalWrite, _>(vec![0_u8; 24]).unwrap();
    let (rest, whole) = region.split();
    let mut parts = whole.into_chunks(8).into_iter();
    let (first, middle, last) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    stage.right.post_receive(middle).unwrap();
    let error = first.join(last).unwrap_err();
    let error = rest.rejoin(error.left).unwrap_err();
    let (rest, first, last) = (error.region, error.buffer, parts.next());
    assert!(last.is_none());
    drop(stage.right);
    let middle = all(&mut stage.poller).pop().unwrap().check().unwrap_err().into_buffer().unwrap();
    let error = rest.rejoin(first.join(middle).unwrap()).unwrap_err();
    assert_eq!(error.buffer.capacity(), 16, "the third part was dropped, and is never made up for");
}

#[test]
fn memory_that_is_shared_in_flight_is_never_unique() {
    let mut stage = stage!();
    let region = stage.domain.register::<LocalWrite, _>(vec![9_u8; 8]).unwrap();
    let (rest, whole) = region.split();
    let share = whole.share();
    stage.left.post_send(share.clone()).unwrap();
    let share = share.into_unique().unwrap_err().share;
    let other = share.clone();
    drop(share);
    // `other` is the program's last handle, but another handle is still in flight. So the memory is not unique.
    let other = other.into_unique().unwrap_err().share;
    drop(stage.left);
    let Some(back) = all(&mut stage.poller).pop().unwrap().check().unwrap_err().memory.into_shared() else {
        panic!("a share")
    };
    let back = back.into_unique().unwrap_err().share;
    drop(other);
    let whole = back.into_unique().unwrap();
    assert_eq!(rest.rejoin(whole).unwrap().deregister().unwrap(), [9; 8]);
}

#[test]
fn a_region_shared_as_a_whole_is_never_written_again() {
    let stage = stage!();
    let region = stage.domain.register::<LocalRead, _>(vec![1_u8; 8]).unwrap();
    let share = region.share();
    assert!(share.into_unique().is_err(), "no local write");
    let region = stage.domain.register::<RemoteRead, _>(vec![1_u64; 1]).unwrap();
    let remote = region.remote();
    let share = region.share();
    assert!(share.into_unique().is_err(), "peers may read it");
    assert_eq!(remote.len(), 8);
}

/// J-3: the program may borrow bytes that peers only read, but never bytes that peers write.
#[test]
fn j_3_bytes_that_the_program_borrows_are_never_written_by_a_peer() {
    let mut stage = stage!();
    let region = stage.domain.register::<RemoteRead, _>(vec![7_u64; 4]).unwrap();
    let borrowed = region.as_bytes();
    stage.left.post_read(stage.domain.buffer(32).unwrap(), &region.remote()).unwrap();
    // The peer claims more rights than the region was registered with.
    let mut record = region.remote().to_bytes();
    record[3] = RemoteRegion::<RemoteAll>::from_bytes(&all_rights(record)).unwrap().to_bytes()[3];
    let lie = RemoteRegion::<RemoteAll>::from_bytes(&record).unwrap();
    let fabric = stage.fabric.clone();
    let stepping = thread::spawn(move || fabric.run());
    assert!(borrowed.contains(&7));
    stepping.join().unwrap();
    stage.left.post_write(stage.domain.buffer(32).unwrap(), &lie).unwrap();
    let out = settle(&stage.fabric, &mut stage.poller);
    let statuses: Vec<_> = out.into_iter().map(|c| c.check().map_err(|failure| failure.status)).collect();
    assert!(matches!(statuses[..], [Ok(_), Err(Status::RemoteAccess)]), "{statuses:?}");
    assert_eq!(borrowed, [7_u64; 4].as_bytes());
}

/// Returns the record with every remote right.
fn all_rights(mut record: [u8; 24]) -> [u8; 24] {
    record[3] = 0b1110;
    record
}

#[test]
#[cfg_attr(miri, ignore = "too much memory")]
fn more_memory_than_a_message_is_never_lost() {
    if usize::BITS < 64 {
        return;
    }
    const GIB: usize = 1 << 30;
    let stage = stage!();
    // Zeroed memory takes no pages until it is touched.
    let region = stage.domain.register::<LocalWrite, _>(vec![0_u8; 4 * GIB + 4096]).unwrap();
    let (rest, whole) = region.split();
    assert_eq!(whole.capacity(), 4 * GIB + 4096);
    let parts = whole.into_chunks(GIB);
    assert_eq!(parts.len(), 5);
    assert_disjoint(&parts);
    let whole = parts.into_iter().reduce(|left, right| left.join(right).unwrap()).unwrap();
    assert_eq!(rest.rejoin(whole).unwrap().deregister().unwrap().len(), 4 * GIB + 4096);
}

support::also_extended![
    memory_that_cannot_be_deregistered_is_never_freed,
    the_rest_of_a_write_never_reaches_memory_whose_region_has_ended,
    memory_that_a_peer_may_go_on_reading_never_comes_back,
    memory_with_drop_glue_is_never_dropped_in_flight_nor_twice,
    drop_glue_that_calls_the_library_never_deadlocks,
    r_1_spare_capacity_is_never_reached_by_a_peer,
    r_2_memory_that_a_peer_is_writing_to_is_never_freed_before_it_is_deregistered,
    r_3_memory_of_one_domain_is_never_reached_through_a_pair_of_another,
    r_4_a_part_in_flight_is_never_covered_by_another_buffer,
    memory_that_is_shared_in_flight_is_never_unique,
    a_region_shared_as_a_whole_is_never_written_again,
    j_3_bytes_that_the_program_borrows_are_never_written_by_a_peer,
    more_memory_than_a_message_is_never_lost,
];
