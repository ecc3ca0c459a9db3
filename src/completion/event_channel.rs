//! The channel on which completion queues report their events. It belongs to one queue, or several queues share it.
//!
//! Each event in a shared channel belongs to one queue, but whoever reads the channel takes the events of all queues.
//! So all events are taken under one lock, and each is passed on: it marks its queue as ready, and wakes that queue's
//! poller, which may be asleep in another thread.

use crate::device::CompletionQueueId;
use crate::domain::DomainInner;
use crate::inflight::{RawChannel, Waker};
use crate::readiness::Readiness;
use crate::sync::lock;
use crate::verb_error::VerbError;
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

pub(super) struct EventChannel {
    raw: Arc<RawChannel>,
    /// `None` for the channel of one queue.
    members: Option<Members>,
}

/// The queues of a shared channel.
struct Members {
    /// Wakes a program that waits for any of the queues.
    waker: Waker,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// Keyed by the address of the queue. A queue is added before it is armed for the first time, and is removed before
    /// it is destroyed, so that an event never finds another queue at its address.
    queues: HashMap<usize, Member>,
    /// The addresses of ready queues that [`EventChannel::next_ready`] has not returned yet, each once.
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

    pub(super) fn fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        self.raw.fd()
    }

    /// How many queues share the channel.
    pub(super) fn members(&self) -> usize {
        self.members.as_ref().map_or(0, |members| members.table().queues.len())
    }

    /// Adds a queue that was created on this channel.
    pub(super) fn join(&self, address: usize, id: CompletionQueueId, waker: &Arc<Waker>) {
        if let Some(members) = &self.members {
            let mut table = members.table();
            table.queues.insert(address, Member { id, waker: Arc::clone(waker), is_ready: false });
            // Reserve room in `ready` for all queues, so that `take_events` does not allocate.
            let room = table.queues.len();
            table.ready.reserve(room);
        }
    }

    /// Removes a queue that is about to be destroyed.
    pub(super) fn leave(&self, address: usize) {
        if let Some(members) = &self.members {
            let mut table = members.table();
            table.queues.remove(&address);
            table.ready.retain(|&other| other != address);
        }
    }

    /// Marks a queue as ready after a change that raises no event, and wakes a program that waits for any of the
    /// queues.
    pub(super) fn tell(&self, address: usize) {
        if let Some(members) = &self.members {
            members.table().mark(address);
            members.waker.wake();
        }
    }

    /// Takes and acknowledges all events in the channel, and returns how many there were. Events of queues other than
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

    /// A queue that is ready. Each is returned once.
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

    /// Clears the wake-ups of a program that waits for any of the queues.
    pub(super) fn clear_waker(&self) {
        if let Some(members) = &self.members {
            members.waker.clear();
        }
    }

    /// The two descriptors to sleep on. One is readable when there are events, or after [`tell`](Self::tell). For the
    /// channel of one queue both are the same.
    pub(super) fn fds(&self) -> Result<[BorrowedFd<'_>; 2], VerbError> {
        let fd = self.fd()?;
        Ok([fd, self.members.as_ref().map_or(fd, |members| members.waker.fd())])
    }

    /// A descriptor that is readable while one of [`fds`](Self::fds) is.
    pub(super) fn readiness(&self) -> Result<Readiness, VerbError> {
        Readiness::over(&self.fds()?)
    }
}
