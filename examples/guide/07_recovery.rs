//! # 7. Recovery after a failure
//!
//! A request that fails breaks its connection: the device moves the pair to Error, and everything else in flight is
//! *flushed*, which means that it completes as a failure too. The memory is in the failures, so nothing is lost.
//!
//! ```sh
//! INTERLOCK_DEVICE=soft0 cargo run --example guide_07_recovery
//! ```
//!
//! Here one side sends a message that is longer than the receive of the other. Then both come back:
//!
//! 1. `check` gives a `Failure`. Print it: it says what happened, on whose side, and what to check. The type of the
//!    pair still says Ready To Send, which is what the program asked for last. Posts are refused as
//!    `PostError::Broken`.
//! 2. `into_error` makes the type say it. `drain` polls until every request of the pair has come out. It has a
//!    deadline, and at the deadline it says what is left. (`into_reset` or `destroy` bring that back as well.)
//! 3. `into_reset`, `into_init`, post the receives, exchange the endpoints anew, `connect`. The endpoints are new,
//!    since the pair begins with another packet number: late packets of the old connection do not fit the new one.
//!
//! A connection lives in a struct field, and its state changes there. `AnyQueuePair` is for that. `advance` takes the
//! pair through transitions in place, and if one fails, the pair stays where it got to.
//!
//! What was the request's fate? A failed request may have been executed, and only its answer was lost. A protocol that
//! repeats requests after a failure needs a number in each, so that the peer can tell a repetition.
use anyhow::Context as _;
use interlock::{AnyQueuePair, Buffer, Context, Endpoint, Limits, Poller, Port, ProtectionDomain};
use std::time::Duration;

interlock::domain! { struct Phoenix; }

const WAIT: Duration = Duration::from_secs(5);

/// One end of a connection, in whatever state.
struct Connection {
    pair: AnyQueuePair<Phoenix>,
    poller: Poller<Phoenix>,
    port: Port,
}

impl Connection {
    fn new(domain: &ProtectionDomain<Phoenix>) -> anyhow::Result<Self> {
        let (port, limits) = (domain.context().active_port()?, Limits::default());
        let (queue, poller) = domain.completion_queue(limits.completions())?;
        let pair = domain.reliable(&queue, &limits)?.into_init(&port)?;
        Ok(Self { pair: pair.into(), poller, port })
    }

    /// From a broken connection to Init, with all buffers that were in flight.
    fn reset(&mut self) -> anyhow::Result<Vec<Buffer<Phoenix>>> {
        self.pair.advance(|pair| match pair {
            AnyQueuePair::ReadyToSend(pair) => Ok(pair.into_error()?.into()),
            other => Ok(other),
        })?;
        let mut buffers = Vec::new();
        if let AnyQueuePair::Errored(pair) = &mut self.pair {
            pair.drain(&mut self.poller, WAIT, |completion| match completion.check() {
                Ok(success) => buffers.extend(success.into_buffer()),
                Err(failure) => buffers.extend(failure.into_buffer()),
            })?;
        }
        let port = &self.port;
        self.pair.advance(|pair| match pair {
            AnyQueuePair::Errored(pair) => Ok(pair.into_reset()?.into_init(port)?.into()),
            other => Ok(other),
        })?;
        Ok(buffers)
    }

    /// Posts the receive that the first message needs, and says where this end is.
    fn prepare(&mut self, receive: Buffer<Phoenix>) -> anyhow::Result<Endpoint> {
        let pair = self.pair.init().context("not in Init")?;
        pair.post_receive(receive)?;
        Ok(pair.endpoint())
    }

    fn connect(&mut self, peer: &Endpoint) -> anyhow::Result<()> {
        Ok(self.pair.advance(|pair| match pair {
            AnyQueuePair::Init(pair) => Ok(pair.connect(peer)?.into()),
            other => Ok(other),
        })?)
    }

    fn send(&mut self, message: Buffer<Phoenix>) -> anyhow::Result<()> {
        self.pair.ready().context("not connected")?.post_send(message)?;
        self.poller.wait(WAIT)?.check()?;
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let domain = context.named_domain(Phoenix)?;
    let (mut left, mut right) = (Connection::new(&domain)?, Connection::new(&domain)?);
    let text = "a message of 23 bytes..";
    for room in [8, 64] {
        // A real program sends the endpoints by a socket.
        let (to_left, to_right) = (left.prepare(domain.buffer(room)?)?, right.prepare(domain.buffer(room)?)?);
        left.connect(&to_right)?;
        right.connect(&to_left)?;
        let mut message = domain.buffer(64)?;
        message.write(text.as_bytes())?;
        match left.send(message) {
            Ok(()) => println!("receives of {room} bytes: it has arrived"),
            Err(fault) => {
                println!("receives of {room} bytes: {fault}");
                let back = left.reset()?.len() + right.reset()?.len();
                println!("both ends are in Init again; {back} more buffers came back");
            }
        }
    }
    Ok(())
}
