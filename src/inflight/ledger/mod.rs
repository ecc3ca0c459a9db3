//! The ledger: it owns what a work queue has in flight.
//!
//! There is one ring per work queue, made with the queue's depth. The [`Poster`] (with the queue pair) puts a value in
//! when it posts. The [`Retirer`] (with the poller of the completion queue) takes the value out when its completion has
//! come, or when the work queue is proved to be [quiescent](crate::inflight::Quiescent). The two may be on two threads.
//! Neither locks nor allocates. Both are in [`ring`].
//!
//! ```text
//!            retired                 posted
//!               |                       |
//!   ....free....|....in flight..........|....free....      both counters only grow (mod 2^64)
//!               ^ Retirer takes here    ^ Poster puts here
//! ```
//!
//! A value that is posted while no other is in flight is the *sole* value. It is not put into the ring, but next to the
//! counters. So a queue with one request at a time touches one cache line.
//!
//! The counters are ids. The bits below [`STEP`] name the work queue and never change; the bits above count requests.
//! So one compare tells whether an id is in flight: an id of another queue, or of a request that was retired, is not in
//! the range.
//!
//! A value that nobody takes out is leaked with the ledger, never dropped. Only a completion or quiescence proves that
//! the device is done with the value, and only the retirer learns of either.

mod origin;
mod ring;

pub(crate) use origin::Origin;
pub(crate) use ring::{AnyOrderRetirer, CellRow, Detour, Poster, Prefix, Retirer, Retirers, ledger};

/// The most requests that one work queue may have in flight.
pub(crate) const MAX_DEPTH: u32 = 1 << 22;
/// The bits of an id that name the work queue.
pub(crate) const NAME_BITS: u32 = 22;
/// The difference between two consecutive ids.
pub(crate) const STEP: u64 = 1 << NAME_BITS;

/// The id of the request that is posted `count` requests after `id`.
#[inline(always)]
pub(crate) fn after(id: u64, count: u32) -> u64 {
    id.wrapping_add(u64::from(count) * STEP)
}

/// The number of requests from the id `from` to before the id `to`. Both are ids of one work queue.
#[inline(always)]
pub(crate) fn between(from: u64, to: u64) -> u32 {
    (to.wrapping_sub(from) >> NAME_BITS) as u32
}

/// Whether `id` is in flight: from `oldest` to before `posted`.
#[inline(always)]
fn is_between(oldest: u64, id: u64, posted: u64) -> bool {
    // The low bits of an id name its work queue; the rotation moves the low bits of the difference to the top. If `id`
    // and `oldest` name different work queues, at least one of these bits is set. Then the rotated number is greater
    // than any count of requests.
    id.wrapping_sub(oldest).rotate_right(NAME_BITS) < u64::from(between(oldest, posted))
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models;
