//! Connecting without rdma_cm, for tasks on tokio: the two sides exchange records over a TCP stream.
//!
//! This is for devices or networks that have no rdma_cm, and for soft devices. It is not for iWARP, which connects only
//! by [`cm`](super::cm).
//!
//! Each side sends one *greeting* with its [`Endpoint`] and some bytes of the program. When the pair of a side is Ready
//! To Send, that side sends one more byte, `!`, and waits for the `!` of the peer. So a side that has a [`Connection`]
//! knows that the peer can receive. The stream stays open as long as the connection. When one side closes the stream,
//! the other side knows that the first has gone.
//!
//! | bytes of a greeting | |
//! |---|---|
//! | 2 | `b"IT"` |
//! | 1 | the version: 1 |
//! | 1 | 1: a record follows; 2: this is a refusal, without a record |
//! | 2 | the number of bytes of the program, at most [`MOST_DATA`], in network byte order |
//! | 2 | zero |
//! | 32 | the record of the [`Endpoint`]; missing in a refusal |
//! | 0 to [`MOST_DATA`] | the bytes of the program |
//!
//! The peer is not trusted. If its greeting has another form, the exchange ends before anything is done to the pair.
//! Memory for the peer's bytes is allocated only after they have arrived. A deadline ends the wait for a peer that
//! sends slowly or not at all. But whoever reaches the port can connect, and the stream is not encrypted.
#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "an error gives the pair back, and no step is on the data path")]

use super::connection::{Bond, Connection, End};
use super::shared_poller::SharedPoller;
use super::timer::LONG;
use crate::domain::Brand;
use crate::memory::RecordError;
use crate::queue::attributes::ConnectAttributes;
use crate::queue::error::TransitionFailure;
use crate::queue::state::{Init, ReadyToSend};
use crate::queue::transport::{Reliable, ReliableConnection};
use crate::queue::{AnyQueuePair, Endpoint, QueuePair};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::time::{Instant, timeout_at};

/// The most bytes that a program may send along.
pub const MOST_DATA: usize = 512;

const MAGIC: [u8; 2] = *b"IT";
const VERSION: u8 = 1;
const HEAD: usize = 8;
const ENDPOINT: u8 = 1;
const REFUSAL: u8 = 2;
/// The byte that says that the pair of a side is Ready To Send.
const READY: u8 = b'!';

/// Why two sides did not connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The stream failed, for example because nobody listens or the network is down.
    #[error("the TCP stream failed: check that the peer's program listens, and that the network works")]
    Io(#[from] io::Error),
    /// The peer closed the stream before both sides were connected.
    #[error("the peer ended or gave up before the connection was established (see docs/failures.md#peer-gone)")]
    PeerGone,
    /// The peer refused the connection, and sent these bytes along.
    #[error("the peer's program refused the connection (see docs/failures.md#rejected)")]
    Refused(Vec<u8>),
    /// The peer sent something else than a greeting: it is another kind of program, or uses another version.
    #[error(
        "what the peer sent is not a greeting of `aio::tcp`, since the {0} is wrong: check the address, and that both \
         sides use `aio::tcp` of the same version (see docs/failures.md#greeting)"
    )]
    Greeting(&'static str),
    /// The record of the peer is wrong.
    #[error("the peer sent a record that is not valid (see docs/failures.md#greeting)")]
    Record(#[from] RecordError),
    /// The program has more bytes to send along than [`MOST_DATA`].
    #[error("`data` must be at most {MOST_DATA} bytes, not {0}: send the rest over the connection")]
    TooLong(usize),
    /// The timeout passed.
    #[error(
        "no answer within {0:?}: check that the peer's program runs and answers, or wait longer (see \
         docs/failures.md#no-answer)"
    )]
    TimedOut(Duration),
    /// A transition of the queue pair failed.
    #[error(transparent)]
    Pair(#[from] TransitionFailure),
    /// The queue pair completes on another completion queue than that of the shared poller.
    #[error(
        "the queue pair completes on another completion queue than the shared poller polls: use the \
         shared poller of the queue pair's completion queue"
    )]
    OtherQueue,
}

/// Two sides did not connect. The pair comes back: in Init if nothing was done to it, else in the state that it
/// reached.
#[derive(thiserror::Error)]
#[error("{cause}")]
pub struct Failed<B, T = ReliableConnection> {
    /// The queue pair.
    pub queue_pair: AnyQueuePair<B, T>,
    /// Why.
    #[source]
    pub cause: Cause,
}

impl<B, T> Failed<B, T> {
    /// The error without the pair, which is dropped.
    pub fn into_cause(self) -> Cause {
        self.cause
    }
}

impl<B, T> fmt::Debug for Failed<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("queue_pair", &self.queue_pair).field("cause", &self.cause).finish()
    }
}

/// A deadline, with the timeout that the program passed.
#[derive(Clone, Copy)]
struct Deadline {
    at: Instant,
    timeout: Duration,
}

impl Deadline {
    fn after(timeout: Duration) -> Self {
        // This `Instant` is tokio's, so a test can pause or advance the clock.
        Self { at: Instant::now() + timeout.min(LONG), timeout }
    }

    async fn run<R>(self, io: impl Future<Output = io::Result<R>>) -> Result<R, Cause> {
        match timeout_at(self.at, io).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(match error.kind() {
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe => Cause::PeerGone,
                _ => Cause::Io(error),
            }),
            Err(_) => Err(Cause::TimedOut(self.timeout)),
        }
    }
}

/// The bytes of a greeting.
fn greeting(endpoint: Option<&Endpoint>, data: &[u8]) -> Result<Vec<u8>, Cause> {
    let too_long = Cause::TooLong(data.len());
    let len = u16::try_from(data.len()).ok().filter(|len| usize::from(*len) <= MOST_DATA).ok_or(too_long)?;
    let mut bytes = Vec::with_capacity(HEAD + Endpoint::RECORD_BYTES + data.len());
    let kind = if endpoint.is_some() { ENDPOINT } else { REFUSAL };
    let [high, low] = len.to_be_bytes();
    bytes.extend([MAGIC[0], MAGIC[1], VERSION, kind, high, low, 0, 0]);
    bytes.extend(endpoint.map(Endpoint::to_bytes).into_iter().flatten());
    bytes.extend(data);
    Ok(bytes)
}

/// Reads the head of a greeting: whether a record follows, and how many bytes of the program.
fn parse_head(head: [u8; HEAD]) -> Result<(bool, usize), Cause> {
    let [m, n, version, kind, high, low, zeros @ ..] = head;
    let len = usize::from(u16::from_be_bytes([high, low]));
    match () {
        () if [m, n] != MAGIC => Err(Cause::Greeting("first word")),
        () if version != VERSION => Err(Cause::Greeting("version")),
        () if kind != ENDPOINT && kind != REFUSAL => Err(Cause::Greeting("kind")),
        () if len > MOST_DATA => Err(Cause::Greeting("length")),
        () if zeros != [0; 2] => Err(Cause::Greeting("reserved part")),
        () => Ok((kind == ENDPOINT, len)),
    }
}

/// Reads the greeting of the peer.
async fn read_greeting(stream: &mut TcpStream, deadline: Deadline) -> Result<(Endpoint, Vec<u8>), Cause> {
    let mut head = [0; HEAD];
    deadline.run(stream.read_exact(&mut head)).await?;
    let (has_record, len) = parse_head(head)?;
    let mut record = [0; Endpoint::RECORD_BYTES];
    if has_record {
        deadline.run(stream.read_exact(&mut record)).await?;
    }
    let mut data = [0; MOST_DATA];
    let data = data.get_mut(..len).unwrap_or_default();
    deadline.run(stream.read_exact(data)).await?;
    if has_record { Ok((Endpoint::from_bytes(&record)?, data.to_vec())) } else { Err(Cause::Refused(data.to_vec())) }
}

/// Connects the pair to whoever [listens](Listener) at `address`, within `timeout`. The peer reads `data` with
/// [`Request::data`]. This side reads the peer's data with [`Link::peer_data`](super::Link::peer_data).
///
/// If the peer sends first, post receives before this call. Dropping the future is sound: the pair is destroyed, and
/// the peer learns that this side has gone.
///
/// # Errors
///
/// [`Cause`]. The pair comes back.
///
/// # Examples
///
/// ```
/// use interlock::aio::{self, SharedPoller, tcp};
/// use interlock::{Context, Limits};
/// use std::time::Duration;
/// interlock::domain! { struct Docs; }
///
/// const WAIT: Duration = Duration::from_secs(5);
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let context = Context::open("soft0")?;
/// let domain = context.named_domain(Docs)?;
/// let (queue, poller) = domain.completion_queue(64)?;
/// let poller = SharedPoller::new(poller);
/// aio::spawn(poller.driver().expect("there is no other"))?;
/// let port = context.active_port()?;
/// let to_server = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
/// let mut to_client = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
/// to_client.post_receive(domain.buffer(64)?)?;
///
/// let listener = tcp::Listener::bind("127.0.0.1:0").await?;
/// let at = listener.local_address()?;
/// let server = {
///     let poller = poller.clone();
///     tokio::spawn(async move {
///         let request = listener.accept().await?.read(WAIT).await?;
///         let client = request.accept(&poller, to_client, b"welcome", WAIT).await;
///         let mut client = client.map_err(tcp::Failed::into_cause)?;
///         let message = client.next().await.expect("a receive is posted").ok();
///         Ok::<_, tcp::Cause>(message.and_then(|message| message.into_buffer()).map(|buffer| buffer.to_vec()))
///     })
/// };
/// let mut server_side = tcp::connect(&poller, at, to_server, b"", WAIT).await.map_err(tcp::Failed::into_cause)?;
/// assert_eq!(server_side.link.peer_data(), b"welcome");
/// let mut greeting = domain.buffer(64)?;
/// greeting.write(b"hello")?;
/// server_side.send(greeting)?.await?;
/// assert_eq!(server.await??.as_deref(), Some(&b"hello"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub async fn connect<B: Brand, T: Reliable>(
    poller: &SharedPoller<B>,
    address: impl ToSocketAddrs,
    pair: QueuePair<B, Init, T>,
    data: &[u8],
    timeout: Duration,
) -> Result<Connection<B, T>, Failed<B, T>> {
    let pair = on_poller(poller, pair)?;
    let deadline = Deadline::after(timeout);
    let exchanged = async {
        let hello = greeting(Some(&pair.endpoint()), data)?;
        let mut stream = deadline.run(TcpStream::connect(address)).await?;
        stream.set_nodelay(true)?;
        deadline.run(stream.write_all(&hello)).await?;
        let (endpoint, theirs) = read_greeting(&mut stream, deadline).await?;
        Ok((stream, endpoint, theirs))
    };
    match exchanged.await {
        Ok((stream, endpoint, theirs)) => establish(poller, pair, stream, &endpoint, theirs, deadline).await,
        Err(cause) => Err(Failed { queue_pair: pair.into(), cause }),
    }
}

/// The pair, if it completes on the queue of `poller`.
fn on_poller<B: Brand, T: Reliable>(
    poller: &SharedPoller<B>,
    pair: QueuePair<B, Init, T>,
) -> Result<QueuePair<B, Init, T>, Failed<B, T>> {
    if pair.completes_on() == (poller.id(), poller.id()) {
        return Ok(pair);
    }
    Err(Failed { queue_pair: pair.into(), cause: Cause::OtherQueue })
}

/// Brings the pair up, and waits until the peer's pair is up too.
async fn establish<B: Brand, T: Reliable>(
    poller: &SharedPoller<B>,
    pair: QueuePair<B, Init, T>,
    mut stream: TcpStream,
    endpoint: &Endpoint,
    data: Vec<u8>,
    deadline: Deadline,
) -> Result<Connection<B, T>, Failed<B, T>> {
    let pair = match pair.connect_with(endpoint, &ConnectAttributes::default()) {
        Ok(pair) => pair,
        Err(error) => return Err(Failed { queue_pair: error.queue_pair, cause: error.source.into() }),
    };
    if let Err(cause) = meet(&mut stream, deadline).await {
        return Err(Failed { queue_pair: down(pair), cause });
    }
    Connection::bonded(poller, pair, Bond::Tcp(TcpBond { stream, data }))
        .map_err(|(error, _)| Failed { queue_pair: down(error.queue_pair), cause: Cause::OtherQueue })
}

/// Tells the peer that this side is Ready To Send, and waits until the peer says the same.
async fn meet(stream: &mut TcpStream, deadline: Deadline) -> Result<(), Cause> {
    deadline.run(stream.write_all(&[READY])).await?;
    let mut theirs = [0];
    deadline.run(stream.read_exact(&mut theirs)).await?;
    if theirs == [READY] { Ok(()) } else { Err(Cause::Greeting("last byte")) }
}

/// Moves the pair to Error. If that fails, returns the pair as it is.
fn down<B: Brand, T: Reliable>(pair: QueuePair<B, ReadyToSend, T>) -> AnyQueuePair<B, T> {
    pair.into_error().map_or_else(|error| error.queue_pair.into(), Into::into)
}

/// Takes TCP streams of peers that want to connect.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
}

impl Listener {
    /// Listens at `address`. Port 0 means any free port.
    ///
    /// # Errors
    ///
    /// The system refused.
    pub async fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Ok(Self { inner: TcpListener::bind(address).await? })
    }

    /// A listener that the program has made.
    pub fn of(inner: TcpListener) -> Self {
        Self { inner }
    }

    /// The address that the listener is bound to, with the actual port.
    ///
    /// # Errors
    ///
    /// The system refused.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    /// The next peer. Its greeting is not read yet. Read the greeting in a task of its own, so that a silent peer does
    /// not keep other peers waiting. The future may be dropped at any time.
    ///
    /// # Errors
    ///
    /// The system refused, for example because the process has no descriptor left. The listener can still be used.
    pub async fn accept(&self) -> io::Result<Arrival> {
        let (stream, peer) = self.inner.accept().await?;
        stream.set_nodelay(true)?;
        Ok(Arrival { stream, peer })
    }
}

/// A peer that has opened a stream, and whose greeting is not read yet. Dropping this closes the stream.
#[derive(Debug)]
pub struct Arrival {
    stream: TcpStream,
    peer: SocketAddr,
}

impl Arrival {
    /// The address of the peer.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    /// Reads the greeting of the peer, at most for `timeout`.
    ///
    /// # Errors
    ///
    /// [`Cause`]: the peer sent something else, or nothing, or has gone.
    pub async fn read(self, timeout: Duration) -> Result<Request, Cause> {
        let Self { mut stream, peer } = self;
        let (endpoint, data) = read_greeting(&mut stream, Deadline::after(timeout)).await?;
        Ok(Request { stream, peer, endpoint, data })
    }
}

/// A request of a peer for a connection. Dropping the request closes the stream, so the peer learns that the request
/// was not accepted.
#[derive(Debug)]
pub struct Request {
    stream: TcpStream,
    peer: SocketAddr,
    endpoint: Endpoint,
    data: Vec<u8>,
}

impl Request {
    /// The bytes that the peer sent along. Untrusted input.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The address of the peer.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    /// Refuses the connection, and sends `data` along, at most for `timeout`.
    ///
    /// # Errors
    ///
    /// [`Cause::TooLong`], or the peer has gone.
    pub async fn reject(mut self, data: &[u8], timeout: Duration) -> Result<(), Cause> {
        let refusal = greeting(None, data)?;
        Deadline::after(timeout).run(self.stream.write_all(&refusal)).await
    }

    /// Connects the pair to the peer, and waits until both sides are Ready To Send, at most for `timeout`. If the peer
    /// sends first, post receives before this call.
    ///
    /// # Errors
    ///
    /// [`Cause`]. The pair comes back.
    pub async fn accept<B: Brand, T: Reliable>(
        self,
        poller: &SharedPoller<B>,
        pair: QueuePair<B, Init, T>,
        data: &[u8],
        timeout: Duration,
    ) -> Result<Connection<B, T>, Failed<B, T>> {
        let Self { mut stream, endpoint, data: theirs, .. } = self;
        let pair = on_poller(poller, pair)?;
        let deadline = Deadline::after(timeout);
        let answered = match greeting(Some(&pair.endpoint()), data) {
            Ok(hello) => deadline.run(stream.write_all(&hello)).await,
            Err(cause) => Err(cause),
        };
        match answered {
            Ok(()) => establish(poller, pair, stream, &endpoint, theirs, deadline).await,
            Err(cause) => Err(Failed { queue_pair: pair.into(), cause }),
        }
    }
}

/// The TCP stream of a connection. The end of the stream tells that the peer has gone.
pub(super) struct TcpBond {
    stream: TcpStream,
    data: Vec<u8>,
}

impl TcpBond {
    pub(super) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<End> {
        loop {
            // `poll_read_ready` fails only if the runtime of the stream has ended. After that, nothing could report the
            // end of the stream, so report it now.
            if ready!(self.stream.poll_read_ready(context)).is_err() {
                return Poll::Ready(End::Disconnected);
            }
            match self.stream.try_read(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The stream has ended or failed, or a byte has come, which a correct peer never sends.
                _ => return Poll::Ready(End::Disconnected),
            }
        }
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.data
    }

    pub(super) fn addresses(&self) -> [Option<SocketAddr>; 2] {
        [self.stream.local_addr().ok(), self.stream.peer_addr().ok()]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn head(bytes: &[u8]) -> Result<(bool, usize), Cause> {
        parse_head(*bytes.first_chunk().unwrap())
    }

    #[test]
    fn a_greeting_says_what_was_put_into_it() {
        let refusal = greeting(None, b"no").unwrap();
        assert_eq!(head(&refusal).unwrap(), (false, 2));
        assert_eq!(&refusal[HEAD..], b"no");
        assert!(matches!(greeting(None, &[0; MOST_DATA + 1]), Err(Cause::TooLong(513))));
        assert_eq!(head(&greeting(None, &[0; MOST_DATA]).unwrap()).unwrap(), (false, MOST_DATA));
    }

    /// If any byte of the head is changed, the greeting is refused or says a length within the limit.
    #[test]
    fn each_damaged_head_is_refused_or_within_the_limit() {
        let good = greeting(None, b"").unwrap();
        for at in 0..HEAD {
            for value in 0..=u8::MAX {
                let mut bytes = good.clone();
                bytes[at] = value;
                match head(&bytes) {
                    Ok((_, len)) => assert!(len <= MOST_DATA && (bytes == good || (3..6).contains(&at)), "{bytes:?}"),
                    Err(cause) => assert!(matches!(cause, Cause::Greeting(_)), "{cause}"),
                }
            }
        }
    }
}
