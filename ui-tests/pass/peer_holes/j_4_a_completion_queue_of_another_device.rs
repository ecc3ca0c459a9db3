//! Hole J-4: a queue pair with the completion queue of another device.

use interlock::{Context, Limits};

interlock::domain! { struct Storage; struct Scratch; }

fn mix(one: &Context, other: &Context) -> Result<(), Box<dyn std::error::Error>> {
    let (here, there) = (one.named_domain(Storage)?, other.named_domain(Scratch)?);
    let (queue, _poller) = here.completion_queue(16)?;
    drop(here.reliable(&queue, &Limits::default())?);
    drop(there);
    Ok(())
}

fn main() {}
