//! Hole S-3: a completion that is read after its poll was ended.

use interlock::{Brand, Buffer, Poller};

fn read<B: Brand>(mut poller: Poller<B>) -> Option<Buffer<B>> {
    let completion = poller.poll().ok()??;
    drop(poller);
    let success = completion.check().ok()?;
    success.into_received().ok()
}

fn main() {}
