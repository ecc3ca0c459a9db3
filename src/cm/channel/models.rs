//! Models of threads that wait, poll and end identifiers on one channel. Loom runs their interleavings.
//!
//! The inbox is the real one. The kernel is a model without descriptors: it holds the events of the channel, and the
//! wakers. If nobody wakes a thread, loom reports a deadlock.
#![cfg_attr(not(test), allow(dead_code, reason = "only the models have such a kernel"))]

use super::{RawChannel, VerbError};
use crate::sync::{Condvar, Mutex, lock};
use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::PoisonError;
use std::time::Duration;

/// The model of the kernel: the events of the channel, and the wakers. Each change is atomic, as in the real kernel.
struct Kernel {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The keys of the identifiers whose events wait, oldest first.
    events: VecDeque<u64>,
    woken: HashSet<usize>,
    wakers: usize,
}

loom::lazy_static! {
    /// Loom makes a new kernel for each interleaving.
    static ref KERNEL: Kernel = Kernel { state: Mutex::new(State::default()), changed: Condvar::new() };
}

impl Kernel {
    fn change<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let result = f(&mut lock(&self.state));
        self.changed.notify_all();
        result
    }
}

pub(super) struct Waker(usize);

/// What a thread may sleep on.
#[derive(Clone, Copy)]
pub(super) enum Descriptor {
    Channel,
    Waker(usize),
}

impl Waker {
    pub(super) fn new() -> Result<Self, VerbError> {
        Ok(KERNEL.change(|kernel| {
            kernel.wakers += 1;
            Self(kernel.wakers)
        }))
    }

    pub(super) fn wake(&self) {
        KERNEL.change(|kernel| kernel.woken.insert(self.0));
    }

    pub(super) fn clear(&self) {
        KERNEL.change(|kernel| kernel.woken.remove(&self.0));
    }

    pub(super) fn fd(&self) -> Descriptor {
        Descriptor::Waker(self.0)
    }
}

pub(super) fn descriptor(_: &dyn RawChannel) -> Descriptor {
    Descriptor::Channel
}

/// Sleeps until one of the descriptors is readable. It ignores the timeout.
pub(super) fn until_readable(descriptors: [Descriptor; 2], _: Duration) -> io::Result<bool> {
    let mut state = lock(&KERNEL.state);
    let is_readable = |state: &State| {
        descriptors.iter().any(|descriptor| match descriptor {
            Descriptor::Channel => !state.events.is_empty(),
            Descriptor::Waker(waker) => state.woken.contains(waker),
        })
    };
    while !is_readable(&state) {
        state = KERNEL.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::{Inbox, Mail};
    use super::*;
    use crate::provider::cm::{EventParameters, PortSpace, RawEvent, RawEventKind, RawId};
    use loom::thread;
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;

    /// A channel that takes its events from `KERNEL`.
    #[derive(Debug)]
    struct Events;

    impl RawChannel for Events {
        fn fd(&self) -> BorrowedFd<'_> {
            unreachable!("nobody sleeps on it")
        }

        fn create_id(self: Arc<Self>, _: PortSpace, _: u64) -> Result<Box<dyn RawId>, VerbError> {
            unreachable!("the models need only keys")
        }

        fn take_event(self: Arc<Self>, _: u64) -> Result<Option<RawEvent>, VerbError> {
            let key = KERNEL.change(|kernel| kernel.events.pop_front());
            Ok(key.map(|key| RawEvent {
                key,
                kind: RawEventKind::ADDR_RESOLVED,
                status: 0,
                parameters: EventParameters::default(),
                request: None,
            }))
        }

        fn next_timer(&self) -> Option<Duration> {
            None
        }
    }

    /// The keys of two identifiers.
    const ONE: u64 = 1;
    const OTHER: u64 = 2;

    /// An inbox with the boxes of both identifiers.
    fn inbox() -> Arc<Inbox> {
        let mut mail = Mail::default();
        assert_eq!([mail.add(), mail.add()], [ONE, OTHER]);
        mail.boxes.values_mut().for_each(|found| found.is_polled = true);
        let sleeper = Waker::new().unwrap();
        Arc::new(Inbox { raw: Arc::new(Events), mail: Mutex::new(mail), turn: Condvar::new(), sleeper })
    }

    /// The kernel gets an event of an identifier.
    fn arrives(key: u64) {
        KERNEL.change(|kernel| kernel.events.push_back(key));
    }

    fn wait(inbox: &Inbox, key: u64) {
        let event = inbox.wait(key, None).unwrap();
        assert_eq!(event.map(|event| event.key), Some(key));
    }

    /// Runs the threads while the events of `arriving` come in, in every order with at most `bound` preemptions.
    fn model<const N: usize>(bound: usize, doings: [fn(&Inbox); N], arriving: &'static [u64]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(bound);
        builder.check(move || {
            let inbox = inbox();
            let threads = doings.map(|doing| {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || doing(&inbox))
            });
            arriving.iter().for_each(|key| arrives(*key));
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    /// One thread sleeps on the descriptor, and the other sleeps on `turn`. After the first thread has taken its event
    /// and returned, the second thread still gets its own event.
    #[test]
    fn no_event_is_slept_over() {
        model(3, [|inbox| wait(inbox, ONE), |inbox| wait(inbox, OTHER)], &[OTHER, ONE]);
    }

    #[test]
    fn no_event_that_another_thread_took_is_slept_over() {
        model(3, [|inbox| wait(inbox, ONE), |inbox| drop(inbox.poll(OTHER).unwrap())], &[ONE]);
    }

    #[test]
    fn no_event_of_an_identifier_that_ended_stays_in_the_way() {
        model(3, [|inbox| wait(inbox, ONE), |inbox| inbox.end(OTHER)], &[OTHER, ONE]);
    }

    #[test]
    fn no_event_comes_twice() {
        model(
            3,
            [
                |inbox| wait(inbox, ONE),
                |inbox| {
                    wait(inbox, OTHER);
                    assert!(inbox.poll(OTHER).unwrap().is_none());
                },
            ],
            &[ONE, OTHER],
        );
    }

    /// The loop sleeps on the channel and on its own waker. Another thread may take the loop's event out of the channel
    /// first.
    #[test]
    fn no_event_loop_sleeps_over_an_event() {
        fn watch(inbox: &Inbox) {
            let waker = inbox.lock().for_loop.get_or_insert_with(|| Waker::new().unwrap()).fd();
            inbox.lock().tell_loop();
            while inbox.poll(ONE).unwrap().is_none() {
                until_readable([Descriptor::Channel, waker], Duration::MAX).unwrap();
            }
        }
        model(3, [watch, |inbox| drop(inbox.poll(OTHER).unwrap())], &[ONE]);
    }

    /// Once every event was taken, the waker of the loop is not readable, so the loop does not spin.
    #[test]
    fn no_event_loop_is_told_of_nothing() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let inbox = inbox();
            let waker = Waker::new().unwrap();
            let Descriptor::Waker(number) = waker.fd() else { unreachable!() };
            inbox.lock().for_loop = Some(waker);
            let threads = [ONE, OTHER].map(|key| {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || wait(&inbox, key))
            });
            [OTHER, ONE].iter().for_each(|key| arrives(*key));
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(inbox.lock().boxes.values().all(|found| found.events.is_empty()));
            assert!(!lock(&KERNEL.state).woken.contains(&number));
        });
    }
}
