//! Rule D5: everything of a domain is invariant in its brand.

use interlock::completion::{Armed, CompletionChannel};
use interlock::memory::{Pool, SplitRegion, Take};
use interlock::queue::{ReceiveHalf, SendHalf};
use interlock::request::PostedMemory;
use interlock::shared::SharedReceiveQueue;
use interlock::{
    AnyQueuePair, Completion, CompletionQueue, Failure, LocalWrite, MemoryRegion, Poller, ProtectionDomain, Scoped,
    SharedBuffer, Success,
};

type Region<B> = MemoryRegion<B, LocalWrite>;
type Rest<B> = SplitRegion<B, LocalWrite>;

macro_rules! keep {
    ($($object:ident,)+) => {$(
        const _: () = {
            fn keep<'long: 'short, 'short>(object: $object<Scoped<'long>>) -> $object<Scoped<'long>> {
                object
            }
        };
    )+};
}
keep! {
    ProtectionDomain,
    CompletionQueue,
    CompletionChannel,
    Poller,
    Armed,
    Completion,
    Success,
    Failure,
    Region,
    Rest,
    SharedBuffer,
    Pool,
    Take,
    SharedReceiveQueue,
    SendHalf,
    ReceiveHalf,
    AnyQueuePair,
    PostedMemory,
}

fn main() {}
