//! The state that all objects of an open device share.

use super::objects::Objects;
use crate::provider::Opened;
use crate::provider::handles::OpenContext;
use crate::provider::reviewed::{Promises, UNREVIEWED, row_of};
use crate::sys;
use crate::verb_error::VerbError;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Identifies a device: by its name and, for a soft device, by the address of its fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DeviceKey {
    pub(super) name: Arc<str>,
    fabric: usize,
}

#[cfg(feature = "cm")]
impl DeviceKey {
    /// Whether it is the device of that name, in that fabric (0 for a device that is not a soft one).
    pub(crate) fn is(&self, name: &str, fabric: usize) -> bool {
        *self.name == *name && self.fabric == fabric
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// An open device, and the state that the library keeps for it. Every object made from the device holds a reference to
/// this.
pub(crate) struct ContextInner {
    open: Arc<OpenContext>,
    pub(crate) device: DeviceKey,
    pub(super) soft: bool,
    /// The live objects that asynchronous events can name.
    pub(crate) objects: Objects,
    pub(super) event_state: EventState,
    /// The provider's reviewed row, on which the library relies.
    promises: &'static Promises,
    /// What the device answered when it was opened. Its limits do not change.
    limits: sys::ibv_device_attr,
}

/// The verbs on the open device.
impl Deref for ContextInner {
    type Target = OpenContext;
    fn deref(&self) -> &OpenContext {
        &self.open
    }
}

impl ContextInner {
    /// The handle of the open device. Whatever is made on the device holds it, too.
    pub(crate) fn open(&self) -> &Arc<OpenContext> {
        &self.open
    }

    /// Takes over a device that was opened just now. Fails if the device cannot be queried: its vendor and part name
    /// the provider, and the row of a provider has the precautions that it needs.
    pub(super) fn new(opened: Opened, name: &str) -> Result<Self, VerbError> {
        let device = DeviceKey { name: name.into(), fabric: opened.fabric.unwrap_or(0) };
        let soft = opened.fabric.is_some();
        let (objects, event_state) = (Objects::default(), EventState::default());
        let open = Arc::new(OpenContext::new(opened));
        let limits = open.query_device()?;
        let promises = open.own_promises().or_else(|| row_of(&limits)).unwrap_or(&UNREVIEWED);
        Ok(Self { open, device, soft, objects, event_state, promises, limits })
    }

    /// The limits of the device. (The attributes of other kinds may have changed since it was opened.)
    pub(crate) fn limits(&self) -> &sys::ibv_device_attr {
        &self.limits
    }

    /// The promises of the provider.
    pub(crate) fn promises(&self) -> &'static Promises {
        self.promises
    }
}

/// The state of the events of an open device.
#[derive(Debug, Default)]
pub(super) struct EventState {
    /// Whether an [`AsyncEvents`](super::AsyncEvents) handle exists.
    pub(super) taken: AtomicBool,
    /// Whether [`AsyncEvent::DeviceFatal`](super::AsyncEvent::DeviceFatal) was returned.
    pub(super) fatal: AtomicBool,
}
