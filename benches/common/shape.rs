//! The one place in these programs that looks into completions.

use interlock::completion::{Received, WrittenWithImmediate};
use interlock::error::PollError;
use interlock::number::Qpn;
use interlock::queue::SendHalf;
use interlock::request::{Batch, Operation, PostedMemory, SendMemory};
use interlock::transport::Carries;
use interlock::{
    Brand, Completion, Limits, Poller, PostError, QueuePair, ReliableConnection, Status, Success, Work, WorkId,
    WorkRequest,
};

/// A completion, split into its parts.
pub(crate) struct Ended<B> {
    pub(crate) id: WorkId,
    pub(crate) queue_pair: Qpn,
    pub(crate) outcome: Outcome,
    pub(crate) memory: PostedMemory<B>,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Sent,
    Written,
    Read,
    Atomic { original: u64 },
    Received { immediate: Option<u32> },
    WrittenWithImmediate { written_bytes: u32, immediate: u32 },
    Failed { operation: Operation, status: Status },
}

impl<B> Ended<B> {
    #[inline]
    pub(crate) fn of(completion: Completion<B>) -> Self {
        match completion.check() {
            Ok(success) => Self::of_success(success),
            Err(failure) => {
                let outcome = Outcome::Failed { operation: failure.operation, status: failure.status };
                Self { id: failure.id, queue_pair: failure.queue_pair, outcome, memory: failure.memory }
            }
        }
    }

    #[inline]
    fn of_success(success: Success<B>) -> Self {
        let (id, queue_pair) = (success.id(), success.queue_pair());
        let (outcome, memory) = match success.into_work() {
            Work::Sent(memory) => (Outcome::Sent, memory),
            Work::Written(memory) => (Outcome::Written, memory),
            Work::Read(buffer) => (Outcome::Read, PostedMemory::Unique(buffer)),
            Work::Atomic { original, buffer } => (Outcome::Atomic { original }, PostedMemory::Unique(buffer)),
            Work::Received(Received { buffer, immediate, .. }) => {
                (Outcome::Received { immediate }, PostedMemory::Unique(buffer))
            }
            Work::WrittenWithImmediate(WrittenWithImmediate { buffer, written_bytes, immediate, .. }) => {
                (Outcome::WrittenWithImmediate { written_bytes, immediate }, PostedMemory::Unique(buffer))
            }
            _ => panic!("a kind of work that this program does not post"),
        };
        Self { id, queue_pair, outcome, memory }
    }
}

/// Anything that requests can be posted to.
pub(crate) trait Post<'env, B> {
    fn post<M: SendMemory<B> + 'env, K>(
        &mut self,
        request: WorkRequest<M, K>,
    ) -> Result<WorkId, PostError<WorkRequest<M, K>>>
    where
        ReliableConnection: Carries<K>;
}

macro_rules! post {
    ($($who:ty),+) => {$(
        impl<'env, B: Brand> Post<'env, B> for $who {
            fn post<M: SendMemory<B> + 'env, K>(
                &mut self,
                request: WorkRequest<M, K>,
            ) -> Result<WorkId, PostError<WorkRequest<M, K>>>
            where
                ReliableConnection: Carries<K>,
            {
                <$who>::post(self, request)
            }
        }
    )+};
}
post!(QueuePair<B>, SendHalf<B>, Batch<'_, 'env, B>);

/// Limits with room for a few bytes inline.
pub(crate) fn limits(sends: u32, receives: u32) -> Limits {
    Limits { sends, receives, inline_bytes: 16, elements: 1, posting: interlock::queue::Posting::List }
}

/// Gives `f` each completion that there is now; returns their number.
#[inline]
pub(crate) fn poll_each<B: Brand>(poller: &mut Poller<B>, f: impl FnMut(Completion<B>)) -> Result<usize, PollError> {
    poller.poll_each(f)
}

/// Like [`poll_each`], but through `poll_retired`: `f` gets the unsignalled requests too.
pub(crate) fn poll_retired<B: Brand>(poller: &mut Poller<B>, mut f: impl FnMut(Ended<B>)) -> Result<usize, PollError> {
    poller.poll_retired(|mut retired| {
        retired.unsignalled().for_each(|success| f(Ended::of_success(success)));
        f(Ended::of(retired.into_completion()));
    })
}
