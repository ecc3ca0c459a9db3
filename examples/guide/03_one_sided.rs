//! # 3. One-sided writes into granted memory
//!
//! One side grants memory to the other, which writes two lines there. docs/guide.md explains it.
//! Run it with `INTERLOCK_DEVICE=soft0 cargo run --example guide_03_one_sided`.
use anyhow::bail;
use interlock::{Context, Limits, RemoteRegion, RemoteWrite, Work};
use std::time::Duration;

interlock::domain! { struct Board; }

const WAIT: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let (port, limits) = (context.active_port()?, Limits::default());
    let domain = context.named_domain(Board)?;
    let (owner_queue, mut owner_poller) = domain.completion_queue(limits.completions())?;
    let (writer_queue, mut writer_poller) = domain.completion_queue(limits.completions())?;

    let mut owner = domain.reliable(&owner_queue, &limits)?.into_init(&port)?;
    let writer = domain.reliable(&writer_queue, &limits)?.into_init(&port)?;
    owner.post_receive(domain.buffer(8)?)?; // an immediate takes a receive, so each immediate in flight needs one
    let (to_owner, to_writer) = (owner.endpoint(), writer.endpoint());
    let (_owner, mut writer) = (owner.connect(&to_writer)?, writer.connect(&to_owner)?);

    // The owner grants access to 4096 bytes. The record describes this grant in 24 bytes. Between real machines, the
    // owner sends the record in a message or over a socket.
    let board = domain.register::<RemoteWrite, _>(vec![0_u64; 512].into_boxed_slice())?;
    let record: [u8; 24] = board.remote().to_bytes();

    // The writer writes two lines to the board. The second write also carries an immediate: the number of lines.
    let granted = RemoteRegion::<RemoteWrite>::from_bytes(&record)?;
    let (mut first, mut second) = (domain.buffer(64)?, domain.buffer(64)?);
    first.write(b"first line")?;
    second.write(b"second line")?;
    writer.post_write(first, &granted.slice(0..64)?)?;
    writer.post_write_with_immediate(second, &granted.slice(64..128)?, 2)?;
    for _ in 0..2 {
        writer_poller.wait(WAIT)?.check()?;
    }

    // The owner receives the immediate, and copies the lines.
    let Work::WrittenWithImmediate(news) = owner_poller.wait(WAIT)?.check()?.into_work() else {
        bail!("another completion than the one that is due");
    };
    let mut copy = [0; 128];
    board.read_into(0, &mut copy)?;
    println!("{} lines: {:?}, {:?}", news.immediate, text(&copy[..64]), text(&copy[64..]));

    let board = board.deregister()?; // from now on no peer can access the memory: it is an ordinary `Box` again
    assert_eq!(board[0].to_ne_bytes(), *b"first li");
    Ok(())
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default().trim_end_matches('\0')
}
