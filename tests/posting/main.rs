//! Tests that every way of posting has the same results: each operation, in each way that the device has.

mod atomic_writes;
mod batches;
mod operations;

use interlock::attributes::ConnectAttributes;
use interlock::error::{CreateError, PostAllError};
use interlock::queue::Posting;
use interlock::request::SendMemory;
use interlock::transport::Carries;
use interlock::{
    Brand, Limits, Poller, PostError, ProtectionDomain, QueuePair, ReliableConnection, Success, WorkId, WorkRequest,
};
use support::{Link, connect_to_each_other, next};

const WAYS: [Posting; 2] = [Posting::List, Posting::WorkRequestApi];
const INLINE: u32 = 32;

/// Two connected pairs that post by `posting`, with up to 32 bytes inline; `None` if the device does not offer that
/// way.
fn link<B: Brand>(domain: &ProtectionDomain<B>, depth: u32, posting: Posting) -> Option<Link<B>> {
    link_with(domain, Limits { sends: depth, receives: depth, inline_bytes: INLINE, elements: 1, posting })
}

fn link_with<B: Brand>(domain: &ProtectionDomain<B>, limits: Limits) -> Option<Link<B>> {
    let Limits { sends: depth, posting, elements, .. } = limits;
    let port = domain.context().active_port().unwrap();
    let (queue, poller) = domain.completion_queue(4 * depth).unwrap();
    let room = queue.room();
    let pair = || domain.reliable(&queue, &limits);
    let left = match pair() {
        Err(error @ CreateError::NoWorkRequestApi(_)) => {
            assert_eq!(posting, Posting::WorkRequestApi);
            assert!(error.to_string().contains("Posting::List"), "{error}");
            assert_eq!(queue.room(), room, "the lease came back");
            // Soft-RoCE has `ibv_wr_*`, but many of its versions handle a request of several buffers wrongly. So on
            // soft-RoCE the library refuses `ibv_wr_*` for pairs with such requests, and only for these.
            assert!(elements > 1 || !domain.context().name().starts_with("rxe"), "rxe has it: {error}");
            return None;
        }
        left => left.unwrap().into_init(&port).unwrap(),
    };
    assert_eq!(left.limits().posting, posting);
    let right = pair().unwrap().into_init(&port).unwrap();
    // Soft-RoCE can stop for ever when it sends a fenced request again (it deviates in C062). So the ACK timeout is one
    // second, which makes this unlikely.
    let slow = ConnectAttributes { timeout: 18.try_into().unwrap(), ..ConnectAttributes::default() };
    let (left, right) = connect_to_each_other(domain, left, right, &slow);
    Some(Link { domain: domain.clone(), port, queue, poller, left, right })
}

/// Posts all of `items`, in a batch or one by one.
fn post_all<B: Brand, X, M: SendMemory<B>, K>(
    pair: &mut QueuePair<B>,
    in_batch: bool,
    items: &mut Vec<X>,
    make: impl FnMut(X) -> WorkRequest<M, K>,
) -> Result<usize, PostError<WorkRequest<M, K>>>
where
    ReliableConnection: Carries<K>,
{
    if in_batch {
        return pair.batch(|batch| batch.post_all(items, make)).unwrap();
    }
    pair.post_all(items, make).map_err(|error| match error {
        PostAllError::Stopped(error) => *error,
        error => panic!("{error}"),
    })
}

/// Waits for the success of request `id`, and drops other completions.
fn success_of<B: Brand>(poller: &mut Poller<B>, id: WorkId) -> Success<B> {
    loop {
        let success = next(poller);
        if success.id() == id {
            return success;
        }
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}
