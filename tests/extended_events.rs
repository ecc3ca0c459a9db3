//! All that `tests/events.rs` shows, with extended completion queues: a program of its own, since it watches for events that do
//! not come, and the soft device wakes all who wait for what others do there.
#![allow(clippy::duplicate_mod, reason = "each program has what they share for itself")]

mod events;
