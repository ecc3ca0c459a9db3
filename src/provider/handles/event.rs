//! The events that a device reports by itself.

pub(crate) use crate::sys::inline::About;
use crate::sys::{self, ibv_event_type as Kind};

/// An asynchronous event, copied out of the union of `ibv_async_event`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RawEvent {
    pub(crate) kind: Kind,
    pub(crate) about: About,
}

impl RawEvent {
    pub(super) fn of(event: &sys::ibv_async_event) -> Self {
        Self { kind: event.event_type, about: event.about() }
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
