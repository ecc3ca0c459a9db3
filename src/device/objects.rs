//! The live objects of an open device by address: what an asynchronous event is about.
//!
//! An event names its object by an address. Once it is acknowledged, as ours are at once, the object may be destroyed
//! on another thread and another one made at the same address. So an object leaves this table before it is destroyed, and
//! taking an event and finding its object are one step under the table's lock: what is found is what the event was about.

use crate::types::Qpn;
use std::collections::HashMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers of objects, of any kind; none is used again.
fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Declares the name of an object that has no number of its own in the verbs.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(u64);

        impl $name {
            /// One that no other object of this process has or had.
            pub(crate) fn fresh() -> Self {
                Self(next_number())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($what, " {}"), self.0)
            }
        }
    };
}

id! {
    /// Names a completion queue of this process; never used again for another.
    ///
    /// See [`CompletionQueue::id`](crate::CompletionQueue::id).
    CompletionQueueId, "completion queue"
}
id! {
    /// Names a shared receive queue of this process; never used again for another.
    ///
    /// See [`SharedReceiveQueue::id`](crate::SharedReceiveQueue::id).
    SharedReceiveQueueId, "shared receive queue"
}

/// What is at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Object {
    QueuePair(Qpn),
    CompletionQueue(CompletionQueueId),
    SharedReceiveQueue(SharedReceiveQueueId),
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Objects(Mutex<HashMap<usize, Object>>);

impl Objects {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<usize, Object>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object was made.
    pub(crate) fn note<T>(&self, raw: NonNull<T>, object: Object) {
        self.lock().insert(raw.as_ptr().addr(), object);
    }

    /// Destroys an object, which is in the table only before, and again if that failed.
    pub(crate) fn end<T, E>(&self, raw: NonNull<T>, destroy: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let was = self.lock().remove(&raw.as_ptr().addr());
        let result = destroy();
        if let (Err(_), Some(object)) = (&result, was) {
            self.note(raw, object);
        }
        result
    }
}
