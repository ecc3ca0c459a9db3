//! The code that the check reads: one function for each operation of the data path. The functions do not unwrap or
//! index. They return everything that they get, so they drop nothing, except `pool_drop`. When run, the program prints
//! their names.
#![forbid(unsafe_code)]

use interlock::error::{BatchError, NoBuffer, PollError, PostAllError};
use interlock::memory::Pool;
use interlock::request::{Batch, PostedMemory, Write};
use interlock::{
    Buffer, Checked, Failure, Inline, Poller, PostError, ProtectionDomain, QueuePair, RemoteAll, RemoteRegion,
    SharedBuffer, Success, Work, WorkId, WorkRequest,
};
use std::hint::black_box;
use std::sync::Mutex;

interlock::domain! { struct Bench; }

type Pair = QueuePair<Bench>;
type Remote = RemoteRegion<RemoteAll>;
type Posted<T> = Result<WorkId, PostError<T>>;
type Request = WorkRequest<Buffer<Bench>, Write>;

macro_rules! probes {
    ($($name:ident)+) => {
        fn main() {
            // `black_box` hides from the compiler what is done with the address of a function. So the compiler keeps
            // the function, and assumes nothing about its arguments.
            $(
                black_box($name as *const ());
                println!(stringify!($name));
            )+
            black_box(control as *const ());
            // The check also reads the poll functions, which are called through pointers only (`limits::POINTED`). This
            // function refers to them, so they are in the program.
            black_box(ProtectionDomain::<Bench>::completion_queue_with as *const ());
        }
    };
}

probes! {
    post_send post_send_immediate post_write post_read post_compare_and_swap post_fetch_and_add post_shared
    post_inline post_receive post_request post_checked batch batch_post batch_post_each batch_post_all post_all poll
    poll_each poll_retired pool_take pool_drop
}

/// The result of a completion. The program never reads the result: the check is about the code that makes it.
#[allow(dead_code, reason = "only made")]
enum Outcome {
    Sent(PostedMemory<Bench>),
    Written(PostedMemory<Bench>),
    Read(Buffer<Bench>),
    Atomic(Buffer<Bench>, u64),
    Received(Buffer<Bench>, Option<u32>),
    WrittenByPeer(Buffer<Bench>, u32),
    Other(Work<Bench>),
    Failed(Failure<Bench>),
}

impl Outcome {
    #[inline(always)]
    fn of(completion: interlock::Completion<Bench>) -> Self {
        match completion.check() {
            Ok(success) => match success.into_work() {
                Work::Sent(memory) => Self::Sent(memory),
                Work::Written(memory) => Self::Written(memory),
                Work::Read(buffer) => Self::Read(buffer),
                Work::Atomic { original, buffer, .. } => Self::Atomic(buffer, original),
                Work::Received(received) => Self::Received(received.buffer, received.immediate),
                Work::WrittenWithImmediate(written) => Self::WrittenByPeer(written.buffer, written.immediate),
                other => Self::Other(other),
            },
            Err(failure) => Self::Failed(failure),
        }
    }
}

#[inline(never)]
fn post_send(pair: &mut Pair, buffer: Buffer<Bench>) -> Posted<Buffer<Bench>> {
    pair.post_send(buffer)
}

#[inline(never)]
fn post_send_immediate(pair: &mut Pair, buffer: Buffer<Bench>) -> Posted<Buffer<Bench>> {
    pair.post_send_with_immediate(buffer, 7)
}

#[inline(never)]
fn post_write(pair: &mut Pair, buffer: Buffer<Bench>, target: &Remote) -> Posted<Buffer<Bench>> {
    pair.post_write(buffer, target)
}

#[inline(never)]
fn post_read(pair: &mut Pair, buffer: Buffer<Bench>, source: &Remote) -> Posted<Buffer<Bench>> {
    pair.post_read(buffer, source)
}

#[inline(never)]
fn post_compare_and_swap(pair: &mut Pair, result: Buffer<Bench>, target: &Remote) -> Posted<Buffer<Bench>> {
    pair.post_compare_and_swap(result, target, 0, 1)
}

#[inline(never)]
fn post_fetch_and_add(pair: &mut Pair, result: Buffer<Bench>, target: &Remote) -> Posted<Buffer<Bench>> {
    pair.post_fetch_and_add(result, target, 1)
}

#[inline(never)]
fn post_shared(pair: &mut Pair, share: SharedBuffer<Bench>) -> Posted<SharedBuffer<Bench>> {
    pair.post_send(share)
}

#[inline(never)]
fn post_inline<'a>(pair: &mut Pair, bytes: &'a [u8]) -> Posted<Inline<'a>> {
    pair.post_send(Inline(bytes))
}

#[inline(never)]
fn post_receive(pair: &mut Pair, buffer: Buffer<Bench>) -> Posted<Buffer<Bench>> {
    pair.post_receive(buffer)
}

#[inline(never)]
fn post_request(pair: &mut Pair, request: Request) -> Posted<Request> {
    pair.post(request)
}

#[inline(never)]
fn post_checked(pair: &mut QueuePair<Checked>, buffer: Buffer<Checked>) -> Posted<Buffer<Checked>> {
    pair.post_send(buffer)
}

#[inline(never)]
fn batch(pair: &mut Pair, f: &mut dyn FnMut(&mut Batch<'_, '_, Bench>)) -> Result<(), BatchError<Bench, ()>> {
    pair.batch(|batch| f(batch))
}

#[inline(never)]
fn batch_post(batch: &mut Batch<'_, '_, Bench>, request: Request) -> Posted<Request> {
    batch.post(request)
}

/// The iterator is the program's own code, so it is called through a pointer, which the walk does not follow.
#[inline(never)]
fn batch_post_each(
    batch: &mut Batch<'_, '_, Bench>,
    requests: &mut dyn Iterator<Item = Request>,
) -> Result<usize, PostError<Request>> {
    batch.post_each(requests)
}

/// The iterator is called through a pointer, as in `batch_post_each`.
#[inline(never)]
fn batch_post_all(
    batch: &mut Batch<'_, '_, Bench>,
    buffers: &mut Vec<Buffer<Bench>>,
    make: &mut dyn FnMut(Buffer<Bench>) -> Request,
) -> Result<usize, PostError<Request>> {
    batch.post_all(buffers, make)
}

/// The iterator is called through a pointer, as in `batch_post_each`.
#[inline(never)]
fn post_all(
    pair: &mut Pair,
    buffers: &mut Vec<Buffer<Bench>>,
    make: &mut dyn FnMut(Buffer<Bench>) -> Request,
) -> Result<usize, PostAllError<Bench, Request>> {
    pair.post_all(buffers, make)
}

#[inline(never)]
fn poll(poller: &mut Poller<Bench>) -> Result<Option<Outcome>, PollError> {
    poller.poll().map(|completion| completion.map(Outcome::of))
}

#[inline(never)]
fn poll_each(poller: &mut Poller<Bench>, to: &mut dyn FnMut(Outcome)) -> Result<usize, PollError> {
    poller.poll_each(|completion| to(Outcome::of(completion)))
}

#[inline(never)]
fn poll_retired(
    poller: &mut Poller<Bench>,
    unsignalled: &mut dyn FnMut(Success<Bench>),
    to: &mut dyn FnMut(Outcome),
) -> Result<usize, PollError> {
    poller.poll_retired(|mut retired| {
        retired.unsignalled().for_each(&mut *unsignalled);
        to(Outcome::of(retired.into_completion()));
    })
}

#[inline(never)]
fn pool_take(pool: &Pool<Bench>, len_bytes: usize) -> Result<Buffer<Bench>, NoBuffer> {
    pool.try_take(len_bytes)
}

#[inline(never)]
fn pool_drop(buffer: Buffer<Bench>) {
    drop(buffer);
}

/// This is not an operation. It contains every kind of forbidden code, and the check must find all of it.
#[inline(never)]
fn control(numbers: &Mutex<Vec<u64>>, at: usize) -> Option<(Box<u64>, String)> {
    let numbers = numbers.lock().ok()?;
    Some((Box::new(numbers[at]), format!("{numbers:?}")))
}
