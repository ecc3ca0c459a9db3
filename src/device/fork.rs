//! What becomes of registered memory when the process forks.

use crate::error::VerbError;
#[cfg(feature = "rdma-core")]
use crate::sys::ibv_fork_status;

/// Whether memory that a device works on stays with this process when it forks.
///
/// After a fork parent and child share each page until one of them writes it and gets a copy. If that is the parent, the
/// device goes on with the page that only the child has now: what it receives is lost to the parent. No memory is freed or
/// shared by that which was not before, and `fork(2)` is not safe Rust; but programs that start others do it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_fork_status")]
pub enum ForkSupport {
    /// It does not. A child must call `exec` at once, and none may be made between registration and deregistration by
    /// who cannot promise that.
    #[doc(alias = "IBV_FORK_DISABLED")]
    Disabled,
    /// Registered pages are kept from children: a child that touches them, or data on the same pages, gets a signal.
    #[doc(alias = "IBV_FORK_ENABLED")]
    Enabled,
    /// The kernel copies such pages for the child (Linux 5.12 and later), or there are no devices but soft ones.
    #[doc(alias = "IBV_FORK_UNNEEDED")]
    Unneeded,
}

/// What happens to registered memory in a fork, as things are.
///
/// `ibv_is_fork_initialized(3)`. The child must leave all objects of this library alone in any case.
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

/// Keeps memory that is registered from now on from children, where the kernel does not do what is needed anyway.
///
/// `ibv_fork_init(3)`. Call it before anything is registered on a device that is not soft. It costs a system call for each
/// registration from then on.
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
