//! Asking the peer for a connection: `rdma_connect`.
//!
//! On iWARP this call connects a TCP stream, and blocks as long as that takes. So a thread of the library makes the
//! call, and owns the identifier and the pair until it has returned. During the call, the kernel looks the pair up by
//! its number. So the pair must not be destroyed before the call has returned: another pair could get the number, and
//! the kernel would take that pair instead.

use super::channel::{Events, Identifier};
use super::private_data::ConnectData;
use crate::domain::Brand;
use crate::provider::cm::Parameters;
use crate::queue::state::Init;
use crate::queue::transport::Reliable;
use crate::queue::{QueuePair, UnbrandedPair};
use crate::verb_error::VerbError;
use std::marker::PhantomData;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

/// An identifier that has asked the peer for a connection, or will do so soon, and the pair that is to be connected.
#[derive(Debug)]
pub(super) struct Asked<B, T> {
    pub(super) events: Events,
    caller: Caller<B, T>,
}

#[derive(Debug)]
enum Caller<B, T> {
    /// `rdma_connect` has returned.
    Returned(Identifier, QueuePair<B, Init, T>),
    Thread(Calling, PhantomData<fn() -> (B, T)>),
}

/// The thread that calls `rdma_connect`. If nobody joins it, it drops the identifier and the pair after the call.
#[derive(Debug)]
struct Calling {
    events: Events,
    /// `None` after the thread was joined.
    thread: Option<JoinHandle<(Identifier, UnbrandedPair)>>,
}

impl Drop for Calling {
    fn drop(&mut self) {
        // If the thread was not joined, the program has given up the connect, and nobody polls the identifier any more.
        // So the events of the identifier must not wake an event loop from now on.
        if self.thread.is_some() {
            self.events.set_polled(false);
        }
    }
}

/// The identifier and the pair of a connect that was not sent, and the error.
type NotAsked<B, T> = (Identifier, QueuePair<B, Init, T>, VerbError);

impl<B: Brand, T: Reliable> Asked<B, T> {
    /// Calls `rdma_connect`.
    pub(super) fn by_this_thread(
        mut id: Identifier,
        pair: QueuePair<B, Init, T>,
        parameters: &Parameters<'_>,
    ) -> Result<Self, Box<NotAsked<B, T>>> {
        match id.raw.connect(parameters) {
            Ok(()) => Ok(Self { events: id.events.clone(), caller: Caller::Returned(id, pair) }),
            Err(error) => Err(Box::new((id, pair, error))),
        }
    }

    /// Lets a thread call `rdma_connect`. If the call fails, the identifier gets the event `CALL_FAILED`. This
    /// function returns an error only if the system cannot start a thread.
    pub(super) fn by_thread(
        id: Identifier,
        pair: QueuePair<B, Init, T>,
        parameters: Parameters<'static>,
        data: ConnectData,
    ) -> Result<Self, Box<NotAsked<B, T>>> {
        // If the system cannot start the thread, the closure is dropped with all that it owns. The identifier and the
        // pair must not be lost then, so the thread gets them through an `mpsc` channel after its start.
        let (give, take) = mpsc::sync_channel::<(Identifier, UnbrandedPair)>(1);
        let call = move || {
            let (mut id, pair) = take.recv().expect("the maker of this thread gives both, or ends it with a panic");
            let parameters = Parameters { private_data: data.as_bytes(), ..parameters };
            // `EINTR`: a signal was handled on this thread, and has interrupted the call. Call again.
            let connected = loop {
                match id.raw.connect(&parameters) {
                    Err(error) if error.errno() == libc::EINTR => {}
                    connected => break connected,
                }
            };
            if let Err(error) = connected {
                // `add_failure` puts the event into the `MailBox` of the identifier, and then wakes the task that waits
                // for the event. If that waker panics, the event is not lost. The panic is caught, so that this thread
                // still returns the identifier and the pair.
                let told = catch_unwind(AssertUnwindSafe(|| id.events.add_failure(&error)));
                mem::forget(told); // the drop of the panic's value can panic, too
            }
            (id, pair)
        };
        let thread = match thread::Builder::new().name("rdma_connect".into()).spawn(call) {
            Ok(thread) => thread,
            Err(error) => {
                let error = VerbError::new("pthread_create", error.raw_os_error().unwrap_or(libc::EAGAIN));
                return Err(Box::new((id, pair, error)));
            }
        };
        let events = id.events.clone();
        let given = give.send((id, pair.without_brand()));
        given.expect("the thread takes before it ends");
        let calling = Calling { events: events.clone(), thread: Some(thread) };
        Ok(Self { events, caller: Caller::Thread(calling, PhantomData) })
    }

    /// Waits for the thread, if there is one, and returns the identifier and the pair. Call this only after an event
    /// that shows that `rdma_connect` has returned or is about to return.
    pub(super) fn join(self) -> (Identifier, QueuePair<B, Init, T>) {
        match self.caller {
            Caller::Returned(id, pair) => (id, pair),
            Caller::Thread(mut calling, _) => {
                let thread = calling.thread.take().expect("only this function takes it, and it consumes the rest");
                let (id, pair) = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
                (id, pair.with_brand())
            }
        }
    }

    /// Like [`join`](Self::join), but returns `None` if `rdma_connect` has not returned yet. Then the thread drops the
    /// identifier and the pair after the call.
    pub(super) fn join_if_returned(self) -> Option<(Identifier, QueuePair<B, Init, T>)> {
        match &self.caller {
            Caller::Thread(calling, _) if calling.thread.as_ref().is_some_and(|thread| !thread.is_finished()) => None,
            _ => Some(self.join()),
        }
    }
}
