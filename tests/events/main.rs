//! Completion queues, their channels and events, and asynchronous events. The name of a test begins with the numbers of
//! the conformance cases that it shows.

/// Makes two connected pairs on the device under test.
macro_rules! link {
    ($depth:expr) => {
        support::Link::new(support::context().checked_domain().unwrap(), $depth)
    };
}

mod arming;
mod asynchronous;
mod channels;
mod queues;

use interlock::completion::{Armed, WakeFor};
use interlock::event::Readiness;
use interlock::{Brand, Poller, WorkRequest};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;
use support::{Link, Promise, lacks};

/// Long enough for an event that must come.
const SOON: Duration = Duration::from_secs(20);
/// How long a test waits for an event that must not come.
const WHILE: Duration = Duration::from_millis(100);

/// Sends a message from the right pair to the left one. The receive makes a completion, the send makes none.
fn message<B: Brand>(link: &mut Link<B>, solicited: bool) {
    link.left.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    let request = WorkRequest::send(link.domain.buffer(8).unwrap()).unsignalled();
    link.right.post(if solicited { request.solicited() } else { request }).unwrap();
}

/// Returns whether no event comes for this long. Some devices make events without a completion; there it returns true
/// at once.
fn sleeps(readiness: &Readiness, time: Duration) -> bool {
    lacks(Promise::Events) || !readiness.wait(time).unwrap()
}

/// Arms until the queue is empty, and returns how many completions came out before that.
fn arm<B: Brand>(poller: &mut Poller<B>, wake_for: WakeFor) -> usize {
    let mut count = 0;
    loop {
        match poller.arm(wake_for).unwrap() {
            Armed::Ready(completion) => {
                completion.check().unwrap();
                count += 1;
            }
            Armed::Empty => return count,
        }
    }
}

/// An event loop that is notified only of edges, as those of mio and tokio are.
struct Edges(OwnedFd);

impl Edges {
    fn of(readiness: &Readiness) -> Self {
        // SAFETY: the call takes a number and no pointer.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(epoll >= 0);
        // SAFETY: `epoll_create1` has just made the descriptor, and nobody else has it.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        let fd = readiness.as_fd().as_raw_fd();
        // SAFETY: both descriptors are open, and `event` is valid for reads.
        assert_eq!(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) }, 0);
        Self(epoll)
    }

    fn wait(&self, timeout: Duration) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: `event` has room for the one event that is asked for.
        unsafe { libc::epoll_wait(self.0.as_raw_fd(), &mut event, 1, timeout.as_millis() as i32) == 1 }
    }
}
