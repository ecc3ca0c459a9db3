//! Compares completions with the accounts.

use super::*;

impl<B: Brand> World<B> {
    /// Polls a completion queue in a random way, not always until it is empty.
    pub(super) fn collect(&mut self, at: usize) -> usize {
        let mut poller = self.queues[at].poller.take().expect("a poller");
        let mut count = 0;
        match self.random.below(8) {
            0 => {
                for _ in 0..self.random.below(20) {
                    let Some(completion) = poller.poll().expect("a queue that works") else { break };
                    self.settle(at, completion);
                    count += 1;
                }
            }
            1 => match poller.wait_for(Duration::ZERO) {
                Ok(Some(completion)) => {
                    self.settle(at, completion);
                    count = 1;
                }
                Ok(None) => {}
                Err(error) => assert!(self.armed, "{error}"),
            },
            2..5 => {
                count = poll_retired(&mut poller, |ended| self.settle_ended(at, ended)).expect("a queue that works");
            }
            5 if self.random.one_in(8) => {
                // The closure panics at the first completion, if there is one. The next poll returns the remaining
                // completions.
                let result = catch_unwind(AssertUnwindSafe(|| {
                    poll_each(&mut poller, |completion| {
                        self.settle(at, completion);
                        count += 1;
                        resume_unwind(Box::new(()));
                    })
                }));
                assert!(result.is_err() == (count == 1), "a panic that stopped");
            }
            _ => count = poll_each(&mut poller, |completion| self.settle(at, completion)).expect("a queue that works"),
        }
        assert_eq!(poller.unknown_completions(), 0, "unknown completions");
        self.queues[at].poller = Some(poller);
        count
    }

    /// Compares a completion with the accounts.
    pub(super) fn settle(&mut self, at: usize, completion: Completion<B>) {
        self.settle_ended(at, Ended::of(completion));
    }

    pub(super) fn settle_ended(&mut self, at: usize, ended: Ended<B>) {
        let Ended { id, queue_pair, outcome, memory } = ended;
        let own = self.books.get_mut(&queue_pair).expect("a completion of a pair that there is");
        let side = match outcome {
            Outcome::Received { .. }
            | Outcome::WrittenWithImmediate { .. }
            | Outcome::Failed { operation: Operation::Receive, .. } => RECEIVE,
            _ => SEND,
        };
        assert_eq!(own.queues[side], at, "a completion on the other queue");
        let posted = own.posted[side].pop_front().expect("a completion of a request that is under way");
        assert_eq!(posted.id, id, "completions in the order of posting");
        if let Outcome::Failed { status, .. } = outcome {
            if status == Status::Destroyed {
                assert!(own.ended, "destroyed, but nobody did");
                self.tally.destroyed += 1;
            } else {
                assert_ne!(status, Status::ProviderFault);
                self.tally.failed += 1;
            }
            own.failed[side] = true;
        } else {
            assert!(!own.failed[side], "{outcome:?} after a failure");
            self.tally.succeeded += 1;
        }
        match memory {
            PostedMemory::Unique(buffer) => {
                assert_eq!(posted.address, buffer.as_ptr().addr(), "the buffer of another request");
                check(&posted, outcome, &buffer, own);
                if self.guests.remove(&posted.address) {
                    self.total -= 1;
                } else {
                    self.spare.push(buffer);
                }
                self.under_way -= 1;
            }
            _ => {
                assert_eq!(posted.address, 0, "a completion without its buffer");
                assert!(matches!(outcome, Outcome::Sent | Outcome::Failed { .. }));
            }
        }
        if own.gone && own.posted.iter().all(VecDeque::is_empty) {
            self.books.remove(&queue_pair);
        }
    }
}
