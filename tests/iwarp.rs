//! Tests how a device of Linux soft iWARP appears, and what the library refuses on it. `./x test siw` runs it.

use interlock::access::ZeroBased;
use interlock::attributes::ConnectAttributes;
use interlock::completion::{CompletionQueueOptions, Polling};
use interlock::device::{GidKind, LinkLayer};
use interlock::error::{
    CompletionQueueError, CreateError, NotOnIwarp, RegisterFailure, RequestFlaw, TransitionFailure,
};
use interlock::memory::{BufferList, Pages};
use interlock::queue::Posting;
use interlock::shared::SharedLimits;
use interlock::state::DeviceState;
use interlock::{
    AnyQueuePair, Context, Limits, LocalWrite, PostError, RemoteAtomic, RemoteRead, RemoteReadWrite, RemoteRegion,
    RemoteWrite, Status, WorkRequest,
};
use support::{Link, PATIENCE, all, context, filled, is_linux_6_12, moved};

/// A domain of the device under test, which must be soft iWARP.
macro_rules! domain {
    () => {{
        interlock::domain! { struct Test; }
        let context = context();
        assert_eq!(context.promises().provider(), "siw");
        context.named_domain(Test).unwrap()
    }};
}

/// The state that `ibv_query_qp` reports for a pair in `state`. Linux 6.1 does not fill it in, so it is 0.
fn reported(state: DeviceState) -> DeviceState {
    if is_linux_6_12() { state } else { DeviceState::Reset }
}

#[test]
#[ignore = "needs soft iWARP: ./x test siw"]
fn the_device_is_there_and_its_provider_is_reviewed() {
    let names: Vec<_> = interlock::devices().unwrap().iter().map(|device| device.name().to_owned()).collect();
    for name in ["siw0", "siw1"] {
        assert!(names.contains(&name.to_owned()), "{names:?}");
        let context = Context::open(name).unwrap();
        assert!(context.promises().are_reviewed());
        let attributes = context.attributes().unwrap();
        assert!(!attributes.has_atomics());
        assert_eq!((attributes.max_windows(), attributes.max_address_handles()), (0, 0));
        let port = context.active_port().unwrap();
        assert_eq!(port.link_layer(), LinkLayer::Ethernet);
        assert!(context.partition_keys(port.number()).unwrap().is_empty());
    }
}

/// The only entry of the GID table begins with the MAC address.
#[test]
#[ignore = "needs soft iWARP: ./x test siw"]
fn the_only_gid_is_no_address() {
    let port = context().active_port().unwrap();
    let [row] = port.gids() else { panic!("{:?}", port.gids()) };
    // tests/rxe/devices gave the interface this name.
    let interface = format!("veth-{}", context().name());
    let mac = std::fs::read_to_string(format!("/sys/class/net/{interface}/address")).unwrap();
    let mac: Vec<u8> = mac.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    assert_eq!(row.gid.0[..6], mac);
    assert_eq!(row.kind, GidKind::Iwarp);
    // This needs a kernel that reports the interface of a GID entry. Linux 6.1 does not report it.
    assert_eq!(format!("{row}"), format!("{} (iWARP, index 0, {interface})", row.gid));
}

#[test]
#[ignore = "needs soft iWARP: ./x test siw"]
fn memory_is_registered_with_each_right() {
    let domain = domain!();
    let words = || vec![0_u64; 1024];
    drop(domain.register::<LocalWrite, _>(words()).unwrap());
    drop(domain.register::<RemoteRead, _>(words()).unwrap());
    drop(domain.register::<RemoteWrite, _>(words()).unwrap());
    drop(domain.register::<RemoteReadWrite, _>(words()).unwrap());
    // The library refuses this, because the device has no atomics. The device itself would register the memory.
    let error = domain.register::<RemoteAtomic, _>(words()).unwrap_err();
    assert!(matches!(error.source, RegisterFailure::NotOnIwarp(NotOnIwarp::Atomics)), "{error}");
    assert_eq!(error.memory.len(), 1024);
    assert_eq!(domain.buffer(4096).unwrap().capacity(), 4096);
}

#[test]
#[ignore = "needs soft iWARP: ./x test siw"]
fn completion_queues_are_of_any_size_and_not_extended() {
    let domain = domain!();
    for entries in [1, 16, 4096] {
        let (queue, mut poller) = domain.completion_queue(entries).unwrap();
        assert!(queue.room() >= entries);
        assert!(poller.poll().unwrap().is_none());
    }
    let channel = domain.completion_channel().unwrap();
    drop(channel.completion_queue(16).unwrap());
    let extended = CompletionQueueOptions { polling: Polling::Extended, ..CompletionQueueOptions::default() };
    let error = domain.completion_queue_with(16, &extended).unwrap_err();
    assert!(matches!(error, CompletionQueueError::NotExtended(_)), "{error:?}");
}

#[test]
#[ignore = "needs soft iWARP: ./x test siw"]
fn a_pair_is_made_takes_receives_and_gives_them_back() {
    let domain = domain!();
    let port = domain.context().active_port().unwrap();
    let (queue, mut poller) = domain.completion_queue(Limits::default().completions()).unwrap();
    let mut pair = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    assert_eq!(pair.query_state().unwrap(), reported(DeviceState::Init));
    for _ in 0..4 {
        pair.post_receive(domain.buffer(64).unwrap()).unwrap();
    }
    let pair = pair.into_error().unwrap();
    let mut given_back = 0;
    drop(pair);
    for completion in all(&mut poller) {
        let failure = completion.check().unwrap_err();
        assert!(matches!(failure.status, Status::Flushed | Status::Destroyed), "{failure}");
        assert_eq!(failure.into_buffer().unwrap().capacity(), 64);
        given_back += 1;
    }
    assert_eq!(given_back, 4);
}

#[test]
#[ignore = "needs soft iWARP: ./x test siw"]
fn a_shared_queue_takes_receives_and_cannot_be_queried() {
    let domain = domain!();
    let (queue, _poller) = domain.completion_queue(Limits::default().completions()).unwrap();
    let mut shared = domain.shared_receive_queue(&SharedLimits { receives: 8, grows_to: 0 }).unwrap();
    for _ in 0..8 {
        shared.post_receive(domain.buffer(64).unwrap()).unwrap();
    }
    assert!(matches!(shared.post_receive(domain.buffer(64).unwrap()), Err(PostError::QueueFull(_))));
    assert_eq!(shared.query().unwrap_err().errno(), libc::EOPNOTSUPP);
    drop(queue);
}

#[test]
#[ignore = "needs soft iWARP: ./x test siw"]
fn other_transports_are_refused() {
    let domain = domain!();
    let (queue, _poller) = domain.completion_queue(64).unwrap();
    let limits = Limits::default();
    for error in [domain.datagram(&queue, &limits).unwrap_err(), domain.unreliable(&queue, &limits).unwrap_err()] {
        assert!(matches!(error, CreateError::NotOnIwarp(NotOnIwarp::OtherTransports)), "{error:?}");
    }
}

#[test]
#[ignore = "needs soft iWARP: ./x test siw"]
fn windows_and_sessions_are_refused() {
    let domain = domain!();
    let (queue, _poller) = domain.completion_queue(64).unwrap();
    assert_eq!(domain.window().unwrap_err().errno(), libc::EOPNOTSUPP);
    let mut pair = domain.reliable(&queue, &Limits::default()).unwrap();
    assert_eq!(pair.window().unwrap_err().errno(), libc::EOPNOTSUPP);
    let sessions = Limits { posting: Posting::WorkRequestApi, ..Limits::default() };
    let error = domain.reliable(&queue, &sessions).unwrap_err();
    assert!(matches!(error, CreateError::NoWorkRequestApi(_)), "{error:?}");
}

#[test]
#[ignore = "needs soft iWARP: ./x test siw"]
fn a_pair_has_six_elements_and_eighty_inline_bytes() {
    let domain = domain!();
    let (queue, _poller) = domain.completion_queue(64).unwrap();
    let most = Limits { elements: 6, inline_bytes: 80, ..Limits::default() };
    assert_eq!(domain.reliable(&queue, &most).unwrap().limits(), most);
    for limits in [Limits { elements: 7, ..most }, Limits { inline_bytes: 81, ..most }] {
        let error = domain.reliable(&queue, &limits).unwrap_err();
        assert!(matches!(error, CreateError::Verb(error) if error.errno() == libc::EINVAL), "{error:?}");
    }
}

/// `ibv_modify_qp` to RTR would return 0 and do nothing, so the library does not call it.
#[test]
#[ignore = "needs soft iWARP: ./x test siw"]
fn a_connection_by_records_is_refused_and_the_pair_comes_back() {
    let domain = domain!();
    let port = domain.context().active_port().unwrap();
    let (queue, _poller) = domain.completion_queue(64).unwrap();
    let pair = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let peer = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let error = pair.connect(&peer.endpoint()).unwrap_err();
    assert!(matches!(error.source, TransitionFailure::NotOnIwarp(NotOnIwarp::Records)), "{error:?}");
    assert!(error.to_string().contains("cm::connect"), "{error}");
    let AnyQueuePair::Init(pair) = error.queue_pair else { panic!("{:?}", error.queue_pair) };
    assert_eq!(pair.query_state().unwrap(), reported(DeviceState::Init));
}

/// `ibv_modify_qp` to Reset would return 0 and do nothing, so the library does not call it.
#[test]
#[ignore = "needs soft iWARP: ./x test siw"]
fn a_reset_is_refused() {
    let domain = domain!();
    let port = domain.context().active_port().unwrap();
    let (queue, _poller) = domain.completion_queue(64).unwrap();
    let pair = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let error = pair.into_reset().unwrap_err();
    assert!(matches!(error.source, TransitionFailure::NotOnIwarp(NotOnIwarp::Reset)), "{error:?}");
    drop(error.queue_pair.into_error().unwrap());
}

/// The writer learns nothing: its write is complete once the bytes are on their way.
#[test]
#[ignore = "needs soft iWARP: ./x test siw"]
fn a_write_that_is_not_granted_changes_nothing_and_ends_the_connection() {
    let domain = domain!();
    let read_only = domain.register::<RemoteRead, _>(vec![5_u64; 4]).unwrap();
    let words = || domain.register::<RemoteWrite, _>(vec![5_u64; 4]).unwrap();
    for case in 0..3 {
        let mut link = Link::new(domain.clone(), 4);
        let region = words();
        let target = match case {
            // The target is memory that is no longer registered, a range that reaches past the end of the memory, or
            // memory that peers may only read.
            0 => words().remote(),
            1 => moved(&region.remote(), 8),
            _ => {
                let grant = read_only.remote();
                RemoteRegion::<RemoteWrite>::of_peer(grant.address(), 32, grant.rkey().value()).unwrap()
            }
        };
        let receive = link.right.post_receive(domain.buffer(8).unwrap()).unwrap();
        link.left.post_write(filled(&domain, 7, 32), &target).unwrap();
        loop {
            let completion = link.poller.wait(PATIENCE).unwrap();
            let is_receive = completion.id() == receive;
            let ended = completion.check();
            if is_receive {
                assert_eq!(ended.unwrap_err().status, Status::Flushed, "case {case}");
                break;
            }
        }
        assert_eq!(link.right.query_state().unwrap(), reported(DeviceState::Error));
        assert_eq!(region.deregister().unwrap(), [5; 4], "case {case}");
    }
    // A read of a peer could still be going on, so the memory stays in the region.
    assert!(!domain.context().promises().readable_memory_comes_back());
    let error = read_only.deregister().unwrap_err();
    assert_eq!(error.source.errno(), libc::EOPNOTSUPP);
    assert!((0..4).all(|word| error.region.load(8 * word).unwrap() == 5));
}

/// The device would fill only the first buffer, and report success.
#[test]
#[ignore = "needs soft iWARP: ./x test siw"]
fn a_read_into_several_buffers_is_refused() {
    let domain = domain!();
    let limits = Limits { elements: 2, ..Limits::default() };
    let mut link = Link::limited(domain.clone(), &limits, &ConnectAttributes::default());
    let region = domain.register::<RemoteRead, _>(vec![5_u64; 2]).unwrap();
    let list = || BufferList::new(domain.buffers(2, 8).unwrap());
    let error = link.left.post(WorkRequest::read_scattered(list(), &region.remote())).unwrap_err();
    let PostError::Flawed { flaw: RequestFlaw::OneBufferPerRead { elements: 2 }, .. } = error else {
        panic!("{error}")
    };
    let one = BufferList::new(domain.buffers(1, 16).unwrap());
    link.left.post(WorkRequest::read_scattered(one, &region.remote())).unwrap();
    link.poller.wait(PATIENCE).unwrap().check().unwrap();
}

/// The device would ignore the flag for zero-based memory, and peers could not reach the memory.
#[test]
#[ignore = "needs soft iWARP: ./x test siw"]
fn zero_based_memory_is_refused() {
    let error = domain!().register::<ZeroBased<RemoteWrite>, _>(Pages::new(4096).unwrap()).unwrap_err();
    assert!(matches!(error.source, RegisterFailure::Unsupported { .. }), "{error}");
    assert_eq!(error.memory.len(), 4096);
}
