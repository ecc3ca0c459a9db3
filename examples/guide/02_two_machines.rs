//! # 2. Hello on two machines
//!
//! Two machines connect by an IP address and a port, as with TCP. docs/guide.md explains it.
//!
//! ```sh
//! guide_02_two_machines server 192.0.2.1      # on one machine: its address on the RDMA network
//! guide_02_two_machines 192.0.2.1             # on the other
//! INTERLOCK_DEVICE=soft0 guide_02_two_machines    # both ends here, on two threads
//! guide_02_two_machines both 192.0.2.1        # the same where the port has no IPv4 GID: InfiniBand, iWARP
//! ```
//!
//! (`guide_02_two_machines` is `cargo run --example guide_02_two_machines --`.)
use anyhow::{Context as _, bail};
use interlock::cm::{self, AcceptData, ConnectData, Listener, Parameters};
use interlock::{Context, Init, Limits, Poller, ProtectionDomain, QueuePair};
use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;
use std::{env, thread};

interlock::domain! { struct Hello; }

const PORT: u16 = 18515;
const WAIT: Duration = Duration::from_secs(60);

fn pair(domain: &ProtectionDomain<Hello>) -> anyhow::Result<(QueuePair<Hello, Init>, Poller<Hello>)> {
    let (queue, poller) = domain.completion_queue(Limits::default().completions())?;
    let port = domain.context().active_port()?;
    Ok((domain.reliable(&queue, &Limits::default())?.into_init(&port)?, poller))
}

fn serve(domain: &ProtectionDomain<Hello>, mut listener: Listener) -> anyhow::Result<()> {
    let (mut pair, mut poller) = pair(domain)?;
    pair.post_receive(domain.buffer(64)?)?; // before the client can send
    let welcome = AcceptData::framed(b"hello from the server")?;
    let mut connection = listener.next(WAIT)?.accept(pair, &Parameters::default(), &welcome)?.wait(WAIT)?;

    let message = poller.wait(WAIT)?.check()?.into_buffer().context("no message")?;
    println!("the server heard: {}", String::from_utf8_lossy(&message));
    connection.wait_end(WAIT)?.context("the client stays")?;
    Ok(())
}

fn call(domain: &ProtectionDomain<Hello>, server: impl ToSocketAddrs) -> anyhow::Result<()> {
    let (pair, mut poller) = pair(domain)?;
    let mut connection = cm::connect(server, pair, &ConnectData::none(), WAIT)?;
    let welcome = connection.data.framed().context("no welcome")?;
    println!("welcome: {}", String::from_utf8_lossy(welcome));

    let mut message = domain.buffer(64)?;
    message.write(b"hello from the client")?;
    connection.pair.post_send(message)?;
    poller.wait(WAIT)?.check()?; // the message has arrived
    connection.disconnect()?.pair.drain(&mut poller, WAIT, drop)?;
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let domain = context.named_domain(Hello)?;
    match (env::args().nth(1).as_deref(), env::args().nth(2)) {
        (None | Some("both"), at) => {
            let port = context.active_port()?;
            let own = port.gids().iter().map(|row| row.gid.address()).find(IpAddr::is_ipv4);
            let at = at.or(own.map(|own| own.to_string()));
            let at = at.context("no GID of this device is an IPv4 address: name one, as in `both 192.0.2.1`")?;
            let listener = cm::listen(&context, (at, 0))?;
            let at = listener.local_address().context("no address")?;
            thread::scope(|scope| {
                let server = scope.spawn(|| serve(&domain, listener));
                call(&domain, at)?;
                server.join().expect("no panic")
            })
        }
        (Some(_), _) if context.is_soft() => bail!("a soft device does not reach other processes: give no host"),
        (Some("server"), at) => serve(&domain, cm::listen(&context, (at.as_deref().unwrap_or("0.0.0.0"), PORT))?),
        (Some(host), _) => call(&domain, (host, PORT)),
    }
}
