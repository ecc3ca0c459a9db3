//! # 11. Connecting by records
//!
//! Two machines connect without rdma_cm: each sends the other a record over TCP. docs/guide.md explains it.
//!
//! ```sh
//! guide_11_records server                # on one machine: listens on TCP port 18515
//! guide_11_records SERVER                # on the other
//! INTERLOCK_DEVICE=soft0 guide_11_records    # both ends here, on two threads
//! ```
//!
//! (`guide_11_records` is `cargo run --example guide_11_records --`.)
use anyhow::bail;
use interlock::{Context, Endpoint, Init, Limits, ProtectionDomain, QueuePair};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use std::{env, thread};

interlock::domain! { struct Hello; }

/// Sends the own record, connects to the peer's, and returns once both sides are connected.
fn meet(pair: QueuePair<Hello, Init>, socket: &mut TcpStream) -> anyhow::Result<QueuePair<Hello>> {
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

/// One end: says `text`, and hears what the peer says.
fn talk(domain: &ProtectionDomain<Hello>, mut socket: TcpStream, text: &str) -> anyhow::Result<()> {
    let port = domain.context().active_port()?;
    let (queue, mut poller) = domain.completion_queue(Limits::default().completions())?;
    let mut pair = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
    pair.post_receive(domain.buffer(64)?)?; // before `meet`, so that the peer's first message finds a receive
    let mut pair = meet(pair, &mut socket)?;

    let mut message = domain.buffer(64)?;
    message.write(text.as_bytes())?;
    pair.post_send(message)?;
    for _ in 0..2 {
        if let Ok(message) = poller.wait(Duration::from_secs(5))?.check()?.into_received() {
            println!("heard: {}", String::from_utf8_lossy(&message));
        }
    }
    in_step(&mut socket) // before the pair is dropped, because the peer may still wait for an acknowledgement
}

fn main() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let domain = context.named_domain(Hello)?;
    match env::args().nth(1).as_deref() {
        None => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let client = TcpStream::connect(listener.local_addr()?)?;
            thread::scope(|scope| {
                let server = scope.spawn(|| talk(&domain, listener.accept()?.0, "hello from the server"));
                talk(&domain, client, "hello from the client")?;
                server.join().expect("no panic")
            })
        }
        Some(_) if context.is_soft() => bail!("a soft device does not reach other processes: give no host"),
        Some("server") => talk(&domain, TcpListener::bind(("0.0.0.0", 18515))?.accept()?.0, "hello from the server"),
        Some(host) => talk(&domain, TcpStream::connect((host, 18515))?, "hello from the client"),
    }
}
