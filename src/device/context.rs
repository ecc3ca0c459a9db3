//! An open device.

use super::inner::ContextInner;
use super::{DeviceAttributes, Port, PortState, devices, hardware};
use crate::provider::environment::forbidden_variable;
use crate::provider::reviewed::Promises;
use crate::provider::{self, Opened};
use crate::types::{Pkey, PortNumber};
use crate::verb_error::VerbError;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fmt, fs};

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No device has that name.
    #[error("no RDMA device has the name {name:?} (available: {})", names(available))]
    NoSuchDevice {
        /// The name that the program gave.
        name: String,
        /// The names of the devices that exist.
        available: Vec<String>,
    },
    /// [`Context::open_default`] found no RDMA device of this machine that it can use. It never takes a simulated
    /// device instead: open one by [`Context::open`] with `soft0`, or by `INTERLOCK_DEVICE=soft0`.
    #[error(
        "this machine has no usable RDMA device ({}); {} (see docs/failures.md#no-hardware)",
        reasons(unusable),
        what_to_check()
    )]
    NoHardware {
        /// The devices that exist, each with the reason why it cannot be used.
        unusable: Vec<String>,
    },
    /// An environment variable is set that makes failed destroys look like successes, switches locks off, or misplaces
    /// data.
    #[error(
        "the environment variable {variable} makes a provider hide failures, leave out locks or misplace data: unset it \
         (see docs/failures.md#forbidden-environment)"
    )]
    ForbiddenEnvironment {
        /// Its name.
        variable: &'static str,
    },
    /// The device exists but cannot be opened or queried.
    #[error("cannot open {name}{}", may_not(.source))]
    Refused {
        /// Its name.
        name: String,
        /// What the device answered.
        source: VerbError,
    },
    /// libibverbs could not make the list of devices.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

fn names(available: &[String]) -> String {
    if available.is_empty() { "none".to_owned() } else { available.join(", ") }
}

fn reasons(unusable: &[String]) -> String {
    if unusable.is_empty() { "none is listed".to_owned() } else { unusable.join("; ") }
}

/// The part of a message that says what to check on a machine without a usable device.
fn what_to_check() -> &'static str {
    if !cfg!(feature = "rdma-core") {
        "this program was built without the feature `rdma-core`: it has only the simulated device soft0, \
         which INTERLOCK_DEVICE=soft0 or Context::open(\"soft0\") opens"
    } else if !cfg!(feature = "soft") {
        "check that the device's kernel module is loaded, that ibv_devices lists the device, and that this user may open \
         /dev/infiniband/uverbs*; INTERLOCK_DEVICE=NAME chooses a device; \
         for the simulated device soft0, build with the feature `soft`"
    } else {
        "check that the device's kernel module is loaded, that ibv_devices lists the device, and that this user may open \
         /dev/infiniband/uverbs*; INTERLOCK_DEVICE=NAME chooses a device; \
         INTERLOCK_DEVICE=soft0 chooses a simulated one inside the process"
    }
}

/// The hint that this user may not open the device. libibverbs answers `ENOENT` not only if the device node is missing,
/// but also if the user may not open it.
fn may_not(source: &VerbError) -> &'static str {
    match source.errno() {
        libc::EACCES | libc::EPERM | libc::ENOENT => {
            " (check that its /dev/infiniband/uverbs node exists, and that this user may open it)"
        }
        _ => "",
    }
}

/// An open device, from which all other objects are made.
///
/// A handle: clones name the same open device, which is closed when the last clone and the last object made from it are
/// dropped.
#[derive(Clone)]
#[doc(alias = "ibv_context")]
#[doc(alias = "ibv_close_device")]
pub struct Context(pub(crate) Arc<ContextInner>);

impl Context {
    /// Opens the device `name`: one of this machine, or `soft0` or `soft1`, the soft devices of this process.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: no such device, a forbidden environment variable, or what the device answered.
    ///
    /// # Examples
    ///
    /// ```
    /// let context = interlock::Context::open("soft0")?;
    /// assert_eq!(context.name(), "soft0");
    /// # Ok::<(), interlock::error::OpenError>(())
    /// ```
    #[doc(alias = "ibv_open_device")]
    pub fn open(name: &str) -> Result<Self, OpenError> {
        if let Some(variable) = forbidden_variable() {
            return Err(OpenError::ForbiddenEnvironment { variable });
        }
        if let Some(opened) = provider::open(name).map_err(|source| refused(name, source))? {
            return Self::from_opened(opened, name);
        }
        let available = devices()?.iter().map(|device| device.name().to_owned()).collect();
        Err(OpenError::NoSuchDevice { name: name.to_owned(), available })
    }

    /// Opens the device that the environment variable `INTERLOCK_DEVICE` names. If the variable is not set, opens the
    /// first RDMA device of this machine that can be opened and has an active port.
    ///
    /// It never opens a simulated device unless the variable names one: `INTERLOCK_DEVICE=soft0`. A program that can
    /// run on a simulation when there is no hardware calls [`open("soft0")`](Self::open).
    ///
    /// # Errors
    ///
    /// [`OpenError::NoHardware`] says what to check. If the variable is set, as [`open`](Self::open).
    pub fn open_default() -> Result<Self, OpenError> {
        if let Some(name) = env::var_os("INTERLOCK_DEVICE").filter(|name| !name.is_empty()) {
            return Self::open(&name.to_string_lossy());
        }
        let mut unusable = Vec::new();
        for device in hardware()? {
            let reason = match device.open() {
                Ok(context) => match context.active_port() {
                    Ok(_) => return Ok(context),
                    Err(error) => format!("{}: {error}", device.name()),
                },
                Err(error @ OpenError::ForbiddenEnvironment { .. }) => return Err(error),
                Err(OpenError::Refused { name, source }) => {
                    format!("cannot open {name}{}: {source}", may_not(&source))
                }
                Err(error) => format!("{}: {error}", device.name()),
            };
            unusable.push(reason);
        }
        Err(OpenError::NoHardware { unusable })
    }

    /// Opens a device of the program's own soft fabric. The device is made at its first use.
    ///
    /// # Errors
    ///
    /// The error that the fabric was told to answer with.
    #[cfg(feature = "soft")]
    pub fn open_on(fabric: &crate::soft::Fabric, name: &str) -> Result<Self, OpenError> {
        let opened = Opened::on(fabric, name).map_err(|source| refused(name, source))?;
        Self::from_opened(opened, name)
    }

    fn from_opened(opened: Opened, name: &str) -> Result<Self, OpenError> {
        let inner = ContextInner::new(opened, name).map_err(|source| refused(name, source))?;
        Ok(Self(Arc::new(inner)))
    }

    /// The name of the device.
    pub fn name(&self) -> &str {
        &self.0.device.name
    }

    /// The capabilities and limits of the device.
    ///
    /// # Errors
    ///
    /// The device is gone (`EIO`).
    #[doc(alias = "ibv_query_device")]
    pub fn attributes(&self) -> Result<DeviceAttributes, VerbError> {
        self.0.query_device().map(DeviceAttributes)
    }

    /// How many completion vectors there are, for
    /// [`CompletionQueueOptions::vector`](crate::completion::CompletionQueueOptions::vector): at least 1.
    #[doc(alias = "num_comp_vectors")]
    pub fn completion_vectors(&self) -> u32 {
        self.0.completion_vectors().try_into().unwrap_or(0).max(1)
    }

    /// The partition keys of a port, each with its row. Invalid rows are left out.
    ///
    /// `ibv_query_pkey(3)`, once for each row of the table.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the device has no such port. `EIO`: the device is gone.
    #[doc(alias = "ibv_query_pkey")]
    pub fn partition_keys(&self, port: PortNumber) -> Result<Vec<(u16, Pkey)>, VerbError> {
        let rows = self.0.query_port(port.value())?.pkey_tbl_len;
        let mut keys = Vec::new();
        for row in 0..rows {
            let key = Pkey(self.0.query_pkey(port.value(), row)?);
            if key.is_valid() {
                keys.push((row, key));
            }
        }
        Ok(keys)
    }

    /// The promises of the device's provider, on which the library relies.
    ///
    /// They are chosen when the device is opened (`ibv_query_device(3)`): a device that does not answer is not opened.
    pub fn promises(&self) -> Promises {
        *self.0.promises()
    }

    /// One port. The GID that RoCE traffic usually needs is already chosen (see [`Port`]).
    ///
    /// # Errors
    ///
    /// `EINVAL`: the device has no such port.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self, number: PortNumber) -> Result<Port, VerbError> {
        let attributes = self.0.query_port(number.value())?;
        let table = self.0.query_gid_table()?;
        Ok(Port::new(self.0.device.clone(), number, attributes, &table, self.is_iwarp()))
    }

    /// All ports of the device.
    ///
    /// # Errors
    ///
    /// The device is gone (`EIO`).
    pub fn ports(&self) -> Result<Vec<Port>, VerbError> {
        let count = self.attributes()?.port_count();
        (1..=count).filter_map(|number| PortNumber::new(number).ok()).map(|number| self.port(number)).collect()
    }

    /// The first port that is active.
    ///
    /// # Errors
    ///
    /// [`NoActivePort`] lists the states of the ports.
    pub fn active_port(&self) -> Result<Port, NoActivePort> {
        let ports = self.ports()?;
        let states = ports.iter().map(|port| (port.number(), port.state())).collect();
        ports.into_iter().find(Port::is_active).ok_or(NoActivePort::Inactive { states })
    }

    /// Whether it speaks iWARP, RDMA over TCP. Such a device connects through rdma_cm only.
    #[doc(alias = "transport_type")]
    pub fn is_iwarp(&self) -> bool {
        self.0.is_iwarp()
    }

    /// The address of its card on the PCI bus, such as `0000:3b:00.0`; `None` for a device that is not a PCI card.
    pub fn pci_address(&self) -> Option<String> {
        let card = fs::canonicalize(self.sysfs("device")?).ok()?;
        let address = card.file_name()?.to_str()?.to_owned();
        (address.matches(':').count() == 2).then_some(address)
    }

    /// The NUMA node that its card is attached to: threads and memory of that node reach it soonest. `None` if the
    /// system does not say.
    pub fn numa_node(&self) -> Option<u32> {
        fs::read_to_string(self.sysfs("device/numa_node")?).ok()?.trim().parse().ok()
    }

    /// A file of the device in sysfs.
    fn sysfs(&self, file: &str) -> Option<PathBuf> {
        (!self.is_soft()).then(|| Path::new("/sys/class/infiniband").join(self.name()).join(file))
    }

    /// Whether this is a soft device of the process, not a device of the machine.
    pub fn is_soft(&self) -> bool {
        self.0.soft
    }
}

fn refused(name: &str, source: VerbError) -> OpenError {
    OpenError::Refused { name: name.to_owned(), source }
}

/// No port of a device carries traffic.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoActivePort {
    /// No port is active.
    #[error(
        "no port is active: {}; bring up the port's network interface, or on InfiniBand check the link and the subnet \
         manager",
        list(states)
    )]
    Inactive {
        /// The ports and their states.
        states: Vec<(PortNumber, PortState)>,
    },
    /// The device answered with an error.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

fn list(states: &[(PortNumber, PortState)]) -> String {
    let words: Vec<String> = states.iter().map(|(port, state)| format!("port {port} is {state}")).collect();
    if words.is_empty() { "the device has none".to_owned() } else { words.join(", ") }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.0.device.name).finish()
    }
}
