//! The accounts of requests: what was posted, and what each request must have done.

use super::*;

/// The effect that a request must have had if it succeeded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    Sent,
    Written,
    Read { tag: u64 },
    Atomic { original: u64 },
    Received,
}

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) id: WorkId,
    /// The address of its buffer, or 0 if it has no buffer of its own.
    pub(super) address: usize,
    pub(super) want: Want,
}

/// The accounts of one queue pair.
pub(super) struct Books {
    /// The requests under way by side, the oldest first.
    pub(super) posted: [VecDeque<Posted>; 2],
    /// The index of the completion queue of each side.
    pub(super) queues: [usize; 2],
    pub(super) failed: [bool; 2],
    /// Whether the pair was reset or destroyed with requests in flight.
    pub(super) ended: bool,
    pub(super) gone: bool,
    /// Whether a post may have been queued only in part, which breaks the pair.
    pub(super) uncertain: bool,
    /// The number that the next arriving message must carry.
    pub(super) next_message: u32,
}

/// The content of the window of an end once every posted request has been executed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Model {
    pub(super) word: u64,
    pub(super) tag: u64,
    pub(super) message: u32,
}

/// The value of word `at` in a window that was written with `tag`.
pub(super) fn word_of(tag: u64, at: usize) -> u64 {
    tag.wrapping_mul((2 * at as u64).wrapping_add(1))
}

pub(super) fn byte_of(message: u32, at: usize) -> u8 {
    message.wrapping_mul(31).wrapping_add(at as u32) as u8
}

pub(super) fn which<B>(buffer: &Buffer<B>) -> (usize, usize) {
    (buffer.as_ptr().addr(), buffer.len())
}

impl Books {
    pub(super) fn expect_broken(&self) {
        assert!(self.failed != [false; 2] || self.uncertain, "broken, but nothing failed");
    }

    pub(super) fn keep(&mut self, side: usize, posted: Posted, tally: &mut Tally, under_way: &mut usize) {
        assert!(self.failed == [false; 2], "posted to a pair that is known to have failed");
        tally.posted += 1;
        *under_way += usize::from(posted.address != 0);
        self.posted[side].push_back(posted);
    }
}

/// Checks that a request that succeeded did its work.
pub(super) fn check<B>(posted: &Posted, outcome: Outcome, buffer: &Buffer<B>, own: &mut Books) {
    match (posted.want, outcome) {
        (_, Outcome::Failed { .. }) | (Want::Sent, Outcome::Sent) | (Want::Written, Outcome::Written) => {}
        (Want::Read { tag }, Outcome::Read) => {
            assert_eq!(buffer.len(), (WINDOW - 1) * 8, "the length of a read");
            for (at, word) in buffer.chunks_exact(8).enumerate() {
                assert_eq!(word, word_of(tag, at).to_ne_bytes(), "what was read");
            }
        }
        (Want::Atomic { original }, Outcome::Atomic { original: found }) => {
            assert_eq!(found, original, "a word before an atomic");
        }
        (Want::Received, Outcome::Received { immediate }) => {
            let number = own.next_message;
            own.next_message += 1;
            assert!(immediate.is_none_or(|immediate| immediate == number), "the immediate of another message");
            let found = buffer.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
            if found == Some(SHARED) {
                return assert_eq!(buffer.len(), 4, "the length of what was shared");
            }
            assert_eq!(found, Some(number), "messages in order");
            assert_eq!(buffer.len(), usize::from(buffer[8]), "the length of a message");
            for (at, &byte) in buffer.iter().enumerate().skip(9) {
                assert_eq!(byte, byte_of(number, at), "a byte of a message");
            }
        }
        (Want::Received, Outcome::WrittenWithImmediate { written_bytes, immediate }) => {
            assert_eq!(
                (immediate, written_bytes),
                (own.next_message, 8 * (WINDOW as u32 - 1)),
                "a write that was told"
            );
            own.next_message += 1;
        }
        (want, outcome) => panic!("{want:?} became {outcome:?}"),
    }
}
