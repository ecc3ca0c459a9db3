//! Traffic on connected pairs: posts in every way, and checks that the queues do not stay full.

use super::*;

impl<B: Brand> World<B> {
    /// Posts to one end, or brings up its link.
    pub(super) fn traffic(&mut self, link: usize, side: usize) {
        let [left, right] = &self.links[link];
        let up = |end: &End<B>| matches!(end.pair, AnyQueuePair::ReadyToSend(_));
        let broken = |end: &End<B>| {
            // Only failed completions count here. An uncertain post breaks a pair too, but is not counted.
            end.number.and_then(|number| self.books.get(&number)).is_some_and(|books| books.failed != [false; 2])
        };
        if !up(left) || !up(right) {
            return self.bring_up(link);
        }
        if left.half_reset || right.half_reset || (broken(left) || broken(right)) && self.random.one_in(4) {
            return self.reset(link);
        }
        self.post_receives(link, 1 - side);
        let Self { random, spare, links, dead, share, window, books, tally, armed, under_way, .. } = self;
        let target = window_of(window, links.len(), link, side);
        let End { pair, number, model, .. } = &mut links[link][side];
        let (Some(pair), Some(number)) = (pair.ready(), *number) else { return };
        let own = books.get_mut(&number).expect("the accounts of a pair");
        assert_eq!(pair.sends_in_flight() as usize, own.posted[SEND].len(), "sends in flight");
        assert_eq!(pair.receives_in_flight() as usize, own.posted[RECEIVE].len(), "receives in flight");
        if own.failed != [false; 2] {
            assert!(pair.is_broken(), "a failure that the pair does not know of");
        }
        let mut source = Source { random, spare, number, target: &target, dead, share };
        if source.random.one_in(2) {
            for _ in 0..source.random.below(4) {
                match source.emit(pair, model) {
                    Answer::Posted(posted) => own.keep(SEND, posted, tally, under_way),
                    Answer::Uncertain(posted) => {
                        assert!(*armed, "uncertain without a fault");
                        tally.uncertain += 1;
                        own.keep(SEND, posted, tally, under_way);
                        own.uncertain = true;
                        break;
                    }
                    Answer::Broken => {
                        own.expect_broken();
                        break;
                    }
                    Answer::Refused => {
                        assert!(*armed, "refused without a fault");
                        tally.refused += 1;
                    }
                    Answer::Not => break,
                }
            }
            return;
        }
        let wanted = source.random.below(MOST_SENDS);
        let first = *model;
        // Each staged request, and the model as it is after that request.
        let mut staged: Vec<(Posted, Model)> = Vec::with_capacity(wanted);
        let mut broken = false;
        let result = pair.batch(|batch| {
            for _ in 0..wanted {
                match source.emit(batch, model) {
                    Answer::Posted(posted) => staged.push((posted, *model)),
                    Answer::Uncertain(_) => panic!("a batch knows at its end only"),
                    Answer::Refused | Answer::Not => break,
                    Answer::Broken => {
                        broken = true;
                        break;
                    }
                }
            }
        });
        let mut uncertain = false;
        if let Err(error) = result {
            uncertain = error.uncertain != 0;
            assert!(*armed, "refused without a fault");
            let kept = error.posted + error.uncertain;
            assert_eq!(kept + error.refused.len(), staged.len(), "the parts of a batch");
            for ((posted, _), memory) in staged.drain(kept..).zip(error.refused) {
                tally.refused += 1;
                match memory {
                    PostedMemory::Unique(buffer) => {
                        assert_eq!(posted.address, buffer.as_ptr().addr(), "a refused buffer");
                        spare.push(buffer);
                    }
                    _ => {
                        assert_eq!(posted.address, 0, "refused without its buffer");
                    }
                }
            }
            tally.uncertain += error.uncertain as u64;
            *model = staged.last().map_or(first, |&(_, after)| after);
        }
        for (posted, _) in staged {
            own.keep(SEND, posted, tally, under_way);
        }
        own.uncertain |= uncertain;
        if broken {
            own.expect_broken();
        }
    }

    pub(super) fn post_receives(&mut self, link: usize, side: usize) {
        let Self { random, spare, links, books, tally, armed, under_way, .. } = self;
        let End { pair, number: Some(number), .. } = &mut links[link][side] else { return };
        let own = books.get_mut(number).expect("the accounts of a pair");
        for _ in 0..random.below(12) {
            let Some(buffer) = spare.pop() else { return };
            let address = buffer.as_ptr().addr();
            let result = match pair {
                AnyQueuePair::Init(pair) => pair.post_receive(buffer),
                AnyQueuePair::ReadyToReceive(pair) => pair.post_receive(buffer),
                AnyQueuePair::ReadyToSend(pair) => pair.post_receive(buffer),
                AnyQueuePair::SendQueueDrain(pair) => pair.post_receive(buffer),
                _ => return spare.push(buffer),
            };
            let posted = |id| Posted { id, address, want: Want::Received };
            match result {
                Ok(id) => own.keep(RECEIVE, posted(id), tally, under_way),
                Err(PostError::Uncertain { id, .. }) => {
                    assert!(*armed, "uncertain without a fault");
                    tally.uncertain += 1;
                    own.keep(RECEIVE, posted(id), tally, under_way);
                    own.uncertain = true;
                    return;
                }
                Err(error) => {
                    if matches!(error, PostError::Refused { .. }) {
                        assert!(*armed, "refused without a fault");
                        tally.refused += 1;
                    }
                    if matches!(error, PostError::Broken { .. }) {
                        own.expect_broken();
                    }
                    let buffer = error.into_request().expect("what was not posted");
                    assert_eq!(address, buffer.as_ptr().addr(), "another buffer came back");
                    return spare.push(buffer);
                }
            }
        }
    }

    /// Runs a batch whose closure panics. Only the requests that were handed over before the panic are posted.
    pub(super) fn panicking_batch(&mut self, link: usize, side: usize) {
        let Ok(buffers) = self.domain.buffers(3, LEN) else { return assert!(self.armed, "a region") };
        let Self { links, books, tally, under_way, guests, total, armed, .. } = self;
        let End { pair, number: Some(number), model, .. } = &mut links[link][side] else { return };
        let Some(pair) = pair.ready() else { return };
        let in_flight = pair.sends_in_flight();
        let mut staged = Vec::new();
        let result = catch_unwind(AssertUnwindSafe(|| {
            pair.batch(|batch| {
                for mut buffer in buffers {
                    buffer.write(&SHARED_BYTES).expect("within its capacity");
                    let address = buffer.as_ptr().addr();
                    if let Ok(id) = batch.post(WorkRequest::send(buffer)) {
                        staged.push(Posted { id, address, want: Want::Sent });
                    }
                }
                // Unlike `panic!`, this prints no message.
                resume_unwind(Box::new(()));
            })
        }));
        assert!(result.is_err(), "a panic that stopped");
        let own = books.get_mut(number).expect("the accounts of a pair");
        for &posted in staged.iter().take((pair.sends_in_flight() - in_flight) as usize) {
            model.message += 1;
            guests.insert(posted.address);
            *total += 1;
            own.keep(SEND, posted, tally, under_way);
        }
        // If a fault hit the batch, the panic hides the error of the batch. So while faults are armed, its outcome
        // counts as uncertain.
        own.uncertain |= *armed;
    }

    /// Splits a pair, posts to its halves, and joins them again.
    pub(super) fn through_halves(&mut self, link: usize, side: usize) {
        let target = window_of(&self.window, self.links.len(), link, side);
        let Self { random, spare, links, dead, share, books, tally, armed, under_way, .. } = self;
        let End { pair, number: Some(number), model, .. } = &mut links[link][side] else { return };
        let own = books.get_mut(number).expect("the accounts of a pair");
        let whole = match mem::take(pair) {
            AnyQueuePair::ReadyToSend(whole) => whole,
            other => return *pair = other,
        };
        let (mut send, mut receive) = whole.split();
        let mut source = Source { random, spare, number: *number, target: &target, dead, share };
        match source.emit(&mut send, model) {
            Answer::Posted(posted) => own.keep(SEND, posted, tally, under_way),
            Answer::Uncertain(posted) => {
                assert!(*armed, "uncertain without a fault");
                tally.uncertain += 1;
                own.keep(SEND, posted, tally, under_way);
                own.uncertain = true;
            }
            Answer::Broken => own.expect_broken(),
            Answer::Refused | Answer::Not => {}
        }
        if let Some(buffer) = spare.pop() {
            let address = buffer.as_ptr().addr();
            let posted = |id| Posted { id, address, want: Want::Received };
            match receive.post_receive(buffer) {
                Ok(id) => own.keep(RECEIVE, posted(id), tally, under_way),
                Err(PostError::Uncertain { id, .. }) => {
                    tally.uncertain += 1;
                    own.keep(RECEIVE, posted(id), tally, under_way);
                    own.uncertain = true;
                }
                Err(error) => spare.push(error.into_request().expect("what was not posted")),
            }
        }
        *pair = send.join(receive).expect("the halves of one pair").into();
    }

    /// Checks that the send queue of a pair does not stay full if the peer has receives. Unsignalled requests must not
    /// block it either.
    pub(super) fn expect_progress(&mut self, link: usize) {
        self.heal();
        for _ in 0..100 {
            self.fabric.run();
            if let Some(time) = self.fabric.next_timer() {
                self.fabric.advance(time);
            }
            self.collect(0);
            self.collect(1);
        }
        let [left, right] = &self.links[link];
        let (AnyQueuePair::ReadyToSend(left), AnyQueuePair::ReadyToSend(right)) = (&left.pair, &right.pair) else {
            return;
        };
        for (pair, peer) in [(left, right), (right, left)] {
            let own = &self.books[&pair.number()];
            // If the peer has few receives, messages perhaps wait for one, and they can fill the send queue. Such a
            // pair is not checked.
            if own.failed == [false; 2] && !own.uncertain && peer.receives_in_flight() > 4 {
                assert!(pair.sends_in_flight() < pair.limits().sends, "a queue that stays full");
            }
        }
    }
}
