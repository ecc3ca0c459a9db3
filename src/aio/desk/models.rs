//! Models of tasks that wait, a driver that sleeps for them, and requests that complete. Loom runs their interleavings.
//!
//! The desk is the real one. The poller is a model of a completion queue: it arms, and raises an event when a request
//! completes on an armed queue. If nobody wakes a task, loom reports a deadlock.
#![cfg_attr(not(test), allow(dead_code, reason = "only the models complete requests"))]

use crate::completion::{Armed, Completion, Leftover, PollError, WaitError, WakeFor};
use crate::device::CompletionQueueId;
use crate::domain::DomainId;
use crate::inflight::WorkId;
use crate::memory::Buffer;
use crate::readiness::Readiness;
use crate::sync::{Condvar, Mutex, lock};
use crate::verb_error::VerbError;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Duration;

/// The model of the device and of its channel.
struct Device {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The requests that have completed and were not polled.
    completed: VecDeque<WorkId>,
    is_armed: bool,
    has_event: bool,
    /// The waker of the driver's task was called.
    has_rung: bool,
    /// A pair was dropped, and the poller has not read that yet.
    has_mail: bool,
    /// The poller has a dropped pair, which a later poll destroys.
    is_departing: bool,
    /// The next call that arms the queue fails.
    fails_to_arm: bool,
}

loom::lazy_static! {
    /// Loom makes a new device for each interleaving.
    static ref DEVICE: Device = Device { state: Mutex::new(State::default()), changed: Condvar::new() };
}

impl Device {
    fn change<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let result = f(&mut lock(&self.state));
        self.changed.notify_all();
        result
    }
}

/// The poller of the one completion queue.
pub(in crate::aio) struct Poller<B> {
    /// The completions that a poll has taken from the device and not returned yet.
    taken: VecDeque<WorkId>,
    queue: Queue,
    brand: PhantomData<fn() -> B>,
}

pub(in crate::aio) struct Queue {
    pub(in crate::aio) domain: Domain,
}

pub(in crate::aio) struct Domain;

impl Domain {
    pub(in crate::aio) fn id(&self) -> DomainId {
        unreachable!("the models have no domain")
    }
}

impl Queue {
    pub(super) fn capacity(&self) -> u32 {
        8
    }
}

impl<B> Poller<B> {
    pub(super) fn new() -> Self {
        Self { taken: VecDeque::new(), queue: Queue { domain: Domain }, brand: PhantomData }
    }

    /// Like the real poller, reads the mail, takes all completions from the device, and returns one.
    pub(super) fn poll(&mut self) -> Result<Option<Completion<B>>, PollError> {
        DEVICE.change(|device| device.is_departing |= std::mem::take(&mut device.has_mail));
        if self.taken.is_empty() {
            self.taken = DEVICE.change(|device| std::mem::take(&mut device.completed));
        }
        Ok(self.taken.pop_front().map(Completion::of_model))
    }

    /// Like the real poller, polls, takes the events that have come, arms, and polls again.
    pub(super) fn arm(&mut self, _: WakeFor) -> Result<Armed<B>, WaitError> {
        if let Some(completion) = self.poll()? {
            return Ok(Armed::Ready(completion));
        }
        self.take_events()?;
        if DEVICE.change(|device| std::mem::take(&mut device.fails_to_arm)) {
            return Err(VerbError::new("ibv_req_notify_cq", libc::ENOMEM).into());
        }
        DEVICE.change(|device| device.is_armed = true);
        Ok(self.poll()?.map_or(Armed::Empty, Armed::Ready))
    }

    pub(super) fn take_events(&mut self) -> Result<(), WaitError> {
        DEVICE.change(|device| device.has_event = false);
        Ok(())
    }

    pub(super) fn holds_completions(&self) -> bool {
        !self.taken.is_empty()
    }

    pub(super) fn has_taken(&self) -> bool {
        self.holds_completions()
    }

    pub(super) fn has_mail(&self) -> bool {
        lock(&DEVICE.state).has_mail
    }

    pub(super) fn may_keep_requests(&self) -> bool {
        false
    }

    pub(super) fn poll_batch(&mut self, _: WorkId, _: u32, _: &mut Vec<Buffer<B>>) -> u32 {
        0
    }

    pub(super) fn keep_leftovers(&mut self) {}

    pub(super) fn has_leftovers(&self) -> bool {
        false
    }

    pub(super) fn take_leftover(&mut self) -> Option<Leftover> {
        None
    }

    /// A poll destroys a dropped pair only after some time, so there is a timer until then.
    pub(super) fn next_timer(&self) -> Option<Duration> {
        lock(&DEVICE.state).is_departing.then_some(Duration::from_millis(20))
    }

    pub(in crate::aio) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(in crate::aio) fn id(&self) -> CompletionQueueId {
        unreachable!("the models have no handles")
    }

    pub(in crate::aio) fn unknown_completions(&self) -> u64 {
        0
    }

    pub(in crate::aio) fn readiness(&self) -> Result<Readiness, VerbError> {
        unreachable!("the models sleep by themselves")
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Desk, Turn};
    use super::*;
    use crate::inflight::{QueueKey, QueueKind};
    use crate::queue::QueueIds;
    use crate::types::Qpn;
    use loom::thread;
    use std::sync::{Arc, PoisonError};
    use std::task::{Context, Poll, Wake, Waker};

    type Shared = Arc<Desk<()>>;

    /// The id of a request of the one work queue.
    fn id(count: u32) -> WorkId {
        QueueKey::new(QueueKind::Send, 0).first(0).after(count)
    }

    fn completes(count: u32) {
        DEVICE.change(|device| {
            device.completed.push_back(id(count));
            device.has_event |= std::mem::take(&mut device.is_armed);
        });
    }

    /// Wakes a task that has a thread of its own.
    struct Alarm {
        rings: Mutex<bool>,
        changed: Condvar,
    }

    impl Wake for Alarm {
        fn wake(self: Arc<Self>) {
            *lock(&self.rings) = true;
            self.changed.notify_all();
        }
    }

    /// Runs a future of this thread.
    fn block_on<R>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<R>) -> R {
        let alarm = Arc::new(Alarm { rings: Mutex::new(false), changed: Condvar::new() });
        let waker = Waker::from(Arc::clone(&alarm));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(result) = poll(&mut context) {
                return result;
            }
            let mut rings = lock(&alarm.rings);
            while !*rings {
                rings = alarm.changed.wait(rings).unwrap_or_else(PoisonError::into_inner);
            }
            *rings = false;
        }
    }

    /// Waits for the completion of the request `count`, as its future does.
    fn answer(desk: &Desk<()>, count: u32) {
        let completion = block_on(|context| match desk.take_request(id(count)) {
            Some(completion) => Poll::Ready(completion),
            None => desk.poll_request(id(count), context).map(|found| found.unwrap()),
        });
        assert_eq!(completion.id(), id(count));
        drop(completion);
    }

    /// Wakes the driver.
    struct Bell;

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            DEVICE.change(|device| device.has_rung = true);
        }
    }

    /// The driver's thread. Does what `Driver::run_on_thread` does, but sleeps on the model of the device, and goes on
    /// if the queue could not be armed.
    fn drive(desk: &Desk<()>) {
        let waker = Waker::from(Arc::new(Bell));
        let mut context = Context::from_waker(&waker);
        loop {
            match desk.drive(&mut context) {
                Poll::Ready(Ok(Turn::Over)) => return,
                // The model's timer has run out, and the pair is destroyed.
                Poll::Ready(Ok(Turn::Sleep(Some(_)))) => DEVICE.change(|device| device.is_departing = false),
                Poll::Ready(Ok(Turn::Sleep(None))) => {
                    let mut device = lock(&DEVICE.state);
                    while !(device.has_event || device.has_rung) {
                        device = DEVICE.changed.wait(device).unwrap_or_else(PoisonError::into_inner);
                    }
                    device.has_rung = false;
                }
                Poll::Ready(Err(WaitError::Verb(_))) | Poll::Pending => {}
                Poll::Ready(Err(error)) => panic!("{error}"),
            }
        }
    }

    /// Runs the tasks and a driver while the requests of `completing` complete. Loom tries every interleaving with at
    /// most `bound` preemptions.
    fn model<const N: usize>(bound: usize, tasks: [fn(&Shared); N], completing: &'static [u32]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(bound);
        builder.check(move || {
            let desk: Shared = Arc::new(Desk::new(Poller::new()));
            let ids = QueueIds { first: id(0), next: id(0), in_flight: 0, pair: Qpn::new(1).unwrap() };
            desk.attach(|| ids, 4);
            assert!(desk.enter_driver());
            let tasks = tasks.map(|task| {
                let desk = Arc::clone(&desk);
                desk.enter();
                thread::spawn(move || {
                    task(&desk);
                    desk.leave();
                })
            });
            let driver = thread::spawn({
                let desk = Arc::clone(&desk);
                move || drive(&desk)
            });
            completing.iter().for_each(|count| completes(*count));
            tasks.into_iter().for_each(|task| task.join().unwrap());
            driver.join().unwrap();
        });
    }

    #[test]
    fn no_answer_is_slept_over() {
        model(3, [|desk| answer(desk, 0)], &[0]);
    }

    /// One task polls, and takes the completion of the other task's request from the device.
    #[test]
    fn no_answer_that_another_task_took_is_slept_over() {
        model(2, [|desk| answer(desk, 0), |desk| answer(desk, 1)], &[0, 1]);
    }

    #[test]
    fn no_answer_is_slept_over_if_others_come_first() {
        model(2, [|desk| answer(desk, 0), |desk| answer(desk, 1)], &[1, 0]);
    }

    /// Drops a pair, and waits until it is destroyed, as a task does that waits for memory of the pair.
    fn drop_pair() {
        DEVICE.change(|device| (device.has_mail, device.has_event) = (true, true));
        let mut device = lock(&DEVICE.state);
        while device.has_mail || device.is_departing {
            device = DEVICE.changed.wait(device).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A task looks for its own answer, and reads that a pair was dropped. The driver still learns of it.
    #[test]
    fn no_dropped_pair_is_slept_over() {
        model(2, [|_| drop_pair(), |desk| answer(desk, 0)], &[0]);
    }

    /// The same, if the task cannot arm the queue.
    #[test]
    fn no_dropped_pair_is_slept_over_if_the_queue_is_not_armed() {
        let drop_pair = |_: &Shared| {
            DEVICE.change(|device| device.fails_to_arm = true);
            drop_pair();
        };
        model(2, [drop_pair, |desk| answer(desk, 0)], &[0]);
    }

    /// Nobody polls for an abandoned request any more. Its completion still comes, before the one that the other task
    /// waits for.
    #[test]
    fn a_task_that_gives_up_leaves_the_answers_of_others() {
        model(2, [|desk| desk.abandon(id(0)), |desk| answer(desk, 1)], &[0, 1]);
    }
}
