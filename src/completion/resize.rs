//! Changing the capacity of a completion queue.

use super::poller::{PollError, Poller, PollerParts};
use crate::device::Context;
use crate::verb_error::VerbError;
use std::sync::Arc;

/// Why a completion queue was not resized.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// The queue pairs lease more room than the requested capacity, and may cause that many completions.
    #[error(
        "the queue pairs take up room for {leased} completions, so {asked} are too few: ask for at least {leased}, or \
         destroy queue pairs and poll until the queue is empty"
    )]
    Leased {
        /// The requested capacity.
        asked: u32,
        /// The leased room.
        leased: u32,
    },
    /// No completion queue of this device can have that capacity.
    #[error("a completion queue of this device has room for 1 to {most} completions, not {asked}")]
    OutOfRange {
        /// The requested capacity.
        asked: u32,
        /// The most that the device has.
        most: u32,
    },
    /// The device cannot resize completion queues (`EOPNOTSUPP`, `ENOSYS`), its provider was not reviewed for it
    /// (`docs/providers.md`), or the device could not be queried.
    #[error("the device does not resize this completion queue: create one of the capacity that you need")]
    Refused(#[source] VerbError),
    /// The device failed halfway. Some providers have freed the old queue by then. So the queue can no longer be used,
    /// and every poll of it fails with [`PollError::Failed`](super::PollError::Failed).
    #[error(
        "the completion queue failed while it was resized, and polls of it fail from now on: destroy its queue pairs, and \
         create another queue"
    )]
    Failed(#[source] VerbError),
    /// The queue has failed before, so the device was not asked.
    #[error(transparent)]
    Unusable(#[from] PollError),
}

impl<B> Poller<B> {
    /// Gives the completion queue room for `entries` completions. The completions in it stay.
    ///
    /// `ibv_resize_cq(3)`. It borrows the poller, so that nobody polls meanwhile: not all providers lock the queue
    /// while they resize it. The manual page does not say whether an armed queue stays armed, so arm it again.
    ///
    /// # Errors
    ///
    /// [`ResizeError::Failed`] if the queue is lost; from then on, [`ResizeError::Unusable`]. After any other
    /// [`ResizeError`] the queue is unchanged.
    ///
    /// # Examples
    ///
    /// ```
    /// use interlock::{Context, Limits};
    /// use interlock::error::ResizeError;
    /// interlock::domain! { struct Docs; }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Context::open("soft0")?.named_domain(Docs)?;
    /// let (queue, mut poller) = domain.completion_queue(8)?;
    /// let pair = domain.reliable(&queue, &Limits::default())?;
    /// assert!(matches!(poller.resize(4), Err(ResizeError::Leased { leased: 8, .. })));
    /// poller.resize(16)?;
    /// assert_eq!((queue.capacity(), queue.room()), (16, 8));
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&mut self, entries: u32) -> Result<(), ResizeError> {
        let PollerParts { state, queue } = &mut *self.parts;
        if state.failed {
            return Err(PollError::Failed.into());
        }
        let context = &queue.domain.context;
        if !context.promises().resizes {
            return Err(ResizeError::Refused(VerbError::new("ibv_resize_cq", libc::EOPNOTSUPP)));
        }
        let device = Context(Arc::clone(&queue.domain.context)).attributes().map_err(ResizeError::Refused)?;
        let most = device.max_completion_entries();
        if entries == 0 || entries > most {
            return Err(ResizeError::OutOfRange { asked: entries, most });
        }
        // `room` keeps the lock until the resize is done, so that nobody leases room meanwhile.
        let mut room = queue.control.room();
        if entries < room.leased() {
            return Err(ResizeError::Leased { asked: entries, leased: room.leased() });
        }
        match state.end().resize(entries) {
            Ok(()) => {
                room.set_capacity(entries);
                Ok(())
            }
            Err(source) if matches!(source.errno(), libc::EOPNOTSUPP | libc::ENOSYS) => {
                Err(ResizeError::Refused(source))
            }
            Err(source) => {
                drop(room);
                state.fail(&queue.control);
                Err(ResizeError::Failed(source))
            }
        }
    }
}
