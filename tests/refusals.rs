//! Requests that the library refuses before a device sees them, and gives back. A device would accept such a request,
//! hang on it, or report a wrong cause.

use interlock::attributes::{
    ConnectAttributes, InitAttributes, PeerPath, RtrAttributes, RtsAttributes, SqdAttributes, UnreliableRtrAttributes,
};
use interlock::error::{AddressError, CreateError, NoRoom, NotUniqueReason, RequestFlaw, TransitionFailure};
use interlock::number::{Mtu, Psn, Qpn, ReadDepth};
use interlock::{Buffer, Context, Endpoint, Limits, PostError, QueuePair, RemoteAll, RemoteReadWrite, Work};
use std::error::Error;
use support::{Link, Need, PATIENCE, Queues, connect_to_each_other, context, lacks_need, next};

type Anything = Box<dyn Error + Send + Sync>;

#[test]
fn a_queue_without_room_says_what_the_whole_pair_needs() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let no_room = |entries, limits: &Limits| {
        let (queue, _poller) = domain.queue(entries).unwrap();
        let Err(CreateError::NoRoom(no_room)) = domain.reliable(&queue, limits) else { panic!("there is no room") };
        assert_eq!(queue.room(), entries, "nothing stays leased");
        no_room
    };
    // There is room for the sends, but not for the receives.
    assert_eq!(no_room(4, &Limits::default()), NoRoom { needed: 8, free: 4 });
    // Here there is not even room for the sends.
    assert_eq!(no_room(2, &Limits::default()), NoRoom { needed: 8, free: 2 });
    assert!(no_room(4, &Limits::default()).to_string().contains("room for 4 more completions, but 8 are needed"));

    // Sends and receives complete on two queues. The error reports the room of the queue that is too small.
    let ((sends, _s), (receives, _r)) = (domain.queue(4).unwrap(), domain.queue(2).unwrap());
    match domain.reliable_on(&sends, &receives, &Limits::default()) {
        Err(CreateError::NoRoom(of_receives)) => assert_eq!(of_receives, NoRoom { needed: 4, free: 2 }),
        Err(CreateError::TwoQueues { .. }) => assert!(!context().promises().pairs_may_have_two_queues()),
        other => panic!("there is no room: {other:?}"),
    }
    assert_eq!((sends.room(), receives.room()), (4, 2), "nothing stays leased");

    if !context().promises().shared_receive_queues() {
        return;
    }
    // The first pair on a shared receive queue leases room for all receives of that queue.
    let (queue, _poller) = domain.queue(6).unwrap();
    let limits = interlock::shared::SharedLimits { receives: 4, ..Default::default() };
    let all = limits.completions();
    let shared = domain.shared_receive_queue(&limits).unwrap();
    let Err(CreateError::NoRoom(of_both)) = shared.reliable(&queue, &Limits::default()) else {
        panic!("there is no room")
    };
    assert_eq!(of_both, NoRoom { needed: 4 + all, free: 6 });
}

#[test]
fn a_pair_without_a_read_depth_takes_no_read() {
    if lacks_need(Need::Atomics) {
        return;
    }
    interlock::domain! { struct Test; }
    let none = ConnectAttributes { read_depth: ReadDepth::new(0).unwrap(), ..ConnectAttributes::default() };
    let mut link = Link::with(context().named_domain(Test).unwrap(), 4, &none);
    let region = link.domain.register::<RemoteAll, _>(vec![7_u64; 2]).unwrap();
    let remote = region.remote();
    let flawed = |error: PostError<Buffer<Test>>| match error {
        PostError::Flawed { request, flaw: RequestFlaw::NoReadDepth } => request,
        other => panic!("{other:?}"),
    };
    let buffer = link.domain.buffer(16).unwrap();
    let buffer = flawed(link.left.post_read(buffer, &remote).unwrap_err());
    let buffer = flawed(link.left.post_fetch_and_add(buffer, &remote.word(0).unwrap(), 1).unwrap_err());
    let buffer = flawed(link.left.post_compare_and_swap(buffer, &remote.word(0).unwrap(), 1, 2).unwrap_err());
    let buffer = link
        .left
        .batch(|batch| match batch.post(interlock::WorkRequest::read(buffer, &remote)) {
            Err(PostError::Flawed { request, flaw: RequestFlaw::NoReadDepth }) => request.into_memory(),
            other => panic!("{other:?}"),
        })
        .unwrap();
    // The pair still works: requests other than reads and atomics are posted.
    link.right.post_receive(link.domain.buffer(16).unwrap()).unwrap();
    link.left.post_send(buffer).unwrap();
    link.left.post_write(link.domain.buffer(8).unwrap(), &remote).unwrap();
    for _ in 0..3 {
        next(&mut link.poller);
    }

    // The number of outstanding reads can be changed in Send Queue Drain.
    let drained = |pair: QueuePair<Test>, depth| {
        let mut pair = pair.into_sqd().unwrap();
        assert!(pair.drained(PATIENCE).unwrap());
        let initiator_depth = Some(ReadDepth::new(depth).unwrap());
        pair.modify(&SqdAttributes { initiator_depth, ..SqdAttributes::default() }).unwrap();
        pair.resume().unwrap()
    };
    let responder = |pair: QueuePair<Test>| {
        let mut pair = pair.into_sqd().unwrap();
        assert!(pair.drained(PATIENCE).unwrap());
        let responder_depth = Some(ReadDepth::new(4).unwrap());
        pair.modify(&SqdAttributes { responder_depth, ..SqdAttributes::default() }).unwrap();
        pair.resume().unwrap()
    };
    let (mut left, _right) = (drained(link.left, 4), responder(link.right));
    left.post_read(link.domain.buffer(16).unwrap(), &remote).unwrap();
    assert!(matches!(next(&mut link.poller).into_work(), Work::Read(_)));
    let mut left = drained(left, 0);
    flawed(left.post_read(link.domain.buffer(16).unwrap(), &remote).unwrap_err());
}

#[test]
fn a_read_depth_goes_with_each_life_of_a_pair() {
    if lacks_need(Need::Reset) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![7_u64; 2]).unwrap();
    let up = |pair: QueuePair<Test, interlock::Init>, peer: &Endpoint, depth| {
        let read_depth = ReadDepth::new(depth).unwrap();
        pair.connect_with(peer, &ConnectAttributes { read_depth, ..ConnectAttributes::default() }).unwrap()
    };
    for depth in [0, 3, 0] {
        let left = link.left.into_reset().unwrap().into_init(&link.port).unwrap();
        let right = link.right.into_reset().unwrap().into_init(&link.port).unwrap();
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        (link.left, link.right) = (up(left, &to_right, depth), up(right, &to_left, depth));
        let read = link.left.post_read(link.domain.buffer(16).unwrap(), &region.remote());
        assert_eq!(read.is_ok(), depth != 0);
        if read.is_ok() {
            assert!(matches!(next(&mut link.poller).into_work(), Work::Read(_)));
        }
    }
}

#[test]
fn a_partition_key_beyond_the_table_is_refused() {
    if lacks_need(Need::Drain) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let (queue, _poller) = domain.queue(64).unwrap();
    let rows = port.pkey_rows();
    assert!(rows > 0);
    for asked in [rows, u16::MAX] {
        let pair = domain.reliable(&queue, &Limits::default()).unwrap();
        let error = pair.into_init(InitAttributes { pkey_index: asked, ..InitAttributes::from(&port) }).unwrap_err();
        assert!(matches!(error.source, TransitionFailure::PkeyIndex { asked: a, rows: r } if (a, r) == (asked, rows)));
        _ = error.queue_pair.into_init(&port).expect("it is as it was");

        let pair = domain.datagram(&queue, &Limits::default()).unwrap();
        let attr = interlock::attributes::DatagramInitAttributes { pkey_index: asked, ..(&port).into() };
        assert!(matches!(pair.into_init(attr).unwrap_err().source, TransitionFailure::PkeyIndex { .. }));
    }
    let link = Link::new(context().named_domain(Elsewhere).unwrap(), 4);
    let mut pair = link.left.into_sqd().unwrap();
    assert!(pair.drained(PATIENCE).unwrap());
    let error = pair.modify(&SqdAttributes { pkey_index: Some(rows), ..SqdAttributes::default() }).unwrap_err();
    assert!(matches!(error, TransitionFailure::PkeyIndex { .. }));
}
interlock::domain! { struct Elsewhere; }

/// Paths that each have one number out of range, with the text of the error.
fn bad_paths(good: PeerPath) -> [(PeerPath, &'static str); 3] {
    [
        (PeerPath { flow_label: 1 << 20, ..good }, "the flow label must be 0 to 1048575, not 1048576"),
        (PeerPath { hop_limit: 0, ..good }, "the hop limit must be 1 to 255, not 0"),
        (PeerPath { service_level: 200, ..good }, "the service level must be 0 to 15, not 200"),
    ]
}

#[test]
fn a_path_with_a_number_out_of_range_is_refused() {
    if lacks_need(Need::Records) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let (queue, _poller) = domain.queue(64).unwrap();
    let good = PeerPath::to(port.gid().unwrap().gid);
    for (path, text) in bad_paths(good) {
        let Err(error @ AddressError::Path(_)) = domain.address_handle(&port, &path) else { panic!("{text}") };
        assert_eq!(error.to_string(), text);

        let (path_mtu, receive_psn) = (Mtu::Bytes256, Psn::new(1).unwrap());
        let pair = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
        let destination = pair.number();
        let (responder_depth, min_rnr_timer) =
            (ReadDepth::new(1).unwrap(), interlock::number::RnrTimer::new(1).unwrap());
        let attr = RtrAttributes { path, path_mtu, destination, receive_psn, responder_depth, min_rnr_timer };
        let error = pair.into_rtr(&attr).unwrap_err();
        assert!(matches!(error.source, TransitionFailure::Path(_)), "{error:?}");
        assert_eq!(error.to_string(), text);
        let attr = RtrAttributes { path: good, ..attr };
        _ = error.queue_pair.into_rtr(&attr).expect("it is as it was");

        let pair = domain.unreliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
        let attr = UnreliableRtrAttributes { path, path_mtu, destination, receive_psn };
        assert!(matches!(pair.into_rtr(&attr).unwrap_err().source, TransitionFailure::Path(_)));
    }
    // Numbers at the ends of the valid ranges are accepted.
    let path = PeerPath { flow_label: (1 << 20) - 1, hop_limit: 1, service_level: 15, ..good };
    domain.address_handle(&port, &path).unwrap();

    let link = Link::new(context().named_domain(Elsewhere2).unwrap(), 4);
    let mut pair = link.left.into_sqd().unwrap();
    assert!(pair.drained(PATIENCE).unwrap());
    for (path, _) in bad_paths(good) {
        assert!(matches!(pair.set_path(&path).unwrap_err(), TransitionFailure::Path(_)));
        let error = pair.modify(&SqdAttributes { path: Some(path), ..SqdAttributes::default() }).unwrap_err();
        assert!(matches!(error, TransitionFailure::Path(_)));
    }
}
interlock::domain! { struct Elsewhere2; }

#[test]
fn no_connection_goes_to_a_multicast_number() {
    if lacks_need(Need::Records) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let (queue, _poller) = domain.queue(64).unwrap();
    let gid = port.gid().map(|row| row.gid);
    let peer = Endpoint::new(Qpn::MULTICAST, Psn::random(), gid, port.lid(), port.active_mtu());
    let pair = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let error = pair.connect(&peer).unwrap_err();
    assert!(matches!(error.source, TransitionFailure::Multicast { number: Qpn::MULTICAST }), "{error:?}");
    assert!(error.to_string().starts_with("0xffffff stands for all members"), "{error}");
    assert!(matches!(error.queue_pair, interlock::AnyQueuePair::Init(_)), "it is as it was");
    let pair = domain.unreliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    assert!(matches!(pair.connect(&peer).unwrap_err().source, TransitionFailure::Multicast { .. }));
}

#[test]
fn what_was_no_message_comes_back() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    link.right.post_receive(link.domain.buffer(32).unwrap()).unwrap();
    let mut sent = link.domain.buffer(16).unwrap();
    sent.write(b"hello").unwrap();
    link.left.post_send(sent).unwrap();
    let (mut free, mut message) = (Vec::new(), None);
    for _ in 0..2 {
        match next(&mut link.poller).into_received() {
            Ok(buffer) => message = Some(buffer),
            Err(other) => free.extend(other.into_buffer()),
        }
    }
    assert_eq!(&message.unwrap()[..], b"hello");
    assert_eq!(free.iter().map(Buffer::capacity).collect::<Vec<_>>(), [16], "the send's buffer");

    // A completed send of a share is not a message either, and `into_memory` gives the share back.
    link.right.post_receive(link.domain.buffer(32).unwrap()).unwrap();
    link.left.post_send(free.pop().unwrap().share()).unwrap();
    let shares = (0..2).filter_map(|_| next(&mut link.poller).into_received().err());
    let shares: Vec<_> = shares.filter_map(|other| other.into_memory().into_shared()).collect();
    assert_eq!(shares.len(), 1);
}

#[test]
fn a_share_says_why_it_is_not_unique() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let share = domain.buffer(8).unwrap().share();
    let clone = share.clone();
    let error = share.into_unique().unwrap_err();
    assert_eq!(error.reason, NotUniqueReason::Clones);
    assert!(error.to_string().starts_with("the share has other clones"), "{error}");
    drop(clone);
    assert_eq!(error.share.into_unique().unwrap().capacity(), 8);
    let region = domain.register::<interlock::RemoteRead, _>(vec![1_u64]).unwrap().share();
    assert_eq!(region.into_unique().unwrap_err().into_cause(), NotUniqueReason::ReadOnly);
}

#[test]
fn types_of_no_bytes_are_no_views() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let mut buffer = domain.buffer(8).unwrap();
    assert!(buffer.view_slice::<()>().is_err());
    assert!(buffer.view_slice_mut::<[u32; 0]>().is_err());
    assert_eq!(buffer.view_slice::<u32>().unwrap().len(), 2);
    buffer.set_len(7).unwrap();
    assert!(buffer.view_slice::<u32>().is_err() && buffer.view_slice_mut::<u32>().is_err());
    buffer.set_len(0).unwrap();
    assert!(buffer.view_slice::<()>().is_err());
    assert_eq!(buffer.view_slice::<u32>().unwrap().len(), 0);
}

#[test]
fn a_buffer_goes_where_bytes_go() {
    fn len(bytes: impl AsRef<[u8]>) -> usize {
        bytes.as_ref().len()
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let mut buffer = domain.buffer(8).unwrap();
    AsMut::<[u8]>::as_mut(&mut buffer)[0] = 5;
    assert_eq!((len(&buffer), buffer[0]), (8, 5));
    assert_eq!(len(buffer.share()), 8);
}

/// Every error that holds an object of a scoped domain has the same method, which lets the error leave the closure.
#[test]
fn each_error_leaves_a_scoped_domain_without_its_object() {
    let context = context();
    let port = context.active_port().unwrap();
    // Each step causes one failure. The table `texts` below has the start of its error text.
    let failing = |step: usize| -> Result<(), Anything> {
        context.with_domain(|domain| {
            let (queue, mut poller) = domain.queue(64)?;
            let pair = || domain.reliable(&queue, &Limits::default());
            let connected = || -> Result<_, Anything> {
                let [left, right] = [pair()?.into_init(&port), pair()?.into_init(&port)];
                let left = left.map_err(|error| error.into_cause())?;
                let right = right.map_err(|error| error.into_cause())?;
                Ok(connect_to_each_other(&domain, left, right, &ConnectAttributes::default()))
            };
            let buffer = domain.buffer(8)?;
            match step {
                0 => {
                    let attr = InitAttributes { pkey_index: u16::MAX, ..InitAttributes::from(&port) };
                    _ = pair()?.into_init(attr).map_err(|error| error.into_cause())?;
                }
                1 => {
                    let mut pair = pair()?.into_init(&port).map_err(|error| error.into_cause())?;
                    for _ in 0..=Limits::default().receives {
                        pair.post_receive(domain.buffer(8)?).map_err(|error| error.into_cause())?;
                    }
                }
                2 => _ = domain.register::<RemoteReadWrite, _>(vec![0_u8; 7]).map_err(|error| error.into_cause())?,
                3 => _ = buffer.split_at(9).map_err(|error| error.into_cause())?,
                4 => _ = buffer.join(domain.buffer(8)?).map_err(|error| error.into_cause())?,
                5 => {
                    let (split, _) = domain.register::<interlock::LocalWrite, _>(vec![0_u8; 8])?.split();
                    _ = split.rejoin(buffer).map_err(|error| error.into_cause())?;
                }
                6 => {
                    let (mut pair, _peer) = connected()?;
                    pair.post_receive(buffer).map_err(|error| error.into_cause())?;
                    let pair = pair.into_error().map_err(|error| error.into_cause())?;
                    let failure = loop {
                        if let Some(completion) = poller.wait_for(PATIENCE)? {
                            break completion.check();
                        }
                    };
                    drop(pair);
                    failure.map_err(|failure| failure.into_cause())?;
                }
                7 => {
                    let share = buffer.share();
                    let _clone = share.clone();
                    share.into_unique().map_err(|error| error.into_cause())?;
                }
                8 => {
                    let (left, right) = connected()?;
                    let ((send, _), (_, receive)) = (left.split(), right.split());
                    _ = send.join(receive).map_err(|error| error.into_cause())?;
                }
                9 => {
                    let (pair, _peer) = connected()?;
                    interlock::scope::Exclusive::new(pair, poller).map_err(|error| error.into_cause())?;
                }
                10 => {
                    let shared = domain.shared_receive_queue(&interlock::shared::SharedLimits::default())?;
                    let _pair = shared.reliable(&queue, &Limits::default())?;
                    shared.destroy().map_err(|error| error.into_cause())?;
                }
                _ => return Ok(()),
            }
            Ok(())
        })?
    };
    let texts = [
        "the port's table of partition keys has",
        "the work queue is full",
        "memory that peers can access must be 8-byte aligned",
        "a buffer of 8 bytes cannot be split at 9",
        "the buffers are not adjacent in one region",
        "the buffer is not all of the region",
        "Receive on queue pair 0x",
        "the share has other clones",
        "the halves belong to different queue pairs",
        "the completion queue has",
        if context.promises().shared_receive_queues() {
            "ibv_destroy_srq failed"
        } else {
            "shared receive queues cannot be used"
        },
    ];
    for (step, text) in texts.into_iter().enumerate() {
        let error = failing(step).unwrap_err();
        assert!(error.to_string().starts_with(text), "{step}: {error}");
    }
    failing(texts.len()).unwrap();
}

/// The errors that the test above does not cause have `into_cause` too.
#[allow(dead_code, clippy::too_many_arguments, reason = "it need only compile")]
fn the_others<B: interlock::Brand>(
    destroy: interlock::error::DestroyError<QueuePair<B>>,
    batch: interlock::error::BatchError<B, Buffer<B>>,
    all: interlock::error::PostAllError<B, interlock::WorkRequest<Buffer<B>, interlock::request::Send>>,
    deregister: interlock::error::DeregisterError<Buffer<B>>,
    dealloc: interlock::error::DeallocError<interlock::window::Window<B>>,
    barrier: interlock::error::NoBarrier<Buffer<B>>,
    scope: interlock::scope::ScopeError<Buffer<B>>,
    wait: interlock::scope::WaitFailure<'_, B, Buffer<B>>,
) -> [Anything; 8] {
    [
        destroy.into_cause().into(),
        batch.into_cause().into(),
        all.into_cause().into(),
        deregister.into_cause().into(),
        dealloc.into_cause().into(),
        barrier.into_cause().into(),
        scope.into_cause().into(),
        wait.into_cause().into(),
    ]
}

/// A request that is too long does not know which limit it exceeds. The text leaves out limits that cannot be so high.
#[test]
fn the_text_of_a_request_that_is_too_long_names_the_limits_that_can_be_meant() {
    let limits = ["peer's memory", "buffer of the read", "`Limits::inline_bytes`", "MTU", "longest message"];
    for (within, meant) in [
        (0, &limits[..3]),
        (1000, &limits[..3]),
        (1024, &limits[..4]),
        (8192, &limits[..3]),
        (0x1_0000, &limits[..2]),
        (1 << 31, &limits[4..]),
    ] {
        let text = RequestFlaw::TooLong { len_bytes: within + 1, within }.to_string();
        let named: Vec<&str> = limits.into_iter().filter(|limit| text.contains(limit)).collect();
        assert_eq!(named, meant, "{text}");
    }
}

/// Several threads can read the objects that a poller returns.
#[test]
fn completions_are_shared_between_threads() {
    fn both<T: Send + Sync>() {}
    both::<interlock::Completion<interlock::Checked>>();
    both::<interlock::Success<interlock::Checked>>();
    both::<interlock::Failure<interlock::Checked>>();
    both::<interlock::completion::Armed<interlock::Checked>>();
    both::<interlock::Work<interlock::Checked>>();
    both::<Context>();
}

/// A function that is generic over reliable transports can connect a pair.
#[allow(dead_code, reason = "it need only compile")]
fn reliable_is_connected<B: interlock::Brand + 'static, T: interlock::transport::Reliable>(
    pair: QueuePair<B, interlock::Init, T>,
    peer: &Endpoint,
) -> Option<QueuePair<B, interlock::ReadyToSend, T>> {
    pair.connect(peer).ok()
}

#[test]
fn rts_attributes_set_the_read_depth() {
    if lacks_need(Need::Records) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let (queue, _poller) = domain.queue(64).unwrap();
    let region = domain.register::<RemoteReadWrite, _>(vec![7_u64; 2]).unwrap();
    let pair = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let (path, path_mtu) = (PeerPath::to(port.gid().unwrap().gid), Mtu::Bytes256);
    let (destination, receive_psn) = (pair.number(), pair.psn());
    let (responder_depth, min_rnr_timer) = (ReadDepth::new(1).unwrap(), interlock::number::RnrTimer::new(1).unwrap());
    let attr = RtrAttributes { path, path_mtu, destination, receive_psn, responder_depth, min_rnr_timer };
    let pair = pair.into_rtr(&attr).unwrap();
    let usual = ConnectAttributes::default();
    let mut pair = pair
        .into_rts(&RtsAttributes {
            send_psn: receive_psn,
            timeout: usual.timeout,
            retry_count: usual.retry_count,
            rnr_retry: usual.rnr_retry,
            initiator_depth: ReadDepth::new(0).unwrap(),
        })
        .unwrap();
    let read = pair.post_read(domain.buffer(16).unwrap(), &region.remote());
    assert!(matches!(read, Err(PostError::Flawed { flaw: RequestFlaw::NoReadDepth, .. })));
}

/// The addresses of the soft devices belong to the process that this test starts.
#[test]
fn the_addresses_of_soft_devices_are_those_of_the_process() {
    if lacks_need(Need::Records) {
        return;
    }
    const CHILD: &str = "INTERLOCK_TEST_CHILD";
    let port = Context::open("soft0").unwrap().active_port().unwrap();
    let ours: Vec<String> = port.gids().iter().map(|row| row.gid.to_string()).collect();
    if std::env::var_os(CHILD).is_some() {
        println!("addresses: {}", ours.join(" "));
        return;
    }
    let name = "the_addresses_of_soft_devices_are_those_of_the_process";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8(child.stdout).unwrap();
    let theirs = text.split("addresses: ").nth(1).expect("what the child says").lines().next().unwrap();
    let theirs: Vec<&str> = theirs.split(' ').collect();
    assert_eq!(theirs.len(), ours.len());
    assert!(!theirs.iter().any(|address| ours.iter().any(|own| own == address)), "{ours:?} and {theirs:?}");

    // A peer of another process never answers, even if a pair of this process has the same number. The `likely_causes`
    // of the status name this cause.
    interlock::domain! { struct Test; }
    let domain = Context::open("soft0").unwrap().named_domain(Test).unwrap();
    let (queue, mut poller) = domain.queue(64).unwrap();
    let pair = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let theirs = theirs.last().unwrap().parse().unwrap();
    let peer = Endpoint::new(pair.number(), pair.psn(), Some(theirs), 0, port.active_mtu());
    let quick = ConnectAttributes {
        timeout: interlock::number::AckTimeout::new(1).unwrap(),
        retry_count: interlock::number::RetryCount::new(0).unwrap(),
        ..ConnectAttributes::default()
    };
    let mut pair = pair.connect_with(&peer, &quick).unwrap();
    pair.post_send(domain.buffer(8).unwrap()).unwrap();
    let failure = poller.wait(PATIENCE).unwrap().check().unwrap_err();
    assert_eq!(failure.status, interlock::Status::RetryExceeded);
    assert!(
        failure.status.likely_causes().contains("a soft device of another process"),
        "{}",
        failure.status.likely_causes()
    );
}
