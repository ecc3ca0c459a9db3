//! Registered memory in a process that forks.

#[cfg(feature = "rdma-core")]
use crate::sys::ibv_fork_status;
use crate::verb_error::VerbError;

/// Whether memory that a device works on stays with this process when it forks.
///
/// After a fork, parent and child share each page until one of them writes it and gets a copy. If the parent writes
/// first, the child keeps the old page, and the device goes on using that page: the parent never sees what the device
/// receives. The parent loses data, but nothing is freed, and nothing is shared that was not shared before. (`fork(2)`
/// is not safe Rust, but programs that start others use it.)
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_fork_status")]
pub enum ForkSupport {
    /// Registered memory is not protected. A child must call `exec` at once. If a program cannot
    /// guarantee this, it must not fork while memory is registered.
    #[doc(alias = "IBV_FORK_DISABLED")]
    Disabled,
    /// Children get no registered pages: a child that touches them, or other data on the same pages, gets a signal.
    #[doc(alias = "IBV_FORK_ENABLED")]
    Enabled,
    /// The kernel copies registered pages for the child at the fork (Linux 5.12 and later), or there are only soft
    /// devices.
    #[doc(alias = "IBV_FORK_UNNEEDED")]
    Unneeded,
}

/// How registered memory is protected in a fork, with the present settings.
///
/// `ibv_is_fork_initialized(3)`. Even if it is protected, the child must not use an object of this library.
#[doc(alias = "ibv_is_fork_initialized")]
pub fn fork_support() -> ForkSupport {
    #[cfg(feature = "rdma-core")]
    return match crate::provider::rdma_core::fork_status() {
        ibv_fork_status::IBV_FORK_UNNEEDED => ForkSupport::Unneeded,
        ibv_fork_status::IBV_FORK_ENABLED => ForkSupport::Enabled,
        _ => ForkSupport::Disabled,
    };
    #[cfg(not(feature = "rdma-core"))]
    ForkSupport::Unneeded
}

/// Keeps memory that is registered from now on out of child processes, if the kernel does not do so by itself.
///
/// `ibv_fork_init(3)`. Call it before the first device that is not soft is opened, and before the first channel of
/// [`cm`](crate::cm). From then on each registration costs one more system call.
///
/// # Errors
///
/// `EINVAL`: a device or a channel was opened before, and the kernel does not protect registered memory by itself;
/// `ENOSYS`: the kernel is too old.
#[doc(alias = "ibv_fork_init")]
#[doc(alias = "RDMAV_FORK_SAFE")]
pub fn enable_fork_support() -> Result<ForkSupport, VerbError> {
    #[cfg(feature = "rdma-core")]
    crate::provider::rdma_core::fork_init()?;
    Ok(fork_support())
}
