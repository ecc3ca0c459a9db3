//! # 7. Recovery after a failure
//!
//! A request that fails breaks its connection: the device moves the pair to Error, and all other requests in flight are
//! *flushed*, which means that they complete as failures too. Each failure returns the memory of its request, so no
//! buffer is lost.
//!
//! ```sh
//! INTERLOCK_DEVICE=soft0 cargo run --example guide_07_recovery
//! ```
//!
//! Here one side sends a message that is longer than the receive of the other. Then both recover:
//!
//! 1. `check` gives a `Failure`. Print it: it says what happened, on whose side, and what to check. The type of the
//!    pair is still Ready To Send, the last state that the program asked for. Posts are refused as `PostError::Broken`.
//! 2. `into_error` changes the type to Error. `drain` polls until every request of the pair has completed. It has a
//!    deadline, at which it reports the requests that are left. (`into_reset` or `destroy` bring those back as well.)
//! 3. `into_reset`, `into_init`, post the receives, exchange the endpoints anew, `connect`. The endpoints are new,
//!    since the pair begins with another packet number: the new connection drops late packets of the old one.
//!
//! A program usually keeps a connection in a struct field, while its state changes. `AnyQueuePair` holds a pair in any
//! state. `advance` takes the pair through transitions in place; if one fails, the pair keeps the state it has reached.
//!
//! A failed request may have been executed all the same, if only its acknowledgement was lost. A protocol that repeats
//! requests after a failure needs a number in each, so that the peer recognizes a repetition.
use anyhow::Context as _;
use interlock::{AnyQueuePair, Buffer, Context, Endpoint, Failure, Limits, Poller, Port, ProtectionDomain, Success};
use std::time::Duration;

interlock::domain! { struct Phoenix; }

const WAIT: Duration = Duration::from_secs(5);

/// One end of a connection, in any state.
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
            pair.drain(&mut self.poller, WAIT, |completion| {
                buffers.extend(completion.check().map_or_else(Failure::into_buffer, Success::into_buffer));
            })?;
        }
        self.pair.advance(|pair| match pair {
            AnyQueuePair::Errored(pair) => Ok(pair.into_reset()?.into_init(&self.port)?.into()),
            other => Ok(other),
        })?;
        Ok(buffers)
    }

    /// Posts the receive that the first message needs, and returns the endpoint of this end.
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

    /// Sends, and returns the buffer once the message has arrived.
    fn send(&mut self, message: Buffer<Phoenix>) -> anyhow::Result<Option<Buffer<Phoenix>>> {
        self.pair.ready().context("not connected")?.post_send(message)?;
        Ok(self.poller.wait(WAIT)?.check()?.into_buffer())
    }
}

fn main() -> anyhow::Result<()> {
    let domain = Context::open_default()?.named_domain(Phoenix)?;
    let (mut left, mut right) = (Connection::new(&domain)?, Connection::new(&domain)?);
    for room in [8, 64] {
        // A real program sends the endpoints by a socket.
        let (to_left, to_right) = (left.prepare(domain.buffer(room)?)?, right.prepare(domain.buffer(room)?)?);
        left.connect(&to_right)?;
        right.connect(&to_left)?;
        let mut message = domain.buffer(64)?;
        message.write(b"a message of 23 bytes..")?;
        if let Err(fault) = left.send(message) {
            println!("receives of {room} bytes: {fault}");
            let back = left.reset()?.len() + right.reset()?.len();
            println!("both ends are in Init again; {back} more buffers came back");
            continue;
        }
        println!("receives of {room} bytes: it has arrived");
    }
    Ok(())
}
