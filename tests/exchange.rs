//! Data goes from one pair to another, by every operation.

mod common;

use common::{Link, PATIENCE, context};
use interlock::Work;

#[test]
fn a_message_arrives_as_it_was_sent() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    link.right.post_receive(link.domain.buffer(64).unwrap()).unwrap();
    let mut greeting = link.domain.buffer(64).unwrap();
    greeting.write(b"hello").unwrap();
    link.left.post_send(greeting).unwrap();
    let mut seen = (false, false);
    while seen != (true, true) {
        match link.poller.wait(PATIENCE).unwrap().check().unwrap().work {
            Work::Sent(_) => seen.0 = true,
            Work::Received(received) => {
                assert_eq!(&received.buffer[..], b"hello");
                seen.1 = true;
            }
            other => panic!("{other:?}"),
        }
    }
}
