//! Attributes that change without a transition. The tests run on the soft device, or on the device that
//! `INTERLOCK_DEVICE` names.

use interlock::attributes::{InitAttributes, PeerPath, PeerRights, SqdAttributes};
use interlock::error::{AddressError, DrainFailure, TransitionFailure};
use interlock::number::{AckTimeout, Qkey, ReadDepth, RetryCount, RnrRetry, RnrTimer};
use interlock::soft::Fabric;
use interlock::state::DeviceState;
use interlock::{Brand, Completion, Context, Inline, Limits, Poller, RemoteWrite, Status, Work};
use std::time::Duration;
use support::{Link, Need, PATIENCE, connect_to_each_other, context, eventually, lacks_need, patient, ways};

const NO_WRITES: PeerRights = PeerRights { read: true, write: false, atomic: true };
/// How long a test waits for something that must not happen.
const A_WHILE: Duration = Duration::from_millis(200);

fn next<B: Brand>(poller: &mut Poller<B>) -> Completion<B> {
    poller.wait(PATIENCE).unwrap()
}

/// Whether `status` is one of the two statuses with which a device may refuse a write without the right.
fn is_refusal(status: Status) -> bool {
    matches!(status, Status::RemoteAccess | Status::RemoteInvalidRequest)
}

#[test]
fn a_connected_pair_says_what_it_was_connected_with() {
    if lacks_need(Need::Packets) {
        return;
    }
    interlock::domain! { struct Test; }
    let link = Link::new(context().named_domain(Test).unwrap(), 4);
    let (left, right) = (link.left.query().unwrap(), link.right.query().unwrap());
    assert_eq!((left.state, left.draining), (DeviceState::ReadyToSend, false));
    assert_eq!(left.peer_rights, PeerRights::ALL);
    assert_eq!(left.port, Some(link.port.number()));
    assert_eq!((left.destination, right.destination), (link.right.number(), link.left.number()));
    assert_eq!(left.path_mtu, Some(link.port.active_mtu()));
    assert_eq!((left.send_psn, right.receive_psn), (link.left.psn(), link.left.psn()));
    assert_eq!(left.timeout, patient().timeout);
    assert_eq!(left.retry_count, RetryCount::new(6).unwrap());
    assert_eq!(left.rnr_retry, RnrRetry::FOREVER);
    assert_eq!(left.min_rnr_timer, RnrTimer::new(12).unwrap());
    assert_eq!(left.initiator_depth, ReadDepth::new(16).unwrap());
    assert_eq!(left.responder_depth, ReadDepth::new(16).unwrap());
}

#[test]
fn rights_that_were_taken_away_are_gone_at_once() {
    if lacks_need(Need::PairRights) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 8]).unwrap();
    let target = region.remote();
    let write = |link: &mut Link<Test>, byte: u8| {
        let mut buffer = link.domain.buffer(64).unwrap();
        buffer.write(&[byte; 64]).unwrap();
        link.left.post_write(buffer, &target).unwrap();
        next(&mut link.poller).check()
    };
    write(&mut link, 1).unwrap();
    link.right.set_peer_rights(NO_WRITES).unwrap();
    assert_eq!(link.right.query().unwrap().peer_rights, NO_WRITES);
    let failure = write(&mut link, 2).unwrap_err();
    assert!(is_refusal(failure.status), "{failure}");
    assert_eq!(region.deregister().unwrap(), [u64::from_ne_bytes([1; 8]); 8], "nothing of the second write");
}

#[test]
fn rights_are_given_in_init_too() {
    if lacks_need(Need::PairRights) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let limits = Limits::default();
    let (queue, mut poller) = domain.completion_queue(2 * limits.completions()).unwrap();
    let none = InitAttributes { peer_rights: PeerRights::NONE, ..InitAttributes::from(&port) };
    let left = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    let mut right = domain.reliable(&queue, &limits).unwrap().into_init(none).unwrap();
    assert_eq!(right.query().unwrap().peer_rights, PeerRights::NONE);
    right.set_peer_rights(PeerRights::ALL).unwrap();
    let (mut left, right) = connect_to_each_other(&domain, left, right, &Default::default());
    assert_eq!(right.query().unwrap().peer_rights, PeerRights::ALL);
    let region = domain.register::<RemoteWrite, _>(vec![0_u64]).unwrap();
    let mut buffer = domain.buffer(8).unwrap();
    buffer.write(&7_u64.to_ne_bytes()).unwrap();
    left.post_write(buffer, &region.remote()).unwrap();
    next(&mut poller).check().unwrap();
    assert_eq!(region.deregister().unwrap(), [7]);
}

#[test]
fn an_unreliable_connection_takes_rights_away() {
    if lacks_need(Need::UnreliableTransports) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let limits = Limits::default();
    let (queue, mut poller) = domain.completion_queue(2 * limits.completions()).unwrap();
    let pair = || domain.unreliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    let (left, right) = (pair(), pair());
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (mut left, mut right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
    right.set_peer_rights(PeerRights::NONE).unwrap();
    let region = domain.register::<RemoteWrite, _>(vec![0_u64]).unwrap();
    let mut buffer = domain.buffer(8).unwrap();
    buffer.write(&7_u64.to_ne_bytes()).unwrap();
    left.post_write(buffer, &region.remote()).unwrap();
    next(&mut poller).check().expect("nobody tells the sender");
    std::thread::sleep(A_WHILE);
    assert_eq!(right.query_state().unwrap(), DeviceState::ReadyToSend);
    assert_eq!(region.deregister().unwrap(), [0]);
}

#[test]
fn the_time_that_a_peer_waits_changes_while_it_runs() {
    if lacks_need(Need::Packets) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let timer = RnrTimer::new(20).unwrap();
    link.right.set_min_rnr_timer(timer).unwrap();
    assert_eq!(link.right.query().unwrap().min_rnr_timer, timer);
    assert_eq!(link.right.query_state().unwrap(), DeviceState::ReadyToSend);
}

#[test]
fn a_drained_pair_changes_its_attributes_and_goes_on() {
    if lacks_need(Need::Drain) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let mut left = link.left.into_sqd().unwrap();
    assert!(left.drained(PATIENCE).unwrap());
    let attr = SqdAttributes {
        path: Some(PeerPath { hop_limit: 1, ..PeerPath::to(link.port.gid().unwrap().gid) }),
        timeout: Some(AckTimeout::new(16).unwrap()),
        retry_count: Some(RetryCount::new(3).unwrap()),
        rnr_retry: Some(RnrRetry::new(2).unwrap()),
        min_rnr_timer: Some(RnrTimer::new(5).unwrap()),
        initiator_depth: Some(ReadDepth::new(4).unwrap()),
        responder_depth: Some(ReadDepth::new(8).unwrap()),
        pkey_index: Some(0),
    };
    left.modify(&attr).unwrap();
    // Soft-RoCE drains the queue again after each change, so wait for that.
    assert!(left.drained(PATIENCE).unwrap());
    let now = left.query().unwrap();
    assert_eq!(now.state, DeviceState::SendQueueDrain);
    let SqdAttributes { timeout, retry_count, rnr_retry, min_rnr_timer, initiator_depth, responder_depth, .. } = attr;
    assert_eq!((Some(now.timeout), Some(now.retry_count)), (timeout, retry_count));
    assert_eq!((Some(now.rnr_retry), Some(now.min_rnr_timer)), (rnr_retry, min_rnr_timer));
    assert_eq!((Some(now.initiator_depth), Some(now.responder_depth)), (initiator_depth, responder_depth));
    // An attribute that is `None` does not change.
    left.modify(&SqdAttributes { timeout: Some(AckTimeout::new(14).unwrap()), ..SqdAttributes::default() }).unwrap();
    assert!(left.drained(PATIENCE).unwrap());
    assert_eq!(Some(left.query().unwrap().retry_count), attr.retry_count);
    left.set_path(&PeerPath::to(link.port.gid().unwrap().gid)).unwrap();
    assert!(left.drained(PATIENCE).unwrap());

    let mut left = left.resume().unwrap();
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    let mut buffer = link.domain.buffer(8).unwrap();
    buffer.write(b"on").unwrap();
    left.post_send(buffer).unwrap();
    let texts = [next(&mut link.poller), next(&mut link.poller)].map(|completion| {
        match completion.check().unwrap().into_work() {
            Work::Received(message) => Some(message.buffer.to_vec()),
            _ => None,
        }
    });
    assert!(texts.contains(&Some(b"on".to_vec())), "{texts:?}");
}

#[test]
fn a_path_that_leads_nowhere_is_refused_and_nothing_changes() {
    if lacks_need(Need::Drain) {
        return;
    }
    interlock::domain! { struct Test; }
    let link = Link::new(context().named_domain(Test).unwrap(), 4);
    let mut left = link.left.into_sqd().unwrap();
    assert!(left.drained(PATIENCE).unwrap());
    let before = left.query().unwrap();
    let nowhere = PeerPath { gid: None, ..PeerPath::to(link.port.gid().unwrap().gid) };
    assert!(matches!(left.set_path(&nowhere), Err(TransitionFailure::NoPeerGid)));
    let attr =
        SqdAttributes { path: Some(nowhere), retry_count: Some(RetryCount::new(1).unwrap()), ..Default::default() };
    assert!(matches!(left.modify(&attr), Err(TransitionFailure::NoPeerGid)));
    assert_eq!(left.query().unwrap(), before);
}

/// The fabric is not stepped, so the pair is still draining.
#[test]
fn a_pair_that_still_drains_changes_nothing() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::manual();
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let mut link = Link::new(context.named_domain(Test).unwrap(), 4);
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    link.left.post_send(link.domain.buffer(8).unwrap()).unwrap();
    assert!(fabric.step(), "begun");
    let mut left = link.left.into_sqd().unwrap();
    assert!(left.query().unwrap().draining);
    let path = PeerPath::to(link.port.gid().unwrap().gid);
    assert!(matches!(left.set_path(&path), Err(TransitionFailure::Draining)));
    while fabric.step() {}
    left.set_path(&path).unwrap();
}

#[test]
fn datagrams_need_the_key_of_now() {
    if lacks_need(Need::UnreliableTransports) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let limits = Limits { inline_bytes: 8, ..Limits::default() };
    let (queue, mut poller) = domain.completion_queue(2 * limits.completions()).unwrap();
    let pair = || domain.datagram(&queue, &limits).unwrap().into_init(&port).unwrap().open().unwrap();
    let (mut left, mut right) = (pair(), pair());
    right.post_receive(domain.buffer(64).unwrap()).unwrap();
    let now = Qkey(0x0abc_def0);
    right.set_qkey(now).unwrap();
    assert_eq!(right.query().unwrap().qkey, now);
    for (qkey, byte) in [(Qkey::USUAL, b"1"), (now, b"2")] {
        let to = domain.recipient(&port, &right.endpoint(), qkey).unwrap();
        left.post_send_to(Inline(byte), &to).unwrap();
    }
    let mut texts = Vec::new();
    for _ in 0..3 {
        if let Work::Datagram(datagram) = next(&mut poller).check().unwrap().into_work() {
            texts.push(datagram.message().to_vec());
        }
    }
    assert_eq!(texts, [b"2"]);
}

/// A device that takes the change for a new transition to Send Queue Drain would report that the pair is draining
/// again.
#[test]
fn a_drained_pair_stays_so_however_often_it_changes() {
    if lacks_need(Need::Drain) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    for round in 0..20 {
        let mut left = link.left.into_sqd().unwrap();
        left.set_peer_rights(if round % 2 == 0 { NO_WRITES } else { PeerRights::ALL }).unwrap();
        assert!(left.drained(PATIENCE).unwrap());
        for timeout in [14, 15, 16] {
            left.modify(&SqdAttributes { timeout: Some(AckTimeout::new(timeout).unwrap()), ..Default::default() })
                .unwrap();
        }
        link.left = left.resume().unwrap();
    }
    assert_eq!(link.left.query().unwrap().peer_rights, PeerRights::ALL);
}

/// Requests that the device had not started before the drain are sent after the resume, without another post.
#[test]
fn what_waits_in_a_drained_queue_goes_on_when_it_resumes() {
    if lacks_need(Need::Drain) {
        return;
    }
    interlock::domain! { struct Test; }
    for posting in ways() {
        let limits = Limits { sends: 8, receives: 8, posting, ..Limits::default() };
        let mut link = Link::limited(
            context().named_domain(Test).unwrap(),
            &limits,
            &interlock::attributes::ConnectAttributes::default(),
        );
        for byte in 0..6 {
            let mut buffer = link.domain.buffer(1).unwrap();
            buffer.write(&[byte]).unwrap();
            link.left.post_send(buffer).unwrap();
        }
        let left = link.left.into_sqd().unwrap();
        for _ in 0..6 {
            link.right.post_receive(link.domain.buffer(1).unwrap()).unwrap();
        }
        assert!(left.drained(PATIENCE).unwrap());
        let left = left.resume().unwrap();
        let mut texts = Vec::new();
        for _ in 0..12 {
            if let Work::Received(message) = next(&mut link.poller).check().unwrap().into_work() {
                texts.push(message.buffer[0]);
            }
        }
        assert_eq!(texts, [0, 1, 2, 3, 4, 5]);
        assert_eq!((link.poller.unknown_completions(), left.first_failure()), (0, None));
    }
}

/// The fabric is not stepped, so the pair is still draining.
#[test]
fn a_pair_that_still_drains_does_not_resume() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::manual();
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let mut link = Link::new(context.named_domain(Test).unwrap(), 4);
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    link.left.post_send(link.domain.buffer(8).unwrap()).unwrap();
    assert!(fabric.step(), "begun");
    let error = link.left.into_sqd().unwrap().resume().unwrap_err();
    assert!(matches!(error.source, TransitionFailure::Draining), "{error}");
    while fabric.step() {}
    drop(error.queue_pair.resume().unwrap());
}

#[test]
fn more_reads_at_once_than_the_device_has_are_refused() {
    if lacks_need(Need::Drain) {
        return;
    }
    interlock::domain! { struct Test; }
    let link = Link::new(context().named_domain(Test).unwrap(), 4);
    let mut left = link.left.into_sqd().unwrap();
    assert!(left.drained(PATIENCE).unwrap());
    let attributes = link.domain.context().attributes().unwrap();
    let too_many = |most: u32| u8::try_from(most + 1).ok().map(|depth| ReadDepth::new(depth).unwrap());
    let (responder, initiator) =
        (too_many(attributes.max_responder_reads()), too_many(attributes.max_initiator_reads()));
    for attr in [
        SqdAttributes { responder_depth: responder, ..Default::default() },
        SqdAttributes { initiator_depth: initiator, ..Default::default() },
    ] {
        if attr != SqdAttributes::default() {
            let failure = left.modify(&attr).unwrap_err();
            assert!(matches!(failure, TransitionFailure::ReadDepth { .. }), "{failure}");
        }
    }
}

#[test]
fn a_port_of_another_device_is_refused() {
    interlock::domain! { struct Test; }
    let here = context().named_domain(Test).unwrap();
    let elsewhere = Context::open_on(&Fabric::new(), "elsewhere").unwrap().active_port().unwrap();
    let (queue, _poller) = here.completion_queue(64).unwrap();
    let error = here.reliable(&queue, &Limits::default()).unwrap().into_init(&elsewhere).unwrap_err();
    assert!(matches!(error.source, TransitionFailure::OtherDevice), "{error}");
    let port = here.context().active_port().unwrap();
    drop(error.queue_pair.into_init(&port).unwrap());
}

#[test]
fn a_recipient_on_another_device_is_refused() {
    if lacks_need(Need::UnreliableTransports) {
        return;
    }
    interlock::domain! { struct Test; }
    let here = context().named_domain(Test).unwrap();
    let elsewhere = Context::open_on(&Fabric::new(), "elsewhere").unwrap().active_port().unwrap();
    let (queue, _poller) = here.completion_queue(64).unwrap();
    let port = here.context().active_port().unwrap();
    let pair = here.datagram(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let error = here.recipient(&elsewhere, &pair.endpoint(), Qkey::USUAL).unwrap_err();
    assert!(matches!(error, AddressError::OtherDevice), "{error}");
    // The same device, opened again, counts as the same device.
    here.recipient(&context().active_port().unwrap(), &pair.endpoint(), Qkey::USUAL).unwrap();
}

#[test]
fn a_pair_is_not_drained_by_a_poller_that_has_nothing_of_it() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    let (_queue, mut stray) = link.domain.completion_queue(8).unwrap();
    let mut right = link.right.into_error().unwrap();
    let error = right.drain(&mut stray, PATIENCE, |_| panic!("nothing")).unwrap_err();
    assert!(matches!(error.source, Some(DrainFailure::OtherQueue)), "{error:?}");
    right.drain(&mut link.poller, PATIENCE, drop).unwrap();
}

#[test]
fn a_flush_that_the_program_asked_for_is_no_failure_of_its_own() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    for _ in 0..2 {
        link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    }
    let mut right = link.right.into_error().unwrap();
    let mut failures = Vec::new();
    right.drain(&mut link.poller, PATIENCE, |completion| failures.push(completion.check().unwrap_err())).unwrap();
    let first: Vec<_> = failures.iter().map(|failure| (failure.status, failure.first_failure)).collect();
    assert_eq!(first, [(Status::Flushed, None); 2]);
    assert_eq!(right.first_failure(), None);
}

#[test]
fn a_broken_pair_stays_broken_whatever_changes() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64]).unwrap();
    let target = region.remote();
    region.deregister().unwrap();
    let mut buffer = link.domain.buffer(8).unwrap();
    buffer.write(&[1; 8]).unwrap();
    link.left.post_write(buffer, &target).unwrap();
    next(&mut link.poller).check().unwrap_err();
    // A device may report the failure a moment before the two pairs are in Error.
    assert!(eventually(|| link.left.query().unwrap().state == DeviceState::Error));
    assert!(eventually(|| link.right.query().unwrap().state == DeviceState::Error));
    // The device is allowed to accept or to refuse these changes. In both cases the pair stays in Error.
    let _ = link.left.set_peer_rights(PeerRights::NONE);
    assert_eq!(link.left.query().unwrap().state, DeviceState::Error);
    let _ = link.right.set_min_rnr_timer(RnrTimer::new(1).unwrap());
    assert_eq!(link.right.query().unwrap().state, DeviceState::Error);
}
