//! # 8. Choosing memory
//!
//! All memory that a device touches is *registered*. Who may touch it then decides which type to use:
//!
//! | the memory | use | a peer reaches it | the program sees |
//! |---|---|---|---|
//! | messages that come and go | `Buffer` | no | `&mut [u8]`, except in flight |
//! | the same bytes to many peers | `SharedBuffer` | no | `&[u8]`, also in flight |
//! | a header of a few bytes | `Inline` | no | any slice: it is copied when it is posted |
//! | peers write it as long as the program runs | `MemoryRegion` of `RemoteWrite` | yes | copies and words |
//! | peers write it for a while | `Lease` | until `end` | copies and words; afterwards `&mut [u8]` again |
//! | the same, granted and ended thousands of times a second | `Window` | until it is ended | likewise |
//! | a slice of the caller's that must not be copied | `scope` | no | a borrow, back when the scope ends |
//!
//! ```sh
//! INTERLOCK_DEVICE=soft0 cargo run --example guide_08_memory
//! ```
//!
//! Registration is slow: the kernel pins every page. So register large pieces early and cut them up: `buffers` makes
//! many buffers of one region. A lease and a lend to a scope each cost one registration. A window costs none: a request
//! binds it and another one ends it, each as quick as a send. But what the end of a window guarantees depends on the
//! device, and on many the memory comes back only with the end of the whole region (`windows_are_barriers`). A lease
//! works on every device, so begin with leases.
//!
//! The table says *copies and words* where a peer may write the memory: it can change at any moment, so the program
//! gets no reference to it. `read_into` copies it, and `load` reads an aligned word of 8 bytes.
use anyhow::bail;
use interlock::access::Windowed;
use interlock::memory::Pages;
use interlock::scope::{Exclusive, InScopeError};
use interlock::{Context, Inline, Limits, LocalWrite, RemoteRegion, RemoteWrite, Work};
use std::time::Duration;

interlock::domain! { struct Tour; }

const WAIT: Duration = Duration::from_secs(5);

fn main() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let limits = Limits { inline_bytes: 16, ..Limits::default() };
    let domain = context.named_domain(Tour)?;
    let (queue, mut poller) = domain.completion_queue(limits.completions())?;
    let pair = domain.reliable(&queue, &limits)?.into_init(&context.active_port()?)?;
    drop(queue); // the pair of the scope below must be the only one on its completion queue
    let myself = pair.endpoint();
    let mut pair = pair.connect(&myself)?; // it is its own peer here

    // Buffer: one region, cut into receives and messages. Each moves into the pair and comes back.
    for receive in domain.buffers(3, 64)? {
        pair.post_receive(receive)?;
    }
    let mut buffer = domain.buffer(64)?;
    buffer.write(b"a buffer")?;

    // SharedBuffer: read-only, and in flight any number of times. Once all clones are back, it is unique again.
    let shared = buffer.share();
    pair.post_send(shared.clone())?;
    pair.post_send(shared.clone())?;
    // Inline: copied now, so the bytes need no registration.
    pair.post_send(Inline(b"a few bytes"))?;
    for _ in 0..6 {
        poller.wait(WAIT)?.check()?; // three sends, three receives
    }
    let mut buffer = shared.into_unique()?;

    // Lease: a peer may write the buffer until the end; then it is a buffer again.
    let mut message = domain.buffer(8)?;
    message.write(b"by lease")?;
    buffer.set_len(64)?;
    let lease = domain.lease::<RemoteWrite, _>(buffer, WAIT)?;
    let record = lease.remote().to_bytes(); // goes to the peer
    pair.post_write(message, &RemoteRegion::<RemoteWrite>::from_bytes(&record)?)?;
    poller.wait(WAIT)?.check()?;
    let buffer = lease.end()?;
    println!("lease: {}", String::from_utf8_lossy(&buffer[..8]));

    // Window: a key of its own to a region, made and ended without a registration.
    let region = domain.register::<Windowed<LocalWrite>, _>(Pages::new(4096)?)?;
    let (rest, whole) = region.split_bindable();
    let window = pair.window()?;
    pair.post_bind::<RemoteWrite, _>(window, whole)?;
    let Work::Bound(bound) = poller.wait(WAIT)?.check()?.into_work() else { bail!("not a bind") };
    let mut message = domain.buffer(9)?;
    message.write(b"by window")?;
    pair.post_write(message, &bound.remote::<RemoteWrite>()?)?;
    poller.wait(WAIT)?.check()?;
    let pages = rest.rejoin_lapsed(bound.dealloc()?)?.deregister()?; // this way works on every device
    println!("window: {}", String::from_utf8_lossy(&pages[..9]));

    // Scope: the caller's own slices. When the scope returns, the device no longer uses them.
    let (text, mut answer) = (String::from("by scope"), [0_u8; 8]);
    let mut exclusive = Exclusive::new(pair, poller)?;
    exclusive.scope(WAIT, |scope| {
        let receive = scope.post_receive(scope.lend_mut(&mut answer)?)?;
        let send = scope.post_send(scope.lend(text.as_bytes())?)?;
        scope.wait(send)?;
        scope.wait(receive)?;
        Ok::<_, InScopeError>(())
    })??;
    println!("scope: {}", String::from_utf8_lossy(&answer));
    Ok(())
}
