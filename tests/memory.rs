//! Kinds of memory and ways to register them. The same tests run on every device.

use interlock::access::{OnDemand, RelaxedOrdering, Windowed, ZeroBased};
use interlock::error::{NoSharedMap, RegisterFailure};
use interlock::memory::{
    DmaBuf, Foreign, ForeignMemory, HugePageSize, Pages, SharedMap, locked_memory_limit, pinned_memory,
};
use interlock::soft::{Fabric, Fault, Verb};
use interlock::{
    Buffer, Context, Limits, LocalRead, LocalWrite, ProtectionDomain, RemoteAll, RemoteRead, RemoteReadWrite,
    RemoteRegion, RemoteWrite, Status, Work,
};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::fs::File;
use std::mem::{self, ManuallyDrop};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{Link, Need, PATIENCE, connect_to_each_other, context, lacks_need, next, on_hardware, own_device};

// ---- Memory with an owner type of the program ------------------------------------------------------

/// Memory from the allocator that counts how often it is freed.
#[derive(Debug)]
struct Counted {
    start: NonNull<u8>,
    layout: Layout,
    freed: Arc<AtomicUsize>,
    /// Run when the library rebuilds the memory from its parts, and when the memory is dropped.
    rebuilt: fn(),
    dropped: fn(),
}

// SAFETY: no other value refers to the allocation at `start`, so a `Counted` can move to another thread, as a
// `Box<[u8]>` can. All other fields are `Send`.
unsafe impl Send for Counted {}

impl Counted {
    fn new(len: usize, freed: &Arc<AtomicUsize>) -> Self {
        let layout = Layout::from_size_align(len, 64).unwrap();
        assert_ne!(len, 0);
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, layout, freed: Arc::clone(freed), rebuilt: || (), dropped: || () }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: this `Counted` alone owns the allocation at `start`. The allocation has `layout.size()` bytes, and
        // all of them were initialized with zeros.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.freed.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `start` was allocated with this layout, and nothing else frees it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
        (self.dropped)();
    }
}

type Parts = (Layout, Arc<AtomicUsize>, fn(), fn());

// SAFETY: the allocation is our own and zeroed, and nothing else refers to it. `from_parts` rebuilds the same value, on
// any thread.
unsafe impl ForeignMemory for Counted {
    type Parts = Parts;

    fn into_parts(self) -> (NonNull<[u8]>, Parts) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `freed` is read once, and `this` is never dropped.
        let freed = unsafe { std::ptr::read(&this.freed) };
        let bytes = NonNull::slice_from_raw_parts(this.start, this.layout.size());
        (bytes, (this.layout, freed, this.rebuilt, this.dropped))
    }

    unsafe fn from_parts(bytes: NonNull<[u8]>, (layout, freed, rebuilt, dropped): Parts) -> Self {
        rebuilt();
        Self { start: bytes.cast(), layout, freed, rebuilt, dropped }
    }
}

fn count(freed: &Arc<AtomicUsize>) -> usize {
    freed.load(Ordering::Relaxed)
}

#[test]
fn memory_of_another_kind_is_sent_received_and_given_back() {
    interlock::domain! { struct Test; }
    let freed = Arc::default();
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let (rest, target) = link.domain.register::<LocalWrite, _>(Foreign(Counted::new(256, &freed))).unwrap().split();
    link.right.post_receive(target).unwrap();
    let (_, mut message) = link.domain.register::<LocalWrite, _>(Foreign(Counted::new(64, &freed))).unwrap().split();
    message.fill(7);
    link.left.post_send(message).unwrap();
    let mut received = None;
    for _ in 0..2 {
        received = next(&mut link.poller).into_received().ok().or(received);
    }
    assert_eq!(count(&freed), 1, "the sent one was the last part of its region");
    let memory = rest.rejoin(received.unwrap()).unwrap().deregister().unwrap().0;
    assert_eq!((&memory.bytes()[..64], memory.bytes().len(), count(&freed)), (&[7; 64][..], 256, 1));
    drop(memory);
    assert_eq!(count(&freed), 2);
}

#[test]
fn peers_write_to_memory_of_another_kind() {
    interlock::domain! { struct Test; }
    let freed = Arc::default();
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let region = link.domain.register::<RemoteWrite, _>(Foreign(Counted::new(64, &freed))).unwrap();
    let mut bytes = link.domain.buffer(64).unwrap();
    bytes.fill(9);
    link.left.post_write(bytes, &region.remote()).unwrap();
    next(&mut link.poller);
    assert_eq!(region.word(56).unwrap().load(), 0x0909_0909_0909_0909);
    assert_eq!(region.deregister().unwrap().0.bytes(), [9; 64]);
    assert_eq!(count(&freed), 1);
}

/// C072, C073: memory that is refused comes back.
#[test]
fn memory_of_another_kind_that_is_refused_comes_back_whole() {
    let (fabric, domain) = own_device!();
    let freed = Arc::default();
    fabric.inject(Fault::VerbFails { verb: Verb::RegMr, after: 0, count: 1, errno: libc::EFAULT });
    let error = domain.register::<LocalWrite, _>(Foreign(Counted::new(32, &freed))).unwrap_err();
    assert_eq!((error.memory.0.bytes(), count(&freed)), (&[0; 32][..], 0));
    // Peers need whole words, and 33 bytes are not whole words.
    let error = domain.register::<RemoteRead, _>(Foreign(Counted::new(33, &freed))).unwrap_err();
    assert!(matches!(error.source, RegisterFailure::NotInWords { len_bytes: 33, .. }));
    drop(error);
    // Peers may reach parts of this memory later, through windows.
    let error = domain.register::<Windowed<LocalWrite>, _>(Foreign(Counted::new(33, &freed))).unwrap_err();
    assert!(matches!(error.source, RegisterFailure::NotInWords { len_bytes: 33, .. }));
    drop(error);
    assert_eq!(count(&freed), 2);
}

/// C078, C080, C145: registered memory is not freed, whatever object is forgotten.
#[test]
fn forgotten_memory_of_another_kind_is_never_given_back() {
    let (_fabric, domain) = own_device!();
    let freed = Arc::default();
    let region =
        |domain: &ProtectionDomain<_>| domain.register::<LocalWrite, _>(Foreign(Counted::new(64, &freed))).unwrap();
    mem::forget(region(&domain));
    let (rest, buffer) = region(&domain).split();
    mem::forget(buffer);
    drop(rest);
    let (rest, buffer) = region(&domain).split();
    mem::forget(rest);
    drop(buffer);
    assert_eq!(count(&freed), 0);
    // A receive is in flight, and its pair and its poller are forgotten.
    let Link { domain, mut right, left, poller, .. } = Link::new(domain, 2);
    right.post_receive(region(&domain).split().1).unwrap();
    mem::forget((right, poller));
    drop((left, domain));
    assert_eq!(count(&freed), 0);
}

#[test]
fn memory_of_another_kind_that_is_not_deregistered_is_never_given_back() {
    let (fabric, domain) = own_device!();
    let freed = Arc::default();
    let region = domain.register::<RemoteWrite, _>(Foreign(Counted::new(64, &freed))).unwrap();
    fabric.inject(Fault::VerbFails { verb: Verb::DeregMr, after: 0, count: 2, errno: libc::EBUSY });
    let error = region.deregister().unwrap_err();
    assert_eq!((error.region.load(0).unwrap(), count(&freed)), (0, 0));
    drop(error);
    assert_eq!(count(&freed), 0, "the device may still write to it");
}

#[test]
fn memory_of_another_kind_is_given_back_on_whatever_thread_drops_it_last() {
    let (_fabric, domain) = own_device!();
    let freed = Arc::default();
    let (rest, buffer) = domain.register::<LocalWrite, _>(Foreign(Counted::new(64, &freed))).unwrap().split();
    drop(rest);
    let parts: Vec<Buffer<_>> = buffer.into_chunks(8);
    std::thread::scope(|scope| {
        for part in parts {
            scope.spawn(move || drop(part));
        }
    });
    assert_eq!(count(&freed), 1);
}

#[test]
fn a_panic_of_the_owner_of_memory_stays_out_of_destructors() {
    let (_fabric, domain) = own_device!();
    let freed: Arc<AtomicUsize> = Arc::default();
    // The owner panics in its `Drop`.
    let mut owner = Counted::new(64, &freed);
    owner.dropped = || panic!("on purpose");
    drop(domain.register::<LocalWrite, _>(Foreign(owner)).unwrap());
    assert_eq!(count(&freed), 1);
    // The owner panics while it is rebuilt in a destructor. The memory leaks.
    let mut owner = Counted::new(64, &freed);
    owner.rebuilt = || panic!("on purpose");
    drop(domain.register::<LocalWrite, _>(Foreign(owner)).unwrap().split().1);
    assert_eq!(count(&freed), 1);
    // The owner panics in a call that the program made, so the panic reaches the program. The memory leaks here too.
    let mut owner = Counted::new(64, &freed);
    owner.rebuilt = || panic!("on purpose");
    let region = domain.register::<RemoteRead, _>(Foreign(owner)).unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| region.deregister().map(drop)));
    assert_eq!((caught.is_err(), count(&freed)), (true, 1));
    // The domain still works.
    drop(domain.register::<LocalWrite, _>(Foreign(Counted::new(64, &freed))).unwrap());
    assert_eq!(count(&freed), 2);
}

#[test]
fn an_owner_of_memory_may_call_the_library_when_it_is_given_back() {
    thread_local! { static DOMAIN: Cell<Option<ProtectionDomain<Test>>> = const { Cell::new(None) }; }
    interlock::domain! { struct Test; }
    let domain = Context::open_on(&Fabric::new(), "dev0").unwrap().named_domain(Test).unwrap();
    DOMAIN.set(Some(domain.clone()));
    let freed = Arc::default();
    let mut owner = Counted::new(64, &freed);
    owner.dropped = || {
        let domain = DOMAIN.take().unwrap();
        let (queue, _poller) = domain.completion_queue(8).unwrap();
        drop((domain.reliable(&queue, &Limits::default()).unwrap(), domain.buffer(8).unwrap()));
    };
    let mut link = Link::new(domain, 2);
    link.right.post_receive(link.domain.register::<LocalWrite, _>(Foreign(owner)).unwrap().split().1).unwrap();
    // Nobody polled the completion queue. So the owner is dropped together with the queue, and calls the library then.
    drop(link);
    assert_eq!((count(&freed), DOMAIN.take().is_none()), (1, true));
}

// ---- Huge pages ------------------------------------------------------------------------------------

#[test]
#[cfg_attr(miri, ignore = "Miri knows no huge pages")]
fn huge_pages_are_there_or_the_error_says_what_to_set_aside() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 2);
    for size in [HugePageSize::TwoMebibytes, HugePageSize::OneGibibyte] {
        match Pages::huge(size.bytes() / 2 + 1, size) {
            Ok(pages) => {
                assert_eq!((pages.len(), pages.as_ptr() as usize % size.bytes()), (size.bytes() / 2 + 1, 0));
                let (rest, mut whole) = link.domain.register::<LocalWrite, _>(pages).unwrap().split();
                whole.write(b"huge").unwrap();
                link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
                link.left.post_send(whole).unwrap();
                let mut whole = None;
                for _ in 0..2 {
                    whole = next(&mut link.poller).into_buffer().filter(|buffer| buffer.capacity() > 8).or(whole);
                }
                assert_eq!(&rest.rejoin(whole.unwrap()).unwrap().deregister().unwrap()[..5], b"huge\0");
            }
            Err(error) => {
                let text = error.to_string();
                println!("not covered here: {text}");
                let sane = error.counts.is_none_or(|(all, free)| free <= all);
                assert!(sane && text.contains("huge pages of") && text.contains("hugepages-"), "{text}");
            }
        }
    }
    assert!(Pages::huge(0, HugePageSize::TwoMebibytes).unwrap().is_empty());
    assert!(Pages::huge(usize::MAX, HugePageSize::TwoMebibytes).is_err(), "more than there is, and no overflow");
}

#[test]
fn preferred_huge_pages_are_aligned_and_of_the_length_that_was_asked_for() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let mebibyte = if cfg!(miri) { 1 << 9 } else { 1 << 20 };
    for len in [0, 1, mebibyte, 2 * mebibyte, 5 * mebibyte + 3] {
        let mut pages = Pages::prefer_huge(len).unwrap();
        assert_eq!(pages.len(), len);
        assert!(len < 2 * mebibyte || cfg!(miri) || (pages.as_ptr() as usize).is_multiple_of(2 * mebibyte));
        pages.fill(1);
        if len != 0 {
            let region = domain.register::<LocalRead, _>(pages).unwrap();
            assert!(region.as_bytes().iter().all(|&byte| byte == 1));
        }
    }
    // Miri stops the program if so much memory is not available, so these sizes are skipped there.
    assert!(cfg!(miri) || [usize::MAX, usize::MAX / 2].iter().all(|&len| Pages::prefer_huge(len).is_err()));
}

// ---- Memory that other processes map, and that of other devices -----------------------------------

/// The view that another process has of a shared map: the same file, through its own descriptor.
fn other_side(map: &SharedMap) -> File {
    File::from(map.as_fd().try_clone_to_owned().unwrap())
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no shared maps")]
fn a_peer_writes_to_memory_that_another_process_sees() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 2);
    let map = SharedMap::new("interlock-test", 4096).unwrap();
    assert!(map.cannot_shrink() && map.len() == 4096);
    let file = other_side(&map);
    assert!(file.set_len(0).is_err(), "it would end this process");
    let region = link.domain.register_opaque::<RemoteReadWrite, _>(map).unwrap();
    let mut bytes = link.domain.buffer(16).unwrap();
    bytes.fill(3);
    link.left.post_write(bytes, &region.remote().slice(8..24).unwrap()).unwrap();
    next(&mut link.poller);
    // The other process (`file`) and this process (`region`) both see the bytes that the peer wrote.
    let mut seen = [0; 32];
    file.read_exact_at(&mut seen, 0).unwrap();
    let mut expected = [0; 32];
    expected[8..24].fill(3);
    assert_eq!(seen, expected);
    region.read_into(0, &mut seen).unwrap();
    assert_eq!((seen, region.load(8).unwrap()), (expected, 0x0303_0303_0303_0303));
    // The peer reads the bytes that the other process and this process wrote.
    file.write_all_at(b"process", 64).unwrap();
    region.write_from(71, b"!").unwrap();
    region.store(72, u64::from_ne_bytes(*b"and more")).unwrap();
    link.left.post_read(link.domain.buffer(16).unwrap(), &region.remote().slice(64..80).unwrap()).unwrap();
    assert_eq!(&next(&mut link.poller).into_buffer().unwrap()[..], b"process!and more");
    for outside in [4089, 4096, usize::MAX] {
        assert!(region.load(outside).is_err() && region.read_into(outside, &mut [0; 8]).is_err());
        assert!(region.store(outside, 0).is_err() && region.write_from(outside, &[0; 8]).is_err());
    }
    assert!(region.load(4).is_err(), "not a word");
    // Values of any plain type can be written and read at any offset.
    region.write_slice(1001, &[[1_u16, 2], [3, 4]]).unwrap();
    let mut pairs = [[0_u16; 2]; 2];
    region.read_slice(1001, &mut pairs).unwrap();
    assert_eq!(pairs, [[1, 2], [3, 4]]);
    assert!(region.read_slice(4090, &mut pairs).is_err() && region.write_slice(4090, &pairs).is_err());
    // The map comes back, and can be registered again.
    if !lacks_need(Need::ReadableMemoryBack) {
        let map = region.deregister().unwrap();
        let again = link.domain.register_opaque::<RemoteRead, _>(map).unwrap();
        assert_eq!(again.load(8).unwrap(), 0x0303_0303_0303_0303);
    }
}

/// C075: two registrations of the same memory. The bytes that both cover cannot be borrowed as a slice from either.
#[test]
#[cfg_attr(miri, ignore = "Miri knows no shared maps")]
fn memory_is_registered_twice_where_nobody_borrows_it() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 2);
    let one = SharedMap::new("interlock-test", 8192).unwrap();
    let two = SharedMap::of_file(one.as_fd().try_clone_to_owned().unwrap(), 4096, 4096).unwrap();
    let one = link.domain.register_opaque::<RemoteRead, _>(one).unwrap();
    let two = link.domain.register_opaque::<RemoteWrite, _>(two).unwrap();
    assert_ne!(one.remote().rkey(), two.remote().rkey());
    let mut bytes = link.domain.buffer(8).unwrap();
    bytes.fill(5);
    link.left.post_write(bytes, &two.remote()).unwrap();
    next(&mut link.poller);
    assert_eq!(one.load(4096).unwrap(), 0x0505_0505_0505_0505);
    // Ending one registration leaves the other one valid.
    drop(two);
    link.left.post_read(link.domain.buffer(8).unwrap(), &one.remote().slice(4096..4104).unwrap()).unwrap();
    assert_eq!(next(&mut link.poller).into_buffer().unwrap()[..], [5; 8]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no shared maps")]
fn what_is_not_inside_a_file_is_not_mapped() {
    let file = || {
        let map = SharedMap::new("interlock-test", 8192).unwrap();
        map.as_fd().try_clone_to_owned().unwrap()
    };
    assert!(matches!(SharedMap::new("nothing", 0), Err(NoSharedMap::Empty)));
    assert!(matches!(SharedMap::of_file(file(), 0, 0), Err(NoSharedMap::Empty)));
    for (offset, len) in [(0, 8193), (4096, 4097), (8192, 1), (u64::MAX, 1), (1 << 63, usize::MAX)] {
        let refused = SharedMap::of_file(file(), offset, len);
        assert!(matches!(refused, Err(NoSharedMap::TooShort { file_bytes: 8192, .. })), "{refused:?}");
    }
    let unaligned = SharedMap::of_file(file(), 8, 8).unwrap_err();
    assert_eq!(unaligned.to_string(), "mmap failed");
    let device = OwnedFd::from(File::options().read(true).write(true).open("/dev/zero").unwrap());
    assert!(matches!(SharedMap::of_file(device, 0, 4096), Err(NoSharedMap::NotAFile)));
    assert!(SharedMap::of_file(file(), 4096, 4096).unwrap().cannot_shrink());
    // A map whose length is not a whole number of words can be created, but not registered for peers. The error gives
    // the map back.
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let odd = SharedMap::of_file(file(), 0, 33).unwrap();
    let error = domain.register_opaque::<RemoteRead, _>(odd).unwrap_err();
    assert!(matches!(error.source, RegisterFailure::NotInWords { len_bytes: 33, .. }) && error.memory.len() == 33);
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no shared maps")]
fn a_shared_map_that_is_not_deregistered_stays_mapped() {
    let (fabric, domain) = own_device!();
    let map = SharedMap::new("interlock-stays", 4096).unwrap();
    let region = domain.register_opaque::<RemoteReadWrite, _>(map).unwrap();
    fabric.inject(Fault::VerbFails { verb: Verb::DeregMr, after: 0, count: 2, errno: libc::EBUSY });
    let error = region.deregister().unwrap_err();
    error.region.store(0, 1).unwrap();
    drop(error);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains("interlock-stays"), "the device may still write");
}

/// The soft device and Linux soft-RoCE cannot register a dma-buf, and report that.
#[test]
#[cfg_attr(miri, ignore = "Miri knows no memory files")]
fn a_dma_buf_is_registered_or_refused_as_such_and_comes_back() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    // The file is not a dma-buf. That does not matter here: both devices refuse before they look at the file.
    let file = SharedMap::new("interlock-test", 4096).unwrap().as_fd().try_clone_to_owned().unwrap();
    let error = domain.register_opaque::<RemoteWrite, _>(DmaBuf::new(file, 4096, 64)).unwrap_err();
    assert!(matches!(error.source, RegisterFailure::Unsupported { .. }), "{}", error.source);
    assert_eq!(error.source.to_string(), "the device does not support dma-bufs: register memory without it");
    let memory = error.memory;
    assert_eq!((memory.offset(), memory.len(), memory.is_empty()), (4096, 64, false));
    let error = domain.register_opaque::<RemoteWrite, _>(DmaBuf::new(memory.into(), 0, 0)).unwrap_err();
    assert!(matches!(error.source, RegisterFailure::Empty));
    let error = domain.register_opaque::<RemoteWrite, _>(DmaBuf::new(error.memory.into(), 4, 64)).unwrap_err();
    assert!(matches!(error.source, RegisterFailure::NotInWords { address: 4, .. }));
    assert!(File::from(OwnedFd::from(error.memory)).metadata().unwrap().is_file(), "the file is still open");
}

// ---- Ways of registration ---------------------------------------------------------------------------

/// C081: a device may ignore relaxed ordering, so every device accepts it.
#[test]
fn memory_with_relaxed_ordering_is_whole_at_its_completion() {
    if lacks_need(Need::Immediates) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let rounds = if cfg!(miri) { 2 } else { 50 };
    let len = if cfg!(miri) { 5000 } else { 100_000 };
    let memory = Pages::new(len).unwrap();
    let (rest, mut target) = link.domain.register::<RelaxedOrdering<LocalWrite>, _>(memory).unwrap().split();
    let region = link.domain.register::<RelaxedOrdering<RemoteReadWrite>, _>(vec![0_u64; 8]).unwrap();
    for round in 0..rounds {
        link.right.post_receive(target).unwrap();
        let mut message = link.domain.buffer(len).unwrap();
        message.fill(round);
        link.left.post_send(message).unwrap();
        let mut received = None;
        for _ in 0..2 {
            received = next(&mut link.poller).into_received().ok().or(received);
        }
        target = received.unwrap();
        assert!(target.iter().all(|&byte| byte == round), "all of it is there at the completion");
        // The completion with the immediate shows that the write is done.
        link.right.post_receive(link.domain.buffer(0x40).unwrap()).unwrap();
        let mut bytes = link.domain.buffer(64).unwrap();
        bytes.fill(round);
        link.left.post_write_with_immediate(bytes, &region.remote(), u32::from(round)).unwrap();
        for _ in 0..2 {
            if let Work::WrittenWithImmediate(written) = next(&mut link.poller).into_work() {
                assert_eq!((written.immediate, region.to_vec(0..64).unwrap()), (u32::from(round), vec![round; 64]));
            }
        }
    }
    assert_eq!(rest.rejoin(target).unwrap().deregister().unwrap().len(), len);
    assert_eq!(region.deregister().unwrap(), [u64::from_ne_bytes([rounds - 1; 8]); 8]);
}

/// C076: on-demand paging is refused with its own error where the device has none.
#[test]
fn memory_is_paged_on_demand_or_the_device_says_that_it_does_not() {
    interlock::domain! { struct Test; }
    let context = context();
    let domain = context.clone().named_domain(Test).unwrap();
    let registered = domain.register::<OnDemand<RelaxedOrdering<RemoteRead>>, _>(Pages::new(4096).unwrap());
    if context.on_demand().unwrap().is_there() {
        assert_eq!(registered.unwrap().len(), 4096);
    } else {
        let error = registered.unwrap_err();
        assert!(matches!(error.source, RegisterFailure::Unsupported { .. }), "{}", error.source);
        assert_eq!(
            error.source.to_string(),
            "the device does not support on-demand paging: register memory without it"
        );
        assert_eq!(error.memory.len(), 4096);
    }
}

#[test]
fn peers_name_zero_based_memory_by_offsets() {
    if lacks_need(Need::Atomics) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let region = link.domain.register::<ZeroBased<RemoteAll>, _>(Pages::new(8192).unwrap()).unwrap();
    let grant = region.remote();
    assert_eq!((grant.address(), grant.len()), (0, 8192));
    let mut bytes = link.domain.buffer(8).unwrap();
    bytes.fill(6);
    link.left.post_write(bytes, &grant.slice(8184..8192).unwrap()).unwrap();
    next(&mut link.poller);
    assert_eq!(region.word(8184).unwrap().load(), 0x0606_0606_0606_0606);
    link.left.post_fetch_and_add(link.domain.buffer(8).unwrap(), &grant.slice(0..8).unwrap(), 5).unwrap();
    next(&mut link.poller);
    assert_eq!(region.word(0).unwrap().load(), 5);
    // Memory that does not start on a page boundary is refused, and comes back.
    let mut words = vec![0_u64; 1024];
    if (words.as_ptr() as usize).is_multiple_of(4096) {
        words = vec![0; 1023];
    }
    if !(words.as_ptr() as usize).is_multiple_of(4096) {
        let error = link.domain.register::<ZeroBased<RemoteRead>, _>(words).unwrap_err();
        assert!(matches!(error.source, RegisterFailure::NotInPages { .. }), "{}", error.source);
        assert!(error.memory.len() >= 1023);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no shared maps")]
fn a_shared_map_may_be_zero_based() {
    if lacks_need(Need::ZeroBased) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let map = SharedMap::new("interlock-test", 4096).unwrap();
    let region = link.domain.register_opaque::<ZeroBased<RemoteRead>, _>(map).unwrap();
    region.store(4088, 8).unwrap();
    assert_eq!(region.remote().address(), 0);
    link.left.post_read(link.domain.buffer(8).unwrap(), &region.remote().slice(4088..4096).unwrap()).unwrap();
    assert_eq!(next(&mut link.poller).into_buffer().unwrap()[..], 8_u64.to_ne_bytes());
}

// ---- The limit of locked memory ----------------------------------------------------------------------

#[test]
fn too_much_locked_memory_is_told_with_what_there_is() {
    let (fabric, domain) = own_device!();
    fabric.inject(Fault::LockedMemoryLimit { bytes: 4096 });
    let error = domain.register::<LocalWrite, _>(vec![7_u8; 8192]).unwrap_err();
    assert_eq!(error.memory, [7; 8192]);
    match (error.source, locked_memory_limit()) {
        (RegisterFailure::LockedMemoryLimit(refused), Some(limit)) => {
            assert_eq!((refused.needed_bytes, refused.limit_bytes), (8192, limit));
            assert_eq!(refused.source.errno(), libc::ENOMEM);
            assert!(refused.to_string().contains("RLIMIT_MEMLOCK"), "{refused}");
        }
        // No limit is set, so the error must not blame one.
        (RegisterFailure::Verb(error), None) => assert_eq!(error.errno(), libc::ENOMEM),
        (other, limit) => panic!("{other:?} with the limit {limit:?}"),
    }
    assert_eq!(domain.buffer(4096).unwrap().len(), 4096, "what fits is still registered");
}

/// Runs on a real device, with a limit that this process sets.
#[test]
#[cfg_attr(miri, ignore = "Miri knows no limits")]
fn the_kernels_limit_of_locked_memory_is_recognized() {
    if !on_hardware() {
        println!("not covered here: the soft device pins nothing");
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    // The limit is set for the whole process, but the kernel ignores it for threads with `CAP_IPC_LOCK`. The worker
    // drops its capabilities, so the limit applies to the worker.
    let worker = std::thread::spawn(move || {
        let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `old` is valid for writes.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut old) }, 0);
        let low = libc::rlimit { rlim_cur: 1 << 20, ..old };
        // SAFETY: `low` is valid for reads.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &low) }, 0);
        drop_capabilities();
        let before = pinned_memory().unwrap();
        let first = domain.register::<LocalRead, _>(Pages::new(1 << 19).unwrap());
        let refused = domain.register::<LocalRead, _>(Pages::new(1 << 20).unwrap());
        // SAFETY: `old` is valid for reads.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &old) }, 0);
        (before, first.is_ok(), refused.unwrap_err().source)
    });
    let (before, fits, error) = worker.join().unwrap();
    let RegisterFailure::LockedMemoryLimit(error) = error else { panic!("{error:?}") };
    println!("{error}");
    assert_eq!((error.needed_bytes, error.limit_bytes, error.would_fit()), (1 << 20, 1 << 20, Some(false)));
    assert!(!fits || error.pinned_bytes.unwrap() >= 1 << 19, "{before} {error:?}");
}

/// Drops all effective capabilities of this thread.
fn drop_capabilities() {
    #[repr(C)]
    struct Header(u32, i32);
    /// `_LINUX_CAPABILITY_VERSION_3`, for the calling thread.
    const THIS: Header = Header(0x2008_0522, 0);
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: the kernel reads one header (`THIS`) and writes two sets. `sets` has room for two.
    let got = unsafe { libc::syscall(libc::SYS_capget, &THIS, sets.as_mut_ptr()) };
    assert_eq!(got, 0);
    for [effective, ..] in &mut sets {
        *effective = 0;
    }
    // SAFETY: the kernel reads one header (`THIS`) and two sets. `sets` has two.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, &THIS, sets.as_ptr()) }, 0);
}

// ---- Static memory -----------------------------------------------------------------------------------

static ANNOUNCEMENT: [u64; 128] = {
    let mut words = [0; 128];
    let mut at = 0;
    while at < 128 {
        words[at] = at as u64 * 0x0101;
        at += 1;
    }
    words
};

/// C074: memory that may only be read can be registered with the right to be read.
#[test]
fn one_static_message_is_in_flight_to_many_pairs_at_once() {
    interlock::domain! { struct Test; }
    let pairs = if cfg!(miri) { 3 } else { 32 };
    let times = 2;
    let domain = context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let limits = Limits { sends: times, receives: times, ..Limits::default() };
    let (queue, mut poller) = domain.completion_queue(2 * pairs * limits.completions()).unwrap();
    let message = domain.register_static(&ANNOUNCEMENT).unwrap();
    assert_eq!(message.len(), 1024);
    let mut links = Vec::new();
    for _ in 0..pairs {
        let left = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        let mut right = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        for _ in 0..times {
            right.post_receive(domain.buffer(1024).unwrap()).unwrap();
        }
        links.push(connect_to_each_other(&domain, left, right, &Default::default()));
    }
    for _ in 0..times {
        for (left, _) in &mut links {
            left.post_send(message.clone()).unwrap();
        }
    }
    // The program reads the message while it is in flight.
    assert_eq!(message[..8], ANNOUNCEMENT[0].to_ne_bytes());
    let (mut sent, mut received) = (0, 0);
    while sent < pairs * times || received < pairs * times {
        match next(&mut poller).into_work() {
            Work::Received(arrived) => {
                assert_eq!(arrived.buffer.view_slice::<u64>().unwrap(), ANNOUNCEMENT);
                received += 1;
            }
            _ => sent += 1,
        }
    }
    let message = message.into_unique().unwrap_err().share;
    assert_eq!(message[..], *zerocopy::IntoBytes::as_bytes(&ANNOUNCEMENT[..]), "static memory is never written");
}

#[test]
fn static_memory_is_registered_as_often_as_one_likes() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let one = domain.register_static(b"in the text of the program").unwrap();
    let two = domain.register_static(&b"in the text of the program"[..2]).unwrap();
    assert_eq!((&one[..2], &two[..]), (&b"in"[..], &b"in"[..]));
    assert!(matches!(domain.register_static::<u8>(&[]), Err(RegisterFailure::Empty)));
    drop(one);
    assert_eq!(&two[..], b"in");
}

// ---- Words of memory that peers change ---------------------------------------------------------------

#[test]
fn a_word_is_checked_once_and_shared_by_threads() {
    if lacks_need(Need::Atomics) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let region = link.domain.register::<RemoteAll, _>(vec![0_u64; 4]).unwrap();
    let word = region.word(16).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || (0..100).for_each(|_| _ = word.fetch_add(1)));
        }
    });
    assert_eq!((word.load(), word.load_acquire()), (200, 200));
    assert_eq!((word.compare_exchange(1, 2), word.compare_exchange(200, 7), word.swap(9)), (Err(200), Ok(200), 7));
    word.store_release(10);
    link.left.post_fetch_and_add(link.domain.buffer(8).unwrap(), &region.remote().slice(16..24).unwrap(), 5).unwrap();
    next(&mut link.poller);
    assert_eq!((word.load(), format!("{word:?}")), (15, "Word(15)".to_owned()));
    word.store(u64::from_ne_bytes(*b"abcdefgh"));
    assert_eq!((region.load_byte(16).unwrap(), region.load_byte(23).unwrap()), (b'a', b'h'));
    assert_eq!(region.to_vec(15..25).unwrap(), b"\0abcdefgh\0");
    assert_eq!(region.to_vec(3..3).unwrap(), b"");
}

/// C079: an access outside the region is an error and not a panic, whatever the numbers.
#[test]
fn words_and_bytes_that_are_not_inside_are_refused() {
    let (_fabric, domain) = own_device!();
    let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 4]).unwrap();
    for offset in [1, 7, 12, 25, 32, 33, usize::MAX, usize::MAX - 7] {
        assert!(region.word(offset).is_err(), "{offset}");
    }
    for offset in [32, 33, usize::MAX] {
        assert!(region.load_byte(offset).is_err(), "{offset}");
    }
    #[allow(clippy::reversed_empty_ranges, reason = "that is the case")]
    for range in [0..33, 32..33, 0..usize::MAX, usize::MAX - 1..usize::MAX, 40..3] {
        assert!(region.to_vec(range.clone()).is_err(), "{range:?}");
    }
    assert_eq!(region.word(40).unwrap_err().to_string(), "8 bytes at offset 40 do not fit inside 32 bytes");
}

/// C106: the key of memory of any kind is useless once the memory is deregistered.
#[test]
#[cfg_attr(miri, ignore = "Miri knows no shared maps")]
fn a_deregistered_map_is_beyond_the_peers_reach() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let map = SharedMap::new("interlock-test", 4096).unwrap();
    let file = other_side(&map);
    let region = link.domain.register_opaque::<RemoteReadWrite, _>(map).unwrap();
    let stale = region.remote().slice(0..8).unwrap();
    drop(region);
    let mut bytes = link.domain.buffer(8).unwrap();
    bytes.fill(1);
    link.left.post_write(bytes, &stale).unwrap();
    assert_eq!(link.poller.wait(PATIENCE).unwrap().check().unwrap_err().status, Status::RemoteAccess);
    let mut seen = [9; 8];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(seen, [0; 8]);
}

#[test]
fn a_peer_without_this_library_grants_by_numbers() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 2]).unwrap();
    let remote = region.remote();
    let said = RemoteRegion::<RemoteWrite>::of_peer(remote.address(), remote.len(), remote.rkey().value()).unwrap();
    assert_eq!(said.to_bytes(), remote.to_bytes());
    let mut buffer = link.domain.buffer(16).unwrap();
    buffer.write(&[7; 16]).unwrap();
    link.left.post_write(buffer, &said).unwrap();
    link.poller.wait(PATIENCE).unwrap().check().unwrap();
    for (address, len_bytes) in [(8, 0), (8, u64::MAX), (u64::MAX, 1)] {
        RemoteRegion::<RemoteWrite>::of_peer(address, len_bytes, 1).unwrap_err();
    }
    #[allow(clippy::reversed_empty_ranges, reason = "what is refused")]
    let reversed = 5..1;
    region.to_vec(reversed).unwrap_err();
    assert_eq!(region.deregister().unwrap(), [u64::from_ne_bytes([7; 8]); 2]);
}
