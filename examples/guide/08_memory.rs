//! # 8. Choosing memory
//!
//! The kinds of memory that only this program and the device touch, one after the other. docs/guide.md explains it.
//! Run it with `INTERLOCK_DEVICE=soft0 cargo run --example guide_08_memory`.
use interlock::memory::{PoolOptions, SizeClass};
use interlock::scope::{Exclusive, InScopeError};
use interlock::{Context, Inline, Limits};
use std::time::Duration;

interlock::domain! { struct Tour; }

const WAIT: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let limits = Limits { inline_bytes: 16, ..Limits::default() };
    let domain = context.named_domain(Tour)?;
    let (queue, mut poller) = domain.completion_queue(limits.completions())?;
    let pair = domain.reliable(&queue, &limits)?.into_init(&context.active_port()?)?;
    drop(queue); // with this handle a second pair could be made, so `Exclusive::new` below would fail
    let myself = pair.endpoint();
    let mut pair = pair.connect(&myself)?; // here the pair is its own peer

    // Buffer: memory that is registered already. A post moves the buffer into the pair, and the completion of the
    // request gives the buffer back.
    for receive in domain.buffers(3, 64)? {
        pair.post_receive(receive)?;
    }
    let mut buffer = domain.buffer(64)?;
    buffer.write(b"a buffer")?;

    // SharedBuffer: read-only, so that its clones can be in flight at the same time. Once all clones are back,
    // `into_unique` makes it a buffer again.
    let shared = buffer.share();
    pair.post_send(shared.clone())?;
    pair.post_send(shared.clone())?;
    // Inline: the post copies the bytes, so they need no registration.
    pair.post_send(Inline(b"a few bytes"))?;
    for _ in 0..6 {
        poller.wait(WAIT)?.check()?; // three sends, three receives
    }
    let _buffer = shared.into_unique()?;

    // Pool: a buffer returns to its pool when it is dropped. Here each one is dropped with its completion.
    let classes = vec![SizeClass { len_bytes: 64, count: 2 }];
    let pool = domain.pool(&PoolOptions { classes, ..PoolOptions::default() })?;
    for round in 0..100 {
        pair.post_receive(pool.try_take(64)?)?;
        let mut message = pool.try_take(64)?;
        message.write(format!("message {round}").as_bytes())?;
        pair.post_send(message)?;
        for _ in 0..2 {
            drop(poller.wait(WAIT)?.check()?);
        }
    }
    println!("pool: {} of 2 buffers are at home", pool.stats().classes[0].free);

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
