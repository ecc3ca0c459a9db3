//! Lifetimes.

use crate::{message, next};
use support::{PATIENCE, eventually};

/// A child process that uses its parent's objects changes nothing for the parent. The results in the child are not
/// specified.
#[test]
fn c146_a_child_that_uses_a_pair_leaves_the_parent_alone() {
    let mut link = link!(4);
    let receive = link.right.post_receive(link.domain.buffer(16).unwrap()).unwrap();
    let sent = message(&link.domain, b"of the parent");
    // SAFETY: this process has other threads, and one of them can hold a lock at the fork. The child makes calls that
    // need such locks. If a call hangs, an alarm ends the child. Otherwise `_exit` ends the child, without unwinding
    // and without destructors.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: `alarm` touches no memory. It ends the child if a call hangs on a lock that another thread held at
        // the fork.
        unsafe { libc::alarm(2) };
        let _ = link.left.query_state();
        let _ = link.domain.context().attributes();
        // SAFETY: `_exit` only ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the child is our own, and `status` is valid for writes.
    let ended = || unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child;
    assert!(eventually(ended), "the child ends");
    link.left.post_send(sent).unwrap();
    let mut received = None;
    for _ in 0..2 {
        let success = next(&mut link.poller);
        received = if success.id() == receive { success.into_received().ok() } else { received };
    }
    assert_eq!(&received.unwrap()[..], b"of the parent");
    assert!(link.poller.wait_for(PATIENCE / 1000).unwrap().is_none());
}
