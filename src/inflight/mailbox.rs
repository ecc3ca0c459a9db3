//! The mailbox by which the control path tells the poller of added and removed queues, without a lock on the data path.

use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// Messages to the poller. Sending takes a lock; checking for messages is one atomic load.
#[derive(Debug)]
pub(crate) struct Mailbox<M> {
    /// Set after a message was put in, and cleared before the messages are taken, so that the poller never misses a
    /// message.
    flag: AtomicBool,
    messages: Mutex<Vec<M>>,
}

impl<M> Mailbox<M> {
    pub(crate) fn new() -> Self {
        Self { flag: AtomicBool::new(false), messages: Mutex::new(Vec::new()) }
    }

    pub(crate) fn send(&self, message: M) {
        lock(&self.messages).push(message);
        self.flag();
    }

    /// Whether [`take`](Self::take) may find a message, or the poller has called [`flag`](Self::flag) as a reminder to
    /// itself.
    #[inline(always)]
    pub(crate) fn is_flagged(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// Makes [`is_flagged`](Self::is_flagged) true until the messages are taken.
    pub(crate) fn flag(&self) {
        self.flag.store(true, Ordering::Release);
    }

    /// Whether [`take`](Self::take) would find a message.
    pub(crate) fn has_mail(&self) -> bool {
        !lock(&self.messages).is_empty()
    }

    /// All messages, in the order in which they were sent.
    pub(crate) fn take(&self) -> Vec<M> {
        self.flag.store(false, Ordering::Release);
        std::mem::take(&mut *lock(&self.messages))
    }
}

#[cfg(all(test, loom))]
mod models {
    //! Every interleaving of one thread that destroys a pair and another that polls.
    use super::*;
    use crate::inflight::Quiescent;
    use crate::inflight::ledger::{Origin, Retirer, STEP, ledger};
    use crate::sync::{Arc, AtomicU32};
    use loom::thread;

    #[test]
    fn no_message_is_lost_or_read_twice() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            let sender = Arc::clone(&mailbox);
            let sending = thread::spawn(move || {
                sender.send(1);
                sender.send(2);
            });
            let mut seen = Vec::new();
            while seen.len() < 2 {
                if mailbox.is_flagged() {
                    seen.extend(mailbox.take());
                }
                thread::yield_now();
            }
            sending.join().unwrap();
            assert_eq!(seen, [1, 2]);
            // `send` puts the message in before it sets the flag. If `take` takes the message in between, the flag is
            // set afterwards although no message is left. The next `take` must then find nothing.
            assert!(mailbox.take().is_empty());
        });
    }

    /// A pair is destroyed while its completion may already be in the queue. The value comes out once, either with the
    /// completion or with the destroy.
    #[test]
    fn an_orphaned_ledger_gives_each_value_out_once() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            let completions = Arc::new(AtomicU32::new(0));
            let (mut poster, mut retirer): (_, Retirer<u32>) =
                ledger(&std::sync::Arc::default(), 2, 0, Origin::default());
            let (orphanage, device) = (Arc::clone(&mailbox), Arc::clone(&completions));
            let program = thread::spawn(move || {
                poster.try_push(0).unwrap();
                // The device completes the first request. Then the pair is destroyed while the second request is in
                // flight.
                device.fetch_add(1, Ordering::Release);
                poster.try_push(1).unwrap();
                drop(poster);
                orphanage.send(());
            });
            let (mut out, mut polled, mut orphaned) = (Vec::new(), 0, false);
            while !orphaned {
                // Read the mail before the poll. If the mail says that the pair was destroyed, the device has completed
                // the first request already. So this poll finds that completion, unless an earlier poll has found it.
                let destroyed_before = mailbox.is_flagged() && !mailbox.take().is_empty();
                if completions.load(Ordering::Acquire) > polled {
                    let (value, before) = retirer.retire(u64::from(polled) * STEP).unwrap();
                    assert_eq!(before, 0);
                    out.push(value);
                    polled += 1;
                }
                if destroyed_before {
                    while let Some(value) = retirer.take(&Quiescent::without_device()) {
                        out.push(value);
                    }
                    orphaned = true;
                }
                thread::yield_now();
            }
            program.join().unwrap();
            assert_eq!(out, [0, 1]);
        });
    }
}
