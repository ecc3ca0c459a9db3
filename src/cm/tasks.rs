//! What the async layer needs of the types that wait.

use super::channel::Events;
use super::error::Failed;
use super::{Accepting, Cause, Connecting, Connection, Link, Listener, Progress, Resolved, Resolving};
use crate::domain::Brand;
use crate::queue::AnyQueuePair;
use crate::queue::transport::Reliable;
use crate::verb_error::VerbError;

/// A state in which an identifier waits for an event.
pub(crate) trait Step: Sized {
    /// The state after the event.
    type Next;
    /// The error of a failed step.
    type Error;
    /// The events of the identifier.
    fn events(&self) -> &Events;
    /// Moves to the next state if the event has arrived.
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
    /// Stops waiting for the peer, and gives the pair back in Error.
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

    /// Tells the peer that the connection ends. If this fails, the drop of the link tells the peer, unless the
    /// connection has ended already.
    pub(crate) fn disconnect(&mut self) -> Result<(), VerbError> {
        self.id.raw.disconnect()
    }
}
