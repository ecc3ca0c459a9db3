//! What the async layer needs of the types that wait.

use super::channel::Events;
use super::error::Failed;
use super::{Accepting, Cause, Connecting, Connection, Link, Listener, Progress, Resolved, Resolving};
use crate::domain::Brand;
use crate::queue::AnyQueuePair;
use crate::queue::transport::Reliable;
use crate::verb_error::VerbError;

/// A state of an identifier that goes on with an event.
pub(crate) trait Step: Sized {
    /// What it becomes.
    type Next;
    /// Why it does not.
    type Error;
    /// The events of the identifier.
    fn events(&self) -> &Events;
    /// Goes on, if the event has come.
    fn step(self) -> Result<Progress<Self, Self::Next>, Self::Error>;
}

impl Step for Resolving {
    type Next = Resolved;
    type Error = Cause;
    fn events(&self) -> &Events {
        &self.id.events
    }
    fn step(self) -> Result<Progress<Self, Resolved>, Cause> {
        self.poll().map_err(Failed::into_cause)
    }
}

impl<B: Brand, T: Reliable> Step for Connecting<B, T> {
    type Next = Connection<B, T>;
    type Error = Failed<AnyQueuePair<B, T>>;
    fn events(&self) -> &Events {
        &self.asked.events
    }
    fn step(self) -> Result<Progress<Self, Self::Next>, Self::Error> {
        self.poll()
    }
}

impl<B: Brand, T: Reliable> Step for Accepting<B, T> {
    type Next = Connection<B, T>;
    type Error = Failed<AnyQueuePair<B, T>>;
    fn events(&self) -> &Events {
        &self.id.events
    }
    fn step(self) -> Result<Progress<Self, Self::Next>, Self::Error> {
        self.poll()
    }
}

impl<B: Brand, T: Reliable> Accepting<B, T> {
    /// Gives the peer up. The pair comes back.
    pub(crate) fn give_up(self, cause: Cause) -> Failed<AnyQueuePair<B, T>> {
        Failed { value: self.pair.down(), cause }
    }
}

impl<K> Listener<K> {
    pub(crate) fn events(&self) -> &Events {
        &self.id.events
    }
}

impl Link {
    pub(crate) fn events(&self) -> &Events {
        &self.id.events
    }

    /// Tells the peer that the connection ends. This fails only if it has ended already.
    pub(crate) fn disconnect(&mut self) -> Result<(), VerbError> {
        self.id.raw.disconnect()
    }
}
