//! Random requests: how an end makes one and posts it.

use super::*;

/// The outcome of a post.
pub(super) enum Answer {
    Posted(Posted),
    Uncertain(Posted),
    /// The request was not posted: there was no room, or the request was malformed.
    Not,
    Broken,
    Refused,
}

/// Sorts the result of a post. If the request was not posted, hands it to `back`.
fn answer<M, K>(
    result: Result<WorkId, PostError<WorkRequest<M, K>>>,
    posted: impl FnOnce(WorkId) -> Posted,
    back: impl FnOnce(WorkRequest<M, K>),
) -> Answer {
    match result {
        Ok(id) => Answer::Posted(posted(id)),
        Err(PostError::Uncertain { id, .. }) => Answer::Uncertain(posted(id)),
        Err(error) => {
            let answer = match &error {
                PostError::Refused { .. } => Answer::Refused,
                PostError::Broken { .. } => Answer::Broken,
                _ => Answer::Not,
            };
            back(error.into_request().expect("what was not posted"));
            answer
        }
    }
}

/// The objects that an end needs in order to post.
pub(super) struct Source<'w, B> {
    pub(super) random: &'w mut Random,
    pub(super) spare: &'w mut Vec<Buffer<B>>,
    pub(super) number: Qpn,
    pub(super) target: &'w RemoteRegion<RemoteAll>,
    pub(super) dead: &'w RemoteRegion<RemoteAll>,
    pub(super) share: &'w SharedBuffer<B>,
}

impl<'env, B: Brand + 'env> Source<'_, B> {
    /// Posts a random request. Updates `model` to the state of the peer's window after the request is executed.
    pub(super) fn emit(&mut self, poster: &mut impl Post<'env, B>, model: &mut Model) -> Answer {
        let before = *model;
        let answer = match self.random.below(17) {
            0..5 => self.send(poster, model),
            5 => {
                model.message += 1;
                let posted = |id| Posted { id, address: 0, want: Want::Sent };
                if self.random.one_in(2) {
                    answer(poster.post(WorkRequest::send(Inline(&SHARED_BYTES)).unsignalled()), posted, drop)
                } else {
                    answer(poster.post(WorkRequest::send(self.share.clone())), posted, drop)
                }
            }
            kind => self.one_sided(kind, poster, model),
        };
        if !matches!(answer, Answer::Posted(_) | Answer::Uncertain(_)) {
            *model = before;
        }
        answer
    }

    /// `which` is the address of the buffer and its filled length.
    pub(super) fn post<K>(
        &mut self,
        poster: &mut impl Post<'env, B>,
        request: WorkRequest<Buffer<B>, K>,
        want: Want,
        which: (usize, usize),
    ) -> Answer
    where
        ReliableConnection: Carries<K>,
    {
        let request = if self.random.one_in(2) { request.unsignalled() } else { request };
        let posted = |id| Posted { id, address: which.0, want };
        answer(poster.post(request), posted, |request| {
            let buffer = request.into_memory();
            assert_eq!((buffer.as_ptr().addr(), buffer.len()), which, "a buffer that was not posted");
            self.spare.push(buffer);
        })
    }

    pub(super) fn send(&mut self, poster: &mut impl Post<'env, B>, model: &mut Model) -> Answer {
        let Some(mut buffer) = self.spare.pop() else { return Answer::Not };
        let number = model.message;
        model.message += 1;
        let len = SHORT + self.random.below(buffer.capacity() - SHORT + 1);
        buffer.set_len(len).expect("within its capacity");
        for (at, byte) in buffer.iter_mut().enumerate() {
            *byte = byte_of(number, at);
        }
        buffer[..4].copy_from_slice(&number.to_ne_bytes());
        buffer[4..8].copy_from_slice(&self.number.value().to_ne_bytes());
        buffer[8] = len as u8;
        let which = which(&buffer);
        let request = WorkRequest::send(buffer);
        let request = if self.random.one_in(3) { request.with_immediate(number) } else { request };
        let request = if self.random.one_in(3) { request.solicited() } else { request };
        self.post(poster, request, Want::Sent, which)
    }

    pub(super) fn one_sided(&mut self, kind: usize, poster: &mut impl Post<'env, B>, model: &mut Model) -> Answer {
        let Some(mut buffer) = self.spare.pop() else { return Answer::Not };
        let whole = self.target.slice(8..8 * WINDOW as u64).expect("within the window");
        if buffer.capacity() < LEN {
            // The buffer is too short to read into, so the library refuses to post the read.
            let result = poster.post(WorkRequest::read(buffer, &whole));
            assert!(matches!(result, Err(PostError::Flawed { .. })), "a read into too short a buffer");
            return answer(
                result,
                |id| Posted { id, address: 0, want: Want::Sent },
                |request| self.spare.push(request.into_memory()),
            );
        }
        match kind {
            // Rarely, write to a region that has been deregistered. The peer refuses the write, and both ends break.
            6 if self.random.one_in(300) => {
                buffer.set_len(8).expect("within its capacity");
                let which = which(&buffer);
                let request = WorkRequest::write(buffer, self.dead);
                self.post(poster, request, Want::Written, which)
            }
            6..10 => {
                model.tag = self.random.next() | 1;
                buffer.set_len((WINDOW - 1) * 8).expect("within its capacity");
                for (at, word) in buffer.chunks_exact_mut(8).enumerate() {
                    word.copy_from_slice(&word_of(model.tag, at).to_ne_bytes());
                }
                let which = which(&buffer);
                let mut request = WorkRequest::write(buffer, &whole);
                if self.random.one_in(4) {
                    request = request.with_immediate(model.message);
                    model.message += 1;
                }
                self.post(poster, request, Want::Written, which)
            }
            10..14 => {
                let (want, which) = (Want::Read { tag: model.tag }, which(&buffer));
                self.post(poster, WorkRequest::read(buffer, &whole), want, which)
            }
            14 | 15 => {
                let (original, addend) = (model.word, self.random.next());
                model.word = original.wrapping_add(addend);
                let which = which(&buffer);
                let request = WorkRequest::fetch_and_add(buffer, self.target, addend);
                self.post(poster, request, Want::Atomic { original }, which)
            }
            _ => {
                let (original, swap) = (model.word, self.random.next());
                let hit = self.random.one_in(2);
                let compare = if hit { original } else { !original };
                model.word = if hit { swap } else { original };
                let which = which(&buffer);
                let request = WorkRequest::compare_and_swap(buffer, self.target, compare, swap).fenced();
                self.post(poster, request, Want::Atomic { original }, which)
            }
        }
    }
}
