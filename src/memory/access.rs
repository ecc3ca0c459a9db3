//! Access rights as types: presets, and what each of them allows.

use crate::sys::ibv_access_flags as flags;

pub(super) mod sealed {
    #[allow(unnameable_types, reason = "seals `Access`")]
    pub trait Sealed {
        const FLAGS: crate::sys::ibv_access_flags;
        /// Whether peers address the first byte as 0.
        const ZERO_BASED: bool = false;
    }
}

/// The name of the rights `A` in messages: a preset without its path.
pub(super) fn name<A>() -> &'static str {
    let name = std::any::type_name::<A>();
    if name.contains('<') { name } else { name.rsplit("::").next().unwrap_or(name) }
}

/// Rights of a memory region. Sealed: these presets, and what each of them allows.
///
/// | preset | device writes for us | peer reads | peer writes | peer atomics | the program gets |
/// |---|---|---|---|---|---|
/// | [`LocalRead`] | | | | | `&mut [u8]`, shared buffers |
/// | [`LocalWrite`] | yes | | | | `&mut [u8]`, buffers, shared buffers |
/// | [`RemoteRead`] | | yes | | | `&[u8]`, shared buffers |
/// | [`RemoteWrite`] | yes | | yes | | copies, words |
/// | [`RemoteReadWrite`] | yes | yes | yes | | copies, words |
/// | [`RemoteAtomic`] | yes | | | yes | copies, words |
/// | [`RemoteAll`] | yes | yes | yes | yes | copies, words |
///
/// The specification forbids remote write and remote atomics without local write, so no preset has them.
///
/// [`RelaxedOrdering`](crate::access::RelaxedOrdering), [`OnDemand`](crate::access::OnDemand) and
/// [`ZeroBased`](crate::access::ZeroBased) wrap a preset and change how the memory is registered:
/// `OnDemand<RemoteRead>`. A peer does not see the wrapper: on its side, the record of such a region is a record of the
/// preset. On this side, [`RemoteRegion::restrict`](super::RemoteRegion::restrict) turns it into the same type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a set of access rights",
    label = "not access rights",
    note = "use `LocalRead`, `LocalWrite`, `RemoteRead`, `RemoteWrite`, `RemoteReadWrite`, `RemoteAtomic` or `RemoteAll`",
    note = "peer write or atomics without local write do not exist (`ibv_reg_mr(3)`)"
)]
#[doc(alias = "ibv_access_flags")]
pub trait Access: sealed::Sealed + 'static {}

/// The device may write here for its own program: receives, results of reads and atomics.
#[diagnostic::on_unimplemented(
    message = "the device may not write to memory registered as `{Self}`",
    label = "needs local write",
    note = "register the memory with `LocalWrite`"
)]
#[doc(alias = "IBV_ACCESS_LOCAL_WRITE")]
pub trait DeviceMayWrite: Access {}

/// Peers may read the memory.
#[diagnostic::on_unimplemented(
    message = "a peer may not read memory granted as `{Self}`",
    label = "needs remote read",
    note = "its owner must register it with `RemoteRead`, `RemoteReadWrite` or `RemoteAll`"
)]
#[doc(alias = "IBV_ACCESS_REMOTE_READ")]
pub trait PeerMayRead: Exposed {}

/// Peers may write the memory.
#[diagnostic::on_unimplemented(
    message = "a peer may not write to memory granted as `{Self}`",
    label = "needs remote write",
    note = "its owner must register it with `RemoteWrite`, `RemoteReadWrite` or `RemoteAll`"
)]
#[doc(alias = "IBV_ACCESS_REMOTE_WRITE")]
pub trait PeerMayWrite: Exposed {}

/// Peers may do atomics on the memory.
#[diagnostic::on_unimplemented(
    message = "a peer may not do atomics on memory granted as `{Self}`",
    label = "needs remote atomic",
    note = "its owner must register it with `RemoteAtomic` or `RemoteAll`"
)]
#[doc(alias = "IBV_ACCESS_REMOTE_ATOMIC")]
pub trait PeerMayAtomic: Exposed {}

/// Peers may change the memory, by writes or by atomics, so the program never borrows it.
#[diagnostic::on_unimplemented(
    message = "no peer changes memory registered as `{Self}`",
    label = "the program may borrow it",
    note = "use `as_bytes`, `load` and `store`, or register it with a preset that lets peers write or do atomics"
)]
pub trait PeerMayChange: Access {}

/// No peer can change the memory, so the program may borrow it as `&[u8]`.
#[diagnostic::on_unimplemented(
    message = "a peer can write to memory registered as `{Self}` at any time, so it is never `&[u8]`",
    label = "peers may write here",
    note = "copy out of it with `read_into` or `load`, or register without `RemoteWrite` and `RemoteAtomic`"
)]
pub trait PeerCannotWrite: Access {}

/// No peer reaches the memory at all, so the program may borrow it as `&mut [u8]`.
#[diagnostic::on_unimplemented(
    message = "a peer can reach memory registered as `{Self}` at any time, so it is never `&mut [u8]`",
    label = "peers reach this memory",
    note = "write with `write_from` or `store`, or register with `LocalRead` or `LocalWrite`"
)]
pub trait Unexposed: PeerCannotWrite {}

/// Peers may read the memory, write it or do atomics on it.
#[diagnostic::on_unimplemented(
    message = "no peer reaches memory registered as `{Self}`",
    label = "private memory",
    note = "register it with a preset that starts with `Remote`"
)]
pub trait Exposed: Access {}

const LOCAL_WRITE: u32 = flags::IBV_ACCESS_LOCAL_WRITE.0;
const REMOTE_READ: u32 = flags::IBV_ACCESS_REMOTE_READ.0;
const REMOTE_WRITE: u32 = flags::IBV_ACCESS_REMOTE_WRITE.0;
const REMOTE_ATOMIC: u32 = flags::IBV_ACCESS_REMOTE_ATOMIC.0;

/// The device reads the memory for its own program: to send it, or to write it to a peer.
#[derive(Debug)]
pub enum LocalRead {}
impl Access for LocalRead {}
impl PeerCannotWrite for LocalRead {}
impl Unexposed for LocalRead {}
impl sealed::Sealed for LocalRead {
    const FLAGS: flags = flags(0);
}

/// The device reads and writes the memory for its own program.
#[derive(Debug)]
pub enum LocalWrite {}
impl Access for LocalWrite {}
impl DeviceMayWrite for LocalWrite {}
impl PeerCannotWrite for LocalWrite {}
impl Unexposed for LocalWrite {}
impl sealed::Sealed for LocalWrite {
    const FLAGS: flags = flags(LOCAL_WRITE);
}

/// Peers may read the memory.
#[derive(Debug)]
pub enum RemoteRead {}
impl Access for RemoteRead {}
impl Exposed for RemoteRead {}
impl PeerMayRead for RemoteRead {}
impl PeerCannotWrite for RemoteRead {}
impl sealed::Sealed for RemoteRead {
    const FLAGS: flags = flags(REMOTE_READ);
}

/// Peers may write the memory.
#[derive(Debug)]
pub enum RemoteWrite {}
impl Access for RemoteWrite {}
impl DeviceMayWrite for RemoteWrite {}
impl Exposed for RemoteWrite {}
impl PeerMayWrite for RemoteWrite {}
impl PeerMayChange for RemoteWrite {}
impl sealed::Sealed for RemoteWrite {
    const FLAGS: flags = flags(LOCAL_WRITE | REMOTE_WRITE);
}

/// Peers may read and write the memory.
#[derive(Debug)]
pub enum RemoteReadWrite {}
impl Access for RemoteReadWrite {}
impl DeviceMayWrite for RemoteReadWrite {}
impl Exposed for RemoteReadWrite {}
impl PeerMayRead for RemoteReadWrite {}
impl PeerMayWrite for RemoteReadWrite {}
impl PeerMayChange for RemoteReadWrite {}
impl sealed::Sealed for RemoteReadWrite {
    const FLAGS: flags = flags(LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE);
}

/// Peers may do atomics on the memory.
#[derive(Debug)]
pub enum RemoteAtomic {}
impl Access for RemoteAtomic {}
impl DeviceMayWrite for RemoteAtomic {}
impl Exposed for RemoteAtomic {}
impl PeerMayAtomic for RemoteAtomic {}
impl PeerMayChange for RemoteAtomic {}
impl sealed::Sealed for RemoteAtomic {
    const FLAGS: flags = flags(LOCAL_WRITE | REMOTE_ATOMIC);
}

/// Peers may read the memory, write it and do atomics on it.
#[derive(Debug)]
pub enum RemoteAll {}
impl Access for RemoteAll {}
impl DeviceMayWrite for RemoteAll {}
impl Exposed for RemoteAll {}
impl PeerMayRead for RemoteAll {}
impl PeerMayWrite for RemoteAll {}
impl PeerMayAtomic for RemoteAll {}
impl PeerMayChange for RemoteAll {}
impl sealed::Sealed for RemoteAll {
    const FLAGS: flags = flags(LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC);
}
