//! # 2. Hello on two machines
//!
//! Before two queue pairs can be connected, each side must know the other's `Endpoint`: the number of the queue pair,
//! its first packet number, and the address of the port. RDMA has no way to ask for it, so each side sends its own
//! through a TCP socket.
//!
//! ```sh
//! guide_02_two_machines server                # on one machine: listens on TCP port 18515
//! guide_02_two_machines SERVER                # on the other
//! INTERLOCK_DEVICE=soft0 guide_02_two_machines    # both ends here, on two threads
//! ```
//!
//! (`guide_02_two_machines` is `cargo run --example guide_02_two_machines --`.) A soft device reaches its own process
//! only, so only the third form works on it.
//!
//! `meet` is the same on both sides, and its order matters:
//!
//! 1. Post the receives. A pair takes receives from Init on, so one is ready for the first message.
//! 2. Send this side's record, read the peer's, and `connect`. `Endpoint::from_bytes` checks every field: bytes from a
//!    network are never trusted.
//! 3. Wait until the peer has connected too. The device retries a message to a pair that is not yet in Ready To
//!    Receive, which is slow; after the last retry, the send fails.
//!
//! The last byte on the socket is needed at the end, for a similar reason: if a side closes its pair while the peer
//! still waits for an acknowledgement, the peer's request fails.
use anyhow::bail;
use interlock::{Buffer, Context, Endpoint, Init, Limits, ProtectionDomain, QueuePair};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use std::{env, thread};

interlock::domain! { struct Hello; }

/// Sends the endpoint, connects to the peer's, and returns once both sides are connected.
fn meet(
    mut pair: QueuePair<Hello, Init>,
    first: Buffer<Hello>,
    socket: &mut TcpStream,
) -> anyhow::Result<QueuePair<Hello>> {
    pair.post_receive(first)?;
    socket.write_all(&pair.endpoint().to_bytes())?;
    let mut record = [0; Endpoint::RECORD_BYTES];
    socket.read_exact(&mut record)?;
    let pair = pair.connect(&Endpoint::from_bytes(&record)?)?;
    in_step(socket)?;
    Ok(pair)
}

/// Returns once the peer has called it too.
fn in_step(socket: &mut TcpStream) -> anyhow::Result<()> {
    socket.write_all(&[0])?;
    Ok(socket.read_exact(&mut [0])?)
}

/// Runs one end: sends `text`, and returns the text of the peer.
fn talk(domain: &ProtectionDomain<Hello>, mut socket: TcpStream, text: &str) -> anyhow::Result<String> {
    let port = domain.context().active_port()?;
    let (queue, mut poller) = domain.completion_queue(Limits::default().completions())?;
    let pair = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
    let mut pair = meet(pair, domain.buffer(64)?, &mut socket)?;

    let mut message = domain.buffer(64)?;
    message.write(text.as_bytes())?;
    pair.post_send(message)?;
    let (mut heard, mut sent) = (None, false);
    while heard.is_none() || !sent {
        match poller.wait(Duration::from_secs(5))?.check()?.into_received() {
            Ok(message) => heard = Some(String::from_utf8_lossy(&message).into_owned()),
            Err(_) => sent = true,
        }
    }
    in_step(&mut socket)?;
    Ok(heard.unwrap_or_default())
}

fn main() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let domain = context.named_domain(Hello)?;
    let heard = match env::args().nth(1).as_deref() {
        Some("server") => talk(&domain, TcpListener::bind(("0.0.0.0", 18515))?.accept()?.0, "hello from the server")?,
        Some(_) if context.is_soft() => bail!("a soft device does not reach other processes: give no host"),
        Some(host) => talk(&domain, TcpStream::connect((host, 18515))?, "hello from the client")?,
        None => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let client = TcpStream::connect(listener.local_addr()?)?;
            thread::scope(|scope| {
                let server = scope.spawn(|| talk(&domain, listener.accept()?.0, "hello from the server"));
                let heard = talk(&domain, client, "hello from the client");
                println!("the server heard: {}", server.join().expect("no panic")?);
                heard
            })?
        }
    };
    println!("heard: {heard}");
    Ok(())
}
