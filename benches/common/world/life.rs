//! The lives of pairs: they are made, connected, drained, reset and destroyed.

use super::*;

impl<B: Brand> World<B> {
    /// Takes an end through the transitions of `f`. Returns whether all of them succeeded.
    pub(super) fn shift(
        &mut self,
        link: usize,
        side: usize,
        f: impl FnOnce(AnyQueuePair<B>) -> Result<AnyQueuePair<B>, Halted<B>>,
    ) -> bool {
        let result = self.links[link][side].pair.advance(f);
        match result {
            Ok(()) => return true,
            Err(error) => match error.source {
                TransitionFailure::Unsettled | TransitionFailure::Draining => {}
                TransitionFailure::Verb { .. } if self.armed => self.tally.refused += 1,
                TransitionFailure::Verb { source, .. }
                    if source.errno() == libc::EINVAL && self.links[link][side].half_reset => {}
                // Here `EINVAL` means that the send queue has not drained yet, or that the device has moved the pair to
                // Error.
                TransitionFailure::Verb { to: "ReadyToSend" | "SendQueueDrain", source }
                    if source.errno() == libc::EINVAL => {}
                other => panic!("{other}"),
            },
        }
        false
    }

    /// Takes both ends one step towards Ready To Send.
    pub(super) fn bring_up(&mut self, link: usize) {
        for side in 0..2 {
            match &self.links[link][side].pair {
                AnyQueuePair::Vacant => self.create(link, side),
                AnyQueuePair::Reset(_) => {
                    let port = self.port.clone();
                    let up = self.shift(link, side, |pair| match pair {
                        AnyQueuePair::Reset(pair) => Ok(pair.into_init(&port)?.into()),
                        other => Ok(other),
                    });
                    if up {
                        self.begin_life(link, side);
                        if self.random.one_in(2) {
                            self.post_receives(link, side);
                        }
                    }
                }
                AnyQueuePair::SendQueueDrain(_) => self.resume(link, side),
                AnyQueuePair::Errored(_) | AnyQueuePair::ReadyToReceive(_) => self.reset_end(link, side),
                _ => {}
            }
        }
        let [left, right] = &self.links[link];
        match (&left.pair, &right.pair) {
            (AnyQueuePair::Init(left), AnyQueuePair::Init(right)) => {
                let endpoints = [right.endpoint(), left.endpoint()];
                let attributes = ConnectAttributes {
                    timeout: interlock::number::AckTimeout::new(8).expect("in range"),
                    retry_count: RetryCount::new(if self.random.one_in(4) { 1 } else { 6 }).expect("in range"),
                    rnr_retry: if self.random.one_in(4) {
                        RnrRetry::new(1).expect("in range")
                    } else {
                        RnrRetry::FOREVER
                    },
                    ..ConnectAttributes::default()
                };
                for (side, peer) in endpoints.iter().enumerate() {
                    self.shift(link, side, |pair| match pair {
                        AnyQueuePair::Init(pair) => Ok(pair.connect_with(peer, &attributes)?.into()),
                        other => Ok(other),
                    });
                }
            }
            // The peer was reset, so the connection of the pair in Ready To Send is gone.
            (AnyQueuePair::ReadyToSend(_), AnyQueuePair::Init(_)) => self.reset_end(link, 0),
            (AnyQueuePair::Init(_), AnyQueuePair::ReadyToSend(_)) => self.reset_end(link, 1),
            _ => {}
        }
    }

    pub(super) fn resume(&mut self, link: usize, side: usize) {
        let resumed = self.shift(link, side, |pair| match pair {
            AnyQueuePair::SendQueueDrain(pair) => Ok(pair.resume()?.into()),
            other => Ok(other),
        });
        if !resumed && self.random.one_in(8) {
            self.reset_end(link, side);
        }
    }

    pub(super) fn create(&mut self, link: usize, side: usize) {
        let limits = random_limits(&mut self.random);
        let queues = [self.random.below(2), self.random.below(2)];
        let made =
            self.domain.reliable_on(&self.queues[queues[SEND]].queue, &self.queues[queues[RECEIVE]].queue, &limits);
        let pair = match made {
            Ok(pair) => pair,
            Err(CreateError::NoRoom(_)) => return,
            Err(error) => return assert!(self.armed, "{error}"),
        };
        self.tally.made += 1;
        let books = Books {
            posted: [VecDeque::new(), VecDeque::new()],
            queues,
            failed: [false; 2],
            ended: false,
            gone: false,
            uncertain: false,
            next_message: 0,
        };
        let number = pair.number();
        assert!(self.books.insert(number, books).is_none(), "two pairs of one number");
        let end = &mut self.links[link][side];
        (end.pair, end.number, end.modelled, end.half_reset) = (pair.into(), Some(number), false, false);
    }

    /// Starts the accounts of a pair that has entered Init. No request from before its reset is in flight any more.
    pub(super) fn begin_life(&mut self, link: usize, side: usize) {
        self.tally.lives += 1;
        let target = (link * 2 + side) * WINDOW * 8;
        let load = |word: usize| self.window.load(target + 8 * word).expect("within the region");
        let found = Model { word: load(0), tag: load(1), message: 0 };
        for at in 1..WINDOW - 1 {
            assert_eq!(load(1 + at), word_of(found.tag, at), "a write was torn");
        }
        let end = &mut self.links[link][side];
        let own = end.number.and_then(|number| self.books.get_mut(&number)).expect("the accounts of a pair");
        assert!(own.posted.iter().all(VecDeque::is_empty), "settled with requests under way");
        if end.modelled && !own.failed[SEND] && !own.ended {
            assert_eq!((found.word, found.tag), (end.model.word, end.model.tag), "what was executed");
        }
        (end.model, end.modelled) = (found, true);
        (own.failed, own.ended, own.uncertain, own.next_message) = ([false; 2], false, false, 0);
    }

    pub(super) fn reset(&mut self, link: usize) {
        self.reset_end(link, 0);
        self.reset_end(link, 1);
    }

    pub(super) fn reset_end(&mut self, link: usize, side: usize) {
        let gently = self.random.one_in(2);
        let reached = self.shift(link, side, |pair| {
            Ok(match pair {
                AnyQueuePair::Init(pair) if gently => pair.into_error()?.into(),
                AnyQueuePair::ReadyToReceive(pair) if gently => pair.into_error()?.into(),
                AnyQueuePair::ReadyToSend(pair) if gently => pair.into_error()?.into(),
                AnyQueuePair::SendQueueDrain(pair) if gently => pair.into_error()?.into(),
                AnyQueuePair::Init(pair) => pair.into_reset()?.into(),
                AnyQueuePair::ReadyToReceive(pair) => pair.into_reset()?.into(),
                AnyQueuePair::ReadyToSend(pair) => pair.into_reset()?.into(),
                AnyQueuePair::SendQueueDrain(pair) => pair.into_reset()?.into(),
                AnyQueuePair::Errored(pair) => pair.into_reset()?.into(),
                other => other,
            })
        });
        let End { pair, number, half_reset, .. } = &mut self.links[link][side];
        *half_reset = !reached;
        if reached && matches!(pair, AnyQueuePair::Reset(_)) {
            let own = number.and_then(|number| self.books.get_mut(&number)).expect("the accounts of a pair");
            own.ended |= own.posted.iter().any(|posted| !posted.is_empty());
        }
    }

    /// Destroys a pair in any state: either by dropping it, or by a first attempt that fails and a second one.
    pub(super) fn destroy(&mut self, link: usize, side: usize) {
        let end = &mut self.links[link][side];
        let Some(number) = end.number.take() else { return };
        let pair = mem::take(&mut end.pair);
        if self.random.one_in(2) {
            macro_rules! destroy {
                ($pair:expr) => {{
                    self.fabric.inject(fails(Verb::DestroyQp, libc::EBUSY));
                    let again = $pair.destroy().expect_err("the fault").queue_pair;
                    again.destroy().expect("the second time");
                }};
            }
            match pair {
                AnyQueuePair::Reset(pair) => destroy!(pair),
                AnyQueuePair::Init(pair) => destroy!(pair),
                AnyQueuePair::ReadyToReceive(pair) => destroy!(pair),
                AnyQueuePair::ReadyToSend(pair) => destroy!(pair),
                AnyQueuePair::SendQueueDrain(pair) => destroy!(pair),
                AnyQueuePair::Errored(pair) => destroy!(pair),
                _ => {}
            }
        } else {
            drop(pair);
        }
        let own = self.books.get_mut(&number).expect("the accounts of a pair");
        (own.ended, own.gone) = (true, true);
        if own.posted.iter().all(VecDeque::is_empty) {
            self.books.remove(&number);
        }
    }

    /// Moves a pair to Send Queue Drain. `bring_up` resumes it.
    pub(super) fn drain(&mut self, link: usize, side: usize) {
        self.shift(link, side, |pair| match pair {
            AnyQueuePair::ReadyToSend(pair) => Ok(pair.into_sqd()?.into()),
            other => Ok(other),
        });
    }
}

fn random_limits(random: &mut Random) -> Limits {
    let mut depth = || {
        let most = if random.one_in(3) { 4 } else { MOST_SENDS };
        1 + random.below(most) as u32
    };
    let limits = limits(depth(), depth());
    let posting = if random.one_in(3) { Posting::WorkRequestApi } else { Posting::List };
    Limits { posting, ..limits }
}

pub(super) fn window_of<B: Brand>(
    window: &MemoryRegion<B, RemoteAll, Vec<u64>>,
    links: usize,
    link: usize,
    side: usize,
) -> RemoteRegion<RemoteAll> {
    let at = ((link * 2 + side) * WINDOW * 8) as u64;
    assert!(link < links);
    window.remote().slice(at..at + WINDOW as u64 * 8).expect("within the region")
}
