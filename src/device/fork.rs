//! What becomes of registered memory when the process forks.

#[cfg(feature = "rdma-core")]
use crate::sys::ibv_fork_status;
use crate::verb_error::VerbError;

/// Whether memory that a device works on stays with this process when it forks.
///
/// After a fork, parent and child share each page until one of them writes it and gets a copy. If the parent writes
/// first, the device goes on with the old page, which only the child has now: what the device receives is lost to the
/// parent. That loses data, but it neither frees memory nor shares any that was not shared before. (`fork(2)` is not
/// safe Rust, but programs that start others use it.)
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_fork_status")]
pub enum ForkSupport {
    /// It does not. A child must call `exec` at once. A program that cannot promise that must not fork while memory is
    /// registered.
    #[doc(alias = "IBV_FORK_DISABLED")]
    Disabled,
    /// Registered pages are kept from children: a child that touches them, or data on the same pages, gets a signal.
    #[doc(alias = "IBV_FORK_ENABLED")]
    Enabled,
    /// The kernel copies registered pages for the child at the fork (Linux 5.12 and later), or there are only soft
    /// devices.
    #[doc(alias = "IBV_FORK_UNNEEDED")]
    Unneeded,
}

/// What happens to registered memory in a fork, with the present settings.
///
/// `ibv_is_fork_initialized(3)`. In any case, the child must not use an object of this library.
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

/// Keeps memory that is registered from now on out of children, if the kernel does not protect it by itself.
///
/// `ibv_fork_init(3)`. Call it before anything is registered on a device that is not soft. From then on each
/// registration costs one more system call.
///
/// # Errors
///
/// `EINVAL`: memory was registered before; `ENOSYS`: the kernel is too old.
#[doc(alias = "ibv_fork_init")]
#[doc(alias = "RDMAV_FORK_SAFE")]
pub fn enable_fork_support() -> Result<ForkSupport, VerbError> {
    #[cfg(feature = "rdma-core")]
    crate::provider::rdma_core::fork_init()?;
    Ok(fork_support())
}
