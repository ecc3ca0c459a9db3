//! What a subscriber of `tracing` hears, and that one that panics changes nothing.

use interlock::aio::{Connection, SharedPoller, block_on};
use interlock::memory::Foreign;
use interlock::scope::Exclusive;
use interlock::soft::{Fabric, Fault, Verb};
use interlock::{Brand, Buffer, Context, Limits, LocalWrite, ProtectionDomain, RemoteWrite, Status};
use std::fmt::{Debug, Write};
use std::mem;
use std::panic::panic_any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use support::{Counted, Link, Need, Promise, context, lacks, lacks_need};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Event, Level, Metadata, Subscriber};

/// The tests take turns: while two threads have different subscribers, `tracing` may keep an event from both.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something with each event of the library.
struct Hears<F>(F);

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Subscriber for Hears<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "interlock"
    }

    fn event(&self, event: &Event<'_>) {
        (self.0)(event);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

type Notes = Arc<Mutex<Vec<(Level, String)>>>;

/// A subscriber that keeps a line for each event.
fn takes_notes(notes: &Notes) -> impl Subscriber + Send + Sync + 'static {
    let notes = Arc::clone(notes);
    Hears(move |event: &Event<'_>| {
        let mut line = Line(String::new());
        event.record(&mut line);
        notes.lock().unwrap().push((*event.metadata().level(), line.0));
    })
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

/// The payload of a panic. Its drop panics too.
struct PanicsInItsDrop;

impl Drop for PanicsInItsDrop {
    fn drop(&mut self) {
        panic!("so does what the panic carries");
    }
}

/// A subscriber that panics at each event, and whose panics panic when they are dropped.
fn panics() -> impl Subscriber + Send + Sync + 'static {
    Hears(|_: &Event<'_>| panic_any(PanicsInItsDrop))
}

fn filled<B: Brand>(domain: &ProtectionDomain<B>) -> Buffer<B> {
    let mut buffer = domain.buffer(8).unwrap();
    buffer.write(b"12345678").unwrap();
    buffer
}

/// A connection whose request fails, since the peer has no memory to write to, and which is closed then.
fn fail_and_close<B: Brand>(domain: ProtectionDomain<B>) -> u32 {
    let Link { domain, poller, left, right, .. } = Link::new(domain, 4);
    let poller = SharedPoller::new(poller);
    let mut left = Connection::new(&poller, left).unwrap();
    let right = Connection::new(&poller, right).unwrap();
    let number = left.sender.number().value();
    let nowhere = interlock::RemoteRegion::<interlock::RemoteWrite>::of_peer(0x1000, 8, 7).unwrap();
    let failed = left.write(filled(&domain), &nowhere).unwrap();
    let after = left.send(filled(&domain));
    let mut statuses = vec![block_on(failed).unwrap_err().into_failure().unwrap().status];
    if let Ok(after) = after {
        statuses.push(block_on(after).unwrap_err().into_failure().unwrap().status);
    }
    // Some devices may report the failed write as flushed, and the failure for the send after it.
    let of_cause = if lacks(Promise::Order) { &statuses[..] } else { &statuses[..1] };
    assert!(of_cause.contains(&Status::RemoteAccess), "{statuses:?}");
    assert_eq!(block_on(left.closed()), interlock::aio::End::Failed(Status::RemoteAccess));
    for side in [left, right] {
        assert!(block_on(side.close()).has_drained);
    }
    number
}

#[test]
fn a_subscriber_hears_the_life_of_a_connection_and_its_first_failure() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    let _turn = turn();
    interlock::domain! { struct Test; }
    let notes = Notes::default();
    let number = with_default(takes_notes(&notes), || fail_and_close(context().named_domain(Test).unwrap()));
    let notes = notes.lock().unwrap().clone();
    let told = |level: Level, what: &str| {
        let of_pair = format!("pair={number} ");
        notes.iter().filter(|(l, line)| *l == level && line.contains(what) && line.contains(&of_pair)).count()
    };
    assert_eq!(told(Level::DEBUG, "queue pair made"), 1, "{notes:?}");
    for state in ["Init", "ReadyToReceive", "ReadyToSend", "Error"] {
        assert!(told(Level::DEBUG, &format!("state={state}")) >= 1, "{state}: {notes:?}");
    }
    assert_eq!(told(Level::INFO, "connected"), 1, "{notes:?}");
    assert_eq!(told(Level::WARN, "request failed"), 1, "only the first: {notes:?}");
    assert_eq!(told(Level::INFO, "connection ended"), 1, "{notes:?}");
    assert_eq!(told(Level::DEBUG, "queue pair ended"), 1, "{notes:?}");
    assert_eq!(notes.iter().filter(|(_, line)| line.contains("message=closed")).count(), 2, "{notes:?}");
}

/// Nothing is lost, and all is given back.
#[test]
fn a_subscriber_that_panics_changes_nothing() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    let _turn = turn();
    interlock::domain! { struct Test; }
    with_default(panics(), || fail_and_close(context().named_domain(Test).unwrap()));
}

/// A leak is reported in the middle of a drop. If the panic went on from there, the rest of the drop would free memory
/// that the device still writes to.
#[test]
fn a_subscriber_that_panics_frees_nothing_that_the_device_has() {
    let _turn = turn();
    interlock::domain! { struct Test; }
    let fabric = Fabric::manual();
    let domain = Context::open_on(&fabric, "dev").unwrap().named_domain(Test).unwrap();
    let Link { domain, mut poller, mut left, mut right, .. } = Link::new(domain, 4);
    let freed = Arc::new(AtomicUsize::new(0));
    let (rest, buffer) = domain.register::<LocalWrite, _>(Foreign(Counted::new(1, &freed))).unwrap().split();
    right.post_receive(buffer).unwrap();
    drop(rest);
    fabric.inject(Fault::VerbFails { verb: Verb::DestroyQp, after: 0, count: u32::MAX, errno: libc::EBUSY });
    with_default(panics(), || drop(right));
    assert_eq!(freed.load(Ordering::SeqCst), 0, "the device may still fill it");
    // The pair that could not be destroyed still takes this message.
    left.post_send(filled(&domain)).unwrap();
    fabric.run();
    while let Some(completion) = poller.poll().unwrap() {
        mem::forget(completion);
    }
    drop((left, poller, domain));
    assert_eq!(freed.load(Ordering::SeqCst), 0);
}

/// A message on the data path costs no event.
#[test]
fn a_message_is_no_event() {
    let _turn = turn();
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let Link { domain, mut poller, mut left, mut right, .. } = Link::new(domain, Limits::default().sends);
    let notes = Notes::default();
    with_default(takes_notes(&notes), || {
        right.post_receive(domain.buffer(8).unwrap()).unwrap();
        left.post_send(filled(&domain)).unwrap();
        for _ in 0..2 {
            poller.wait(support::PATIENCE).unwrap().check().unwrap();
        }
    });
    assert_eq!(*notes.lock().unwrap(), []);
}

/// An attack: a registration that never ends takes all the time of the scope's end. The next one, which peers can
/// reach, fails once more and then ends. If it had no time of its own, the process would be aborted.
#[test]
fn each_registration_of_a_scope_has_its_own_time_to_end() {
    let _turn = turn();
    let fabric = Fabric::new();
    let domain = Context::open_on(&fabric, "dev0").unwrap().checked_domain().unwrap();
    let port = domain.context().active_port().unwrap();
    let (queue, poller) = domain.completion_queue(64).unwrap();
    let pair = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    drop(queue);
    let myself = pair.endpoint();
    let mut exclusive = Exclusive::new(pair.connect(&myself).unwrap(), poller).unwrap();
    let fails = |count| Fault::VerbFails { verb: Verb::DeregMr, after: 0, count, errno: libc::EBUSY };
    let (leaks, heard) = (Arc::new(AtomicUsize::new(0)), fabric.clone());
    let counted = Arc::clone(&leaks);
    // The leak of the first registration is the moment at which the second one is tried for the first time.
    let subscriber = Hears(move |event: &Event<'_>| {
        if *event.metadata().level() == Level::ERROR && counted.fetch_add(1, Ordering::SeqCst) == 0 {
            heard.heal();
            heard.inject(fails(1));
        }
    });
    let (private, mut granted) = ([0_u8; 8], [0_u64; 1]);
    with_default(subscriber, || {
        exclusive.scope(support::PATIENCE, |scope| {
            drop(scope.lend(&private).unwrap());
            drop(scope.grant::<RemoteWrite>(&mut granted).unwrap());
            fabric.inject(fails(u32::MAX));
        })
    })
    .unwrap();
    assert_eq!(leaks.load(Ordering::SeqCst), 1, "only the private memory stays registered");
}
