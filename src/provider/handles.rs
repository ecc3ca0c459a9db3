//! Owned handles of what a provider made, with verbs that are safe to call.
//!
//! A method of [`Provider`] is `unsafe` because it takes a pointer and cannot know that the object behind it is alive.
//! A handle here owns its object from the verb that made it to the verb that ends it, so it does know. The layers above
//! call the handle and need no `unsafe` of their own.
#![allow(unsafe_code, reason = "calls verbs on the object that the handle owns")]

use super::{Opened, Provider};
use crate::provider::reviewed::Promises;
use crate::sys::{self, ibv_event_type as Kind};
use crate::verb_error::{VerbError, note_leak};
use std::{os::fd::RawFd, ptr::NonNull, time::Duration};

/// The pointer to a provider's object. Having it allows nothing: a verb on it takes `unsafe` code, which answers for
/// the object being alive.
#[derive(Debug)]
pub(crate) struct ObjectPtr<T>(pub(crate) NonNull<T>);

// SAFETY: verbs may be called from any thread (see `OpenContext`), and the pointer is used by `unsafe` code only.
unsafe impl<T> Send for ObjectPtr<T> {}
// SAFETY: shared access copies the pointer.
unsafe impl<T> Sync for ObjectPtr<T> {}

impl<T> Clone for ObjectPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for ObjectPtr<T> {}

/// An open device context. Dropping it closes the device, so whatever is made from it keeps it alive.
pub(crate) struct OpenContext {
    /// # Invariants
    ///
    /// 0. Came from `provider`, is open, and nobody else closes it.
    pub(crate) raw: NonNull<sys::ibv_context>,
    pub(crate) provider: &'static dyn Provider,
}

// ASSUMPTION: verbs may be called from any thread, except a destroy that races with a use of the same object. SAFETY:
// libibverbs allows verbs on one context from any thread (`ibv_open_device(3)` and the kernel's
// `Documentation/infiniband/user_verbs`), except a destroy that races with a use; ownership rules that race out. The
// soft device takes a lock.
unsafe impl Send for OpenContext {}
// SAFETY: the same documents allow several threads at once.
unsafe impl Sync for OpenContext {}

impl OpenContext {
    /// Takes over a context that was opened just now.
    pub(crate) fn new(opened: Opened) -> Self {
        Self { raw: opened.context, provider: opened.provider }
    }

    /// `ibv_query_device`.
    pub(crate) fn query_device(&self) -> Result<sys::ibv_device_attr, VerbError> {
        // SAFETY: open, and of this provider (0).
        unsafe { self.provider.query_device(self.raw) }
    }

    /// `ibv_query_device_ex`.
    pub(crate) fn query_device_ex(&self) -> Result<sys::ibv_device_attr_ex, VerbError> {
        // SAFETY: open, and of this provider (0).
        unsafe { self.provider.query_device_ex(self.raw) }
    }

    /// What the device itself says of its provider; `None` for hardware.
    pub(crate) fn own_promises(&self) -> Option<&'static Promises> {
        // SAFETY: open, and of this provider (0).
        unsafe { self.provider.promises(self.raw) }
    }

    /// `ibv_query_port`. Ports count from 1.
    pub(crate) fn query_port(&self, port: u8) -> Result<sys::ibv_port_attr, VerbError> {
        // SAFETY: open, and of this provider (0).
        unsafe { self.provider.query_port(self.raw, port) }
    }

    /// `ibv_query_gid_table`: the filled rows of all ports.
    pub(crate) fn query_gid_table(&self) -> Result<Vec<sys::ibv_gid_entry>, VerbError> {
        // SAFETY: open, and of this provider (0).
        unsafe { self.provider.query_gid_table(self.raw) }
    }

    /// `ibv_query_pkey`: row `index` of the table of partition keys, in host byte order.
    pub(crate) fn query_pkey(&self, port: u8, index: u16) -> Result<u16, VerbError> {
        // SAFETY: open, and of this provider (0).
        unsafe { self.provider.query_pkey(self.raw, port, index) }
    }

    /// The descriptor that is readable while asynchronous events wait; it lives as long as the context.
    pub(crate) fn async_fd(&self) -> RawFd {
        // SAFETY: open, and of this provider (0).
        unsafe { self.provider.async_fd(self.raw) }
    }

    /// Takes and acknowledges one asynchronous event, if there is one.
    pub(crate) fn take_async_event(&self) -> Result<Option<RawEvent>, VerbError> {
        // SAFETY: open, and of this provider (0).
        let event = unsafe { self.provider.take_async_event(self.raw) }?;
        Ok(event.map(|event| RawEvent::of(&event)))
    }

    /// How many completion vectors the device says that it has.
    pub(crate) fn completion_vectors(&self) -> i32 {
        // SAFETY: open (0), so the struct is there; providers write this field only while they open the device.
        unsafe { (*self.raw.as_ptr()).num_comp_vectors }
    }

    /// Whether the provider can bind windows of type 1.
    pub(crate) fn has_bind_mw(&self) -> bool {
        // SAFETY: open (0), so the struct is there; providers write the table only while they open the device.
        unsafe { (*self.raw.as_ptr()).ops.bind_mw }.is_some()
    }

    /// How long until the device wants to be polled although nothing has happened; `None` if it runs by itself.
    pub(crate) fn next_timer(&self) -> Option<Duration> {
        self.provider.next_timer(self.raw)
    }
}

impl Drop for OpenContext {
    fn drop(&mut self) {
        // SAFETY: open, and nobody else closes it (0); what was made from it holds this handle, so nothing is left.
        if let Err(error) = unsafe { self.provider.close_device(self.raw) } {
            note_leak("a device context", error);
        }
    }
}

/// An asynchronous event, copied out of the union of `ibv_async_event`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RawEvent {
    pub(crate) kind: Kind,
    pub(crate) about: About,
}

/// What an asynchronous event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum About {
    /// The object that was at this address when the event was made. It may be gone by now.
    Object(usize),
    /// A port, by a number that nobody has checked.
    Port(i32),
    /// The whole device, or a kind of event that this library does not know.
    Device,
}

impl RawEvent {
    fn of(event: &sys::ibv_async_event) -> Self {
        let kind = event.event_type;
        let about = match kind {
            Kind::IBV_EVENT_CQ_ERR
            | Kind::IBV_EVENT_QP_FATAL
            | Kind::IBV_EVENT_QP_REQ_ERR
            | Kind::IBV_EVENT_QP_ACCESS_ERR
            | Kind::IBV_EVENT_QP_LAST_WQE_REACHED
            | Kind::IBV_EVENT_COMM_EST
            | Kind::IBV_EVENT_SQ_DRAINED
            | Kind::IBV_EVENT_PATH_MIG
            | Kind::IBV_EVENT_PATH_MIG_ERR
            | Kind::IBV_EVENT_SRQ_ERR
            | Kind::IBV_EVENT_SRQ_LIMIT_REACHED => {
                // SAFETY: an event of one of these kinds has a pointer in the union (`ibv_get_async_event(3)`).
                About::Object(unsafe { event.element.qp }.addr())
            }
            Kind::IBV_EVENT_PORT_ACTIVE
            | Kind::IBV_EVENT_PORT_ERR
            | Kind::IBV_EVENT_LID_CHANGE
            | Kind::IBV_EVENT_PKEY_CHANGE
            | Kind::IBV_EVENT_SM_CHANGE
            | Kind::IBV_EVENT_CLIENT_REREGISTER
            | Kind::IBV_EVENT_GID_CHANGE => {
                // SAFETY: an event of one of these kinds has a port number in the union (`ibv_get_async_event(3)`).
                About::Port(unsafe { event.element.port_num })
            }
            _ => About::Device,
        };
        Self { kind, about }
    }
}

/// The 16 bytes of a GID, in network byte order.
pub(crate) fn gid_bytes(gid: &sys::ibv_gid) -> [u8; 16] {
    // SAFETY: each member of the union has 16 bytes, of which any are a value.
    unsafe { gid.raw }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys::ibv_async_event__bindgen_ty_1 as Element;
    use std::ptr;

    #[test]
    fn each_kind_of_event_has_its_member_of_the_union() {
        let of = |code, element| RawEvent::of(&sys::ibv_async_event { element, event_type: Kind(code) }).about;
        for code in (0..8).chain(14..17) {
            assert_eq!(of(code, Element { qp: ptr::without_provenance_mut(0x1000) }), About::Object(0x1000), "{code}");
        }
        for code in (9..14).chain(17..19) {
            assert_eq!(of(code, Element { port_num: -1 }), About::Port(-1), "{code}");
        }
        for code in [8, 19, 20, u32::MAX] {
            assert_eq!(of(code, Element { port_num: 1 }), About::Device, "{code}");
        }
    }
}
