//! Limits, and the attributes that name a port.

use interlock::device::GidKind;
use interlock::error::CreateError;
use interlock::memory::BufferList;
use interlock::shared::SharedLimits;
use interlock::{Limits, PostError, RemoteWrite};
use std::net::IpAddr;

/// A queue takes as many requests as were asked for, even if the device has room for more.
#[test]
fn c168_as_many_requests_as_asked_and_no_more() {
    let domain = domain!();
    let port = domain.context().active_port().unwrap();
    let target = domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    for (sends, receives, elements) in [(1, 1, 1), (3, 5, 2), (16, 9, 4)] {
        let limits = Limits { sends, receives, elements, inline_bytes: 100, ..Limits::default() };
        let (queue, _poller) = domain.completion_queue(limits.completions()).unwrap();
        let pair = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        assert_eq!(pair.limits(), limits);
        let myself = pair.endpoint();
        let mut pair = pair.connect(&myself).unwrap();
        let list = || -> BufferList<_> { (0..elements).map(|_| domain.buffer(1).unwrap()).collect() };
        for _ in 0..receives {
            pair.post_receive(list()).unwrap();
        }
        assert!(matches!(pair.post_receive(list()), Err(PostError::QueueFull(_))));
        for _ in 0..sends {
            pair.post_write(list(), &target.remote()).unwrap();
        }
        assert!(matches!(pair.post_write(list(), &target.remote()), Err(PostError::QueueFull(_))));
    }
}

/// A request for one more than the device has is refused, for each kind of limit.
#[test]
fn c169_more_than_the_device_has_is_refused() {
    let domain = domain!();
    let device = domain.context().attributes().unwrap();
    let (queue, _poller) = domain.completion_queue(device.max_completion_entries()).unwrap();
    let too_many = [
        Limits { sends: device.max_queue_depth() + 1, ..Limits::default() },
        Limits { receives: device.max_queue_depth() + 1, ..Limits::default() },
        Limits { elements: device.max_elements() + 1, ..Limits::default() },
        Limits { inline_bytes: 1 << 20, ..Limits::default() },
    ];
    for limits in too_many {
        match domain.reliable(&queue, &limits) {
            Err(CreateError::Verb(error)) => assert_eq!(error.errno(), libc::EINVAL, "{limits:?}"),
            Err(CreateError::Depth { .. } | CreateError::NoRoom(_)) => (),
            other => panic!("{limits:?}: {other:?}"),
        }
    }
    assert!(domain.reliable(&queue, &Limits::default()).is_ok(), "nothing of it stayed");
    let most = device.max_shared_receive_depth();
    assert!(domain.shared_receive_queue(&SharedLimits { receives: most + 1, grows_to: 0 }).is_err());
}

/// A GID is found by its address and kind. If it is missing, the error lists the GIDs of the port.
#[test]
fn c172_a_gid_is_found_by_what_it_is() {
    let context = support::context();
    let port = context.active_port().unwrap();
    let chosen = port.gid().unwrap();
    let IpAddr::V4(address) = chosen.gid.address() else { panic!("{chosen}: the usual one is of IPv4") };
    assert_eq!(chosen.kind, GidKind::RoceV2);
    let wanted = IpAddr::V4(address);
    let found = port.clone().with_gid(|row| row.kind == GidKind::RoceV2 && row.gid.address() == wanted).unwrap();
    assert_eq!(found.gid().unwrap().gid, chosen.gid);
    let stranger = IpAddr::from([192, 0, 2, 1]);
    let error = port.clone().with_gid(|row| row.gid.address() == stranger).unwrap_err();
    assert_eq!(error.candidates.len(), port.gids().len());
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}
