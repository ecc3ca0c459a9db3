//! Rule D5: everything of a domain is invariant in its brand.

use interlock::{
    AnyQueuePair, Armed, Completion, CompletionChannel, CompletionQueue, Failure, LocalWrite, MemoryRegion, Poller,
    PostedMemory, ProtectionDomain, ReceiveHalf, Scoped, SendHalf, SharedBuffer, SharedReceiveQueue, SplitRegion,
    Success,
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
    SharedReceiveQueue,
    SendHalf,
    ReceiveHalf,
    AnyQueuePair,
    PostedMemory,
}

fn main() {}
