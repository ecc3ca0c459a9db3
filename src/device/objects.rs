//! The live objects of an open device, by address: an asynchronous event names one of them.
//!
//! An event names its object by an address. This library acknowledges events at once, and after that another thread may
//! destroy the object and make another one at the same address. So an object leaves this table before it is destroyed,
//! and an event is taken and its object looked up in one step under the table's lock. Then the object found is the one
//! that the event is about.

use crate::sync::lock;
use crate::types::Qpn;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The next number for an object of any kind. No number is used twice.
fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Declares an id type for objects that have no number in the verbs.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(u64);

        impl $name {
            /// An id that no other object of this process has or had.
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
    /// The id of a completion queue of this process; never used again for another.
    ///
    /// See [`CompletionQueue::id`](crate::CompletionQueue::id).
    CompletionQueueId, "completion queue"
}
id! {
    /// The id of a shared receive queue of this process; never used again for another.
    ///
    /// See [`SharedReceiveQueue::id`](crate::shared::SharedReceiveQueue::id).
    SharedReceiveQueueId, "shared receive queue"
}

/// The object at an address, by the id that events carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Object {
    QueuePair(Qpn),
    CompletionQueue(CompletionQueueId),
    SharedReceiveQueue(SharedReceiveQueueId),
}

/// The live objects, by address.
#[derive(Debug, Default)]
pub(crate) struct Objects(Mutex<HashMap<usize, Object>>);

impl Objects {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<usize, Object>> {
        lock(&self.0)
    }

    /// Adds an object that was just made.
    pub(crate) fn note(&self, address: usize, object: Object) {
        self.lock().insert(address, object);
    }

    /// Takes an object out of the table and destroys it. If that fails, the object is put back.
    pub(crate) fn end<R, E>(&self, address: usize, destroy: impl FnOnce() -> Result<R, E>) -> Result<R, E> {
        let was = self.lock().remove(&address);
        let result = destroy();
        if let (Err(_), Some(object)) = (&result, was) {
            self.note(address, object);
        }
        result
    }
}
