//! # 9. Lending memory to a peer
//!
//! A peer writes a buffer for a while, and reads a region for a while. docs/guide.md explains it.
//! Run it with `INTERLOCK_DEVICE=soft0 cargo run --example guide_09_lending`.
use anyhow::bail;
use interlock::access::Windowed;
use interlock::memory::Pages;
use interlock::{Context, Limits, LocalWrite, RemoteRead, RemoteRegion, RemoteWrite, Work};
use std::time::Duration;

interlock::domain! { struct Loans; }

const WAIT: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let domain = context.named_domain(Loans)?;
    let (queue, mut poller) = domain.completion_queue(Limits::default().completions())?;
    let pair = domain.reliable(&queue, &Limits::default())?.into_init(&context.active_port()?)?;
    let myself = pair.endpoint();
    let mut pair = pair.connect(&myself)?; // here the pair is its own peer

    // Lease: a peer may write the buffer until the lease ends. Then the program has the buffer back.
    let lease = domain.lease::<RemoteWrite, _>(domain.buffer(64)?, WAIT)?;
    let record = lease.remote().to_bytes(); // goes to the peer
    let mut message = domain.buffer(8)?;
    message.write(b"by lease")?;
    pair.post_write(message, &RemoteRegion::<RemoteWrite>::from_bytes(&record)?)?;
    poller.wait(WAIT)?.check()?;
    let mut buffer = lease.end()?; // from now on no peer can access the buffer
    buffer.set_len(8)?;
    println!("lease: {}", String::from_utf8_lossy(&buffer));

    // Window: a second key to a region. No memory is registered again when a window is made or ended.
    let mut pages = Pages::new(4096)?;
    pages[..9].copy_from_slice(b"by window");
    let region = domain.register::<Windowed<LocalWrite>, _>(pages)?;
    let (rest, whole) = region.split_bindable();
    let window = pair.window()?;
    pair.post_bind::<RemoteRead, _>(window, whole)?;
    let Work::Bound(bound) = poller.wait(WAIT)?.check()?.into_work() else { bail!("not a bind") };
    let granted = bound.remote::<RemoteRead>()?; // goes to the peer, too
    pair.post_read(domain.buffer(16)?, &granted.slice(0..16)?)?;
    let Work::Read(seen) = poller.wait(WAIT)?.check()?.into_work() else { bail!("not a read") };
    println!("window: {}", String::from_utf8_lossy(&seen[..9]));
    let _pages = rest.rejoin_lapsed(bound.dealloc()?)?.deregister()?; // `rejoin_lapsed` works on every device
    Ok(())
}
