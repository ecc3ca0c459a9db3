//! Access rights as types: presets, and what each of them allows.
//!
//! | preset | device writes for us | peer reads | peer writes | peer atomics | the program gets |
//! |---|---|---|---|---|---|
//! | [`LocalRead`] | | | | | `&mut [u8]`, shared buffers |
//! | [`LocalWrite`] | yes | | | | `&mut [u8]`, buffers, shared buffers |
//! | [`RemoteRead`] | | yes | | | `&[u8]`, shared buffers |
//! | [`RemoteWrite`] | yes | | yes | | words |
//! | [`RemoteReadWrite`] | yes | yes | yes | | words |
//! | [`RemoteAtomic`] | yes | | | yes | words |
//! | [`RemoteAll`] | yes | yes | yes | yes | words |
//!
//! The specification has no remote write or atomics without local write; nor is there a preset for it.

use crate::sys::ibv_access_flags as flags;

mod sealed {
    #[allow(unnameable_types, reason = "seals `Access`")]
    pub trait Sealed {
        const FLAGS: crate::sys::ibv_access_flags;
    }
}

/// Rights of a memory region. Sealed: the presets of this module.
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

/// Peers may read it.
#[diagnostic::on_unimplemented(
    message = "a peer may not read memory granted as `{Self}`",
    label = "needs remote read",
    note = "its owner must register it with `RemoteRead`, `RemoteReadWrite` or `RemoteAll`"
)]
#[doc(alias = "IBV_ACCESS_REMOTE_READ")]
pub trait PeerMayRead: Exposed {}

/// Peers may write it.
#[diagnostic::on_unimplemented(
    message = "a peer may not write to memory granted as `{Self}`",
    label = "needs remote write",
    note = "its owner must register it with `RemoteWrite`, `RemoteReadWrite` or `RemoteAll`"
)]
#[doc(alias = "IBV_ACCESS_REMOTE_WRITE")]
pub trait PeerMayWrite: Exposed {}

/// Peers may do atomics on it.
#[diagnostic::on_unimplemented(
    message = "a peer may not do atomics on memory granted as `{Self}`",
    label = "needs remote atomic",
    note = "its owner must register it with `RemoteAtomic` or `RemoteAll`"
)]
#[doc(alias = "IBV_ACCESS_REMOTE_ATOMIC")]
pub trait PeerMayAtomic: Exposed {}

/// No peer can change it, so the program may borrow it as `&[u8]`.
#[diagnostic::on_unimplemented(
    message = "a peer can write to memory registered as `{Self}` at any time, so it is never `&[u8]`",
    label = "peers may write here",
    note = "copy out of it with `read_into` or `load`, or register without `RemoteWrite` and `RemoteAtomic`"
)]
pub trait PeerCannotWrite: Access {}

/// No peer reaches it at all, so the program may borrow it as `&mut [u8]`.
#[diagnostic::on_unimplemented(
    message = "a peer can reach memory registered as `{Self}` at any time, so it is never `&mut [u8]`",
    label = "peers reach this memory",
    note = "write with `write_from` or `store`, or register with `LocalRead` or `LocalWrite`"
)]
pub trait Unexposed: PeerCannotWrite {}

/// Peers reach it in some way.
#[diagnostic::on_unimplemented(
    message = "no peer reaches memory registered as `{Self}`",
    label = "private memory",
    note = "register it with a preset that starts with `Remote`"
)]
pub trait Exposed: Access {}

macro_rules! preset {
    ($(#[$doc:meta])* $name:ident = $($flag:ident)|+ => $($capability:ident),*) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name {}
        impl sealed::Sealed for $name {
            const FLAGS: flags = flags(0 $(| flags::$flag.0)+);
        }
        impl Access for $name {}
        $(impl $capability for $name {})*
    };
}

/// The device reads it for its own program: what is sent and what is written to peers.
#[derive(Debug)]
pub enum LocalRead {}
impl sealed::Sealed for LocalRead {
    const FLAGS: flags = flags(0);
}
impl Access for LocalRead {}
impl PeerCannotWrite for LocalRead {}
impl Unexposed for LocalRead {}

preset! {
    /// The device reads and writes it for its own program.
    LocalWrite = IBV_ACCESS_LOCAL_WRITE => DeviceMayWrite, PeerCannotWrite, Unexposed
}
preset! {
    /// Peers may read it.
    RemoteRead = IBV_ACCESS_REMOTE_READ => Exposed, PeerMayRead, PeerCannotWrite
}
preset! {
    /// Peers may write it.
    RemoteWrite = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE => DeviceMayWrite, Exposed, PeerMayWrite
}
preset! {
    /// Peers may read and write it.
    RemoteReadWrite = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE
        => DeviceMayWrite, Exposed, PeerMayRead, PeerMayWrite
}
preset! {
    /// Peers may do atomics on it.
    RemoteAtomic = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC => DeviceMayWrite, Exposed, PeerMayAtomic
}
preset! {
    /// Peers may read it, write it and do atomics on it.
    RemoteAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC
        => DeviceMayWrite, Exposed, PeerMayRead, PeerMayWrite, PeerMayAtomic
}
