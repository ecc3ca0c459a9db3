//! What `aio` needs of the types that wait for events.

use super::channel::Events;
use super::error::Failed;
use super::{Accepting, Cause, Connecting, Connection, Link, Listener, Progress, Resolved, Resolving};
use crate::domain::Brand;
use crate::queue::AnyQueuePair;
use crate::queue::transport::Reliable;
use crate::verb_error::VerbError;

/// A state of an identifier that waits for an event.
pub(crate) trait Step: Sized {
    /// The state that follows.
    type Next;
    /// Why the next state was not reached.
    type Error;
    /// The events of the identifier.
    fn events(&self) -> &Events;
    /// Moves to the next state, if the event has come.
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

impl<K> Listener<K> {
    pub(crate) fn events(&self) -> &Events {
        &self.id.events
    }
}

impl Link {
    pub(crate) fn events(&self) -> &Events {
        &self.id.events
    }

    /// Tells the peer that the connection ends. This fails if the connection has ended already.
    pub(crate) fn disconnect(&mut self) -> Result<(), VerbError> {
        self.id.raw.disconnect()
    }
}
