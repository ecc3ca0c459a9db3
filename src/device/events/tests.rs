use super::*;
use crate::types::Qpn;

const PAIR: usize = 0x1000;
const QUEUE: usize = 0x2000;
const SHARED: usize = 0x3000;

fn about(code: u32, address: usize) -> RawEvent {
    RawEvent { kind: Kind(code), about: About::Object(address) }
}

fn table() -> (HashMap<usize, Object>, CompletionQueueId, SharedReceiveQueueId) {
    let (queue, shared) = (CompletionQueueId::fresh(), SharedReceiveQueueId::fresh());
    let objects = HashMap::from([
        (PAIR, Object::QueuePair(Qpn::new(17).unwrap())),
        (QUEUE, Object::CompletionQueue(queue)),
        (SHARED, Object::SharedReceiveQueue(shared)),
    ]);
    (objects, queue, shared)
}

#[test]
fn an_event_is_about_the_object_at_its_address() {
    let (objects, queue, shared) = table();
    let pair = |what| AsyncEvent::OfQueuePair(Qpn::new(17).unwrap(), what);
    let expected = [
        (0, QUEUE, AsyncEvent::CompletionQueueError(queue)),
        (1, PAIR, pair(QueuePairEvent::Fatal)),
        (2, PAIR, pair(QueuePairEvent::RequestError)),
        (3, PAIR, pair(QueuePairEvent::AccessError)),
        (4, PAIR, pair(QueuePairEvent::ConnectionEstablished)),
        (5, PAIR, pair(QueuePairEvent::SendQueueDrained)),
        (6, PAIR, pair(QueuePairEvent::PathMigrated)),
        (7, PAIR, pair(QueuePairEvent::PathMigrationFailed)),
        (14, SHARED, AsyncEvent::OfSharedReceiveQueue(shared, SharedReceiveQueueEvent::Failed)),
        (15, SHARED, AsyncEvent::OfSharedReceiveQueue(shared, SharedReceiveQueueEvent::LimitReached)),
        (16, PAIR, pair(QueuePairEvent::LastRequestReached)),
    ];
    for (code, address, event) in expected {
        assert_eq!(TakenEvent::read(&about(code, address), &objects), TakenEvent::Event(event));
        // At each of the other addresses there is no object, or an object of another kind. So the event is about
        // nobody.
        for other in [0, PAIR, QUEUE, SHARED, 0x4000].into_iter().filter(|&other| other != address) {
            assert_eq!(TakenEvent::read(&about(code, other), &objects), TakenEvent::OfNobody, "{code} at {other:#x}");
        }
    }
}

#[test]
fn an_event_of_a_port_says_which() {
    let kinds = [
        (9, PortEvent::Active),
        (10, PortEvent::Down),
        (11, PortEvent::LidChanged),
        (12, PortEvent::PartitionKeysChanged),
        (13, PortEvent::SubnetManagerChanged),
        (17, PortEvent::ReregisterRequested),
        (18, PortEvent::GidsChanged),
    ];
    for (code, what) in kinds {
        let read = |port_num| {
            let event = RawEvent { kind: Kind(code), about: About::Port(port_num) };
            TakenEvent::read(&event, &HashMap::new())
        };
        assert_eq!(read(2), TakenEvent::Event(AsyncEvent::OfPort(PortNumber::new(2).unwrap(), what)));
        for no_port in [0, -1, 255, 256 + 2] {
            assert_eq!(read(no_port), TakenEvent::Event(AsyncEvent::Unknown { code }));
        }
    }
}

#[test]
fn what_is_not_known_says_its_number() {
    for code in [19, 20, u32::MAX] {
        let event = RawEvent { kind: Kind(code), about: About::Device };
        assert_eq!(TakenEvent::read(&event, &HashMap::new()), TakenEvent::Event(AsyncEvent::Unknown { code }));
    }
}

#[test]
fn an_object_that_could_not_be_destroyed_is_known_again() {
    let objects = super::super::objects::Objects::default();
    let address = 0x1000;
    let object = Object::QueuePair(Qpn::new(3).unwrap());
    objects.note(address, object);
    let refused: Result<(), i32> = objects.end(address, || {
        assert!(objects.lock().is_empty(), "not in the table while it is destroyed");
        Err(16)
    });
    assert_eq!((refused, objects.lock().len()), (Err(16), 1));
    let gone: Result<(), i32> = objects.end(address, || Ok(()));
    assert_eq!((gone, objects.lock().len()), (Ok(()), 0));
}
