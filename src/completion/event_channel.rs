//! The channel on which completion queues report their events: of one queue, or shared by several.
//!
//! An event in a shared channel is of one queue, and whoever reads the channel may get the event of another queue. So
//! all events are taken under one lock, and each is passed on: it marks its queue as ready, and wakes the poller of
//! that queue, which may sleep on its own.

use crate::device::CompletionQueueId;
use crate::domain::DomainInner;
use crate::inflight::{RawChannel, Waker};
use crate::readiness::{Readiness, until_readable};
use crate::sync::lock;
use crate::verb_error::VerbError;
use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use std::{io, mem};

pub(super) struct EventChannel {
    raw: Arc<RawChannel>,
    /// `None` for the channel of one queue.
    members: Option<Members>,
}

/// The queues of a shared channel.
struct Members {
    /// Wakes a program that waits for any of them.
    waker: Waker,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// By the address of the queue. A queue is here before it is armed for the first time, and leaves before it is
    /// destroyed, so that an event finds no other queue at its address.
    queues: HashMap<usize, Member>,
    /// The addresses of ready queues that [`EventChannel::next_ready`] has not told yet, each once.
    ready: VecDeque<usize>,
}

struct Member {
    id: CompletionQueueId,
    waker: Arc<Waker>,
    is_ready: bool,
}

impl Members {
    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl Table {
    /// Marks a queue as ready.
    fn mark(&mut self, address: usize) {
        if let Some(member) = self.queues.get_mut(&address)
            && !mem::replace(&mut member.is_ready, true)
        {
            self.ready.push_back(address);
        }
    }
}

impl EventChannel {
    /// A channel for one queue.
    pub(super) fn of_one_queue(domain: &Arc<DomainInner>) -> Result<Arc<Self>, VerbError> {
        Ok(Arc::new(Self { raw: RawChannel::create(domain)?, members: None }))
    }

    /// A channel for any number of queues.
    pub(super) fn shared(domain: &Arc<DomainInner>) -> Result<Arc<Self>, VerbError> {
        let members = Members { waker: Waker::new()?, table: Mutex::default() };
        Ok(Arc::new(Self { raw: RawChannel::create(domain)?, members: Some(members) }))
    }

    pub(super) fn raw(&self) -> &Arc<RawChannel> {
        &self.raw
    }

    pub(super) fn fd(&self) -> RawFd {
        self.raw.fd()
    }

    /// How many queues share it.
    pub(super) fn members(&self) -> usize {
        self.members.as_ref().map_or(0, |members| members.table().queues.len())
    }

    /// A queue was made on this channel.
    pub(super) fn join(&self, address: usize, id: CompletionQueueId, waker: &Arc<Waker>) {
        if let Some(members) = &self.members {
            let mut table = members.table();
            table.queues.insert(address, Member { id, waker: Arc::clone(waker), is_ready: false });
            // So that taking events does not allocate.
            let room = table.queues.len();
            table.ready.reserve(room);
        }
    }

    /// A queue is about to be destroyed.
    pub(super) fn leave(&self, address: usize) {
        if let Some(members) = &self.members {
            let mut table = members.table();
            table.queues.remove(&address);
            table.ready.retain(|&other| other != address);
        }
    }

    /// Something happened to a queue that raises no event. Wakes a program that waits for any of several queues.
    pub(super) fn tell(&self, address: usize) {
        if let Some(members) = &self.members {
            members.table().mark(address);
            members.waker.wake();
        }
    }

    /// Takes and acknowledges all events that are there, and returns how many there were. Events of other queues than
    /// `own` are passed on.
    pub(super) fn take_events(&self, own: Option<CompletionQueueId>) -> Result<usize, VerbError> {
        let mut count = 0;
        let Some(members) = &self.members else {
            while self.raw.take_event()?.is_some() {
                count += 1;
            }
            return Ok(count);
        };
        let mut table = members.table();
        while let Some(address) = self.raw.take_event()? {
            count += 1;
            match table.queues.get(&address) {
                Some(member) if Some(member.id) != own => {
                    member.waker.wake();
                    table.mark(address);
                    if own.is_some() {
                        members.waker.wake();
                    }
                }
                _ => {}
            }
        }
        Ok(count)
    }

    /// A queue that is ready, each once.
    pub(super) fn next_ready(&self) -> Option<CompletionQueueId> {
        let mut table = self.members.as_ref()?.table();
        loop {
            let address = table.ready.pop_front()?;
            if let Some(member) = table.queues.get_mut(&address).filter(|member| member.is_ready) {
                member.is_ready = false;
                return Some(member.id);
            }
        }
    }

    /// Ends the wake-ups for a program that waits for any of the queues.
    pub(super) fn clear_waker(&self) {
        if let Some(members) = &self.members {
            members.waker.clear();
        }
    }

    /// The two descriptors of a shared channel; the same one twice for the channel of one queue.
    fn fds(&self) -> [RawFd; 2] {
        [self.fd(), self.members.as_ref().map_or(self.fd(), |members| members.waker.fd())]
    }

    /// Readable when there are events, or a queue was [told](Self::tell) of.
    pub(super) fn readiness(&self) -> Result<Readiness, VerbError> {
        Readiness::over(&self.fds())
    }

    /// Sleeps until there are events, or a queue was [told](Self::tell) of, or for `left`.
    pub(super) fn sleep(&self, left: Duration) -> io::Result<()> {
        until_readable(self.fds(), left).map(drop)
    }
}
