//! Devices: listing them, opening one, its limits, its ports, and what its provider promises.
//!
//! [`devices`] lists what can be opened; [`Context::open`] opens one by name, [`Context::open_default`] the usual one.
//! A [`Context`] is a handle: clones name the same open device, which is closed with the last object made from it.
//! A [`Port`] has the address ([`GidEntry`]) by which peers reach this machine.
//!
//! ```
//! use interlock::Context;
//!
//! let context = Context::open("soft0")?;
//! let port = context.active_port()?;
//! println!("{} queue pairs at most, MTU {:?}", context.attributes()?.max_queue_pairs(), port.active_mtu());
//! println!("{:#?}", context.promises());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod attributes;
pub(crate) mod context;
pub(crate) mod events;
mod fork;
mod inner;
pub(crate) mod iwarp;
pub(crate) mod objects;
mod paging;
pub(crate) mod port;

pub use crate::provider::reviewed::Promises;
pub use attributes::DeviceAttributes;
pub use context::Context;
pub(crate) use context::OpenError;
pub use fork::{ForkSupport, enable_fork_support, fork_support};
pub(crate) use inner::ContextInner;
#[cfg(feature = "cm")]
pub(crate) use objects::{CompletionQueueId, SharedReceiveQueueId};
pub use paging::{OnDemandPaging, PagedOperation};
pub use port::{GidEntry, GidKind, LinkLayer, LinkSpeed, Port, PortState};

use crate::provider;
use crate::verb_error::VerbError;
use std::fmt;

/// A device that could be opened.
#[derive(Clone, PartialEq, Eq)]
#[doc(alias = "ibv_device")]
pub struct Device {
    name: String,
    guid: u64,
    soft: bool,
}

impl Device {
    /// The name, such as `mlx5_0`, `rxe0` or `soft0`.
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The globally unique identifier, host byte order.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Whether this is a soft device of the process, not a device of the machine.
    pub fn is_soft(&self) -> bool {
        self.soft
    }

    /// Opens the device.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context, OpenError> {
        Context::open(&self.name)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name)
            .field("guid", &format_args!("{:#018x}", self.guid))
            .finish_non_exhaustive()
    }
}

/// The RDMA devices of this machine, then the soft devices of this process.
///
/// `ibv_get_device_list(3)`. A machine without RDMA has only the soft devices; a build without the feature `soft` has
/// no soft ones.
///
/// # Errors
///
/// libibverbs could not make the list (rare: out of memory, or sysfs may not be read).
///
/// # Examples
///
/// ```
/// for device in interlock::devices()? {
///     println!("{} {:#018x}", device.name(), device.guid());
/// }
/// # Ok::<(), interlock::VerbError>(())
/// ```
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<Vec<Device>, VerbError> {
    let mut all = hardware()?;
    all.extend(provider::simulated().into_iter().map(|d| Device {
        name: d.name,
        guid: u64::from_be(d.guid_be),
        soft: true,
    }));
    Ok(all)
}

/// The devices that are not soft.
fn hardware() -> Result<Vec<Device>, VerbError> {
    // libibverbs reads its environment only once, at its first use, which is perhaps the call of `provider::hardware`
    // below. So record now whether a forbidden variable is set. Then `open` fails even if the program has unset the
    // variable by then.
    let _ = provider::environment::forbidden_variable();
    let listed = provider::hardware()?;
    Ok(listed.into_iter().map(|d| Device { name: d.name, guid: u64::from_be(d.guid_be), soft: false }).collect())
}
