//! The handle of an open device context, and the events that the device reports.
#![allow(unsafe_code, reason = "calls verbs on the context that the handle owns, reads unions by their tag")]

use super::{ObjectPtr, safe_verbs};
use crate::provider::reviewed::{self, Promises};
use crate::provider::{Opened, Provider};
use crate::sys::{self, ibv_event_type as Kind};
use crate::verb_error::{VerbError, note_leak};
use std::{os::fd::BorrowedFd, ptr::NonNull, time::Duration};

/// The type of `ibv_context_ops::bind_mw`.
pub(crate) type BindMw = unsafe extern "C" fn(*mut sys::ibv_qp, *mut sys::ibv_mw, *mut sys::ibv_mw_bind) -> i32;

/// An open device context. Dropping it closes the device, so whatever is made from it keeps it alive.
///
/// ASSUMPTION: verbs may be called from any thread, except a destroy that races with a use of the same object.
/// libibverbs allows verbs on one context from any thread (`ibv_open_device(3)` and the kernel's
/// `Documentation/infiniband/user_verbs`); ownership rules out the race. The soft device takes a lock.
pub(crate) struct OpenContext {
    /// # Invariants
    ///
    /// 0. Came from `provider`, is open, and nobody else closes it.
    raw: ObjectPtr<sys::ibv_context>,
    pub(crate) provider: &'static dyn Provider,
}

impl OpenContext {
    /// Takes over a context that was opened just now.
    pub(crate) fn new(opened: Opened) -> Self {
        Self { raw: ObjectPtr(opened.context), provider: opened.provider }
    }

    /// The pointer, to make objects of this context.
    pub(super) fn raw(&self) -> NonNull<sys::ibv_context> {
        self.raw.0
    }

    /// The context is open as long as the handle lives, so no verb is refused.
    #[allow(clippy::unnecessary_wraps, reason = "as for handles that may outlive their object")]
    fn alive(&self, _: &'static str) -> Result<NonNull<sys::ibv_context>, VerbError> {
        Ok(self.raw.0)
    }

    fn provider(&self) -> &'static dyn Provider {
        self.provider
    }

    safe_verbs! {
        /// `ibv_query_device`.
        fn query_device = query_device() -> sys::ibv_device_attr;
        /// `ibv_query_device_ex`.
        fn query_device_ex = query_device_ex() -> sys::ibv_device_attr_ex;
        /// `ibv_query_port`. Ports count from 1.
        fn query_port = query_port(port: u8) -> sys::ibv_port_attr;
        /// `ibv_query_gid_table`: the filled rows of all ports.
        fn query_gid_table = query_gid_table() -> Vec<sys::ibv_gid_entry>;
        /// `ibv_query_pkey`: row `index` of the table of partition keys, in host byte order.
        fn query_pkey = query_pkey(port: u8, index: u16) -> u16;
        /// `ibv_get_async_event`.
        fn take_any_event = take_async_event() -> Option<sys::ibv_async_event>;
    }

    /// Takes and acknowledges one asynchronous event, if there is one.
    pub(crate) fn take_async_event(&self) -> Result<Option<RawEvent>, VerbError> {
        Ok(self.take_any_event()?.map(|event| RawEvent::of(&event)))
    }

    /// What the device itself says of its provider; `None` for hardware.
    pub(crate) fn own_promises(&self) -> Option<&'static Promises> {
        // SAFETY: open, and of this provider (0).
        unsafe { self.provider.promises(self.raw.0) }
    }

    /// The descriptor that is readable while asynchronous events wait.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open (0), so the struct is there; providers write this field only while they open the device.
        let fd = unsafe { (*self.raw.0.as_ptr()).async_fd };
        // SAFETY: the descriptor lives as long as the context, which this handle alone closes (0).
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// How many completion vectors the device says that it has.
    pub(crate) fn completion_vectors(&self) -> i32 {
        // SAFETY: open (0), so the struct is there; providers write this field only while they open the device.
        unsafe { (*self.raw.0.as_ptr()).num_comp_vectors }
    }

    /// Whether the device speaks iWARP.
    pub(crate) fn is_iwarp(&self) -> bool {
        // SAFETY: open (0), so the struct is there; nobody writes this field once the device is open.
        let device = unsafe { (*self.raw.0.as_ptr()).device };
        // SAFETY: the device of an open context, or null.
        let device = unsafe { device.as_ref() };
        let iwarp = sys::ibv_transport_type::IBV_TRANSPORT_IWARP;
        device.is_some_and(|device| device.transport_type == iwarp) || self.is_soft_iwarp()
    }

    /// Whether this is a soft device that resembles soft iWARP.
    fn is_soft_iwarp(&self) -> bool {
        self.own_promises().is_some_and(|row| row.name == reviewed::SIW.name)
    }

    /// The provider's functions for the data path, and for binding windows of type 1.
    pub(crate) fn functions(&self) -> sys::ibv_context_ops {
        // SAFETY: open (0), so the struct is there; providers write the table only while they open the device.
        unsafe { (*self.raw.0.as_ptr()).ops }
    }

    /// The provider's function that binds windows of type 1, if it has one.
    pub(crate) fn bind_mw(&self) -> Option<BindMw> {
        self.functions().bind_mw
    }

    /// Opens a channel of rdma_cm for this device.
    #[cfg(feature = "cm")]
    pub(crate) fn open_cm(
        &self,
    ) -> Result<std::sync::Arc<dyn crate::provider::cm::RawChannel>, crate::provider::cm::OpenFailure> {
        // SAFETY: open, and of this provider (0).
        unsafe { self.provider.open_cm(self.raw.0) }
    }

    /// How long until the device wants to be polled although nothing has happened; `None` if it runs by itself.
    pub(crate) fn next_timer(&self) -> Option<Duration> {
        self.provider.next_timer(self.raw.0)
    }
}

impl Drop for OpenContext {
    fn drop(&mut self) {
        // SAFETY: open, and nobody else closes it (0); what was made from it holds this handle, so nothing is left.
        if let Err(error) = unsafe { self.provider.close_device(self.raw.0) } {
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
