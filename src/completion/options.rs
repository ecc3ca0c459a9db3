//! Options of a new completion queue, and errors of its creation.

use crate::verb_error::VerbError;

/// Options of a new completion queue.
///
/// # Examples
///
/// ```
/// use interlock::completion::{CompletionQueueOptions, Polling};
///
/// let options = CompletionQueueOptions { vector: 1, ..CompletionQueueOptions::default() };
/// assert_eq!(options.polling, Polling::Array);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[doc(alias = "ibv_cq_init_attr_ex")]
pub struct CompletionQueueOptions {
    /// The completion vector of its events, below [`Context::completion_vectors`](crate::Context::completion_vectors).
    /// It chooses the interrupt, and so the processor, that wakes a waiting thread.
    #[doc(alias = "comp_vector")]
    pub vector: u32,
    /// How completions are taken from the device.
    #[doc(alias = "ibv_create_cq_ex")]
    pub polling: Polling,
}

/// How a poller takes completions from the device. The choice does not change the completions.
///
/// # Examples
///
/// ```
/// # use interlock::Context;
/// # use interlock::completion::{CompletionQueueOptions, Polling};
/// # use interlock::error::CompletionQueueError;
/// # interlock::domain! { struct Docs; }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = Context::open("soft0")?.named_domain(Docs)?;
/// let options = CompletionQueueOptions { polling: Polling::Extended, ..Default::default() };
/// let (queue, poller) = match domain.completion_queue_with(64, &options) {
///     Err(CompletionQueueError::NotExtended(_)) => domain.completion_queue(64)?,
///     made => made?,
/// };
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum Polling {
    /// Into an array, `ibv_poll_cq(3)`. Every device has it.
    #[default]
    #[doc(alias = "ibv_poll_cq")]
    Array,
    /// One by one, with `ibv_start_poll`, `ibv_next_poll` and `ibv_end_poll` of an extended completion queue,
    /// `ibv_create_cq_ex(3)`. Some devices are faster this way, and some do not have it.
    #[doc(alias = "ibv_cq_ex")]
    #[doc(alias = "ibv_start_poll")]
    #[doc(alias = "ibv_next_poll")]
    #[doc(alias = "ibv_end_poll")]
    Extended,
}

/// Why a completion queue was not created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompletionQueueError {
    /// The device has no extended completion queues, or its provider was not reviewed for them (`docs/providers.md`).
    #[error(
        "completions cannot be polled with ibv_start_poll on this device: create the completion queue with `Polling::Array`"
    )]
    NotExtended(#[source] VerbError),
    /// The device answered with an error. `EINVAL`: no entries, or more than the device has
    /// ([`max_completion_entries`](crate::device::DeviceAttributes::max_completion_entries)), or no such completion
    /// vector. `EPERM`: [`OpenError::ForbiddenEnvironment`](crate::error::OpenError::ForbiddenEnvironment) has the
    /// reason.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl CompletionQueueError {
    /// The variant for an error of creating an extended queue.
    pub(super) fn of_extended(error: VerbError) -> Self {
        match error.errno() {
            libc::EOPNOTSUPP | libc::ENOSYS => Self::NotExtended(error),
            _ => error.into(),
        }
    }

    pub(crate) fn into_verb(self) -> VerbError {
        match self {
            Self::NotExtended(verb) | Self::Verb(verb) => verb,
        }
    }
}
