//! Asynchronous events.
#![forbid(unsafe_code)]

use super::fabric::State;
use crate::os;
use crate::sys::{ibv_async_event, ibv_async_event__bindgen_ty_1 as Element, ibv_event_type};
use libc::c_int;
use std::{
    collections::VecDeque,
    fs::File,
    io::{Read, Write},
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
};

/// A descriptor that can be made readable.
pub(super) struct Signal {
    /// An `eventfd(2)`.
    event: Arc<File>,
    raised: bool,
}

impl Signal {
    /// An eventfd that does not block.
    pub(super) fn new() -> Result<Self, c_int> {
        let event = os::eventfd().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
        Ok(Self { event: Arc::new(File::from(event)), raised: false })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// The descriptor as a file. Its last owner closes it.
    pub(super) fn file(&self) -> Arc<File> {
        Arc::clone(&self.event)
    }

    pub(super) fn raise(&mut self) {
        if !self.raised {
            // The counter of the `eventfd` is 0, so the write neither blocks nor fails.
            self.raised = (&*self.event).write(&1_u64.to_ne_bytes()).is_ok();
        }
    }

    pub(super) fn lower(&mut self) {
        if self.raised {
            // The counter of the `eventfd` is 1, so the read neither blocks nor fails.
            self.raised = (&*self.event).read(&mut [0; 8]).is_err();
        }
    }
}

/// The object of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Cq(usize),
    Pair(usize),
    Srq(usize),
    Port,
    Device,
}

/// The events of a context that have not been taken.
pub(super) struct Events {
    pub(super) signal: Signal,
    waiting: VecDeque<(ibv_event_type, Subject)>,
}

impl Events {
    pub(super) fn new() -> Result<Self, c_int> {
        Ok(Self { signal: Signal::new()?, waiting: VecDeque::new() })
    }

    fn push(&mut self, kind: ibv_event_type, subject: Subject) {
        self.waiting.push_back((kind, subject));
        self.signal.raise();
    }

    fn settle(&mut self) {
        if self.waiting.is_empty() {
            self.signal.lower();
        }
    }
}

impl State {
    /// The context of an object.
    fn context_of(&self, subject: Subject) -> Option<usize> {
        let of_pd = |pd: usize| Some(self.pds.get(pd)?.context);
        match subject {
            Subject::Cq(index) => Some(self.cqs.get(index)?.context),
            Subject::Pair(index) => of_pd(self.pairs.get(index)?.pd),
            Subject::Srq(index) => of_pd(self.srqs.get(index)?.pd),
            Subject::Port | Subject::Device => None,
        }
    }

    /// Adds an event of an object to the events of its context.
    pub(super) fn raise(&mut self, kind: ibv_event_type, subject: Subject) {
        if let Some(context) = self.context_of(subject)
            && let Some(context) = self.contexts.get_mut(context)
        {
            context.events.push(kind, subject);
        }
    }

    /// Adds an event to each context of a device.
    pub(super) fn raise_all(&mut self, device: usize, kind: ibv_event_type, subject: Subject) {
        for context in self.contexts.iter_mut().filter(|context| context.device == device) {
            context.events.push(kind, subject);
        }
    }

    /// Drops the events of an object that is about to be destroyed, and is still in its table.
    pub(super) fn forget(&mut self, subject: Subject) {
        if let Some(context) = self.context_of(subject)
            && let Some(context) = self.contexts.get_mut(context)
        {
            context.events.waiting.retain(|(_, waiting)| *waiting != subject);
            context.events.settle();
        }
    }

    /// Takes the oldest event.
    pub(super) fn take_async(&mut self, context: usize) -> Result<Option<ibv_async_event>, c_int> {
        self.latitudes.takes_event();
        let events = &mut self.contexts.get_mut(context).ok_or(libc::EINVAL)?.events;
        let taken = events.waiting.pop_front();
        events.settle();
        let Some((event_type, subject)) = taken else { return Ok(None) };
        let element = match subject {
            Subject::Cq(index) => Element { cq: self.cqs.get(index).ok_or(libc::EINVAL)?.raw.get() },
            Subject::Pair(index) => Element { qp: self.pairs.get(index).ok_or(libc::EINVAL)?.raw.get() },
            Subject::Srq(index) => Element { srq: self.srqs.get(index).ok_or(libc::EINVAL)?.raw.get() },
            Subject::Port => Element { port_num: c_int::from(super::device::PORT) },
            Subject::Device => Element { port_num: 0 },
        };
        Ok(Some(ibv_async_event { element, event_type }))
    }
}
