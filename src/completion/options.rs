//! How a completion queue is made, and why it is not.

use super::extended::Polling;
use crate::error::VerbError;

/// How a completion queue is made, besides its room.
///
/// # Examples
///
/// ```
/// use interlock::{CompletionQueueOptions, Polling};
///
/// let options = CompletionQueueOptions { vector: 1, ..CompletionQueueOptions::default() };
/// assert_eq!(options.polling, Polling::Array);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[doc(alias = "ibv_cq_init_attr_ex")]
pub struct CompletionQueueOptions {
    /// The completion vector of its events, below [`Context::completion_vectors`](crate::Context::completion_vectors): which
    /// interrupt, and so which processor, wakes who waits.
    #[doc(alias = "comp_vector")]
    pub vector: u32,
    /// How completions are taken from the device.
    #[doc(alias = "ibv_create_cq_ex")]
    pub polling: Polling,
}

/// Why there is no completion queue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompletionQueueError {
    /// The device has no extended completion queues, or its provider was not found to poll them well (`docs/providers.md`).
    #[error("the device does not poll through ibv_start_poll: create the completion queue with `Polling::Array`")]
    NotExtended(#[source] VerbError),
    /// The device answered with an error. `EINVAL`: no entries, or more than the device has
    /// ([`max_completion_entries`](crate::DeviceAttributes::max_completion_entries)), or no such completion vector.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl CompletionQueueError {
    /// What the device answered.
    pub(crate) fn into_verb(self) -> VerbError {
        match self {
            Self::NotExtended(verb) | Self::Verb(verb) => verb,
        }
    }
}
