//! What all objects of an open device share.

use super::objects::Objects;
use crate::provider::Opened;
use crate::provider::handles::OpenContext;
use crate::provider::reviewed::{Promises, UNREVIEWED, row_of};
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

/// Identifies a device: by its name and, for a soft device, by the address of its fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DeviceKey {
    pub(super) name: Arc<str>,
    fabric: usize,
}

/// An open device, and what the library keeps of it. All that is made from the device holds a reference to this.
pub(crate) struct ContextInner {
    open: OpenContext,
    pub(crate) device: DeviceKey,
    pub(super) soft: bool,
    /// What asynchronous events can be about.
    pub(crate) objects: Objects,
    pub(super) event_state: EventState,
    /// What its provider may be believed, from the first time that it was asked for.
    pub(super) promises: OnceLock<&'static Promises>,
}

/// The verbs on the open device.
impl Deref for ContextInner {
    type Target = OpenContext;
    fn deref(&self) -> &OpenContext {
        &self.open
    }
}

impl ContextInner {
    /// Takes over a device that was opened just now.
    pub(super) fn new(opened: Opened, name: &str) -> Self {
        let device = DeviceKey { name: name.into(), fabric: opened.fabric.unwrap_or(0) };
        let (soft, promises) = (opened.fabric.is_some(), OnceLock::new());
        let (objects, event_state) = (Objects::default(), EventState::default());
        let open = OpenContext::new(opened);
        Self { open, device, soft, objects, event_state, promises }
    }

    /// What its provider may be believed.
    pub(crate) fn promises(&self) -> &'static Promises {
        self.promises.get_or_init(|| {
            let by_number = || self.query_device().ok().and_then(|device| row_of(&device));
            self.own_promises().or_else(by_number).unwrap_or(&UNREVIEWED)
        })
    }
}

/// The state of the events of an open device.
#[derive(Debug, Default)]
pub(super) struct EventState {
    /// There is a handle.
    pub(super) taken: AtomicBool,
    /// [`AsyncEvent::DeviceFatal`](super::AsyncEvent::DeviceFatal) has been given out.
    pub(super) fatal: AtomicBool,
}
